//! A launch command line, checked and complete, before the machine is inspected.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::diag::Diagnostic;
use crate::model::{Endpoint, Interpreter, OutputMode, Port, Request, Show, Whose};
use crate::quote::shell;

/// How the command was written: decides usage text, dispatch and interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spelling {
    /// `umiak launch …`
    Launch,
    /// `umiak fleetrun …`, `umiak /venv/bin/fleetrun …`, or the binary called as `fleetrun`; `program` is that word.
    Fleetrun { program: OsString },
    /// `umiak python -m paddle.distributed.launch …`; the word before `-m` is the interpreter.
    PaddleModule { interpreter: OsString },
    /// `umiak python -m paddle.distributed.fleet.launch …`
    FleetModule { interpreter: OsString },
    /// `umiak torchrun …`, `umiak /venv/bin/torchrun …`, or the binary called as `torchrun`; `program` is that word.
    Torchrun { program: OsString },
    /// `umiak python -m torch.distributed.run …`
    TorchModule { interpreter: OsString },
    /// `umiak python -m torch.distributed.launch …`, the older spelling.
    TorchLaunch { interpreter: OsString },
}

impl Spelling {
    /// The command up to the launcher's arguments, quoted for a shell.
    pub fn program(&self) -> String {
        match self {
            Self::Launch => "umiak launch".to_owned(),
            Self::Fleetrun { program } | Self::Torchrun { program } => format!("umiak {}", shell::quoted(program)),
            Self::PaddleModule { interpreter }
            | Self::FleetModule { interpreter }
            | Self::TorchModule { interpreter }
            | Self::TorchLaunch { interpreter } => {
                format!("umiak {} -m {}", shell::quoted(interpreter), self.module().unwrap_or_default())
            }
        }
    }

    /// The module that replaces the launcher's name.
    fn module(&self) -> Option<&'static str> {
        match self {
            Self::Launch | Self::Fleetrun { .. } | Self::Torchrun { .. } => None,
            Self::PaddleModule { .. } => Some("paddle.distributed.launch"),
            Self::FleetModule { .. } => Some("paddle.distributed.fleet.launch"),
            Self::TorchModule { .. } => Some("torch.distributed.run"),
            Self::TorchLaunch { .. } => Some("torch.distributed.launch"),
        }
    }

    /// True for `torchrun` and its modules.
    pub fn is_torch(&self) -> bool {
        matches!(self, Self::Torchrun { .. } | Self::TorchModule { .. } | Self::TorchLaunch { .. })
    }

    /// The interpreter that the command names.
    pub fn interpreter(&self) -> Option<Interpreter> {
        match self {
            Self::PaddleModule { interpreter }
            | Self::FleetModule { interpreter }
            | Self::TorchModule { interpreter }
            | Self::TorchLaunch { interpreter } => Some(Interpreter::Named(interpreter.clone())),
            Self::Fleetrun { program } | Self::Torchrun { program } => Some(Interpreter::OfScript(program.clone())),
            Self::Launch => None,
        }
    }
}

/// A checked launch: the request to the nodes, and what only the command itself needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSpec {
    pub spelling: Spelling,
    pub request: Request,
    /// Notices for the console.
    pub notices: Vec<Diagnostic>,
    pub own: OwnFlags,
    /// The launcher's arguments quoted for a shell, for the command that other nodes run. Does not contain the token.
    pub command_line: String,
}

impl LaunchSpec {
    /// The command for the other nodes if this node is the master: this command line with `--master`, quoted for a
    /// shell.
    pub fn command_for_others(&self, master: Endpoint) -> String {
        let program = self.spelling.program();
        // A shell would expand an address in brackets as a file pattern.
        let master = if master.address.is_ipv6() { format!("'{master}'") } else { master.to_string() };
        format!("{program} --master {master} {}", self.command_line)
    }
}

/// Flags that Paddle's launcher does not have, about the command itself. All kebab-case, never abbreviated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFlags {
    pub output: OutputMode,
    /// `--mirror`: with `--output json`, the first rank's output goes to stderr.
    pub mirror: bool,
    /// `--show`: the ranks whose output the console shows.
    pub show: Show,
    /// `--stdin`: the rank connected to the caller's stdin.
    pub stdin: Option<Whose>,
    pub dry_run: bool,
    pub compat: Compat,
    pub no_progress: bool,
    pub ascii: bool,
    /// True to run the job in a PID namespace.
    pub isolate: bool,
    /// True to record no run.
    pub no_record: bool,
    /// True if the run continues without its terminal.
    pub detach: bool,
    /// `--token`, else `UMIAK_TOKEN`: the secret that authenticates nodes to each other.
    pub token: Option<Token>,
    /// `--token-file`: where the token is read from.
    pub token_file: Option<PathBuf>,
    /// `--rdzv-port`, else `UMIAK_PORT`: the port where the nodes of a list meet.
    pub rdzv_port: Option<Port>,
    /// Longest wait for all nodes to join.
    pub rdzv_timeout: Duration,
    /// Silence after which a node is lost.
    pub node_timeout: Duration,
    /// Time to restore a broken connection.
    pub reconnect_window: Duration,
    /// True to copy the logs of all nodes to the first.
    pub gather_logs: bool,
    /// Number of `-v` flags.
    pub verbose: u8,
}

/// A secret. It is never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// `None` for an empty text, which protects nothing.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// True if a recorded handshake lets others guess it.
    pub fn is_short(&self) -> bool {
        self.0.len() < 16
    }

    /// The secret itself, to derive a key from.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(********)")
    }
}

impl Default for OwnFlags {
    fn default() -> Self {
        Self {
            output: OutputMode::Human,
            mirror: false,
            show: Show::default(),
            stdin: None,
            dry_run: false,
            compat: Compat::None,
            no_progress: false,
            ascii: false,
            isolate: false,
            no_record: false,
            detach: false,
            token: None,
            token_file: None,
            rdzv_port: None,
            rdzv_timeout: Duration::from_secs(600),
            node_timeout: Duration::from_secs(30),
            reconnect_window: Duration::from_secs(60),
            gather_logs: false,
            verbose: 0,
        }
    }
}

/// How strictly a command line is parsed. `Paddle` is as lenient as Paddle: for Paddle's own spelling of the command,
/// and with `--compat paddle`, which also removes proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    None,
    Paddle,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;

    #[test]
    fn the_command_for_the_others() {
        let master = |address: &str| Endpoint { address: address.parse().unwrap(), port: Port::new(4321).unwrap() };
        let spec = LaunchSpec {
            spelling: Spelling::Launch,
            request: request(),
            notices: vec![],
            own: OwnFlags::default(),
            command_line: "--nnodes 2 train.py 'a b'".to_owned(),
        };
        assert_eq!(
            spec.command_for_others(master("10.0.0.2")),
            "umiak launch --master 10.0.0.2:4321 --nnodes 2 train.py 'a b'"
        );
        let spec = LaunchSpec { spelling: Spelling::PaddleModule { interpreter: "python3".into() }, ..spec };
        assert_eq!(
            spec.command_for_others(master("fe80::2")),
            "umiak python3 -m paddle.distributed.launch --master '[fe80::2]:4321' --nnodes 2 train.py 'a b'"
        );
    }
}
