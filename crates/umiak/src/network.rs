//! The thread that carries all network work, and its runtime. Started when first needed, never before the guardian is
//! forked; lives as long as the process.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;

static HANDLE: Mutex<Option<Handle>> = Mutex::new(None);

/// Returns the runtime, started if needed.
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

/// Runs a task whose end is not awaited.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    handle()?.spawn(task);
    Ok(())
}
