//! The kernel interface of umiak. The only crate that may contain `unsafe`.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`guardian`] | the small process that forks the ranks, outlives the front and cleans up |
//! | [`protocol`] | messages between front and guardian |
//! | [`cgroup`] | a cgroup for each job, and cleaning up after killed ones |
//! | [`clock`] | the wall clock in local time |
//! | [`descend`] | finding and stopping all descendants |
//! | [`ports`] | free ports, leased until the job ends |
//! | [`devices`] | accelerators, from the driver's files |
//! | [`exposed`] | secrets in `/proc/PID/cmdline` and `/proc/PID/environ` |
//! | [`regular`] | files that must be regular |
//! | [`files`] | files that others can see: their modes and owners, and links in directories of other users |
//! | [`hold`] | locks on files, and identifying a boot or a process |
//! | [`holders`] | which users hold leases |
//! | [`hooks`] | hooks with which tests stop or delay umiak; only with the feature `test-hooks` |
//! | [`host`] | addresses, CPUs and name of this host |
//! | [`helper`] | short programs that are run for their output |
//! | [`kernel`] | kernel information about dead processes |
//! | [`limits`] | resource limits of this process |
//! | [`logger`] | log rotation by size |
//! | [`memory`] | memory limits, and cleaning up the cgroups of killed runs |
//! | [`mounts`] | directories that a process sees at other paths |
//! | [`net`] | the coordinator's socket, connections, listening sockets, and random bytes |
//! | [`observe`] | what running processes are doing |
//! | [`remote`] | a remote shell within one host |
//! | [`wait`] | signals, timers and files as things to wait for |
//! | [`watch`] | watching many files for changes |
//! | [`terminal`] | terminals: size, foreground, pseudo-terminals |

#![expect(unsafe_code, reason = "this crate makes the system calls")]

pub mod addresses;
pub mod cgroup;
pub mod clock;
pub mod descend;
pub mod devices;
pub mod exposed;
pub mod files;
mod fork;
pub mod guardian;
pub mod helper;
pub mod hold;
pub mod holders;
pub mod hooks;
pub mod host;
pub mod kernel;
pub mod limits;
pub mod logger;
pub mod memory;
pub mod mounts;
pub mod net;
pub mod observe;
pub mod ports;
pub mod protocol;
pub mod regular;
pub mod remote;
mod spawn;
pub mod terminal;
pub mod wait;
pub mod watch;
