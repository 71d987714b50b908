//! Words in the quotes of another language.

pub(crate) mod python;
pub(crate) mod shell;
