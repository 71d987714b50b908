//! Support for umiak's tests. Nothing here ships.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`suite`] | tests that can be *skipped* at run time, required components, the final table |
//! | [`components`] | which real components are available: Paddle, torch, a GPU, the corpus, namespaces, hosts |
//! | [`programs`] | this test binary, and programs on `PATH` |
//! | [`sandbox`] | a directory for each test, runs of the binary, a check for leftovers |
//! | [`simulate`], [`simulate_roles`], [`simulate_round`], [`simulate_succession`], [`simulate_pipeline`] | seeded simulators: one launched group, jobs with roles whose supervisors are lost, rounds of several nodes, jobs whose coordinator is elected, pipelines |
//! | [`seeds`] | campaigns over many seeds of a simulator, and replaying one |
//! | [`toy`] | the toy trainer: the test binary itself, controlled by its arguments |
//! | [`kill`] | trials that kill umiak itself, and the search for leftovers |
//! | [`kube`] | clusters of real Kubernetes, in namespaces and a directory of their own |
//! | [`net`] | several hosts on one machine, and network faults between them |
//! | `pem` | keys and certificates |
//! | [`podman`] | containers as nodes |
//! | [`etcd`] | clusters of real etcd, in a directory of their own |
//! | [`slurm`] | clusters of real Slurm, in a directory of their own |
//! | [`terminal`] | the binary on a pseudo-terminal, and the screen it draws |
//! | [`floor`] | the baseline of the benchmarks |
//! | [`freezer`] | uninterruptible sleep |
//! | [`gpus`] | fake files of the NVIDIA driver |
//! | [`hostile`] | documents made to exhaust memory or time |

pub mod components;
pub mod etcd;
pub mod floor;
pub mod freezer;
pub mod gpus;
pub mod hostile;
pub mod kill;
pub mod kube;
pub mod mpi;
pub mod net;
mod pem;
pub mod podman;
pub mod programs;
pub mod sandbox;
pub mod schema;
pub mod seeds;
pub mod simulate;
pub mod simulate_pipeline;
pub mod simulate_roles;
pub mod simulate_round;
pub mod simulate_succession;
pub mod slurm;
pub mod suite;
pub mod terminal;
pub mod toy;
