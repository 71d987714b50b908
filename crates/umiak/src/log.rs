//! Diagnostic logging of umiak itself: `tracing`, to stderr or to a file, only with `-v` or `UMIAK_LOG`. Without them
//! no subscriber is installed and an event costs one comparison.
//!
//! User messages do not go through here. `info` is for operators, `debug` and `trace` are for developers. Events show
//! variables, arguments and parameters by count, never by value.
//!
//! While a screen owns stderr, lines go through it: they cannot garble the status line, and a blocked reader delays
//! only the screen's thread. A file is written at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use umiak_core::diag::{Code, Diagnostic};

use crate::secrets;
use crate::variables::{LOG, LOG_FILE};

/// The filter in effect; unset if nothing is logged.
static FILTER: OnceLock<String> = OnceLock::new();

/// Passes a line to the screen; returns false if its thread has ended.
type Show = Box<dyn Fn(&str) -> bool + Send>;

/// The screen that owns stderr.
static SCREEN: Mutex<Option<Show>> = Mutex::new(None);

/// Starts logging if requested: `verbose` counts `-v`, and overrides the variable. Starts no thread, because the
/// guardian is forked after this.
pub(crate) fn start(verbose: u8) -> Result<(), Diagnostic> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let filter = match (verbose, variable(LOG)) {
        (0, None) => return Ok(()),
        (0, Some(text)) => text.to_string_lossy().into_owned(),
        (1, _) => "info".to_owned(),
        (2, _) => "debug".to_owned(),
        _ => "trace".to_owned(),
    };
    let targets = targets(&filter).ok_or_else(|| {
        Diagnostic::error(Code::L0009, format!("`{LOG}` must be a level or a list of modules, not `{filter}`"))
            .row("levels", "error, warn, info, debug, trace, off")
            .hint(format!("for example `{LOG}=debug` or `{LOG}=info,umiak::rendezvous=trace`"))
    })?;
    let writer = match variable(LOG_FILE) {
        None => BoxMakeWriter::new(|| Stderr),
        Some(path) => {
            let file = File::options().append(true).create(true).mode(0o600).open(&path).map_err(|error| {
                Diagnostic::error(Code::L0009, format!("cannot write to the file in `{LOG_FILE}`"))
                    .row("file", path.to_string_lossy())
                    .row("reason", error.to_string())
            })?;
            BoxMakeWriter::new(Mutex::new(MaskedFile(file)))
        }
    };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let subscriber = tracing_subscriber::registry().with(targets).with(lines);
    // A second call, in tests, keeps the first subscriber.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = FILTER.set(filter);
    }
    Ok(())
}

/// Returns the filter as a variable for a process that replaces this one and does not get its `-v`.
pub(crate) fn inherited() -> Option<(&'static str, &'static str)> {
    FILTER.get().map(|filter| (LOG, filter.as_str()))
}

/// Sends lines to this screen, until [`release_screen`].
pub(crate) fn use_screen(show: Show) {
    *SCREEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(show);
}

/// Sends lines to stderr again.
pub(crate) fn release_screen() {
    *SCREEN.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Parses a filter. A word that is neither a level nor one of our modules is an error: the parser would take it for a
/// module.
fn targets(filter: &str) -> Option<Targets> {
    let is_known = |word: &str| {
        let (target, level) = word.split_once('=').unwrap_or(("", word));
        // An empty word is a level to the parser.
        !level.is_empty() && level.parse::<LevelFilter>().is_ok() && (target.is_empty() || target.starts_with("umiak"))
            || target.is_empty() && level.starts_with("umiak")
    };
    filter.split(',').all(|word| is_known(word.trim())).then(|| filter.parse().ok())?
}

/// The writer without a file: the formatter writes each line with one call.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = secrets::masked(&String::from_utf8_lossy(line));
        let screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner);
        if !screen.as_ref().is_some_and(|show| show(&text)) {
            let lines: Vec<_> = text.split('\n').map(umiak_core::diag::shown).collect();
            io::Write::write_all(&mut io::stderr().lock(), lines.join("\n").as_bytes())?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that gets whole lines, without secrets.
struct MaskedFile(File);

impl io::Write for MaskedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        io::Write::write_all(&mut self.0, secrets::masked(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for good in ["debug", "INFO", "umiak::engine=trace", "info,umiak::rendezvous=trace", "umiak::cli", "off"] {
            assert!(targets(good).is_some(), "{good}");
        }
        for bad in ["", "loud", "debgu", "umiak=loud", "engine=debug", "info,,debug", "=debug,x"] {
            assert!(targets(bad).is_none(), "{bad}");
        }
    }
}
