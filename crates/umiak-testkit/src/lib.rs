//! What umiak's tests stand on. Nothing here ships.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`suite`] | tests that can say *skipped* at run time, required components, the closing table |
//! | [`components`] | which real components are here: Paddle, torch, a GPU, the corpus, namespaces, hosts |
//! | [`programs`] | this test binary, and programs on `PATH` |
//! | [`sandbox`] | a directory of its own for each test, runs of the binary, a check for leftovers |
//! | [`simulate`], [`simulate_roles`], [`simulate_round`] | seeded simulators: one launched group, jobs with roles whose supervisors are lost, rounds of several nodes |
//! | [`seeds`] | many seeds of a simulator: how many, which one again, and what must be met |
//! | [`toy`] | the toy trainer: the test binary itself, told what to do by its arguments |
//! | [`kill`] | trials in which umiak itself is killed, and the search for what it left |
//! | [`net`] | several hosts on one machine, and what goes wrong between them |
//! | [`podman`] | containers as nodes |
//! | [`terminal`] | the binary on a pseudo-terminal, and the screen it draws |
//! | [`floor`] | the least that the kernel can do, for the benchmarks |
//! | [`freezer`] | a sleep that no signal ends |
//! | [`gpus`] | the driver's files, faked |

pub mod components;
pub mod floor;
pub mod freezer;
pub mod gpus;
pub mod kill;
pub mod net;
pub mod podman;
pub mod programs;
pub mod sandbox;
pub mod schema;
pub mod seeds;
pub mod simulate;
pub mod simulate_roles;
pub mod simulate_round;
pub mod suite;
pub mod terminal;
pub mod toy;
