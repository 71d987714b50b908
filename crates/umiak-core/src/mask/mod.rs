//! Masks secrets in anything umiak writes: by the name of a variable, a flag, a header or a key; by shape, as a password in
//! a URL or a token of a well-known form; and because the value is a known secret.
//!
//! [`Known::text`] is the function that every writer uses. A replica's own log is not masked: it is written by the replica.

mod names;
mod shapes;
mod values;
mod words;

pub use names::{clearly_names_a_secret, is_secret};
pub use values::Known;
pub use words::{line, masked, secrets_of, words};

/// The replacement for a secret.
pub const MASK: &str = "********";
