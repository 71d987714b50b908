//! The real binary, real signals, real exit codes, and real frameworks where they are installed.
//!
//! One binary for all of it: it is also the toy trainer that the tests launch.

mod failure;
mod input;
mod launch;
mod screen;
mod seeds;
mod shell;
mod surroundings;

use umiak_testkit::sandbox::set_binary;
use umiak_testkit::suite::Suite;

fn main() -> std::process::ExitCode {
    set_binary(env!("CARGO_BIN_EXE_umiak"));
    let mut suite = Suite::default();
    launch::register(&mut suite);
    failure::register(&mut suite);
    screen::register(&mut suite);
    seeds::register(&mut suite);
    input::register(&mut suite);
    surroundings::register(&mut suite);
    suite.main()
}
