//! Colours, marks and widths: decided once, from the streams and the environment.

use std::fmt::Write as _;
use std::io::IsTerminal;
pub use umiak_core::model::shown as duration;

use crate::secrets;
use anstyle::{AnsiColor, Effects};
use umiak_core::diag::{Diagnostic, Severity, shown};
use umiak_sys::terminal;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How to write for this terminal, or for none.
#[derive(Debug, Clone, Default)]
pub struct Style {
    /// stdout and stderr go to the same place: a terminal, or one pipe.
    pub streams_meet: bool,
    /// Colours on stderr.
    pub colour: bool,
    /// Colours on stdout.
    pub colour_of_data: bool,
    pub ascii: bool,
    /// A status line may be drawn while umiak is in the foreground.
    pub live: bool,
    /// Lines have a time stamp instead of a verb column.
    pub plain: bool,
    /// Instead of the current width of the terminal.
    pub fixed_width: Option<usize>,
}

/// States. Each has a sign, so that none depends on colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Waiting,
    Running,
    Done,
    Failed,
    Stopped,
    Restarted,
    /// The result of an earlier run is used.
    Cached,
    Lost,
}

impl Mark {
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::Stopped,
        Self::Restarted,
        Self::Cached,
        Self::Lost,
    ];
}

impl Style {
    /// Detects the style from the streams and the environment variables.
    pub fn detect(ascii: bool, no_progress: bool) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let stderr_is_terminal = std::io::stderr().is_terminal();
        let plain = !stderr_is_terminal || dumb || no_progress || is_set("CI");
        let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
        let is_same = terminal::is_same(&stdout, &stderr);
        Self {
            streams_meet: stderr_is_terminal && stdout.is_terminal() || is_same,
            colour: has_colour(&stderr),
            colour_of_data: has_colour(&stdout),
            ascii,
            // The reader of a pipe may write to the terminal at any time, after the status line.
            live: !plain && (is_same || terminal::is_file_or_null(&stdout)),
            plain,
            fixed_width: None,
        }
    }

    /// True if a status line may be drawn now: the foreground changes with `fg`, `bg` and Ctrl-Z.
    pub fn is_live(&self) -> bool {
        self.live && terminal::is_foreground(&std::io::stderr())
    }

    /// Columns of the terminal behind stderr.
    pub fn width(&self) -> usize {
        self.fixed_width
            .unwrap_or_else(|| terminal::size(&std::io::stderr()).map_or(100, |(columns, _)| usize::from(columns)))
    }

    /// Rows of the terminal behind stderr.
    pub fn height(&self) -> usize {
        terminal::size(&std::io::stderr()).map_or(24, |(_, rows)| usize::from(rows))
    }

    /// Stands for what is left out.
    pub fn dots(&self) -> &'static str {
        if self.ascii { "..." } else { "…" }
    }

    pub fn mark(&self, mark: Mark) -> &'static str {
        let (fancy, ascii) = match mark {
            Mark::Waiting => ("·", "."),
            Mark::Running => ("▸", ">"),
            Mark::Done => ("✓", "+"),
            Mark::Failed => ("✗", "x"),
            Mark::Stopped => ("⊘", "-"),
            Mark::Restarted => ("↻", "r"),
            Mark::Cached => ("≈", "="),
            Mark::Lost => ("?", "?"),
        };
        if self.ascii { ascii } else { fancy }
    }

    /// ` · ` between parts of a line.
    pub fn separator(&self) -> &'static str {
        if self.ascii { ", " } else { " · " }
    }

    fn paint(&self, paint: Paint, text: &str) -> String {
        if self.colour { format!("{}{text}{END}", paint.mark()) } else { text.to_owned() }
    }

    pub fn bold(&self, text: &str) -> String {
        self.paint(Paint::Bold, text)
    }

    pub fn dim(&self, text: &str) -> String {
        self.paint(Paint::Dim, text)
    }

    /// Renders an error or a notice.
    pub fn diagnostic(&self, diagnostic: &Diagnostic) -> String {
        let text = diagnostic.render(|severity, head| match severity {
            Severity::Error => self.red(head),
            Severity::Notice => self.yellow(head),
        });
        secrets::masked(&text)
    }

    pub fn red(&self, text: &str) -> String {
        self.paint(Paint::Red, text)
    }

    pub fn yellow(&self, text: &str) -> String {
        self.paint(Paint::Yellow, text)
    }

    pub fn green(&self, text: &str) -> String {
        self.paint(Paint::Green, text)
    }

    /// Truncates to `width` cells, and marks what was truncated.
    pub fn cut(&self, text: &str, width: usize) -> String {
        if text.width() <= width || width == 0 {
            return fit(text, width);
        }
        fit(text, width - 1) + self.cut_mark()
    }

    /// One cell, where a text was truncated.
    pub fn cut_mark(&self) -> &'static str {
        if self.ascii { "~" } else { "…" }
    }

    /// Colours the text by its mark.
    pub fn painted(&self, mark: Mark, text: &str) -> String {
        match mark {
            Mark::Failed => self.red(text),
            Mark::Done | Mark::Cached => self.green(text),
            Mark::Lost | Mark::Restarted => self.yellow(text),
            Mark::Running => self.bold(text),
            Mark::Waiting | Mark::Stopped => self.dim(text),
        }
    }

    /// One line about a step: `12:04:31 train started (2 pserver, 2 worker)`, or with the verb in its column. `rest`
    /// begins with a space or a colon, unless it is empty.
    pub fn step_progress(&self, step: &str, verb: &str, rest: &str, time: &str) -> String {
        if self.plain {
            format!("{time} {step} {}{rest}\n", verb.to_lowercase())
        } else {
            self.progress(verb, &[format!("{step}{rest}")], time)
        }
    }

    /// One line of progress: a right-aligned verb, or a time stamp in plain mode.
    pub fn progress(&self, verb: &str, parts: &[String], time: &str) -> String {
        if self.plain {
            format!("{time} {} {}\n", verb.to_lowercase(), parts.join(", "))
        } else {
            format!("{} {}\n", self.green(&format!("{verb:>10}")), parts.join(self.separator()))
        }
    }
}

