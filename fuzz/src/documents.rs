//! Documents of any format, read as `umiak lint`, `umiak run` and `umiak convert` do.

use umiak_core::diag::{Code, Severity, Source};
use umiak_core::formats::document::decode;
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{check, convert, parse};
use umiak_core::model::Job;

/// A document is a job that survives its JSON form and has a native document, or has errors in lines that it has.
pub fn read_document(bytes: &[u8]) {
    let Ok(source) = decode("job.yaml", bytes) else { return };
    let settings = Settings::default();
    let checked = check(&source, &[], &settings);
    let lines = source.text.split('\n').count();
    for diagnostic in &checked.diagnostics {
        assert!(!diagnostic.message.is_empty() && !diagnostic.to_plain().is_empty());
        assert!(diagnostic.labels.iter().all(|label| (1..=lines).contains(&label.start.line)), "{diagnostic:?}");
    }
    match parse(&source, &[], &settings) {
        Ok(document) => {
            assert_eq!(checked.job.as_ref(), Some(&document.job));
            let json = serde_json::to_string(&document.job).expect("jobs have a JSON form");
            assert_eq!(serde_json::from_str::<Job>(&json).expect("our own form is read"), document.job);
        }
        Err(errors) => {
            assert!(checked.job.is_none() && !errors.is_empty());
            assert!(errors.iter().all(|error| error.severity == Severity::Error));
        }
    }
    let is_good = checked.diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error);
    match convert(&source, &[], &settings) {
        Ok(converted) => {
            let native = check(&Source::new("native.yaml", converted.text), &[], &settings);
            assert!(is_good && native.diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error));
        }
        Err(errors) => assert!(!is_good || errors[0].code == Code::F0019, "{errors:?}"),
    }
}
