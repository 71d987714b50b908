//! The console of a running job. One thread owns stdout and stderr, so that output of the user's program, our messages
//! and the status line, or the block of lines of a pipeline, never mix, and so that a reader that does not read blocks only this thread.
//!
//! Mirrors follow the log files of ranks; the ranks write those files themselves and never wait for us. The output of a
//! single rank is copied unchanged; with several ranks, lines start with names.

pub mod doing;
pub mod lines;
mod mirror;
mod status;
pub mod style;
pub mod summary;

use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umiak_core::diag::{Diagnostic, shown_json};
use umiak_core::model::Stream;
use umiak_sys::terminal::is_foreground;
use umiak_sys::wait::{Waker, readable};

use lines::Prefixed;
use mirror::Mirrors;
#[cfg(test)]
pub(crate) use status::drawn;
pub use status::{Activity, NodeRow, NodeTime, Nodes, StatusLine};
use status::{BlockLine, StatusBlock};
pub use style::Style;
use style::written;

use crate::secrets;

const CHUNK: usize = 128 << 10;

/// At most ten redraws a second.
const REDRAW: Duration = Duration::from_millis(100);

/// Lines of the terminal that a block leaves to other output.
const BESIDE: usize = 3;

/// Longest wait for the thread to erase its status line.
const HIDE: Duration = Duration::from_millis(200);

/// A message to the thread of the screen.
#[derive(Debug)]
enum Message {
    /// To stderr, after everything mirrored so far, even in the middle of a user's line.
    Alert(String),
    /// The same, but not before the user's line is complete.
    Talk(String),
    /// To stdout.
    Data(String),
    /// Show this below everything else.
    Status(Option<Box<StatusBlock>>),
    /// To stderr, if nothing else was shown for this long.
    Heartbeat(String, Duration),
    /// Erase the status line, and wake this when done.
    Hide(Arc<Waker>),
    /// Mirror this file from this offset.
    Follow { source: Mirrored, path: PathBuf, offset: u64 },
    /// The writer of this rank's file, or of all, is being stopped, or has ended.
    LetGo { key: Option<u64>, ended: bool },
    /// This rank's file has a writer again.
    TakeUp { key: u64 },
    /// Mirror the rest, erase the status line, and end the thread.
    Close,
}

/// Where mirrored bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorTo {
    Stdout,
    Stderr,
    Nowhere,
}

/// A replica whose output is mirrored.
#[derive(Debug)]
pub struct Mirrored {
    /// Tells mirrors apart.
    pub key: u64,
    pub rank: u32,
    /// Stderr is mirrored to stderr, if it has a log of its own.
    pub stream: Stream,
    pub naming: Naming,
    /// It reads the caller's stdin, so that an unfinished line may be a prompt.
    pub is_interactive: bool,
    /// Another host writes its file.
    pub is_elsewhere: bool,
}

/// What precedes the lines of a mirrored replica.
#[derive(Debug)]
pub enum Naming {
    /// It is the only one: its output is copied unchanged.
    Alone,
    /// Its name, padded to the width of the longest name.
    Name(String, usize),
    /// This text, which may be empty.
    Text(String),
}

/// The handle of the screen's thread.
#[derive(Debug)]
pub struct Screen {
    sender: Sender<Message>,
    waker: Arc<Waker>,
    done: Arc<Waker>,
    lost: Arc<Mutex<Option<io::Error>>>,
    /// All writers are being stopped. Not a message: the thread may show their last output before it reads one.
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Screen {
    pub fn start(style: Style, mirror_to: MirrorTo) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let waker = Arc::new(Waker::new()?);
        let done = Arc::new(Waker::new()?);
        let lost = Arc::new(Mutex::new(None));
        let mut painter = Painter::new(style, mirror_to, lost.clone());
        let is_stopping = painter.is_stopping.clone();
        let thread = std::thread::Builder::new().name("screen".into()).stack_size(256 << 10).spawn({
            let (waker, done) = (waker.clone(), done.clone());
            move || {
                painter.run(&receiver, &waker);
                done.wake();
            }
        })?;
        crate::log::use_screen({
            let (sender, waker) = (sender.clone(), waker.clone());
            Box::new(move |line| {
                let sent = sender.send(Message::Talk(line.to_owned())).is_ok();
                waker.wake();
                sent
            })
        });
        Ok(Self { sender, waker, done, lost, is_stopping, thread: Some(thread) })
    }

