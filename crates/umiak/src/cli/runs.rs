//! What the commands about recorded runs have in common: finding them, words for their states, times and tables.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{VERSION, Verdict};
use umiak_sys::clock::{LocalTime, from_local, local};
use unicode_width::UnicodeWidthStr as _;

use crate::history::index::{Entry, Word};
use crate::history::{Home, Life, RunDir, find, journal, life_of};
use crate::screen::Style;
use crate::screen::style::{Mark, duration, fit};

/// How a command of this family ends.
pub(super) type Done = Result<ExitCode, Diagnostic>;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Human,
    Json,
    Quiet,
}

/// The flags that all of them have.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Format {
    /// `human`, `json` (versioned, see `umiak schema`), or `quiet`
    #[arg(long, value_enum, default_value = "human", value_name = "FORMAT", hide_possible_values = true)]
    pub(super) output: Output,
    /// Signs of plain ASCII
    #[arg(long)]
    pub(super) ascii: bool,
}

impl Format {
    /// For what goes to stdout.
    pub(super) fn style(self) -> Style {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0");
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = umiak_sys::terminal::size(&std::io::stdout());
        Style {
            colour: !is_set("NO_COLOR") && (forced || std::io::stdout().is_terminal() && !dumb),
            ascii: self.ascii,
            // In a pipe nothing is cut.
            fixed_width: Some(terminal.map_or(usize::MAX, |(columns, _)| usize::from(columns))),
            ..Style::default()
        }
    }
}

/// The run that the user means.
pub(super) fn the_run(word: &str) -> Result<(Home, RunDir), Diagnostic> {
    let home = Home::from_environment()?;
    let run = find(&home, word)?;
    Ok((home, run))
}

/// What was not understood, once.
pub(super) fn note_newer(run: &RunDir, newer: Option<u32>, unknown: u64) {
    let notice = match newer {
        Some(found) => Diagnostic::notice(Code::J0005, format!("`{}` was written by a newer umiak", run.id()))
            .row("journal", format!("version {found}"))
            .row("this umiak", format!("{}, up to version {VERSION}", env!("CARGO_PKG_VERSION"))),
        None if unknown > 0 => {
            Diagnostic::notice(Code::J0011, format!("{unknown} facts of `{}` are not known to this version", run.id()))
        }
        None => return,
    };
    talk(&notice);
}

/// A notice, on stderr.
pub(super) fn talk(diagnostic: &Diagnostic) {
    let text = Style::detect(false, false).diagnostic(diagnostic);
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// JSON on stdout, one line feed at the end.
pub(super) fn print_json(value: &impl Serialize) -> Done {
    let text = serde_json::to_string_pretty(value).expect("a report is JSON");
    print_text(&format!("{text}\n"))
}

pub(super) fn print_text(text: &str) -> Done {
    crate::screen::write_data(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes on stdout as they come. `false` when the reader has gone away, which is no error.
pub(super) fn write(bytes: &[u8]) -> Result<bool, Diagnostic> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Diagnostic::error(Code::L0016, "umiak could not write its output").row("reason", error.to_string()))
        }
    }
}

/// Our end of a pipe, where stdout is one: it speaks up when its reader goes away, and only then. Whoever follows a
/// quiet run would not hear of it otherwise.
pub(super) fn reader_of_stdout() -> Vec<BorrowedFd<'static>> {
    static STDOUT: std::sync::OnceLock<std::io::Stdout> = std::sync::OnceLock::new();
    let is_pipe = std::fs::metadata("/proc/self/fd/1").is_ok_and(|metadata| metadata.file_type().is_fifo());
    is_pipe.then(|| STDOUT.get_or_init(std::io::stdout).as_fd()).into_iter().collect()
}

/// How a run stands, with what only its life tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Is(Word),
    Lost,
    /// Its host.
    Elsewhere(String),
}

impl Standing {
    pub(super) fn of(word: Word, life: Life) -> Self {
        match life {
            Life::Live { .. } | Life::Finished => Self::Is(word),
            Life::Lost => Self::Lost,
            Life::Elsewhere { host } => Self::Elsewhere(host),
        }
    }

