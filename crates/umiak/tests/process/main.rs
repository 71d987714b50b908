//! Tests of the real binary with real signals, real exit codes, and real frameworks where they are installed.
//!
//! The test binary is also the toy trainer that the tests launch.

mod conformance;
mod convert;
mod drift;
mod escapes;
mod failure;
mod faults;
mod files;
mod frameworks;
mod guide;
mod hang;
mod history;
mod hostile;
mod idle;
mod input;
mod kernel;
mod kill;
mod late;
mod launch;
mod lines;
mod lint;
mod log;
mod log_dir;
mod logpath;
mod nodes;
mod paddleflow;
mod pai;
mod pauses;
mod pipeline_views;
mod pipelines;
mod preparing;
mod recorded;
mod restart;
mod run;
mod screen;
mod secrets;
mod seeds;
mod servers;
mod several;
mod shell;
mod show;
mod signals;
mod stdin;
mod surroundings;

use umiak_testkit::sandbox::set_binary;
use umiak_testkit::suite::Suite;

fn main() -> std::process::ExitCode {
    set_binary(env!("CARGO_BIN_EXE_umiak"));
    let mut suite = Suite::default();
    launch::register(&mut suite);
    failure::register(&mut suite);
    files::register(&mut suite);
    restart::register(&mut suite);
    hang::register(&mut suite);
    screen::register(&mut suite);
    secrets::register(&mut suite);
    paddleflow::register(&mut suite);
    pai::register(&mut suite);
    pipeline_views::register(&mut suite);
    convert::register(&mut suite);
    show::register(&mut suite);
    stdin::register(&mut suite);
    conformance::register(&mut suite);
    frameworks::register(&mut suite);
    seeds::register(&mut suite);
    lines::register(&mut suite);
    servers::register(&mut suite);
    guide::register(&mut suite);
    input::register(&mut suite);
    lint::register(&mut suite);
    hostile::register(&mut suite);
    escapes::register(&mut suite);
    surroundings::register(&mut suite);
    kernel::register(&mut suite);
    signals::register(&mut suite);
    log::register(&mut suite);
    log_dir::register(&mut suite);
    pauses::register(&mut suite);
    pipelines::register(&mut suite);
    preparing::register(&mut suite);
    logpath::register(&mut suite);
    late::register(&mut suite);
    faults::register(&mut suite);
    kill::register(&mut suite);
    idle::register(&mut suite);
    several::register(&mut suite);
    nodes::register(&mut suite);
    history::register(&mut suite);
    recorded::register(&mut suite);
    run::register(&mut suite);
    drift::register(&mut suite);
    suite.main()
}
