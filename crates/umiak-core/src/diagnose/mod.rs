//! Why a job failed: evidence from the ranks' logs, known signatures, and the ranking of causes.
//!
//! [`extract`] reads the end of one rank's log, [`rank()`] compares the ends of all ranks, and
//! [`explain`] looks up a signature for `umiak explain U3102`. The caller reads files, decides which
//! ends belong together, and prints.

mod blocks;
mod chain;
mod elsewhere;
pub mod evidence;
pub mod interface;
pub mod kernel;
pub mod pai;
mod peers;
mod python;
pub mod rank;
pub mod signatures;
pub mod store;
mod text;
mod words;

pub use evidence::{ends_with_timeout, extract, last_lines};
pub use rank::{End, rank};
pub use signatures::{Kind, SIGNATURES, Scope, Signature, explain};
