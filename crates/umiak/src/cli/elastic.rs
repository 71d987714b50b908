//! `umiak python -m paddle.distributed.elastic`: changes or deletes the keys of an elastic job in etcd.

use std::ffi::OsString;
use std::process::ExitCode;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::elastic::{Action, Command, HELP, Parsed, parse};

use super::{fail, print, tell};
use crate::etcd::{Etcd, EtcdError, Replaced};
use crate::log;
use crate::network;

pub(super) fn run(words: &[OsString]) -> ExitCode {
    let command = match parse(words, &crate::host::environment()) {
        Ok(Parsed::Help) => return print(HELP),
        Ok(Parsed::Command(command)) => command,
        Err(diagnostics) => return fail(&diagnostics),
    };
    if let Err(diagnostic) = log::start(0) {
        return fail(&[diagnostic]);
    }
    match perform(&command) {
        Ok(notice) => {
            tell(notice.as_slice());
            // Paddle's own line.
            print(&format!("action {} done\n", command.action.name()))
        }
        Err(error) => fail(&[error.diagnostic()]),
    }
}

/// Changes the keys; returns what the user should know.
fn perform(command: &Command) -> Result<Option<Diagnostic>, EtcdError> {
    let etcd = Etcd::new(command.etcd.clone())?;
    network::handle()?.block_on(async {
        match command.action {
            Action::Clean => etcd.delete_tree(&command.root).await.map(|_| None),
            Action::Scale { nodes } => scale(&etcd, command, nodes).await,
        }
    })
}

/// Changes a number that is there: a key without a job would stay for ever.
async fn scale(etcd: &Etcd, command: &Command, nodes: u32) -> Result<Option<Diagnostic>, EtcdError> {
    let key = command.nodes_key();
    let mut found = etcd.get(&key).await?;
    while let Some(entry) = found {
        match etcd.replace(&key, entry.modified, nodes.to_string().as_bytes(), entry.lease).await? {
            Replaced::Replaced(_) => return Ok(None),
            Replaced::Changed(other) => found = other,
        }
    }
    let message = format!("etcd has no number of nodes for the job `{}`; nothing was changed", command.job);
    let notice = Diagnostic::notice(Code::R0039, message).row("key", key);
    Ok(Some(notice.hint("check `--job_id`, and that the job runs")))
}