    /// One that cannot be looked at is not known to live.
    pub(super) fn of_entry(home: &Home, entry: &Entry) -> Self {
        let run = RunDir::at(home, entry.run);
        Self::of(entry.state, life_of(&run, entry.state.is_finished()).unwrap_or(Life::Lost))
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Is(Word::Pending) => "pending",
            Self::Is(Word::Running) => "running",
            Self::Is(Word::Stopping) => "stopping",
            Self::Is(Word::Restarting) => "restarting",
            Self::Is(Word::Succeeded) => "succeeded",
            Self::Is(Word::Failed) => "failed",
            Self::Is(Word::Interrupted) => "interrupted",
            Self::Is(Word::Stopped) => "stopped",
            Self::Lost => "lost",
            Self::Elsewhere(_) => "elsewhere",
        }
    }

    pub(super) const WORDS: &[&str] = &[
        "pending",
        "running",
        "stopping",
        "restarting",
        "succeeded",
        "failed",
        "interrupted",
        "stopped",
        "lost",
        "elsewhere",
    ];

    pub(super) fn mark(&self) -> Mark {
        match self {
            Self::Is(Word::Pending) => Mark::Waiting,
            Self::Is(Word::Running) => Mark::Running,
            Self::Is(Word::Restarting) => Mark::Restarted,
            Self::Is(Word::Succeeded) => Mark::Done,
            Self::Is(Word::Failed) => Mark::Failed,
            Self::Is(Word::Stopping | Word::Interrupted | Word::Stopped) => Mark::Stopped,
            Self::Lost | Self::Elsewhere(_) => Mark::Lost,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Is(word) if word.is_finished())
    }
}

/// In the colour of what it says.
pub(super) fn painted(style: &Style, mark: Mark, text: &str) -> String {
    match mark {
        Mark::Failed => style.red(text),
        Mark::Done => style.green(text),
        Mark::Lost | Mark::Restarted => style.yellow(text),
        Mark::Running => style.bold(text),
        Mark::Waiting | Mark::Stopped => style.dim(text),
    }
}

/// A run whose journal was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) run: RunDir,
    pub(super) status: umiak_core::status::Status,
    pub(super) standing: Standing,
}

impl Loaded {
    /// Why it failed; not what an earlier attempt of a run failed for that ended well.
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.status.verdict.as_ref().filter(|_| self.standing != Standing::Is(Word::Succeeded))
    }
}

pub(super) fn load(run: RunDir) -> Result<Loaded, Diagnostic> {
    let replay = journal::replay(&run)?;
    note_newer(&run, replay.newer, replay.unknown);
    let life = life_of(&run, replay.status.is_finished())?;
    let standing = Standing::of(Word::of(replay.status.state), life);
    Ok(Loaded { run, status: replay.status, standing })
}

/// Microseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// `3 min ago`; a date for what is long ago.
pub(super) fn ago(at: u64, now: u64) -> String {
    let seconds = now.saturating_sub(at) / 1_000_000;
    match seconds {
        0..5 => "now".to_owned(),
        5..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        86_400..172_800 => "1 day ago".to_owned(),
        172_800..2_592_000 => format!("{} days ago", seconds / 86_400),
        _ => moment(at)[..10].to_owned(),
    }
}

/// `2026-11-15 03:08:23`.
pub(super) fn moment(at: u64) -> String {
    let LocalTime { year, month, day, hour, minute, second, .. } = local(at / 1_000_000);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

pub(super) fn between(from: u64, to: u64) -> String {
    duration(Duration::from_micros(to.saturating_sub(from)))
}

/// `2d`, `12h`, `30min`, `90s`, `1w`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err("write a number and `s`, `min`, `h`, `d` or `w`, as in `2d`".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and a unit, as in `2d`".to_owned())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| "that is too long".to_owned())
}

