//! The native document of a job of OpenPAI. Parameters stay parameters, secrets become secrets without a value, and what
//! has no counterpart becomes a comment.

use std::collections::{BTreeSet, HashMap, HashSet};

use regex::{Captures, RegexBuilder};

use super::script::has_parts;
use super::values::{PARAMETERS, SECRET, Values, canonical};
use super::{SECRETS, of_prerequisites, read, values};
use crate::diag::{Code, Collected, Diagnostic, Position, Source};
use crate::formats::document::masked::masked;
use crate::formats::document::reader::Reader;
use crate::formats::document::template::words;
use crate::formats::document::tree::{Node, Value};
use crate::formats::native::is_name;
use crate::formats::native::write::{Comments, Draft, has_reference, outside_references, reference};
use crate::mask::{self, Known};
use crate::model::Job;

/// The value of secrets in a comparison.
const ANY: &str = "any";
/// Memory for the pattern that finds secrets.
const MAX_PATTERN: usize = 32 << 20;

/// A draft of the native document, and how to compare both.
pub(in crate::formats) struct Conversion {
    pub(in crate::formats) draft: Draft,
    /// The job of the original, with these values for its secrets.
    pub(in crate::formats) job: Job,
    /// The values of the secrets of the native document that give the same job.
    pub(in crate::formats) given: Vec<(String, String)>,
}

/// The conversion of a document without errors. Values of parameters are inserted unless they are `kept`.
pub(in crate::formats) fn convert(
    source: &Source,
    root: &Node,
    given: &[(String, String)],
    notices: &[Diagnostic],
    kept: bool,
) -> Option<Conversion> {
    let mut reader = Reader::new(source, Collected::default());
    let (values, _) = values(&mut reader, root, given);
    let mut names = Names::new(source, root, &values, kept);
    let with = |more: &[(String, String)]| [given, more].concat();
    let job = read(&mut reader, root, &with(&names.any)).job()?;
    let mut of_draft = read(&mut reader, root, &with(&names.references)).job()?;
    let mut comments = comments(source, root, notices);
    for (role, comments) in of_draft.roles.iter().zip(&mut comments.roles) {
        if role.work.command.iter().any(|word| has_parts(word) && has_reference(word)) {
            comments.push("Parameters in `part='…'` must not contain single quotes.".to_owned());
        }
    }
    if !kept && root.child("parameters").is_some() {
        comments.document.push("The values of its parameters are inserted.".to_owned());
    }
    let mut known = read(&mut reader, root, given).secrets;
    let texts = of_draft.roles.iter_mut().flat_map(|role| {
        let work = &mut role.work;
        work.command.iter_mut().chain(&mut work.image).chain(&mut work.queue)
    });
    names.hide(texts, &mut known)?;
    let all = comments.roles.iter_mut().flatten().chain(&mut comments.document).chain(&mut comments.policy);
    all.for_each(|comment| *comment = known.text(comment));
    let secrets = names.secrets.iter().map(|secret| secret.name.clone()).collect();
    let given = names.secrets.into_iter().map(|secret| (secret.name, secret.value)).collect();
    Some(Conversion { draft: Draft { job: of_draft, params: names.params, secrets, comments }, job, given })
}

/// A secret of the native document.
struct Secret {
    name: String,
    /// Its value in the original, or some value if that is not known or has quotes, which plugins escape.
    value: String,
}

/// The parameters and secrets of both documents.
#[derive(Default)]
struct Names {
    /// Those of the native document.
    taken: HashSet<String>,
    /// The last number of names that are wanted again.
    numbers: HashMap<String, u32>,
    params: Vec<(String, String)>,
    secrets: Vec<Secret>,
    /// The names of secrets by their values.
    by_value: HashMap<String, String>,
    /// References for the parameters and secrets that the native document has, by the original names.
    references: Vec<(String, String)>,
    /// Some value for each of its secrets, by the original names.
    any: Vec<(String, String)>,
    /// Secrets of prerequisites, which may be inserted: their keys by their values.
    inserted: HashMap<String, String>,
}

impl Names {
    fn new(source: &Source, root: &Node, values: &Values<'_>, kept: bool) -> Self {
        let mut names = Self::default();
        let mut known = Known::default();
        values.secrets.secrets(true, &mut |value| known.add(value));
        let known = known.unmistakable(&[]);
        of_prerequisites(root, |name, value| {
            names.inserted.insert(value.to_owned(), name.to_owned());
        });
        let as_secrets: HashSet<String> =
            masked::<Values<'_>>(source, root, &SECRETS, Vec::new()).1.into_iter().collect();
        let used: BTreeSet<String> = words::<Values<'_>>(&source.text).map(canonical).collect();
        let of_kind = |kind: &str| {
            let prefix = format!("{kind}.");
            used.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect::<Vec<_>>()
        };
        // All plain parameters, in their order; then the parts of others that are used.
        let all = root.child("parameters").map_or(&[][..], Node::entries).iter();
        let plain = all.filter(|(_, value)| matches!(value.value, Value::Scalar(_))).filter_map(|(key, _)| key.text());
        let mut seen = HashSet::new();
        for name in plain.map(str::to_owned).chain(of_kind(PARAMETERS)).filter(|name| seen.insert(name.clone())) {
            let full = format!("{PARAMETERS}.{name}");
            let Some(value) = values.known(&full) else { continue };
            let is_secret = name.split('.').any(|part| mask::is_secret(part) || as_secrets.contains(part))
                || !mask::secrets_of(value).is_empty()
                || known.are_in(value);
            if is_secret {
                if used.contains(&full) {
                    names.add_secret(&name, name.clone(), Some(value));
                }
            } else if kept && is_name(&name) {
                let own = names.free(&name);
                names.references.push((name, reference(&own)));
                names.params.push((own, value.to_owned()));
            }
        }
        for name in of_kind(SECRET) {
            let full = format!("{SECRET}.{name}");
            if values.known(&full).is_some() || values.given.contains_key(&full) {
                names.add_secret(&name, format!("secrets.{name}"), values.known(&full));
            }
        }
        names
    }

