//! Documents of any format, read as `umiak lint`, `umiak run` and `umiak convert` do.

use umiak_core::diag::{Code, Severity, Source};
use umiak_core::formats::document::decode;
use umiak_core::formats::paddlerec::File;
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{Given, check, convert, parse};
use umiak_core::model::{Pipeline, Workload};

/// A document is a job or a pipeline that survives its JSON form, and a job has a native document; or it has errors in
/// lines that it has.
pub fn read_document(bytes: &[u8]) {
    let Ok(mut source) = decode("job.yaml", bytes) else { return };
    let other = split(&mut source);
    let settings = Settings::default();
    let given = Given { companion: other.as_ref(), ..Given::new(&[], &settings) };
    let checked = check(&source, &given);
    let lines = [Some(&source), other.as_ref()].into_iter().flatten().map(|one| one.text.split('\n').count()).max();
    let lines = lines.unwrap_or_default();
    for diagnostic in &checked.diagnostics {
        assert!(!diagnostic.message.is_empty() && !diagnostic.to_plain().is_empty());
        assert!(diagnostic.labels.iter().all(|label| (1..=lines).contains(&label.start.line)), "{diagnostic:?}");
    }
    match parse(&source, &given) {
        Ok(document) => {
            assert_eq!(checked.work.as_ref(), Some(&document.work));
            let json = serde_json::to_string(&document.work).expect("jobs have a JSON form");
            assert_eq!(serde_json::from_str::<Workload>(&json).expect("our own form is read"), document.work);
            document.pipeline().into_iter().for_each(check_pipeline);
        }
        Err(errors) => {
            assert!(!errors.is_empty() && errors.iter().all(|error| error.severity == Severity::Error));
            // Flavours that this host does not define are no errors of the document.
            assert!(checked.work.is_none() || errors.iter().all(|error| error.code == Code::F0017), "{errors:?}");
        }
    }
    let is_good = checked.diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error);
    match convert(&source, &given) {
        Ok(converted) => {
            let native = check(&Source::new("native.yaml", converted.text), &Given::new(&[], &settings));
            assert!(is_good && native.diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error));
        }
        Err(errors) => assert!(!is_good || errors[0].code == Code::F0019, "{errors:?}"),
    }
}

/// The second file of a submission of PaddleRec, behind a line `---`.
fn split(source: &mut Source) -> Option<Source> {
    let (first, second) = source.text.split_once("\n---\n")?;
    let (first, second) = (Source::new("job.yaml", first), Source::new("other.yaml", second));
    File::of(&first)?;
    *source = first;
    Some(second)
}

/// Parents come before their nodes, and dependencies are siblings.
fn check_pipeline(pipeline: &Pipeline) {
    for (id, node) in pipeline.iter() {
        assert!(node.parent < id || id == Pipeline::ROOT);
        assert!(node.deps.iter().all(|dep| pipeline.node(*dep).parent == node.parent));
    }
}
