//! Converts umiak's own flags from text to their types.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use super::arguments::Arguments;
use super::environment::Environment;
use super::{Compat, OwnFlags, Token};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::formats::units;
use crate::model::{
    ExitCodes, LogNames, LogRequest, Omp, OutputMode, Policy, Port, Restart, Rotation, Show, StopPolicy, Whose,
};

pub(super) fn lower(arguments: &Arguments) -> OwnFlags {
    let default = OwnFlags::default();
    OwnFlags {
        output: match arguments.text("output") {
            Some("json") => OutputMode::Json,
            Some("quiet") => OutputMode::Quiet,
            _ => OutputMode::Human,
        },
        mirror: arguments.is_switched_on("mirror"),
        show: arguments.text("show").map(Show::parse).unwrap_or_default(),
        stdin: arguments.text("stdin").map(|word| Whose::parse([word])),
        dry_run: arguments.is_switched_on("dry-run"),
        compat: if arguments.text("compat").is_some() { Compat::Paddle } else { Compat::None },
        no_progress: arguments.is_switched_on("no-progress"),
        ascii: arguments.is_switched_on("ascii"),
        no_record: arguments.is_switched_on("no-record"),
        detach: arguments.is_switched_on("detach"),
        isolate: arguments.is_switched_on("isolate"),
        token: arguments.text("token").and_then(Token::new),
        token_file: arguments.raw("token-file").map(PathBuf::from),
        rdzv_port: arguments.int("rdzv-port").and_then(|port| u16::try_from(port).ok()).and_then(Port::new),
        rdzv_timeout: arguments.text("rdzv-timeout").and_then(duration).unwrap_or(default.rdzv_timeout),
        node_timeout: arguments.text("node-timeout").and_then(duration).unwrap_or(default.node_timeout),
        reconnect_window: arguments.text("reconnect-window").and_then(duration).unwrap_or(default.reconnect_window),
        gather_logs: arguments.is_switched_on("gather-logs"),
        verbose: arguments.int("verbose").map_or(0, |times| u8::try_from(times).unwrap_or(u8::MAX)),
    }
}

pub(super) fn exit_codes(arguments: &Arguments) -> ExitCodes {
    match arguments.text("exit-codes") {
        Some("paddle") => ExitCodes::Paddle,
        Some("torch") => ExitCodes::Torch,
        _ => ExitCodes::Umiak,
    }
}

/// The log files, in `dir`.
pub(super) fn logs(arguments: &Arguments, dir: PathBuf, overwrite: bool) -> LogRequest {
    let keep = arguments.int("log-keep").and_then(|keep| u32::try_from(keep).ok()).unwrap_or(5);
    LogRequest {
        dir,
        names: if arguments.text("log-names") == Some("local") { LogNames::Local } else { LogNames::Global },
        overwrite,
        rotation: arguments.text("log-max-size").and_then(size).map(|max_bytes| Rotation { max_bytes, keep }),
    }
}

/// The stop and restart policy. Without `max_restart` nothing is restarted.
pub(super) fn policy(arguments: &Arguments, max_restart: Option<u32>) -> Policy {
    let Policy { restart, stop, .. } = Policy::default();
    let backoff = arguments.text("restart-backoff").and_then(duration).unwrap_or(restart.backoff);
    let max = max_restart.unwrap_or(restart.max);
    let restart = Restart {
        max,
        max_platform: max,
        backoff,
        platform_backoff: None,
        // A first wait above the limit raises the limit.
        max_backoff: restart.max_backoff.max(backoff),
        window: arguments.text("restart-window").and_then(duration).filter(|window| !window.is_zero()),
    };
    let grace = arguments.text("grace").and_then(duration).unwrap_or(stop.grace);
    let hang = arguments.text("hang-timeout").and_then(duration);
    Policy { restart, stop: StopPolicy { grace, ..stop }, hang, ..Policy::default() }
}

/// `OMP_NUM_THREADS` from `--omp`.
pub(super) fn omp(arguments: &Arguments) -> Omp {
    match arguments.text("omp") {
        None => Omp::OneUnlessSet,
        Some("auto") => Omp::Share,
        Some(number) => {
            argparse::int(number).and_then(|number| u32::try_from(number).ok()).map_or(Omp::Share, Omp::Count)
        }
    }
}

/// Longest time until servers listen.
pub(super) fn server_timeout(arguments: &Arguments) -> Option<Duration> {
    arguments.text("server-timeout").and_then(duration)
}

/// Fills flags that are not on the command line from umiak's variables. Unlike Paddle's, they never override flags.
pub(super) fn fill(own: &mut OwnFlags, env: &Environment) -> Result<(), Diagnostic> {
    if own.token.is_none() && own.token_file.is_none() {
        own.token = env.get("UMIAK_TOKEN").and_then(|text| Token::new(text));
    }
    if let (None, Some(text)) = (own.rdzv_port, env.get("UMIAK_PORT").filter(|text| !text.is_empty())) {
        own.rdzv_port = Some(port(text).ok_or_else(|| {
            Diagnostic::error(Code::L0009, format!("`UMIAK_PORT` takes a port from 1 to 65535, not `{text}`"))
                .hint("`UMIAK_PORT` sets `--rdzv-port`; correct or unset it")
        })?);
    }
    Ok(())
}

/// Reports values that defeat the purpose of the flag.
pub(super) fn check(arguments: &Arguments) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    if arguments.raw("token").is_some_and(OsStr::is_empty) {
        let error = Diagnostic::error(Code::L0001, "`--token` is empty");
        errors.push(error.hint("use the same token on every node, or leave the flag out"));
    }
    if arguments.raw("token").is_some() && arguments.raw("token-file").is_some() {
        let error = Diagnostic::error(Code::L0002, "`--token` cannot be combined with `--token-file`");
        errors.push(error.hint("leave one of the flags out"));
    }
    for attribute in ["rdzv-timeout", "node-timeout", "hang-timeout"] {
        if arguments.text(attribute).and_then(duration).is_some_and(|time| time.is_zero()) {
            let error = Diagnostic::error(Code::L0001, format!("`--{attribute}` must be greater than zero"));
            let is_off = attribute == "hang-timeout";
            errors.push(if is_off { error.hint("leave the flag out: then a job may hang") } else { error });
        }
    }
    if arguments.is_switched_on("gather-logs") {
        if arguments.raw("log-max-size").is_some() {
            let error = Diagnostic::error(Code::L0002, "`--gather-logs` cannot be combined with `--log-max-size`");
            errors.push(error.hint("rotated logs cannot be gathered; leave one of the flags out"));
        }
        if arguments.text("log-names") == Some("local") {
            let error = Diagnostic::error(Code::L0002, "`--gather-logs` cannot be combined with `--log-names local`");
            errors.push(error.hint("gathered logs are named by global rank; leave one of the flags out"));
        }
    }
    errors
}

/// A port that can be listened on.
pub(super) fn port(text: &str) -> Option<Port> {
    argparse::int(text).and_then(|number| u16::try_from(number).ok()).and_then(Port::new)
}

fn duration(text: &str) -> Option<Duration> {
    units::duration(text).ok()
}

/// Less than 4K is refused as a typo.
pub(super) fn size(text: &str) -> Option<u64> {
    units::file_size(text).ok().filter(|size| *size >= 4096)
}
