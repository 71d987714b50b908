//! `umiak python -m paddle.distributed.elastic`: changes or deletes the keys of an elastic job in etcd.

use std::ffi::OsString;
use std::process::ExitCode;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::elastic::{Action, Command, HELP, Parsed, parse};

use super::{fail, print};
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
        // Paddle's own line.
        Ok(()) => print(&format!("action {} done\n", command.action.name())),
        Err(diagnostic) => fail(&[diagnostic]),
    }
}

fn perform(command: &Command) -> Result<(), Diagnostic> {
    let told = |error: EtcdError| error.diagnostic();
    let etcd = Etcd::new(command.etcd.clone()).map_err(told)?;
    let network = network::handle().map_err(|error| told(error.into()))?;
    network.block_on(async {
        match command.action {
            Action::Clean => {
                if !command.force {
                    refuse_running(&etcd, command).await?;
                }
                etcd.delete_tree(&command.root).await.map_err(told)?;
                Ok(())
            }
            Action::Scale { nodes } => {
                let is_there = scale(&etcd, command, nodes).await.map_err(told)?;
                if is_there { Ok(()) } else { Err(no_job(command)) }
            }
        }
    })
}

/// The keys of a running job are in use: without them, its ranks stop and start again.
async fn refuse_running(etcd: &Etcd, command: &Command) -> Result<(), Diagnostic> {
    let key = command.coordinator_key();
    match etcd.get(&key).await.map_err(|error| error.diagnostic())? {
        None => Ok(()),
        Some(_) => Err(Diagnostic::error(Code::R0046, format!("the job `{}` is running", command.job))
            .row("key", key)
            .hint("stop it first with `umiak stop` on one of its nodes; `--force` deletes the keys all the same, and its ranks start again")),
    }
}

/// Changes a number that is there: a key without a job would stay for ever. False if there is none.
async fn scale(etcd: &Etcd, command: &Command, nodes: u32) -> Result<bool, EtcdError> {
    let key = command.nodes_key();
    let mut found = etcd.get(&key).await?;
    while let Some(entry) = found {
        match etcd.replace(&key, entry.modified, nodes.to_string().as_bytes(), entry.lease).await? {
            Replaced::Replaced(_) => return Ok(true),
            Replaced::Changed(other) => found = other,
        }
    }
    Ok(false)
}

fn no_job(command: &Command) -> Diagnostic {
    Diagnostic::error(Code::R0039, format!("there is no job `{}` in etcd; nothing was changed", command.job))
        .row("key", command.nodes_key())
        .hint("check `--job_id`, and that the job runs")
}
