//! Checks that the flags of a command line are consistent and supported by this version.

use std::net::IpAddr;
use std::path::PathBuf;

use super::allocation::Allocation;
use super::arguments::{Arguments, Source};
use super::environment::{Environment, bad_number};
use super::flags::{FLAGS, Heading, Owner, Support};
use super::mode::Kind;
use super::{Compat, stranger, words};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse::{self, Item, Line};
use crate::model::{Backend, DeviceKind, DeviceRequest, Generation, JobId, Nodes, Port};

/// Messages for the user.
#[derive(Debug, Default)]
pub(super) struct Issues {
    pub(super) errors: Vec<Diagnostic>,
    pub(super) notices: Vec<Diagnostic>,
    /// Flags without effect, and the reason.
    idle: Vec<(String, String)>,
}

impl Issues {
    /// Records a flag without effect, accepted so that command lines keep working.
    pub(super) fn idle(&mut self, flag: &str, why: &str) {
        let row = (flag.to_owned(), why.to_owned());
        if !self.idle.contains(&row) {
            self.idle.push(row);
        }
    }

    /// The notices, with all flags without effect combined into one.
    pub(super) fn into_notices(self) -> Vec<Diagnostic> {
        let mut notices = self.notices;
        match self.idle.as_slice() {
            [] => {}
            [(flag, why)] => notices.push(Diagnostic::notice(Code::L0023, format!("`{flag}` has no effect: {why}"))),
            many => {
                let names: Vec<&str> = many.iter().map(|(flag, _)| flag.as_str()).collect();
                let notice = Diagnostic::notice(Code::L0023, format!("{} have no effect", words::both(&names)));
                notices.push(many.iter().fold(notice, |notice, (flag, why)| notice.row(flag, why)));
            }
        }
        notices
    }
}

/// The checks, with the decisions made so far.
pub(super) struct Checks<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) generation: Generation,
    pub(super) compat: Compat,
    pub(super) kind: Kind,
    pub(super) env: &'a Environment,
    pub(super) issues: &'a mut Issues,
    /// The port where the nodes meet, if given.
    pub(super) rdzv_port: Option<Port>,
    /// `umiak launch`, for messages.
    pub(super) program: &'a str,
    /// The nodes of a scheduler, if they are used.
    pub(super) allocation: Option<Box<Allocation>>,
}

