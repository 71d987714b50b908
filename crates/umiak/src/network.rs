//! The one thread that carries network work, and the runtime on it: tasks of every room are spawned there. It is started
//! when it is first needed, never before the guardian is forked, and lives as long as the process.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

static HANDLE: Mutex<Option<Handle>> = Mutex::new(None);

/// The runtime.
pub(crate) fn handle() -> io::Result<Handle> {
    let mut handle = HANDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*handle {
        return Ok(handle.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let new = runtime.handle().clone();
    std::thread::Builder::new()
        .name("net".to_owned())
        .stack_size(512 << 10)
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *handle = Some(new.clone());
    Ok(new)
}

/// Runs a task there, whose end nothing waits for.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    handle()?.spawn(task);
    Ok(())
}