    /// A name that the native document does not have yet.
    fn free(&mut self, wanted: &str) -> String {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let mut name: String = wanted.chars().map(|c| if is_word(c) { c } else { '_' }).collect();
        if !is_name(&name) {
            name = format!("secret_{name}");
        }
        let first = name.clone();
        while !self.taken.insert(name.clone()) {
            let number = self.numbers.entry(first.clone()).or_insert(1);
            *number += 1;
            name = format!("{first}_{number}");
        }
        name
    }

    fn add_secret(&mut self, wanted: &str, original: String, value: Option<&str>) {
        let name = if self.taken.contains(wanted) { self.free(&format!("secret_{wanted}")) } else { self.free(wanted) };
        let value = value.filter(|value| !value.contains('\'')).unwrap_or(ANY).to_owned();
        self.any.push((original.clone(), value.clone()));
        self.references.push((original, reference(&name)));
        self.by_value.insert(value.clone(), name.clone());
        self.secrets.push(Secret { name, value });
    }

    /// The secret with this value.
    fn secret(&mut self, value: &str, wanted: &str) -> String {
        if let Some(name) = self.by_value.get(value) {
            return name.clone();
        }
        let name = self.free(wanted);
        self.by_value.insert(value.to_owned(), name.clone());
        self.secrets.push(Secret { name: name.clone(), value: value.to_owned() });
        name
    }

    /// Replaces secrets that are written in texts by references: those with the form of a secret, and the values of
    /// others, `known` or new. `None` if there are too many.
    fn hide<'t>(&mut self, texts: impl Iterator<Item = &'t mut String>, known: &mut Known) -> Option<()> {
        let mut texts: Vec<&mut String> = texts.collect();
        for text in &mut texts {
            for range in mask::secrets_of(text).into_iter().rev() {
                let value = text[range.clone()].trim_matches(['"', '\'', ';']).to_owned();
                // What a variable or a command gives is not written here.
                if value.is_empty() || value.starts_with(['$', '`', '*']) || has_reference(&value) {
                    continue;
                }
                let name = self.secret(&value, &name_before(&text[..range.start]));
                let start = range.start + text[range].find(&value).unwrap_or(0);
                text.replace_range(start..start + value.len(), &reference(&name));
            }
        }
        // A word may be there for another reason.
        let mut new = Known::default();
        self.secrets.iter().for_each(|secret| new.add(&secret.value));
        known.extend(&new.unmistakable(&[]));
        let values: Vec<String> = known.values().map(regex::escape).collect();
        if values.is_empty() {
            return Some(());
        }
        let pattern = RegexBuilder::new(&values.join("|")).size_limit(MAX_PATTERN).build().ok()?;
        for text in texts {
            *text = outside_references(text, |part| {
                let hidden = |found: &Captures<'_>| {
                    let wanted = self.inserted.get(&found[0]).cloned().unwrap_or_else(|| "secret".to_owned());
                    reference(&self.secret(&found[0], &wanted))
                };
                pattern.replace_all(part, hidden).into_owned()
            });
        }
        Some(())
    }
}

/// The name in front of a secret: `wandb_api_key` of `export WANDB_API_KEY=`, `password` of `--password `.
fn name_before(text: &str) -> String {
    let line = text.rsplit('\n').next().unwrap_or_default();
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let named = line.trim_end_matches(|c: char| !is_word(c));
    let name = named.rsplit(|c: char| !is_word(c)).next().unwrap_or_default().trim_matches('-');
    if name.is_empty() { "secret".to_owned() } else { name.to_ascii_lowercase().replace('-', "_") }
}

/// What the document says about itself, and what has no counterpart, each where it belongs.
fn comments(source: &Source, root: &Node, notices: &[Diagnostic]) -> Comments {
    let mut comments = Comments::default();
    let text = |key: &str| root.child(key).and_then(Node::text).map(str::to_owned);
    let file = source.name.rsplit('/').next().unwrap_or_default();
    comments.document.push(format!("Converted from {file}, a job of OpenPAI."));
    for key in ["contributor", "version", "description"] {
        comments.document.extend(text(key).map(|text| format!("{key}: {text}")));
    }
    let prerequisites = root.child("prerequisites").map_or(&[][..], Node::one_or_many);
    for image in prerequisites.iter().filter(|one| one.child("auth").is_some()) {
        let name = image.child("name").and_then(Node::text).unwrap_or_default();
        comments.document.push(format!("The credentials of image `{name}` are not converted."));
    }
    let roles = root.child("taskRoles").map_or(&[][..], Node::entries);
    let lines: Vec<(Position, Position)> =
        roles.iter().map(|(key, value)| (source.position(key.at.start), source.position(value.at.end))).collect();
    comments.roles = vec![Vec::new(); roles.len()];
    for notice in notices {
        let at = notice.labels.first().map(|label| label.start);
        let of_role = lines.iter().position(|(start, end)| at.is_some_and(|at| *start <= at && at < *end));
        let list = match of_role {
            _ if notice.code == Code::F0053 => &mut comments.policy,
            Some(role) => &mut comments.roles[role],
            None => &mut comments.document,
        };
        let mut sentence = notice.message.clone();
        if let Some(first) = sentence.get(..1).map(str::to_ascii_uppercase) {
            sentence.replace_range(..1, &first);
        }
        list.push(format!("{sentence}."));
    }
    comments
}
