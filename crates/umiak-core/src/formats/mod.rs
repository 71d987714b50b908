//! One module for each way to define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod document;
pub mod elastic;
pub mod engines;
pub mod etcd;
pub mod hostlist;
pub mod kubernetes;
pub mod launch;
#[cfg(test)]
mod mutated;
pub mod native;
pub mod paddleflow;
pub mod paddlerec;
pub mod pai;
pub mod prefix;
pub mod settings;
pub mod units;

use std::path::Path;

use crate::diag::{self, Code, Diagnostic, Severity, Source, Span};
use crate::model::{EngineKind, Job, Workload};
use document::reader::{Reader, did_you_mean};
use document::{Checked, Converted, Document, Format, Reading, Tree};
use native::write::{Comments, Draft};
use pai::Conversion;
use settings::Settings;

/// The usual interpreter.
const PYTHON: &str = "python3";

/// What a command gives to a document.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// `-p name=value`; in a pipeline also `-p step.name=value`.
    pub params: &'a [(String, String)],
    /// Nodes of a pipeline to skip, besides those of the document.
    pub disabled: &'a [String],
    pub settings: &'a Settings,
    /// The directory of file systems that are not in the settings.
    pub dir: &'a Path,
    /// The other file of a submission of PaddleRec.
    pub companion: Option<&'a Source>,
    /// The Python interpreter, for formats that name a module and no command.
    pub python: &'a str,
    /// The engine of the command line, for formats whose commands depend on it.
    pub engine: Option<EngineKind>,
}

impl<'a> Given<'a> {
    /// Nothing but parameters and settings.
    pub fn new(params: &'a [(String, String)], settings: &'a Settings) -> Self {
        Self { params, disabled: &[], settings, dir: Path::new(""), companion: None, python: PYTHON, engine: None }
    }
}

/// The job or pipeline that a document of any format describes, or all its errors.
pub fn parse(source: &Source, given: &Given<'_>) -> Result<Document, Vec<Diagnostic>> {
    let (mut reader, reading) = read(source, given).map_err(|error| vec![error])?;
    let Reading { work, masked, secrets, needed, flavours, engine, target, .. } = reading;
    for (name, at) in &needed {
        without_value(&mut reader, name, *at);
    }
    for (flavour, at) in &flavours {
        let near = reader.nearest(flavour, given.settings.flavours.keys().map(String::as_str));
        reader.error(Code::F0017, *at, format!("unknown flavour `{flavour}`"), did_you_mean(near, ""));
        reader.hint(define_flavour(flavour));
    }
    let Some(work) = work.filter(|_| reader.errors.is_empty()) else {
        return Err(reader.into_diagnostics());
    };
    Ok(Document { work, notices: reader.into_diagnostics(), masked, secrets, engine, target })
}

fn without_value(reader: &mut Reader<'_>, name: &str, at: Span) {
    reader.error(Code::F0034, at, format!("parameter `{name}` has no value"), "no default");
    reader.hint(format!("set it with `-p {name}=…`"));
}

fn define_flavour(name: &str) -> String {
    format!("define it with `--flavour {name}=cpu=1,mem=1Gi`, or as `[flavour.{name}]` in `umiak.toml`")
}

/// Checks a document before a run: parameters without a value, and flavours that this host does not define, are not
/// errors.
pub fn check(source: &Source, given: &Given<'_>) -> Checked {
    let (mut reader, reading) = match read(source, given) {
        Ok(read) => read,
        Err(error) => return Checked { work: None, needed: Vec::new(), diagnostics: vec![error], dialect: None },
    };
    for (flavour, at) in &reading.flavours {
        reader.notice(Code::F0121, *at, format!("flavour `{flavour}` is not defined here"), "");
        reader.notice_hint(define_flavour(flavour));
    }
    paddleflow::versions(&mut reader, &reading.special);
    let is_pipeline = matches!(&reading.work, Some(Workload::Pipeline(pipeline)) if pipeline.paddleflow);
    let dialect = is_pipeline.then(|| paddleflow::dialect(&reading.special));
    let needed: Vec<String> = reading.needed.into_iter().map(|(name, _)| name).collect();
    let work = reading.work.filter(|_| reader.errors.is_empty() && needed.is_empty());
    Checked { work, needed, diagnostics: reader.into_diagnostics(), dialect }
}

