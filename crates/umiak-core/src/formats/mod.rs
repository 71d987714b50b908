//! One module for each way to define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod document;
pub mod launch;
pub mod native;
pub mod pai;
pub mod prefix;
pub mod settings;
pub mod units;

use crate::diag::{Code, Diagnostic, Source};
use document::reader::Reader;
use document::{Checked, Document, Format, Reading, Tree};
use settings::Settings;

/// The job that a document of any format describes, or all its errors. `params` are those of the command line.
pub fn parse(source: &Source, params: &[(String, String)], settings: &Settings) -> Result<Document, Vec<Diagnostic>> {
    let (mut reader, reading) = read(source, params, settings).map_err(|error| vec![error])?;
    for (name, at) in &reading.needed {
        reader.error(Code::F0034, *at, format!("parameter `{name}` has no value"), "no default");
        reader.hint(format!("set it with `-p {name}=…`"));
    }
    let Reading { job, masked, secrets, .. } = reading;
    let Some(job) = job.filter(|_| reader.errors.is_empty()) else {
        return Err(reader.errors.into_sorted());
    };
    Ok(Document { job, notices: reader.notices.into_vec(), masked, secrets })
}

/// Checks a document before a run: parameters without a value are not errors.
pub fn check(source: &Source, params: &[(String, String)], settings: &Settings) -> Checked {
    let (reader, reading) = match read(source, params, settings) {
        Ok(read) => read,
        Err(error) => return Checked { job: None, needed: Vec::new(), diagnostics: vec![error] },
    };
    let needed: Vec<String> = reading.needed.into_iter().map(|(name, _)| name).collect();
    let Reader { errors, notices, .. } = reader;
    let job = reading.job.filter(|_| errors.is_empty() && needed.is_empty());
    Checked { job, needed, diagnostics: if errors.is_empty() { notices.into_vec() } else { errors.into_sorted() } }
}

fn read<'a>(
    source: &'a Source,
    params: &[(String, String)],
    settings: &Settings,
) -> Result<(Reader<'a>, Reading), Diagnostic> {
    if document::is_script(source) {
        return Err(document::not_a_script(source));
    }
    let (format, tree) = document::recognise(source);
    if format.is_none()
        && let Some(error) = document::framework(source, &tree)
    {
        return Err(error);
    }
    let (format, Tree { root, errors }) = match (format, tree) {
        (Some(format @ (Format::Native | Format::OpenPai)), Ok(tree)) => (format, tree),
        (Some(Format::Native | Format::OpenPai) | None, Err(error)) => return Err(error),
        (Some(other), _) => return Err(document::not_in_this_version(source, other)),
        (None, Ok(tree)) => return Err(document::not_recognised(source, &tree.root)),
    };
    let mut reader = Reader::new(source, errors);
    let reading = match format {
        Format::OpenPai => pai::read(&mut reader, &root, params),
        _ => native::read(&mut reader, root, params, settings),
    };
    Ok((reader, reading))
}
