//! Words in the quotes of another language.

pub(crate) mod python;
pub mod shell;