impl Checks<'_> {
    pub(super) fn error(&mut self, error: Diagnostic) {
        self.issues.errors.push(error);
    }

    /// Returns the value, or reports the error.
    pub(super) fn report<T>(&mut self, result: Result<T, Diagnostic>) -> Option<T> {
        result.map_err(|error| self.error(error)).ok()
    }

    /// The error for an invalid value of `attribute`.
    pub(super) fn wrong_value(&self, attribute: &str, message: impl Into<String>) -> Diagnostic {
        self.arguments.wrong_value(attribute, message)
    }

    pub(super) fn idle(&mut self, flag: &str, why: &str) {
        self.issues.idle(flag, why);
    }

    /// Reports flags of the command line without effect. Variables without effect are usually inherited, and are not
    /// reported.
    pub(super) fn without_effect(&mut self, line: &Line, nodes: &Nodes, ip: Option<IpAddr>, is_elastic: bool) {
        let with_master = "`--master` selects the current launcher, which does not have it";
        for item in &line.items {
            match item {
                // Already an error, unless Paddle's behaviour was requested.
                Item::Unknown(token) => {
                    let token = token.to_string_lossy();
                    let word = token.split('=').next().unwrap_or(&token);
                    let near = stranger::instead(word).map(|instead| format!("; {instead}")).unwrap_or_default();
                    self.idle(word, &format!("it is unknown, and ignored as in Paddle{near}"));
                }
                Item::Known(given) => {
                    let flag = &FLAGS[given.key];
                    let is_about_servers = flag.heading == Heading::ParameterServer;
                    if is_about_servers && self.kind.has_servers() {
                        // Flags of both generations apply; the crews report those that do not.
                    } else if flag.attribute == "elastic_pre_hook" {
                        // It applies to elastic jobs of both generations.
                    } else if matches!(flag.attribute, "scale" | "force") && self.is_in_etcd() {
                        // They apply to all jobs over etcd.
                    } else if matches!(flag.owner, Owner::Legacy | Owner::Old) && self.generation == Generation::Current
                    {
                        self.idle(given.name, with_master);
                    } else if is_about_servers && self.asks(flag.attribute) {
                        self.idle(given.name, "the job has no servers");
                    } else if let Support::NoEffect(why) = flag.support
                        && self.asks(flag.attribute)
                        && self.is_from_flag(flag.attribute)
                    {
                        self.idle(given.name, why);
                    }
                }
            }
        }
        self.idle_about_elastic(nodes, is_elastic);
        self.idle_about_nodes(nodes, ip);
        self.idle_about_mode();
        let is_restarted = match self.arguments.int("max_restart") {
            Some(times) => times > 0,
            None => matches!(nodes, Nodes::Etcd { .. }),
        };
        for (flag, attribute) in [("--restart-backoff", "restart-backoff"), ("--restart-window", "restart-window")] {
            if self.arguments.text(attribute).is_some() && !is_restarted {
                self.idle(flag, "nothing is restarted without `--max_restart`");
            }
        }
        if let Some(file) = self.arguments.text("auto_parallel_config") {
            let name = self.arguments.name("auto_parallel_config");
            let notice = Diagnostic::notice(Code::L0023, format!("`{name}` starts no tuner stage in this version"))
                .row("file", file)
                .hint("the script starts at once, with the file in `PADDLE_AUTO_PARALLEL_CONFIG`");
            self.issues.notices.push(notice);
        }
    }

    pub(super) fn is_from_flag(&self, attribute: &str) -> bool {
        matches!(self.arguments.source(attribute), Some(Source::Flag(_)))
    }

    /// True if Paddle's behaviour was requested and Paddle would not read this as an address.
    pub(super) fn passes_over(&self, host: &str) -> bool {
        self.compat == Compat::Paddle && !host.contains('.')
    }

    /// True if the flag asks for something; -1 is off for `--elastic_level`.
    pub(super) fn asks(&self, attribute: &str) -> bool {
        match attribute {
            "elastic_level" => self.arguments.int(attribute).is_some_and(|level| level != -1),
            _ => self.arguments.is_set(attribute),
        }
    }

    /// Refuses known features that this version does not have.
    pub(super) fn not_in_this_version(&mut self, script: &std::ffi::OsStr) {
        let mut asked: Vec<(&str, Vec<String>)> = Vec::new();
        let mut ask = |what: &'static str, by: String| match asked.iter_mut().find(|(known, _)| *known == what) {
            Some((_, names)) => names.push(by),
            None => asked.push((what, vec![by])),
        };
        for flag in FLAGS {
            if let Support::NotYet(what) = flag.support
                && !(matches!(flag.owner, Owner::Legacy | Owner::Old) && self.generation == Generation::Current)
                && self.arguments.is_set(flag.attribute)
            {
                ask(what, self.arguments.name(flag.attribute).to_owned());
            }
        }
        if self.generation == Generation::Current && script == "ipu" {
            ask("IPU jobs", "ipu".to_owned());
        }
        for (what, names) in asked {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (verb, need) =
                (if what.ends_with('s') { "are" } else { "is" }, if names.len() == 1 { "needs" } else { "need" });
            let message = format!("{} {need} {what}, which {verb} not supported yet", words::both(&names));
            self.error(Diagnostic::error(Code::L0003, message));
        }
    }

    pub(super) fn job_id(&mut self) -> JobId {
        let text = self.arguments.text("job_id").unwrap_or("default");
        JobId::new(text).unwrap_or_else(|error| {
            let name = self.arguments.name("job_id");
            self.error(
                self.wrong_value(
                    "job_id",
                    format!("`{name}` cannot be `{}`: {}", error.name.escape_debug(), error.why),
                ),
            );
            JobId::new("default").expect("a plain word is a job id")
        })
    }

    pub(super) fn log_dir(&mut self) -> PathBuf {
        let directory = self.arguments.raw("log_dir").unwrap_or(std::ffi::OsStr::new("log"));
        if directory.is_empty() {
            let message = format!("`{}` is empty", self.arguments.name("log_dir"));
            self.error(self.wrong_value("log_dir", message).hint("name a directory, or leave it out to use `log`"));
        }
        PathBuf::from(directory)
    }

    /// A negative number is 0, as in Paddle. Its default applies where Paddle restarts anything: with etcd.
    pub(super) fn max_restart(&mut self, nodes: &Nodes) -> Option<u32> {
        let Some(number) = self.arguments.int("max_restart") else {
            return matches!(nodes, Nodes::Etcd { .. }).then_some(3);
        };
        let times = u32::try_from(number.max(0)).ok();
        if times.is_none() {
            let name = self.arguments.name("max_restart");
            let message = format!("`{name}` takes a number from 0 to {}, not `{number}`", u32::MAX);
            self.error(self.wrong_value("max_restart", message));
        }
        times
    }

    pub(super) fn nproc_per_node(&mut self) -> Option<u32> {
        // 0 is "not given" in Paddle's current launcher.
        let is_omitted = self.compat == Compat::Paddle && self.generation == Generation::Current;
        let number = self.arguments.int("nproc_per_node").filter(|number| *number != 0 || !is_omitted)?;
        // There cannot be more processes than ports.
        let count = u16::try_from(number).ok().filter(|count| *count > 0).map(u32::from);
        if count.is_none() {
            let name = self.arguments.name("nproc_per_node");
            self.error(
                self.wrong_value("nproc_per_node", format!("`{name}` takes a number from 1 to 65535, not `{number}`")),
            );
        }
        count
    }

    pub(super) fn devices(&mut self) -> Option<DeviceRequest> {
        let text = self.arguments.text("devices")?;
        let source = self.arguments.name("devices");
        let ids: Vec<String> = text.split(',').map(|id| id.trim().to_owned()).collect();
        if ids.iter().any(String::is_empty) {
            let message = format!("`{source}` has an empty entry in its list: `{text}`");
            self.error(
                self.wrong_value("devices", message).hint(format!("separate devices by single commas: `{source} 0,1`")),
            );
        }
        let kind = match source {
            "--gpus" | "--selected_gpus" => Some(DeviceKind::Gpu),
            "--xpus" | "--selected_xpus" => Some(DeviceKind::Xpu),
            "--npus" | "--selected_npus" => Some(DeviceKind::Npu),
            "--mlus" | "--selected_mlus" => Some(DeviceKind::Mlu),
            _ => None,
        };
        Some(DeviceRequest { source: source.to_owned(), kind, ids })
    }

    /// Only the legacy launcher has `--backend`; the current one chooses by device.
    pub(super) fn backend(&mut self) -> Backend {
        let Some(text) = self.arguments.text("backend").filter(|_| self.generation == Generation::Legacy) else {
            return Backend::Auto;
        };
        let name = self.arguments.name("backend");
        let Some(backend) = Backend::parse(text) else {
            let choices = words::either(&Backend::ALL.map(|(word, _)| word));
            let message = format!("`{name}` takes {choices}, not `{text}`");
            let error = match self.arguments.source("backend") {
                Some(Source::Variable(_)) => self.wrong_value("backend", message),
                _ => Diagnostic::error(Code::L0007, message),
            };
            self.error(error.row("Paddle says", Backend::unknown(text)));
            return Backend::Auto;
        };
        if backend != Backend::Auto && self.kind != Kind::Collective {
            let mode = self.kind.word();
            let asks = match (self.arguments.text("run_mode"), self.arguments.source("backend")) {
                // Children of a collective job inherit the variable; it does not apply to this job.
                (None, Some(Source::Variable(_))) => return Backend::Auto,
                (None, _) => format!("other flags ask for `{mode}`"),
                (Some(_), _) => format!("`--run_mode` is `{mode}`"),
            };
            let message = format!("`{name} {text}` works with collective jobs only, but {asks}");
            self.error(Diagnostic::error(Code::L0002, message));
        }
        backend
    }

    pub(super) fn env_limit(&mut self) -> usize {
        const NAME: &str = "PADDLE_ENV_LIMIT_LEN";
        const DEFAULT: usize = 48_000;
        let Some(text) = self.env.get(NAME) else { return DEFAULT };
        let limit = argparse::int(text).ok_or_else(|| bad_number(NAME, self.env));
        // A negative limit is below every length, as 0 is.
        self.report(limit).map_or(DEFAULT, |limit| usize::try_from(limit).unwrap_or(0))
    }
}

/// Parses an address, also in brackets as in endpoints: `[::1]`.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text).parse().ok()
}
