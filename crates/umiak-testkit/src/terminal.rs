//! The binary on a pseudo-terminal, and the screen it draws.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umiak_sys::terminal::open_pty;

use crate::sandbox::{Run, Sandbox};

/// A program with all its streams on one terminal.
#[derive(Debug)]
pub struct Session<'a> {
    sandbox: &'a Sandbox,
    child: Child,
    keyboard: File,
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
    size: (u16, u16),
}

impl<'a> Session<'a> {
    /// Starts `umiak` on a terminal of this size (columns, rows) that is its controlling terminal.
    pub fn start(sandbox: &'a Sandbox, size: (u16, u16), arguments: &[String]) -> Self {
        Self::of(sandbox.umiak(arguments), size)
    }

    /// Any other program, in the same way.
    pub fn of(run: Run<'a>, size: (u16, u16)) -> Self {
        let Run { sandbox, command } = run;
        let (master, slave) = open_pty(size.0, size.1).expect("a pseudo-terminal");
        let stream = |slave: &File| Stdio::from(slave.try_clone().expect("a descriptor"));
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(command.get_current_dir().unwrap_or(sandbox.path()))
            .env_clear()
            .env("TERM", "xterm-256color")
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .stdin(stream(&slave))
            .stdout(stream(&slave))
            .stderr(stream(&slave))
            .spawn()
            .expect("setsid can be started");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let mut output = master.try_clone().expect("a descriptor");
        let sink = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // On Linux the last close is reported as an error.
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                sink.lock().expect("no reader panics").extend_from_slice(&buffer[..count]);
            }
        });
        Self { sandbox, child, keyboard: master, bytes, reader, size }
    }

    /// What the terminal has received so far.
    pub fn received(&self) -> Vec<u8> {
        self.bytes.lock().expect("no reader panics").clone()
    }

    /// The current screen: lines without trailing spaces.
    pub fn screen(&self) -> Vec<String> {
        render(&self.received(), self.size)
    }

    /// The lines on the screen up to the last one, with wrapped lines joined.
    pub fn lines(&self) -> Vec<String> {
        draw(&self.received(), self.size).screen().contents().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    pub fn type_keys(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("write to the terminal");
    }

    /// Waits until the screen satisfies `condition`.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.screen();
            if condition(&screen) {
                return;
            }
            assert!(Instant::now() < deadline, "never on the screen: {what}\n{}", screen.join("\n"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end. Returns the status and everything the terminal received.
    pub fn finish(mut self) -> (ExitStatus, Vec<u8>) {
        let status = self.child.wait().expect("our own child");
        self.sandbox.assert_nothing_left();
        // No process has the terminal open, so the reader ends after the last byte.
        self.reader.join().expect("the reader does not panic");
        let bytes = std::mem::take(&mut *self.bytes.lock().expect("no reader panics"));
        (status, bytes)
    }
}

/// Draws bytes on a screen of this size.
pub fn render(bytes: &[u8], size: (u16, u16)) -> Vec<String> {
    draw(bytes, size).screen().rows(0, size.0).map(|row| row.trim_end().to_owned()).collect()
}

fn draw(bytes: &[u8], (columns, rows): (u16, u16)) -> vt100::Parser {
    let cells = |count: u16| std::num::NonZeroU16::new(count).expect("a screen has cells");
    let mut parser = vt100::Parser::new(cells(rows), cells(columns), 0);
    parser.process(bytes);
    parser
}
