//! Quoting for Python and the shell.

pub(crate) mod python;
pub(crate) mod shell;
