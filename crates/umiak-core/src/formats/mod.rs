//! One module for each way to define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod document;
pub mod launch;
pub mod native;
pub mod pai;
pub mod prefix;
pub mod settings;
pub mod units;

use crate::diag::{Code, Diagnostic, Source, Span};
use crate::model::Job;
use document::reader::Reader;
use document::{Checked, Converted, Document, Format, Reading, Tree};
use pai::Conversion;
use settings::Settings;

/// The job that a document of any format describes, or all its errors. `params` are those of the command line.
pub fn parse(source: &Source, params: &[(String, String)], settings: &Settings) -> Result<Document, Vec<Diagnostic>> {
    let (mut reader, reading) = read(source, params, settings).map_err(|error| vec![error])?;
    reading.needed.iter().for_each(|(name, at)| without_value(&mut reader, name, *at));
    let Reading { job, masked, secrets, .. } = reading;
    let Some(job) = job.filter(|_| reader.errors.is_empty()) else {
        return Err(reader.into_diagnostics());
    };
    Ok(Document { job, notices: reader.into_diagnostics(), masked, secrets })
}

fn without_value(reader: &mut Reader<'_>, name: &str, at: Span) {
    reader.error(Code::F0034, at, format!("parameter `{name}` has no value"), "no default");
    reader.hint(format!("set it with `-p {name}=…`"));
}

/// Checks a document before a run: parameters without a value are not errors.
pub fn check(source: &Source, params: &[(String, String)], settings: &Settings) -> Checked {
    let (reader, reading) = match read(source, params, settings) {
        Ok(read) => read,
        Err(error) => return Checked { job: None, needed: Vec::new(), diagnostics: vec![error] },
    };
    let needed: Vec<String> = reading.needed.into_iter().map(|(name, _)| name).collect();
    let job = reading.job.filter(|_| reader.errors.is_empty() && needed.is_empty());
    Checked { job, needed, diagnostics: reader.into_diagnostics() }
}

/// The native document that does the same as a document of any format, or all its errors.
pub fn convert(
    source: &Source,
    params: &[(String, String)],
    settings: &Settings,
) -> Result<Converted, Vec<Diagnostic>> {
    let one = |error| vec![error];
    let (format, Tree { root, errors }) = tree(source).map_err(one)?;
    let mut reader = Reader::new(source, errors);
    reader.hide_secrets(&root);
    match format {
        Format::Native => {
            native::read(&mut reader, root, params, settings);
            let converted = Converted { text: source.text.clone(), format };
            return if reader.errors.is_empty() { Ok(converted) } else { Err(reader.into_diagnostics()) };
        }
        Format::OpenPai => {
            let needed = pai::read(&mut reader, &root, params).needed;
            // Secrets become secrets of the native document, and are needed there.
            let plain = needed.iter().filter(|(name, _)| !name.starts_with("secrets."));
            plain.for_each(|(name, at)| without_value(&mut reader, name, *at));
        }
        Format::PaddleFlow | Format::PaddleRec => return Err(vec![document::not_in_this_version(source, format)]),
    }
    if !reader.errors.is_empty() {
        return Err(reader.into_diagnostics());
    }
    let notices = reader.into_diagnostics();
    let mut why = Vec::new();
    // Where parameters cannot be kept without changing the job, their values are inserted.
    for kept in [true, false] {
        let Some(Conversion { draft, job, given }) = pai::convert(source, &root, params, &notices, kept) else {
            continue;
        };
        let text = native::write::write(&draft);
        match parse(&Source::new(&source.name, &text), &given, settings) {
            Ok(document) if is_same(&document.job, &job) => return Ok(Converted { text, format }),
            Ok(_) => {}
            Err(errors) => why = errors,
        }
    }
    let error = Diagnostic::error(Code::F0019, format!("no native document does the same as `{}`", source.name));
    Err(vec![why.iter().fold(error, |error, why| error.row("reason", why.message.clone()))])
}

/// True for jobs that differ at most in blanks at the end of commands.
fn is_same(one: &Job, other: &Job) -> bool {
    let trimmed = |job: &Job| {
        let mut job = job.clone();
        for word in job.roles.iter_mut().flat_map(|role| &mut role.work.command) {
            word.truncate(word.trim_end().len());
        }
        job
    };
    trimmed(one) == trimmed(other)
}

fn read<'a>(
    source: &'a Source,
    params: &[(String, String)],
    settings: &Settings,
) -> Result<(Reader<'a>, Reading), Diagnostic> {
    let (format, Tree { root, errors }) = tree(source)?;
    let mut reader = Reader::new(source, errors);
    reader.hide_secrets(&root);
    let reading = match format {
        Format::OpenPai => pai::read(&mut reader, &root, params),
        Format::Native => native::read(&mut reader, root, params, settings),
        Format::PaddleFlow | Format::PaddleRec => return Err(document::not_in_this_version(source, format)),
    };
    Ok((reader, reading))
}

/// The format of a document, and its tree.
fn tree(source: &Source) -> Result<(Format, Tree), Diagnostic> {
    if document::is_script(source) {
        return Err(document::not_a_script(source));
    }
    let (format, tree) = document::recognise(source);
    if format.is_none()
        && let Some(error) = document::framework(source, &tree)
    {
        return Err(error);
    }
    match (format, tree) {
        (Some(format), Ok(tree)) => Ok((format, tree)),
        (Some(Format::Native | Format::OpenPai) | None, Err(error)) => Err(error),
        (Some(other @ (Format::PaddleFlow | Format::PaddleRec)), Err(_)) => {
            Err(document::not_in_this_version(source, other))
        }
        (None, Ok(tree)) => Err(document::not_recognised(source, &tree.root)),
    }
}
