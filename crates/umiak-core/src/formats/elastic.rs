//! `python -m paddle.distributed.elastic`: changes or deletes the keys of an elastic job in etcd.
//!
//! Flags and variables are those of Paddle. Paddle does not check them: an unknown action does nothing and is reported
//! as done, a missing server, job or number ends in a traceback. Here these are errors.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::argparse::{self, Item, Matching, Opt, Outcome, Takes};
use super::launch::usage_error;
use crate::diag::{Code, Diagnostic, nearest};
use crate::model::{EtcdOptions, MAX_NODES};

/// The result of parsing a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    Help,
    Command(Box<Command>),
}

/// What to do with the keys of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub etcd: EtcdOptions,
    /// The parent of the job's keys, without a slash at its end.
    pub root: String,
    pub job: String,
    pub action: Action,
    /// `--force`: also for a job that runs.
    pub force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Changes the number of nodes.
    Scale { nodes: u32 },
    /// Deletes all keys.
    Clean,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scale { .. } => "scale",
            Self::Clean => "clean",
        }
    }
}

impl Command {
    /// The key with the number of nodes.
    pub fn nodes_key(&self) -> String {
        format!("{}/np", self.root)
    }

    /// The key of the coordinator, which is there while the job runs.
    pub fn coordinator_key(&self) -> String {
        format!("{}/coordinator", self.root)
    }
}

pub const HELP: &str = "\
Changes or deletes the keys of an elastic job in etcd

Usage: umiak python -m paddle.distributed.elastic [flags] {scale|clean}

Actions:
  scale  change the number of nodes of a job that is in etcd
  clean  delete all keys of the job

Flags:
  --elastic_server HOST:PORT  etcd; several members are separated by commas
                              [env: PADDLE_ELASTIC_SERVER]
  --job_id ID                 id of the job [env: PADDLE_ELASTIC_JOB_ID]
  --np N                      number of nodes; of `MIN:MAX`, the first counts
                              [env: PADDLE_ELASTIC_NP]
  --force                     `clean` also while the job runs
  -h, --help                  print this text

TLS and a user: UMIAK_ETCD_CA_FILE, UMIAK_ETCD_CERT_FILE, UMIAK_ETCD_KEY_FILE, UMIAK_ETCD_USER, UMIAK_ETCD_PASSWORD
";

const SERVER: usize = 0;
const JOB: usize = 1;
const NODES: usize = 2;
const FORCE: usize = 3;
/// The flags and their variables, which launchers have too.
pub(super) const NAMES: [(&str, &str); 3] = [
    ("--elastic_server", "PADDLE_ELASTIC_SERVER"),
    ("--job_id", "PADDLE_ELASTIC_JOB_ID"),
    ("--np", "PADDLE_ELASTIC_NP"),
];
const ACTIONS: [&str; 2] = ["scale", "clean"];

/// Reads the arguments after the module's name.
pub fn parse(argv: &[OsString], env: &BTreeMap<String, String>) -> Result<Parsed, Vec<Diagnostic>> {
    let matching = Matching::Abbreviated { tier: 0 };
    let options = [SERVER, JOB, NODES]
        .map(|key| Opt { name: NAMES[key].0, key, takes: Takes::Value, matching })
        .into_iter()
        .chain([Opt { name: "--force", key: FORCE, takes: Takes::Nothing, matching }]);
    let options: Vec<Opt> = options.collect();
    let mut force = false;
    let mut given: [Option<String>; 3] = [None, None, None];
    let mut errors = Vec::new();
    let mut words: Vec<OsString> = Vec::new();
    let mut rest = argv.to_vec();
    // Options may follow the action.
    loop {
        let line = match argparse::parse(&options, &rest) {
            Ok(Outcome::Help) => return Ok(Parsed::Help),
            Ok(Outcome::Line(line)) => line,
            Err(found) => {
                errors.extend(found.iter().map(usage_error));
                return Err(errors);
            }
        };
        for item in line.items {
            match item {
                Item::Known(option) if option.key == FORCE => force = true,
                Item::Known(option) => given[option.key] = option.value.map(|v| v.to_string_lossy().into_owned()),
                Item::Unknown(token) => errors.push(unknown(&token)),
            }
        }
        let Some(word) = line.script else { break };
        words.push(word);
        if line.separated {
            words.extend(line.script_args);
            break;
        }
        rest = line.script_args;
    }
    let name = |key: usize| if given[key].is_some() { NAMES[key].0 } else { NAMES[key].1 };
    // As in Python, an empty text is none.
    let text = |key: usize| {
        let own = given[key].as_ref().or_else(|| env.get(NAMES[key].1));
        own.filter(|text| !text.is_empty()).cloned()
    };
    let mut need = |key: usize, what: &str| {
        let found = text(key);
        if found.is_none() {
            let (flag, variable) = NAMES[key];
            let message = format!("`{flag}` is missing: {what}");
            errors.push(Diagnostic::error(Code::L0001, message).hint(format!("give `{flag}`, or set `{variable}`")));
        }
        found
    };
    let servers = text(SERVER).or_else(|| by_service(env)).or_else(|| need(SERVER, "the address of etcd"));
    let job = need(JOB, "the id of the job");
    let action = match action(&words, |key| need(key, "the new number of nodes"), name(NODES)) {
        Ok(action) => action,
        Err(error) => {
            errors.extend(error);
            None
        }
    };
    let etcd = servers.and_then(|servers| {
        let source = if text(SERVER).is_some() { name(SERVER) } else { SERVICE.0 };
        super::etcd::options(&servers, source, env).map_err(|error| errors.push(error)).ok()
    });
    if let Some(job) = &job
        && let Some(error) = check_job(job, name(JOB))
    {
        errors.push(error);
    }
    match (etcd, job, action) {
        (Some(etcd), Some(job), Some(action)) if errors.is_empty() => {
            let root = format!("/paddle/{job}");
            Ok(Parsed::Command(Box::new(Command { etcd, root, job, action, force })))
        }
        _ => Err(errors),
    }
}