    fn send(&self, message: Message) {
        // The thread ends only after `Close`, which is the last message.
        let _ = self.sender.send(message);
        self.waker.wake();
    }

    /// Shows progress, after the end of the user's line.
    pub fn talk(&self, text: impl Into<String>) {
        self.send(Message::Talk(secrets::masked(&text.into())));
    }

    /// Shows at once what cannot wait: a failure, the response to a signal.
    pub fn alert(&self, text: impl Into<String>) {
        self.send(Message::Alert(secrets::masked(&text.into())));
    }

    pub fn data(&self, text: impl Into<String>) {
        self.send(Message::Data(text.into()));
    }

    pub fn status(&self, status: Option<StatusLine>) {
        self.send(Message::Status(status.map(|line| Box::new(StatusBlock { line, nodes: None }))));
    }

    /// Shows a pipeline: its status line, and its nodes below.
    pub fn nodes(&self, line: StatusLine, nodes: Nodes) {
        self.send(Message::Status(Some(Box::new(StatusBlock { line, nodes: Some(nodes) }))));
    }

    /// The number of nodes that a terminal of this style shows.
    pub fn rows(style: &Style) -> usize {
        style.height().saturating_sub(BESIDE + 1)
    }

    /// Shows a line, unless something else was shown within `quiet`.
    pub fn heartbeat(&self, text: impl Into<String>, quiet: Duration) {
        self.send(Message::Heartbeat(text.into(), quiet));
    }

    /// Erases the status line before this process is paused: after that the terminal is the shell's. Does not wait for
    /// a thread that is blocked by its reader.
    pub fn hide_status(&self) {
        let Ok(hidden) = Waker::new().map(Arc::new) else { return };
        self.send(Message::Hide(hidden.clone()));
        let _ = readable(&[hidden.as_fd()], Some(HIDE));
    }

    pub fn follow(&self, source: Mirrored, path: PathBuf, offset: u64) {
        self.send(Message::Follow { source, path, offset });
    }

    /// A mirrored rank, or all of them, is being stopped, or has ended.
    pub fn let_go(&self, key: Option<u64>, ended: bool) {
        if key.is_none() && !ended {
            self.is_stopping.store(true, Ordering::Relaxed);
        }
        self.send(Message::LetGo { key, ended });
    }

    /// A mirrored rank has been started, maybe again.
    pub fn take_up(&self, key: u64) {
        self.is_stopping.store(false, Ordering::Relaxed);
        self.send(Message::TakeUp { key });
    }

    /// Tells the thread to finish; [`Screen::done`] is readable when it has.
    pub fn close(&self) {
        // The thread accepts nothing after `Close`.
        crate::log::release_screen();
        self.send(Message::Close);
    }

    /// Readable once everything is written.
    pub fn done(&self) -> &Waker {
        &self.done
    }

