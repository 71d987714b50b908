//! Helper programs on a host: this test binary, started there with another first argument.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::channel;

use super::Host;
use crate::programs::toy;

/// A running helper; killed when dropped.
#[derive(Debug)]
pub(super) struct Helper {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    pub(super) fn start(host: &Host, mode: &str, arguments: &[String]) -> Self {
        // Some helpers hold more connections than the usual limit.
        let mut command = host.command("prlimit");
        command.arg("--nofile=16384").arg(toy()).arg(mode).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdout }
    }

    /// The next line of its output; panics if it ended without one.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        let length = self.stdout.read_line(&mut line).expect("it writes text");
        assert!(length > 0, "it ended: {:?}", self.child.wait());
        line.trim_end().to_owned()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the helper: runs the job until it is done, or until the suite exits.
pub(super) fn work(job: impl FnOnce() -> u8 + Send + 'static) -> u8 {
    let (sender, receiver) = channel();
    let of_job = sender.clone();
    std::thread::spawn(move || of_job.send(std::thread::spawn(job).join().unwrap_or(101)));
    std::thread::spawn(move || {
        // Nothing writes to it: it closes when the suite exits.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        sender.send(0)
    });
    receiver.recv().unwrap_or(101)
}

/// In the helper: sends a line to the suite.
pub(super) fn say(line: &str) {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("the suite reads");
}
