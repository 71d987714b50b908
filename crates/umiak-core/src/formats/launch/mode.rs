//! The kind of job: from `--run_mode`, else from the other flags, else from a platform's environment variables.
//!
//! Paddle's legacy launcher also looks for flags in the script's arguments; here only the launcher's own flags count.

use super::checks::Checks;
use super::words;
use crate::diag::{Code, Diagnostic};
use crate::model::Generation;

/// The kinds of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Collective,
    Rpc,
    /// `ps`.
    Servers,
    /// `ps-heter`.
    Heter,
    /// One process of a parameter-server job placed by PaddleCloud.
    Pod,
}

impl Kind {
    /// The value of `--run_mode`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Collective => "collective",
            Self::Rpc => "rpc",
            Self::Servers | Self::Pod => "ps",
            Self::Heter => "ps-heter",
        }
    }

    pub(super) fn has_servers(self) -> bool {
        matches!(self, Self::Servers | Self::Heter | Self::Pod)
    }
}

/// Flags of both generations that set servers, trainers and coordinators.
const CREWS: [&str; 8] =
    ["server_num", "servers", "trainer_num", "trainers", "worker_num", "workers", "coordinator_num", "coordinators"];

pub(super) const HETER: [&str; 3] = ["heter_worker_num", "heter_workers", "heter_devices"];

/// Flags by which the legacy launcher recognises a job with servers, in the order in which it prints them.
const LEGACY: [&str; 8] = [
    "--worker_num",
    "--server_num",
    "--heter_worker_num",
    "--servers",
    "--workers",
    "--heter_workers",
    "--heter_devices",
    "--http_port",
];

/// Returns those in the command line, found as the legacy launcher does.
pub(super) fn legacy_flags(command_line: &str) -> Vec<String> {
    LEGACY.into_iter().filter(|flag| command_line.contains(flag)).map(str::to_owned).collect()
}

/// Flags that set the nodes.
const NODES: [&str; 3] = ["ips", "master", "nnodes"];

impl Checks<'_> {
    pub(super) fn choose_kind(&mut self) -> Kind {
        let implied = self.implied();
        let Some(word) = self.arguments.text("run_mode") else {
            return match implied {
                Some((kind, _)) => kind,
                None if self.is_in_pod() => Kind::Pod,
                None => Kind::Collective,
            };
        };
        let kind = match word {
            "collective" => Kind::Collective,
            "rpc" => Kind::Rpc,
            "ps" if implied.is_none() && self.says_role() => Kind::Pod,
            "ps" => Kind::Servers,
            "ps-heter" => Kind::Heter,
            _ => {
                self.unknown_mode(word);
                Kind::Collective
            }
        };
        // The legacy launcher uses only the mode; the current one would start servers anyway.
        if let Some((_, flag)) = implied
            && !kind.has_servers()
            && self.generation == Generation::Current
        {
            let name = self.arguments.name("run_mode");
            let message = format!("`{name}` is `{word}`, but `{flag}` asks for servers and trainers");
            self.error(Diagnostic::error(Code::L0002, message).hint("leave one of them out"));
        }
        kind
    }

    /// The kind that flags other than `--run_mode` imply, and one of those flags.
    fn implied(&self) -> Option<(Kind, &'static str)> {
        let given = |attribute: &&&str| self.is_given(attribute);
        let named = |kind: Kind, attribute: &&str| (kind, self.arguments.name(attribute));
        match self.generation {
            Generation::Current => CREWS[..4].iter().find(given).map(|attribute| named(Kind::Servers, attribute)),
            Generation::Legacy => {
                HETER.iter().find(given).map(|attribute| named(Kind::Heter, attribute)).or_else(|| {
                    let found = CREWS.iter().chain(&["http_port"]).find(given);
                    found.map(|attribute| named(Kind::Servers, attribute))
                })
            }
        }
    }

    /// In the current launcher, 0 means not given; in the legacy one, any number counts as given.
    fn is_given(&self, attribute: &str) -> bool {
        self.arguments.is_set(attribute)
            || self.generation == Generation::Legacy && self.arguments.int(attribute).is_some()
    }

    /// True if this is one process placed by PaddleCloud. Started processes inherit the same variables, so a launcher
    /// inside one of them is not a pod if its flags ask for something else.
    fn is_in_pod(&self) -> bool {
        self.says_role()
            && self.has_variable("PADDLE_PSERVERS_IP_PORT_LIST")
            && !["nproc_per_node", "devices", "backend"].iter().any(|attribute| self.is_from_flag(attribute))
    }

    fn says_role(&self) -> bool {
        self.has_variable("TRAINING_ROLE") && !NODES.iter().any(|attribute| self.is_from_flag(attribute))
    }

    fn has_variable(&self, name: &str) -> bool {
        self.env.get(name).is_some_and(|text| !text.is_empty())
    }

    /// The current launcher treats any unknown word as `collective`, even a misspelt `ps`.
    fn unknown_mode(&mut self, mode: &str) {
        let name = self.arguments.name("run_mode");
        if self.compat == super::Compat::Paddle && self.generation == Generation::Current {
            self.idle(name, &format!("`{mode}` is not a mode, and means `collective` as in Paddle"));
        } else {
            let choices = words::either(&["collective", "ps", "ps-heter", "rpc"]);
            self.error(self.wrong_value("run_mode", format!("`{name}` takes {choices}, not `{mode}`")));
        }
    }
}
