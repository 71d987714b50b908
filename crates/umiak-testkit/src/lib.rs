//! What umiak's tests stand on. Nothing here ships.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`suite`] | tests that can say *skipped* at run time, required components, the closing table |
//! | [`components`] | which real components are here: Paddle, torch, a GPU, the corpus, namespaces |
//! | [`sandbox`] | a directory of its own for each test, runs of the binary, a check for leftovers |
//! | [`toy`] | the toy trainer: the test binary itself, told what to do by its arguments |
//! | [`terminal`] | the binary on a pseudo-terminal, and the screen it draws |
//! | [`gpus`] | the driver's files, faked |

pub mod components;
pub mod gpus;
pub mod sandbox;
pub mod simulate;
pub mod suite;
pub mod terminal;
pub mod toy;
