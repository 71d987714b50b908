//! The kernel as umiak uses it. The only crate that may hold `unsafe`.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`guardian`] | the small process that forks the ranks, outlives the front and leaves nothing behind |
//! | [`protocol`] | what front and guardian say to each other |
//! | [`cgroup`] | a cgroup for each job, and cleaning what killed ones left |
//! | [`clock`] | the wall clock in this place's time |
//! | [`descend`] | finding and stopping everything that descends from us |
//! | [`ports`] | free ports, leased until the job ends |
//! | [`devices`] | accelerators, from the driver's files |
//! | [`hold`] | locks on files, and telling one boot or process from another |
//! | [`hooks`] | where tests stop or slow umiak; without the feature `test-hooks` nowhere |
//! | [`host`] | addresses, CPUs and name of this host |
//! | [`helper`] | short programs that we run for their output |
//! | [`kernel`] | what the kernel says about a process that has died |
//! | [`limits`] | limits of resources of this process |
//! | [`logger`] | logs that are cut by size |
//! | [`memory`] | limits of memory, and cleaning the cgroups that killed runs left |
//! | [`net`] | the socket on which a coordinator listens, and random bytes for its proofs |
//! | [`wait`] | signals, timers and files as things to wait for |
//! | [`watch`] | changes of many files |
//! | [`terminal`] | whether a stream is a terminal, and how wide |

#![expect(unsafe_code, reason = "what the kernel offers is called here")]

pub mod addresses;
pub mod cgroup;
pub mod clock;
pub mod descend;
pub mod devices;
mod fork;
pub mod guardian;
pub mod helper;
pub mod hold;
pub mod hooks;
pub mod host;
pub mod kernel;
pub mod limits;
pub mod logger;
pub mod memory;
pub mod net;
pub mod ports;
pub mod protocol;
mod spawn;
pub mod terminal;
pub mod wait;
pub mod watch;
