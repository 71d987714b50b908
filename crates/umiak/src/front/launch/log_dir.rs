//! Allows one live launch per log directory. Log files have the same names in every launch, so two launches would mix
//! their lines.
//!
//! The lock is on the directory itself: it leaves no file behind, and ends with the launch and its guardian. Nodes of one
//! job may share a directory, since their files are named by global rank: they take a shared lock and mark it with their
//! job, launches on one node take an exclusive one. On a file system without directory locks (NFS), a launch runs without
//! the lock.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use twox_hash::XxHash3_64;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::model::{Nodes, Port};
use umiak_sys::files;
use umiak_sys::hold;

use crate::engine::Engine;
use crate::front::preparing;
use crate::secrets;

use super::Around;
use super::door::shown;
use super::prepare::{Outline, log_dir_error};

/// Held until the launch ends.
#[derive(Debug, Default)]
pub(super) struct LogDirLock {
    held: Vec<File>,
}

impl LogDirLock {
    /// The engine holds the locks too: ranks outlive a killed launch for a while, and still write.
    pub(super) fn share(&self, engine: &mut dyn Engine) {
        for file in &self.held {
            engine.keep(file.as_fd());
        }
    }
}

/// Makes the log directory and locks it. If another launch uses it, this launch gets a directory below it.
pub(super) fn take(around: &mut Around<'_>, outline: &mut Outline) -> Result<LogDirLock, Diagnostic> {
    let shared = mark(&around.spec);
    preparing::at(&outline.log_dir);
    secrets::show(&outline.log_dir);
    make(&outline.log_dir)?;
    if let Some(lock) = lock(&outline.log_dir, shared) {
        return Ok(lock);
    }
    let name = around.run_name().unwrap_or_else(|| format!("launch-{}", std::process::id()));
    let in_use = shown(&around.spec.request.logs.dir);
    let (name, lock) = take_below(&outline.log_dir, &name, shared)?;
    outline.log_dir.push(&name);
    let mut spec = (*around.spec).clone();
    spec.request.logs.dir.push(&name);
    let notice = Diagnostic::notice(Code::L0032, format!("`{in_use}` is in use by another launch"))
        .row("logs", shown(&spec.request.logs.dir))
        .hint("give each launch its own directory with `--log_dir`");
    outline.notices.push(notice);
    around.spec = Arc::new(spec);
    Ok(lock)
}

/// Makes a directory for this launch alone. Launches with different homes, or on different hosts, may have the same name.
fn take_below(path: &Path, first: &str, shared: Option<u64>) -> Result<(String, LogDirLock), Diagnostic> {
    let (mut name, mut number) = (first.to_owned(), 1);
    loop {
        let below = path.join(&name);
        files::make_own_directory(&below).map_err(|error| log_dir_error(&below, &error))?;
        if let Some(lock) = lock(&path.join(&name), shared) {
            return Ok((name, lock));
        }
        number += 1;
        name = format!("{first}-{number}");
    }
}

fn make(path: &Path) -> Result<(), Diagnostic> {
    files::make_directory(path).map_err(|error| log_dir_error(path, &error))
}

/// The mark of a job on several nodes: the same on all of them, whatever name each has for the first one.
fn mark(spec: &LaunchSpec) -> Option<u64> {
    let port = spec.own.rdzv_port.map(Port::get);
    let place = match &spec.request.nodes {
        Nodes::One => return None,
        Nodes::Master { port, .. } => port.get().to_string(),
        Nodes::List { addresses, .. } => format!("{addresses:?} {port:?}"),
        Nodes::Auto { .. } => format!("{port:?}"),
        Nodes::Etcd { at, .. } => at.root.clone(),
    };
    Some(XxHash3_64::oneshot(format!("{} {place}", spec.request.job_id).as_bytes()))
}

/// `None` if another launch holds the lock.
fn lock(path: &Path, shared: Option<u64>) -> Option<LogDirLock> {
    let Ok(directory) = File::open(path) else { return Some(LogDirLock::default()) };
    let taken = match shared {
        Some(mark) => hold::try_shared(&directory).and_then(|is_taken| Ok(is_taken && !hold::mark(&directory, mark)?)),
        None => hold::try_exclusive(&directory),
    };
    match taken {
        Ok(true) => Some(LogDirLock { held: vec![directory] }),
        Ok(false) => None,
        Err(_) => Some(LogDirLock::default()),
    }
}