/// The native document that does the same as a document of any format, or all its errors.
pub fn convert(source: &Source, given: &Given<'_>) -> Result<Converted, Vec<Diagnostic>> {
    let Given { params, settings, .. } = *given;
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
        Format::PaddleFlow => {
            let checked = check(source, given).diagnostics;
            if checked.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
                return Err(checked);
            }
            let message = format!("`{}` is a PaddleFlow pipeline, which has no native form", source.name);
            return Err(vec![Diagnostic::error(Code::F0019, message).hint(
                "`umiak run` runs it as it is; native documents with `steps` have no artifacts, loops or nested DAGs",
            )]);
        }
        Format::PaddleRec => return paddlerec_converted(source, given),
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
        match parse(&Source::new(&source.name, &text), &Given::new(&given, settings)) {
            Ok(Document { work: Workload::Job(converted), .. }) if is_same(&converted, &job) => {
                return Ok(Converted { text, format });
            }
            Ok(_) => {}
            Err(errors) => why = errors,
        }
    }
    let error = Diagnostic::error(Code::F0019, format!("no native document does the same as `{}`", source.name));
    Err(vec![why.iter().fold(error, |error, why| error.row("reason", why.message.clone()))])
}

/// The native document of a submission of PaddleRec.
fn paddlerec_converted(source: &Source, given: &Given<'_>) -> Result<Converted, Vec<Diagnostic>> {
    let refuse = |message: String, hint: &str| Err(vec![Diagnostic::error(Code::F0019, message).hint(hint)]);
    let Document { work, target, .. } = parse(source, given)?;
    let job = match work {
        Workload::Job(job) => *job,
        Workload::Pipeline(_) => {
            let message = format!("`{}` has several modes, which have no native form here", source.name);
            return refuse(message, "write one runner in `mode`, and convert one after the other");
        }
    };
    let mut document = vec![format!("Converted from {}, a submission of PaddleRec.", diag::shown(&source.name))];
    if let Some(backend) = target.and_then(|target| target.backend.word()) {
        document.push(format!("Its backend `{backend}` is not converted: this job runs where `--engine` says."));
    }
    let comments = Comments { document, ..Comments::default() };
    let draft = Draft { job, params: Vec::new(), secrets: Vec::new(), comments };
    let text = native::write::write(&draft);
    match parse(&Source::new(&source.name, &text), &Given::new(&[], given.settings)) {
        Ok(Document { work: Workload::Job(converted), .. }) if is_same(&converted, &draft.job) => {
            Ok(Converted { text, format: Format::PaddleRec })
        }
        Ok(_) => refuse(format!("no native document does the same as `{}`", source.name), "run it as it is"),
        Err(errors) => {
            let error =
                Diagnostic::error(Code::F0019, format!("no native document does the same as `{}`", source.name));
            Err(vec![errors.iter().fold(error, |error, why| error.row("reason", why.message.clone()))])
        }
    }
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

fn read<'a>(source: &'a Source, given: &Given<'_>) -> Result<(Reader<'a>, Reading), Diagnostic> {
    let (format, Tree { root, errors }) = tree(source)?;
    let mut reader = Reader::new(source, errors);
    let is_pipeline = match format {
        Format::PaddleFlow => true,
        Format::Native => root.child("steps").is_some(),
        Format::OpenPai | Format::PaddleRec => false,
    };
    if !given.disabled.is_empty() && !is_pipeline {
        let message = format!("`--disable` is for pipelines; `{}` is in {} format", source.name, format.name());
        return Err(Diagnostic::error(Code::L0001, message));
    }
    let reading = match format {
        Format::OpenPai => {
            reader.hide_secrets(&root);
            pai::read(&mut reader, &root, given.params)
        }
        Format::Native => {
            reader.hide_secrets(&root);
            let mut reading = native::read(&mut reader, root, given.params, given.settings);
            native::disable(&mut reader, &mut reading, given.disabled);
            reading
        }
        Format::PaddleFlow => paddleflow::read(&mut reader, root, given),
        Format::PaddleRec => paddlerec::read(&mut reader, root, given),
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
        (_, Err(error)) => Err(error),
        (None, Ok(tree)) => Err(document::not_recognised(source, &tree.root)),
    }
}