/// The service of Kubernetes.
pub(super) const SERVICE: (&str, &str) = ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT");

/// The address of etcd, from the service of Kubernetes.
pub(super) fn by_service(env: &BTreeMap<String, String>) -> Option<String> {
    let set = |name: &str| env.get(name).filter(|text| !text.is_empty());
    let (host, port) = (set(SERVICE.0)?, set(SERVICE.1)?);
    let is_v6 = host.contains(':') && !host.starts_with('[');
    Some(if is_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// The action; `Ok(None)` if what it needs is missing and reported.
fn action(
    words: &[OsString],
    need: impl FnOnce(usize) -> Option<String>,
    nodes_name: &str,
) -> Result<Option<Action>, Option<Diagnostic>> {
    let Some((word, others)) = words.split_first() else {
        let error = Diagnostic::error(Code::L0001, "the action is missing");
        return Err(Some(error.hint("write `scale` or `clean` at the end")));
    };
    if let Some(other) = others.first() {
        let message = format!("`{}` is one argument too many", other.to_string_lossy());
        return Err(Some(Diagnostic::error(Code::L0001, message)));
    }
    match word.to_str() {
        Some("clean") => Ok(Some(Action::Clean)),
        Some("scale") => match need(NODES) {
            Some(text) => nodes(&text, nodes_name).map(|nodes| Some(Action::Scale { nodes })).map_err(Some),
            None => Ok(None),
        },
        _ => {
            let word = word.to_string_lossy();
            let error = Diagnostic::error(Code::L0001, format!("unknown action `{word}`"));
            Err(Some(match nearest(&word, ACTIONS) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint("the actions are `scale` and `clean`"),
            }))
        }
    }
}

/// `N`, or the first of `MIN:MAX`.
fn nodes(text: &str, name: &str) -> Result<u32, Diagnostic> {
    let number = |text: &str| argparse::int(text).and_then(|number| u32::try_from(number).ok()).filter(|n| *n > 0);
    let low = text.split_once(':').map_or(text, |(low, _)| low);
    if let Some(many) = argparse::int(low).filter(|nodes| *nodes > i64::from(MAX_NODES)) {
        let message = format!("`{name}` asks for {many} nodes; the maximum is {MAX_NODES}");
        return Err(Diagnostic::error(Code::L0001, message));
    }
    let read = match text.split_once(':') {
        None => number(text),
        Some((low, high)) => number(low).filter(|low| number(high).is_some_and(|high| *low <= high)),
    };
    read.ok_or_else(|| {
        if let Some(hint) = reversed(text) {
            let message = format!("the range `{text}` of `{name}` is reversed");
            return Diagnostic::error(Code::L0001, message).hint(hint);
        }
        Diagnostic::error(Code::L0001, format!("`{name}` must be a number of nodes from 1, or `MIN:MAX`"))
            .row("given", text)
    })
}

/// A hint about a range whose ends are swapped.
pub(super) fn reversed(text: &str) -> Option<String> {
    let (low, high) = text.split_once(':')?;
    let number = |text: &str| argparse::int(text).filter(|number| *number > 0);
    (number(low)? > number(high)?).then(|| format!("did you mean `{high}:{low}`?"))
}

/// An id that would be another job's key is refused.
fn check_job(job: &str, name: &str) -> Option<Diagnostic> {
    let has = |test: fn(char) -> bool| job.contains(test);
    let why = match job {
        _ if has(char::is_control) => "it contains a control character",
        _ if has(|c| c == '/') => "it contains a slash, which separates keys",
        _ if job.len() > 200 => "it is longer than 200 bytes",
        _ => return None,
    };
    Some(Diagnostic::error(Code::L0001, format!("`{name}` is not the id of a job: {why}")).row("given", job))
}

fn unknown(token: &OsString) -> Diagnostic {
    let token = token.to_string_lossy();
    let flag = token.split('=').next().unwrap_or_default();
    let error = Diagnostic::error(Code::L0001, format!("unknown flag `{flag}`"));
    match nearest(flag, NAMES.map(|(flag, _)| flag).into_iter().chain(["--force"])) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("the flags are `--elastic_server`, `--job_id`, `--np` and `--force`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str, variables: &[(&str, &str)]) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        match parse(&words, &env) {
            Ok(Parsed::Help) => "help".to_owned(),
            Ok(Parsed::Command(command)) => {
                let servers: Vec<String> = command.etcd.endpoints.iter().map(ToString::to_string).collect();
                format!("{} {} {:?}", servers.join(","), command.root, command.action)
            }
            Err(errors) => errors.iter().map(Diagnostic::to_plain).collect(),
        }
    }

    #[test]
    fn lines_of_the_guide() {
        let scale = "e:2379 /paddle/job1 Scale { nodes: 2 }";
        for line in [
            "--elastic_server e:2379 --job_id job1 --np 2 scale",
            "--elastic_server=e:2379 --job_id=job1 --np=2 scale",
            "scale --np 2 --job_id job1 --elastic_server e:2379",
            "--elastic-server e:2379 --job job1 scale --np 2:4",
        ] {
            assert_eq!(run(line, &[]), scale, "{line}");
        }
        let environment =
            [("PADDLE_ELASTIC_SERVER", "e:2379"), ("PADDLE_ELASTIC_JOB_ID", "job1"), ("PADDLE_ELASTIC_NP", "2")];
        assert_eq!(run("scale", &environment), scale);
        assert_eq!(run("clean --np x", &environment), "e:2379 /paddle/job1 Clean");
        assert_eq!(run("clean --job_id job2", &environment), "e:2379 /paddle/job2 Clean");
        let service = [("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "10.0.0.1"), ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "80")];
        assert_eq!(run("--job_id j clean", &service), "10.0.0.1:80 /paddle/j Clean");
        assert_eq!(run("scale -h", &[]), "help");
    }

    #[test]
    fn force() {
        let is_forced = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            matches!(parse(&words, &BTreeMap::new()), Ok(Parsed::Command(command)) if command.force)
        };
        assert!(is_forced("--elastic_server e --job_id j --force clean"));
        assert!(is_forced("--elastic_server e --job_id j clean --force"));
        assert!(!is_forced("--elastic_server e --job_id j clean"));
    }

    #[test]
    fn errors_are_told_together() {
        assert_eq!(
            run("scale", &[]),
            "error[L0001]: `--elastic_server` is missing: the address of etcd\nhint: give `--elastic_server`, or set `PADDLE_ELASTIC_SERVER`\n\
             error[L0001]: `--job_id` is missing: the id of the job\nhint: give `--job_id`, or set `PADDLE_ELASTIC_JOB_ID`\n\
             error[L0001]: `--np` is missing: the new number of nodes\nhint: give `--np`, or set `PADDLE_ELASTIC_NP`\n"
        );
    }

    #[test]
    fn errors() {
        for (rest, expected) in [
            ("", "error[L0001]: the action is missing\nhint: write `scale` or `clean` at the end\n"),
            ("scael", "error[L0001]: unknown action `scael`\nhint: did you mean `scale`?\n"),
            ("grow", "error[L0001]: unknown action `grow`\nhint: the actions are `scale` and `clean`\n"),
            ("clean scale", "error[L0001]: `scale` is one argument too many\n"),
            ("--np 0 scale", "error[L0001]: `--np` must be a number of nodes from 1, or `MIN:MAX`\n  given  0\n"),
            ("--np 4:2 scale", "error[L0001]: the range `4:2` of `--np` is reversed\nhint: did you mean `2:4`?\n"),
            ("--np 4294967295 scale", "error[L0001]: `--np` asks for 4294967295 nodes; the maximum is 16384\n"),
            (
                "--npp 2 scale",
                "error[L0001]: unknown flag `--npp`\nhint: did you mean `--np`?\nerror[L0001]: `scale` is one argument too many\n",
            ),
            (
                "clean --np",
                "error[L0001]: `--np` needs a value\nhint: a value that begins with a dash is written `--np=VALUE`\n",
            ),
        ] {
            assert_eq!(run(&format!("--elastic_server e --job_id j {rest}"), &[]), expected, "{rest}");
        }
        assert_eq!(
            run("--elastic_server e --job_id a/b clean", &[]),
            "error[L0001]: `--job_id` is not the id of a job: it contains a slash, which separates keys\n  given  a/b\n"
        );
    }
}