    /// To be called once `done` is readable. Returns the error if data was lost.
    pub fn join(mut self) -> Option<io::Error> {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The thread's own state.
struct Painter {
    style: Style,
    mirror_to: MirrorTo,
    mirrors: Mirrors,
    /// For one read of a log.
    buffer: Vec<u8>,
    /// The mirrors with an unfinished line, if lines have names: on stdout, and on stderr.
    open: [Option<usize>; 2],
    status: Option<Box<StatusBlock>>,
    /// Messages held until the user's line is complete.
    held: Vec<String>,
    /// The lines of the block that is on the terminal now; empty if there is none.
    drawn: Vec<BlockLine>,
    last_draw: Option<Instant>,
    /// When something other than the status line was last shown.
    last_shown: Instant,
    /// The user's output there ends with a line feed.
    at_line_start: bool,
    is_stopping: Arc<AtomicBool>,
    /// Data that could not be written.
    lost: Arc<Mutex<Option<io::Error>>>,
}

impl Painter {
    fn new(style: Style, mirror_to: MirrorTo, lost: Arc<Mutex<Option<io::Error>>>) -> Self {
        Self {
            style,
            mirror_to,
            mirrors: Mirrors::default(),
            buffer: vec![0; CHUNK],
            open: [None; 2],
            status: None,
            held: Vec::new(),
            drawn: Vec::new(),
            last_draw: None,
            last_shown: Instant::now(),
            at_line_start: true,
            is_stopping: Arc::default(),
            lost,
        }
    }

    fn run(&mut self, receiver: &Receiver<Message>, waker: &Waker) {
        loop {
            waker.clear();
            self.mirrors.hear();
            while let Ok(message) = receiver.try_recv() {
                match message {
                    Message::Alert(text) => {
                        self.pump_to_end();
                        self.flush_held();
                        self.write(&text);
                    }
                    Message::Talk(text) => {
                        self.pump_to_end();
                        self.held.push(text);
                        self.flush_held_between_lines();
                    }
                    Message::Data(text) => {
                        self.erase();
                        self.write_data(&text);
                    }
                    Message::Status(status) => self.status = status,
                    Message::Heartbeat(text, quiet) => {
                        self.pump_to_end();
                        if self.at_line_start && self.last_shown.elapsed() >= quiet {
                            self.write(&text);
                        }
                    }
                    Message::Hide(hidden) => {
                        self.status = None;
                        self.erase();
                        hidden.wake();
                    }
                    Message::Follow { source, path, offset } => {
                        if self.mirror_to != MirrorTo::Nowhere {
                            // The file of the last attempt, which this one replaces.
                            if let Some(index) = self.mirrors.position(source.key, source.stream) {
                                self.pump_one_to_end(index);
                            }
                            self.follow(source, &path, offset);
                        }
                    }
                    Message::TakeUp { key } => self.mirrors.take_up(key),
                    Message::LetGo { key, ended } => self.mirrors.let_go(key, ended),
                    Message::Close => {
                        // All writers have ended: read every file to its end.
                        self.mirrors.open_again();
                        for index in 0..self.mirrors.len() {
                            while self.pump_once(index, u64::MAX) {}
                            self.end_line(index);
                        }
                        self.flush_held();
                        self.erase();
                        return;
                    }
                }
            }
            let more = self.still_for().is_none() && self.pump();
            self.flush_held_between_lines();
            let look = self.mirrors.attend();
            let timeout = if more {
                Some(Duration::ZERO)
            } else {
                let still = self.still_for().filter(|_| self.mirrors.is_due());
                self.draw().into_iter().chain(look).chain(still).min()
            };
            let mut fds = vec![waker.as_fd()];
            fds.extend(self.mirrors.watched());
            if readable(&fds, timeout).is_err() {
                return;
            }
        }
    }

    /// The time for which a tree of nodes stays on the terminal: output of the user waits, so that it is shown together
    /// with the next drawing. Otherwise, the tree would be seen only between two lines of output.
    fn still_for(&self) -> Option<Duration> {
        let has_nodes = self.meets_us(self.mirror_to) && self.drawn.len() > 1;
        self.last_draw.filter(|_| has_nodes).and_then(|last| REDRAW.checked_sub(last.elapsed()))
    }

    /// Where a stream of a replica goes.
    fn goes_to(&self, stream: Stream) -> MirrorTo {
        match (self.mirror_to, stream) {
            (MirrorTo::Stdout, Stream::Err) => MirrorTo::Stderr,
            (to, _) => to,
        }
    }

    /// True if output there and our messages are in the same place.
    fn meets_us(&self, to: MirrorTo) -> bool {
        match to {
            MirrorTo::Stdout => self.style.streams_meet,
            MirrorTo::Stderr => true,
            MirrorTo::Nowhere => false,
        }
    }

    fn follow(&mut self, source: Mirrored, path: &Path, offset: u64) {
        let to = self.goes_to(source.stream);
        let is_terminal = match to {
            MirrorTo::Stdout => io::stdout().is_terminal(),
            MirrorTo::Stderr => io::stderr().is_terminal(),
            MirrorTo::Nowhere => false,
        };
        let is_coloured = if to == MirrorTo::Stdout { self.style.colour_of_data } else { self.style.colour };
        let Mirrored { key, rank, stream, naming, is_interactive, is_elsewhere } = source;
        let prefix = match naming {
            Naming::Alone => None,
            Naming::Name(name, width) => Some(lines::prefix(&name, width, rank, is_coloured)),
            Naming::Text(text) => Some(text),
        };
        let lines = prefix.map(|prefix| Prefixed::new(prefix.into_bytes(), is_terminal, is_interactive));
        if let Err(error) = self.mirrors.follow((key, stream), lines, (path, offset), is_elsewhere) {
            let path = path.display();
            self.held.push(format!("the output in {path} cannot be shown ({error}); the job continues\n"));
        }
    }

    /// Mirrors a limited amount. True if there is more.
    fn pump(&mut self) -> bool {
        for _ in 0..16.max(self.mirrors.len()) {
            let Some(index) = self.mirrors.next_due() else { return false };
            if self.pump_once(index, u64::MAX) {
                self.mirrors.put_back(index);
            } else if index < self.mirrors.len() && self.mirrors.has_ended(index) {
                self.end_line(index);
            }
        }
        self.mirrors.is_due()
    }

    /// Mirrors everything that is in the files now. What has ended ends its line.
    fn pump_to_end(&mut self) {
        for index in 0..self.mirrors.len() {
            self.pump_one_to_end(index);
        }
    }

    fn pump_one_to_end(&mut self, index: usize) {
        let end = self.mirrors.end(index);
        while self.pump_once(index, end) {}
        if index < self.mirrors.len() && self.mirrors.has_ended(index) {
            self.end_line(index);
        }
    }

    /// Mirrors one piece of one log; `false` if there is none, or if it cannot be shown.
    fn pump_once(&mut self, index: usize, end: u64) -> bool {
        // All mirrors may have been dropped since the caller counted them.
        if index >= self.mirrors.len() {
            return false;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let count = self.mirrors.read(index, end, &mut buffer);
        let is_shown = match self.mirrors.lines(index) {
            None => self.show(self.mirrors.stream(index), &buffer[..count]),
            Some(lines) => {
                let out = if count == 0 { lines.prompt() } else { lines.feed(&buffer[..count]) };
                self.show_named(index, &out)
            }
        };
        self.buffer = buffer;
        count > 0 && is_shown
    }

    /// Ends the line of a writer that has ended.
    fn end_line(&mut self, index: usize) {
        if let Some(out) = self.mirrors.lines(index).map(Prefixed::finish) {
            self.show_named(index, &out);
        }
    }

    /// Shows lines of one replica among several. An open line of another is ended first.
    fn show_named(&mut self, index: usize, out: &[u8]) -> bool {
        let Some(last) = out.last() else { return true };
        let stream = self.mirrors.stream(index);
        for place in 0..self.open.len() {
            // Both places may be the same terminal.
            let meets = place == self.place(stream) || self.style.streams_meet;
            // A bar that is redrawn overwrites that of another rank, as on a terminal that they share.
            let overwrites = out.starts_with(b"\r");
            if let Some(open) = self.open[place].filter(|open| *open != index && meets) {
                self.open[place] = None;
                if overwrites {
                    self.mirrors.lines(open).into_iter().for_each(Prefixed::interrupt);
                    continue;
                }
                self.mirrors.lines(open).into_iter().for_each(Prefixed::interrupt);
                if !self.show(self.mirrors.stream(open), b"\n") {
                    return false;
                }
            }
        }
        let place = self.place(stream);
        self.open[place] = (*last != b'\n').then_some(index);
        self.show(stream, out)
    }

    /// The position of a stream's unfinished line.
    fn place(&self, stream: Stream) -> usize {
        usize::from(self.goes_to(stream) == MirrorTo::Stderr)
    }

    /// Shows bytes of the user's program. `false` if that fails.
    fn show(&mut self, stream: Stream, bytes: &[u8]) -> bool {
        let Some(last) = bytes.last() else { return true };
        self.last_shown = Instant::now();
        let to = self.goes_to(stream);
        if self.meets_us(to) {
            self.erase();
        }
        let written = match to {
            MirrorTo::Stdout => write_all(&mut io::stdout(), bytes),
            MirrorTo::Stderr => write_all(&mut io::stderr(), bytes),
            MirrorTo::Nowhere => Ok(()),
        };
        if self.meets_us(to) {
            self.at_line_start = *last == b'\n';
        }
        if let Err(error) = written {
            // The reader has gone: the job continues, and its log has everything.
            let log = self.mirrors.path().map_or_else(|| "the logs".to_owned(), |path| path.display().to_string());
            (self.mirrors, self.open) = (Mirrors::default(), [None; 2]);
            // Ctrl-C stops the reader, too: `umiak launch … | tee out.txt`.
            if !self.is_stopping.load(Ordering::Relaxed) {
                let message = format!("the output can no longer be shown ({error}); the job continues");
                self.held.push(format!("{message}, and writes to {log}\n"));
            }
            return false;
        }
        true
    }

    fn flush_held_between_lines(&mut self) {
        if self.at_line_start {
            self.flush_held();
        }
    }

    fn flush_held(&mut self) {
        for text in std::mem::take(&mut self.held) {
            self.write(&text);
        }
    }

    fn write(&mut self, text: &str) {
        self.erase();
        self.last_shown = Instant::now();
        let mut stderr = io::stderr().lock();
        if !self.at_line_start {
            let _ = stderr.write_all(b"\n");
            self.at_line_start = true;
            let from = usize::from(!self.style.streams_meet);
            for open in self.open[from..].iter_mut().filter_map(Option::take) {
                self.mirrors.lines(open).into_iter().for_each(Prefixed::interrupt);
            }
        }
        let _ = write_all(&mut stderr, written(text).as_bytes());
    }

    /// Writes facts, which are JSON, to stdout. A closed pipe is not an error; a full disk is, since facts are lost.
    fn write_data(&self, text: &str) {
        if let Err(error) = write_all(&mut io::stdout(), shown_json(text).as_bytes())
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn erase(&mut self) {
        let drawn = std::mem::take(&mut self.drawn);
        // In the background, other output has replaced it.
        if !drawn.is_empty() && is_foreground(&io::stderr()) {
            let _ = write_all(&mut io::stderr(), erasure(&drawn, self.style.width()).as_bytes());
        }
    }

    /// Draws the status line if it is due; returns when it may be due again.
    fn draw(&mut self) -> Option<Duration> {
        if !self.style.live {
            return None;
        }
        // An unfinished line of the user is never overwritten: the status line waits for its end.
        let Some(status) = self.status.as_ref().filter(|_| self.at_line_start) else {
            self.erase();
            return None;
        };
        if !self.style.is_live() {
            // In the background. Checked again when the time shown would change.
            self.drawn.clear();
            return Some(status.line.until_next_second());
        }
        if let Some(wait) = self.last_draw.and_then(|last| REDRAW.checked_sub(last.elapsed())) {
            return Some(wait);
        }
        let height = self.style.height().saturating_sub(BESIDE).max(1);
        let lines = status.render(&self.style, height, Instant::now());
        let next = status.line.until_next_second();
        if lines != self.drawn {
            let texts: Vec<String> = lines.iter().map(|line| written(&line.text)).collect();
            // In one write, so that it does not flicker.
            let drawing = format!("{}{}", erasure(&self.drawn, self.style.width()), texts.join("\n"));
            let _ = write_all(&mut io::stderr().lock(), drawing.as_bytes());
            self.drawn = lines;
            self.last_draw = Some(Instant::now());
        }
        Some(next)
    }
}

/// Erases lines, at whose end the cursor is. A terminal that has become narrower has wrapped them.
fn erasure(drawn: &[BlockLine], columns: usize) -> String {
    let rows: usize = drawn.iter().map(|line| line.width.div_ceil(columns.max(1)).max(1)).sum();
    format!("\r\x1b[2K{}", "\x1b[A\x1b[2K".repeat(rows.saturating_sub(1)))
}

/// Writes text for people to stdout.
pub fn write_text(text: &str) -> Result<(), Diagnostic> {
    write_data(&written(text))
}

/// Writes JSON to stdout.
pub fn write_json(text: &str) -> Result<(), Diagnostic> {
    write_data(&shown_json(text))
}

/// Writes text for people to stderr, before there is a screen or without one.
pub fn say(text: &str) {
    let _ = write_all(&mut io::stderr().lock(), written(&secrets::masked(text)).as_bytes());
}

/// Writes data to stdout, unchanged. A closed pipe is not an error.
pub fn write_data(text: &str) -> Result<(), Diagnostic> {
    match write_all(&mut io::stdout().lock(), text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Diagnostic::failed("write its output", &error)),
        _ => Ok(()),
    }
}

fn write_all(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_of_a_block_are_erased() {
        let lines = |widths: &[usize]| -> Vec<BlockLine> {
            widths.iter().map(|width| BlockLine { text: String::new(), width: *width }).collect()
        };
        assert_eq!(erasure(&lines(&[]), 80), "\r\x1b[2K");
        assert_eq!(erasure(&lines(&[40]), 80), "\r\x1b[2K");
        assert_eq!(erasure(&lines(&[40, 0, 79]), 80), "\r\x1b[2K\x1b[A\x1b[2K\x1b[A\x1b[2K");
        assert_eq!(erasure(&lines(&[40, 79]), 39).matches("\x1b[A").count(), 4, "it was wrapped");
    }
}
