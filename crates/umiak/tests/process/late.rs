//! A rank whose exit is reported after its peers have died of its closed sockets is still named as the cause.
//!
//! On GPUs a killed process closes its sockets a tenth of a second before the kernel reports its exit. Here the ranks
//! hold real connections in a ring; the failing rank closes its own and exits 200 ms later.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use umiak_testkit::components::trials;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("late::the_cause_is_named_though_its_peers_die_first", &[], cause_is_named);
}

/// How the failing rank ends, and the text that shows it was recognised.
struct End {
    actions: &'static str,
    code: i32,
    said: &'static str,
}

const ENDS: [End; 3] = [
    // Killed: a dying process does not react to SIGTERM and prints nothing.
    End { actions: "stubborn;ring-close;sleep 200;signal 9", code: 137, said: "was killed by SIGKILL" },
    // An error followed by a slow clean-up that ignores SIGTERM.
    End { actions: "stubborn;ERROR;ring-close;sleep 200;exit 7", code: 7, said: "ValueError: bad batch" },
    // As above, but ended by umiak's SIGTERM: its log held the error before umiak acted.
    End { actions: "ERROR;ring-close;sleep 200;exit 7", code: 1, said: "ValueError: bad batch" },
];

/// A traceback as Python prints it.
const ERROR: &str = "err Traceback (most recent call last):\\n  File \"train.py\", line 7, in <module>\\n    step(batch)\\nValueError: bad batch";

fn cause_is_named() {
    let count = trials(50);
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let problem = try_once(index);
                    wrong.lock().expect("no thread panics while it holds the lock").extend(problem);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics while it holds the lock");
    assert!(wrong.is_empty(), "{} of {count} named another rank\n{}", wrong.len(), wrong.join("\n"));
    if std::env::var_os("UMIAK_TRIALS").is_some() {
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), "late exit: the cause was named in {count} of {count}");
    }
}

/// Returns the problem, if any.
fn try_once(index: usize) -> Option<String> {
    let end = &ENDS[index % ENDS.len()];
    let failing = index % 4;
    let peers: Vec<usize> = (0..4).filter(|rank| *rank != failing).collect();
    // No rank fails before all are connected: a ring under construction breaks in other ways.
    let connected: Vec<String> = peers.iter().map(|rank| format!("await up.{rank}")).collect();
    let mut actions = vec!["*:ring".to_owned()];
    actions.extend(peers.iter().map(|rank| format!("{rank}:touch up.{rank};ring-wait;exit 1")));
    actions.push(format!("{failing}:{};{}", connected.join(";"), end.actions.replace("ERROR", ERROR)));
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--nproc_per_node 4", &actions).finish();
    let said = outcome.err();
    let named = said.contains(&format!("rank=[{failing}] was aborted")) && said.contains(end.said);
    let fine = named && outcome.status.code() == Some(end.code);
    (!fine).then(|| format!("trial {index}: rank {failing}, {:?}\n{said}", outcome.status))
}
