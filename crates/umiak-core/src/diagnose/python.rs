//! Python tracebacks: where they start, their frames, the exception, and how they are chained.

use super::blocks::{Block, Link, Shape, details, joined, opener, summary};
use super::text::{WIDTH, bounded};

const HEADER: &str = "Traceback (most recent call last):";
/// Lines of other threads and processes that may be between the frames and the exception.
const FOREIGN: usize = 5;

/// Where the header starts in this line. It may follow other text without a line break: a progress
/// bar, a time stamp, a prefix that every line of the traceback has.
pub(super) fn header(line: &str) -> Option<usize> {
    let at = line.strip_suffix(HEADER)?.len();
    (!line[..at].ends_with("C++ ")).then_some(at)
}

/// Reads the traceback whose header is line `at`. Returns `None` if it has no exception: the process
/// ended before printing it, so it is not evidence of an error.
pub(super) fn traceback(lines: &[&str], at: usize) -> Option<Block> {
    let before = &lines[at][..header(lines[at])?];
    // An exception group draws a line down its left side, which begins below the `+` of its header.
    let group = before.strip_suffix("+ Exception Group ").map(|indent| format!("{indent}| "));
    let prefix = group.as_deref().unwrap_or(before);
    let strip = |line| -> &str { str::strip_prefix(line, prefix).unwrap_or(line) };
    let mut frames: Vec<Frame<'_>> = Vec::new();
    let mut foreign = 0;
    let mut head = None;
    for (index, line) in lines.iter().enumerate().skip(at + 1) {
        let line = strip(line);
        if let Some(frame) = Frame::parse(line) {
            frames.push(frame);
        } else if line.starts_with(' ') {
            if let Some(frame) = frames.last_mut() {
                frame.add_code(line.trim());
            }
        } else if is_exception(line) {
            head = Some(index);
            break;
        } else {
            foreign += 1;
            if foreign > FOREIGN || opener(line).is_some() {
                break;
            }
        }
    }
    let head = head?;
    let headline = joined(lines, head);
    let headline = headline.strip_prefix(prefix.trim_start()).unwrap_or(&headline).to_owned();
    let mut block = Block {
        shape: Shape::Python,
        start: at,
        head,
        headline,
        end: details(lines, head),
        place: frames.iter().rev().find(|frame| frame.is_users()).map(Frame::show),
        aside: is_aside(lines, at),
        link: link(lines, at, before),
    };
    // Paddle's exceptions carry the C++ stack and a summary; the summary is the error.
    if let Some(summary) = summary(lines, head + 1) {
        (block.head, block.headline, block.end) = (summary.head, summary.headline, summary.end);
    }
    Some(block)
}

/// A syntax error of the script itself, which Python prints without a header.
pub(super) fn syntax_error(lines: &[&str], at: usize) -> Block {
    let (start, frame) = (at.saturating_sub(4)..at)
        .rev()
        .find_map(|index| Frame::parse(lines[index]).map(|frame| (index, Some(frame))))
        .unwrap_or((at, None));
    let place = frame.map(|mut frame| {
        frame.add_code(lines[start + 1].trim());
        frame.show()
    });
    Block { start, place, ..Block::line(lines, at, Shape::Python) }
}

/// The innermost frame of the user's code in the stack that `faulthandler` prints, which has its
/// most recent call first.
pub(super) fn crash_place(lines: &[&str]) -> Option<String> {
    let stack = lines.iter().skip_while(|line| !line.starts_with("Current thread")).skip(1);
    stack.map_while(|line| Frame::parse(line)).find(Frame::is_users).map(|frame| frame.show())
}

struct Frame<'a> {
    path: &'a str,
    line: &'a str,
    function: Option<&'a str>,
    code: Option<&'a str>,
}

impl<'a> Frame<'a> {
    /// `File "train.py", line 88, in step`; `faulthandler` leaves the second comma out.
    fn parse(line: &'a str) -> Option<Self> {
        let (path, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(digits);
        let function = rest.strip_prefix(',').unwrap_or(rest).strip_prefix(" in ").map(str::trim);
        (!number.is_empty()).then_some(Self { path, line: number, function, code: None })
    }

    /// The first line after a frame is its code; marks below it (`^^^^`) and repetitions are not.
    fn add_code(&mut self, line: &'a str) {
        let is_marks = line.chars().all(|char| matches!(char, '^' | '~' | ' '));
        if self.code.is_none() && !is_marks && !line.starts_with("[Previous line repeated") {
            self.code = Some(line);
        }
    }

    fn is_users(&self) -> bool {
        is_users(self.path)
    }

    fn show(&self) -> String {
        let mut place = format!("{}:{}", self.path, self.line);
        if let Some(function) = self.function {
            place = format!("{place} in {function}");
        }
        if let Some(code) = self.code {
            place = format!("{place}  {code}");
        }
        bounded(&place, WIDTH)
    }
}

/// True for the user's code: not the standard library, nor an installed package, nor code of the interpreter itself.
pub(super) fn is_users(path: &str) -> bool {
    let in_library = |marker: &str| {
        path.match_indices(marker)
            .any(|(at, _)| path[at + marker.len()..].starts_with(|char: char| char.is_ascii_digit()))
    };
    let installed = ["site-packages", "dist-packages"].iter().any(|name| path.contains(name));
    !installed && !path.starts_with("<frozen") && !in_library("/lib/python") && !in_library("/lib64/python")
}

/// `Type: text` or `Type`. Types are capitalised or have a module before them (`socket.timeout`),
/// which keeps most lines of other threads out.
fn is_exception(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    let is_name = !name.is_empty()
        && name.chars().all(|char| char.is_alphanumeric() || matches!(char, '_' | '.' | '<' | '>'))
        && name.starts_with(|char: char| char.is_alphabetic() || char == '_');
    let is_type = name.contains('.') || name.starts_with(char::is_uppercase);
    is_name && is_type && name.chars().any(char::is_lowercase)
}

/// An exception whose type names it as an error: `ValueError: bad batch`.
pub(super) fn is_error(line: &str) -> bool {
    let name = line.split_once(':').map_or(line, |(name, _)| name);
    is_exception(line) && ["Error", "Exception", "Interrupt"].iter().any(|end| name.ends_with(end))
}

fn last_before<'a>(lines: &[&'a str], at: usize) -> &'a str {
    lines[at.saturating_sub(4)..at].iter().rev().find(|line| !line.is_empty()).copied().unwrap_or_default()
}

/// True for a traceback that is printed at exit and did not end the program.
fn is_aside(lines: &[&str], at: usize) -> bool {
    let before = last_before(lines, at);
    ["Exception ignored ", "Error in atexit", "Error in sys.excepthook", "--- Logging error ---"]
        .iter()
        .any(|words| before.contains(words))
}

fn link(lines: &[&str], at: usize, prefix: &str) -> Link {
    let before = last_before(lines, at);
    if before.contains("During handling of the above exception") {
        Link::Handling
    } else if before.contains("The above exception was the direct cause") {
        Link::Cause
    } else if prefix.ends_with("Original ") || before.contains("terminated with the following error") {
        Link::Nested
    } else {
        Link::None
    }
}