/// A moment: so long ago, or a date with or without a time.
pub(super) fn point(text: &str) -> Result<u64, String> {
    if let Ok(span) = span(text) {
        return Ok(now().saturating_sub(span.as_micros() as u64));
    }
    let wrong = || "write how long ago, as in `2d`, or a date, as in `2026-11-15` or `2026-11-15 03:08`".to_owned();
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0:0"));
    let numbers =
        |text: &str, by: char| text.split(by).map(str::parse).collect::<Result<Vec<i32>, _>>().map_err(|_| wrong());
    let (date, time) = (numbers(date, '-')?, numbers(time, ':')?);
    let [year, month, day] = date[..] else { return Err(wrong()) };
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(wrong()),
    };
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..61).contains(&second);
    let time = LocalTime { year, month, day, hour, minute, second, millisecond: 0 };
    from_local(time).filter(|_| is_time).map(|seconds| seconds * 1_000_000).ok_or_else(wrong)
}

/// `10G`, `512M`, `1T`; in powers of 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("write a number and `K`, `M`, `G` or `T`, as in `10G`".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and a unit, as in `10G`".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is too much".to_owned())
}

/// `1.9 GiB`.
pub(super) fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { umiak_core::diagnose::kernel::size(bytes / 1024) }
}

/// `*` is anything, `?` one character.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|c| *c == '?' || *c == text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, taken)) = star {
            (p, t) = (at + 1, taken + 1);
            star = Some((at, taken + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// A cell: what stands there, and how it is painted once it is padded.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) mark: Option<Mark>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, mark: None }
    }
}

/// Columns two spaces apart. `soft` is the column that gives way where the terminal is too narrow; columns that are
/// empty in every row are left out.
pub(super) fn table(style: &Style, head: &[&str], rows: &[Vec<Cell>], soft: usize) -> String {
    let used: Vec<bool> = (0..head.len()).map(|column| rows.iter().any(|row| !row[column].text.is_empty())).collect();
    let mut widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().map(|row| row[column].text.width()).max().unwrap_or(0).max(head[column].width()))
        .collect();
    let total: usize = (0..head.len()).filter(|column| used[*column]).map(|column| widths[column] + 2).sum();
    let over = total.saturating_sub(2).saturating_sub(style.width());
    widths[soft] = widths[soft].saturating_sub(over).max(widths[soft].min(8));
    let last = used.iter().rposition(|used| *used).unwrap_or(0);
    let line = |cells: &mut dyn Iterator<Item = (String, Option<Mark>)>| {
        let mut text = String::new();
        for (column, (cell, mark)) in cells.enumerate().filter(|(column, _)| used[*column]) {
            let cell = fit(&cell, widths[column]);
            let gap = if column == last { 0 } else { widths[column] - cell.width() + 2 };
            text.push_str(&mark.map_or(cell.clone(), |mark| painted(style, mark, &cell)));
            text.push_str(&" ".repeat(gap));
        }
        format!("{}\n", text.trim_end())
    };
    let mut text = line(&mut head.iter().map(|name| ((*name).to_owned(), Some(Mark::Waiting))));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(|cell| (cell.text.clone(), cell.mark))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_points_and_sizes() {
        assert_eq!(span("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert!(span("2").is_err() && span("d").is_err() && span("2 years").is_err() && span("").is_err());
        assert_eq!(moment(point("2026-11-15 03:08").unwrap()), "2026-11-15 03:08:00");
        assert!(point("2026-02-31").is_err() && point("yesterday").is_err() && point("2026-11-15 25:00").is_err());
        assert_eq!(bytes("10G"), Ok(10 << 30));
        assert_eq!(bytes("1KiB"), Ok(1024));
        assert!(bytes("ten").is_err());
    }

    #[test]
    fn how_long_ago() {
        let now = point("2026-11-15 12:00").unwrap();
        for (seconds, text) in [
            (1, "now"),
            (42, "42 s ago"),
            (200, "3 min ago"),
            (7300, "2 h ago"),
            (90_000, "1 day ago"),
            (400_000, "4 days ago"),
        ] {
            assert_eq!(ago(now - seconds * 1_000_000, now), text);
        }
        assert_eq!(ago(now - 40 * 86_400_000_000, now), "2026-10-06");
    }

    #[test]
    fn globs() {
        for (pattern, text) in
            [("*", ""), ("bert*", "bert-ft"), ("*-ft", "bert-ft"), ("b?rt*", "bert"), ("a*b*c", "a1b2b3c")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("bert", "bert-ft"), ("*x", "bert"), ("a?", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