/// A colour of our own. In a text it is a noncharacter, which becomes an escape sequence when the text is written: every
/// other escape sequence in it comes from a document, a log or another host, and is shown.
#[derive(Debug, Clone, Copy)]
enum Paint {
    Bold,
    Dim,
    Red,
    Yellow,
    Green,
}

/// The end of a painted text.
const END: char = '\u{fddf}';

impl Paint {
    const ALL: [Self; 5] = [Self::Bold, Self::Dim, Self::Red, Self::Yellow, Self::Green];

    fn mark(self) -> char {
        match self {
            Self::Bold => '\u{fdd0}',
            Self::Dim => '\u{fdd1}',
            Self::Red => '\u{fdd2}',
            Self::Yellow => '\u{fdd3}',
            Self::Green => '\u{fdd4}',
        }
    }

    fn style(self) -> anstyle::Style {
        match self {
            Self::Bold => anstyle::Style::new().effects(Effects::BOLD),
            Self::Dim => anstyle::Style::new().effects(Effects::DIMMED),
            Self::Red => AnsiColor::Red.on_default().effects(Effects::BOLD),
            Self::Yellow => AnsiColor::Yellow.on_default().effects(Effects::BOLD),
            Self::Green => AnsiColor::Green.on_default().effects(Effects::BOLD),
        }
    }
}

/// The text as it is written: lines as [`shown`], with our colours. Everything that is not the output of a user's
/// program, and not data, is written in this form.
pub fn written(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 16);
    for (position, line) in text.split('\n').enumerate() {
        if position > 0 {
            written.push('\n');
        }
        let mut rest = line;
        while let Some((at, mark)) = rest.char_indices().find(|(_, c)| matches!(c, '\u{fdd0}'..='\u{fddf}')) {
            written += &shown(&rest[..at]);
            match Paint::ALL.into_iter().find(|paint| paint.mark() == mark) {
                Some(paint) => written += &paint.style().render().to_string(),
                None => written += &anstyle::Reset.render().to_string(),
            }
            rest = &rest[at + mark.len_utf8()..];
        }
        written += &shown(rest);
    }
    written
}

/// True if output to this stream is coloured: depends on `NO_COLOR`, `CLICOLOR_FORCE` and whether it is a terminal.
pub fn has_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0");
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !is_set("NO_COLOR") && (forced || stream.is_terminal() && !dumb)
}

/// Truncates to `width` cells; wide characters count as two.
pub fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for character in text.chars() {
        let cells = character.width().unwrap_or(0);
        if used + cells > width {
            break;
        }
        used += cells;
        cut.push(character);
    }
    cut
}

/// `0-3, 5` for sorted numbers.
pub fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut index = 0;
    while index < numbers.len() {
        let first = numbers[index];
        let mut last = first;
        while index + 1 < numbers.len() && numbers[index + 1] == last + 1 {
            index += 1;
            last = numbers[index];
        }
        if !text.is_empty() {
            text.push_str(", ");
        }
        let _ = if first == last { write!(text, "{first}") } else { write!(text, "{first}-{last}") };
        index += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn number_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 7, 8]), "0-3, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn durations() {
        for (millis, text) in
            [(4, "4 ms"), (3_200, "3.2 s"), (42_000, "42 s"), (134_000, "2m14s"), (3_720_000, "1h02m")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn only_our_own_colours_are_written() {
        let style = Style { colour: true, ..Style::default() };
        let text = format!("{}\n  \x1b[44m{}\r\n", style.red("✗ a\x1b[0m\tb"), style.dim("c"));
        assert_eq!(written(&text), "\x1b[1m\x1b[31m✗ a␛[0m    b\x1b[0m\n  ␛[44m\x1b[2mc\x1b[0m␍\n");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(fit("训练脚本", 5), "训练");
        assert_eq!(fit("train", 5), "train");
    }
}
