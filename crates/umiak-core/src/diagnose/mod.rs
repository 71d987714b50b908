//! Why a job failed: evidence from the ranks' logs, known signatures, and the ranking of causes.
//!
//! [`extract`] reads the end of one rank's log, [`rank()`] weighs the ends of all ranks against each
//! other, [`explain`] looks a signature up for `umiak explain U3102`. Reading files, deciding which
//! ends belong together and printing are the caller's business.

mod blocks;
mod chain;
pub mod evidence;
pub mod kernel;
mod python;
pub mod rank;
pub mod signatures;
mod text;

pub use evidence::extract;
pub use rank::{End, rank};
pub use signatures::{Kind, SIGNATURES, Scope, Signature, explain};
