//! Finds the errors in a log: tracebacks, aborts, panics, and lines that only a failing program prints.
//! [`super::chain`] chooses among them.

use super::{python, text};

/// Lines after the error that still belong to it.
const DETAILS: usize = 15;
/// Lines of a native stack that may be between its header and the summary.
const STACK: usize = 200;

/// The kind of a block; it determines its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// An exception that Python printed.
    Python,
    /// A native abort, panic, failed check, or a message of the shell or loader.
    Abort,
    /// A signal arrived: how the process ended, not why.
    Notice,
}

/// How a traceback is connected with the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    None,
    /// `raise … from …`: the one before is the cause.
    Cause,
    /// Raised while the one before was being handled.
    Handling,
    /// The traceback of a worker, quoted by the one before.
    Nested,
}

/// One error in the log. Positions are indexes of lines.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) shape: Shape,
    pub(super) start: usize,
    /// The line of the error itself.
    pub(super) head: usize,
    pub(super) headline: String,
    /// One past the last line of its details.
    pub(super) end: usize,
    pub(super) place: Option<String>,
    pub(super) aside: bool,
    pub(super) link: Link,
}

impl Block {
    /// A block that starts with its error.
    pub(super) fn line(lines: &[&str], at: usize, shape: Shape) -> Self {
        Self {
            shape,
            start: at,
            head: at,
            headline: joined(lines, at),
            end: details(lines, at),
            place: None,
            aside: false,
            link: Link::None,
        }
    }
}

/// How a line starts a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opener {
    Traceback,
    SyntaxError,
    FatalPython,
    PaddleStack,
    PaddleSummary,
    Signal,
    Terminate,
    RustPanic,
    /// The line is the error.
    Plain,
}

/// Every block, in the order of the log.
pub(super) fn find(lines: &[&str]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let block = opener(lines[at]).and_then(|opener| read(lines, at, opener));
        at = block.as_ref().map_or(at + 1, |block| block.end.max(at + 1));
        blocks.extend(block);
    }
    blocks
}

fn read(lines: &[&str], at: usize, opener: Opener) -> Option<Block> {
    match opener {
        Opener::Traceback => python::traceback(lines, at),
        Opener::SyntaxError => Some(python::syntax_error(lines, at)),
        Opener::PaddleStack | Opener::PaddleSummary => {
            let block = summary(lines, at)?;
            // The abort is only how it ended; the error was printed before.
            let aborted = block.headline.contains("`Process abort signal`");
            let terminated = block.headline.contains("`Termination signal`");
            Some(if aborted || terminated { Block { shape: Shape::Notice, ..block } } else { block })
        }
        Opener::FatalPython => {
            let block = Block::line(lines, at, Shape::Abort);
            let stack = &lines[at..lines.len().min(at + STACK)];
            // The stack of the current thread follows after one blank line.
            let end = at + stack.iter().skip(2).position(|line| line.is_empty()).map_or(stack.len(), |end| end + 2);
            let shape = if lines[at].ends_with("Aborted") { Shape::Notice } else { Shape::Abort };
            Some(Block { shape, end, place: python::crash_place(stack), ..block })
        }
        Opener::Signal => {
            let how = ["SIGTERM", "SIGABRT", "SIGINT"].iter().any(|name| lines[at].contains(name));
            Some(Block::line(lines, at, if how { Shape::Notice } else { Shape::Abort }))
        }
        Opener::Terminate => Some(terminate(lines, at)),
        Opener::RustPanic => {
            let mut block = Block::line(lines, at, Shape::Abort);
            // Since 1.73 the message is on the line after the place.
            if let (true, Some(message)) = (lines[at].ends_with(':'), lines.get(at + 1)) {
                block.place = lines[at].split_once(" panicked at ").map(|(_, place)| place.replace(['\'', ','], ""));
                block.place = block.place.map(|place| place.trim_end_matches(':').to_owned());
                block.headline = format!("panicked: {message}");
            }
            Some(block)
        }
        Opener::Plain => {
            let mut block = Block::line(lines, at, Shape::Abort);
            if lines[at].contains(": error: ") {
                // An argument parser's error comes after its usage; a compiler's does not.
                block.start = (at.saturating_sub(40)..at).rev().find(|&line| lines[line].starts_with("usage: "))?;
            }
            Some(block)
        }
    }
}

/// How this line starts a block, if it does.
pub(super) fn opener(line: &str) -> Option<Opener> {
    let said = line.trim_start();
    let starts = |words: &[&str]| words.iter().any(|words| said.starts_with(words));
    let contains = |words: &[&str]| words.iter().any(|words| line.contains(words));
    if python::header(line).is_some() {
        Some(Opener::Traceback)
    } else if starts(&["SyntaxError: ", "IndentationError: ", "TabError: "]) {
        Some(Opener::SyntaxError)
    } else if starts(&["Fatal Python error: "]) {
        Some(Opener::FatalPython)
    } else if starts(&["C++ Traceback (most recent call last):", "C++ Call Stacks"]) {
        Some(Opener::PaddleStack)
    } else if said == "Error Message Summary:" {
        Some(Opener::PaddleSummary)
    } else if line.contains("*** SIG") && line.contains(" received by PID ") {
        Some(Opener::Signal)
    } else if contains(&["terminate called ", "libc++abi: terminating"]) {
        Some(Opener::Terminate)
    } else if starts(&["thread '"]) && line.contains(" panicked at ") {
        Some(Opener::RustPanic)
    } else {
        let plain = starts(&["panic: ", "fatal error: ", "*** stack smashing", "double free or ", "free(): ", "malloc(): "])
            || starts(&["corrupted size", "corrupted double-linked"])
            || contains(&["==ERROR: AddressSanitizer", ": error: "])
            || contains(&["error while loading shared libraries: "])
            || said.ends_with(": command not found")
            || (contains(&["sh: "]) && said.ends_with(": not found"))
            // GPU kernels print these for each thread; the exception that follows is the error.
            || (line.contains(": Assertion ") && said.ends_with("failed.") && !line.contains("block: ["))
            || is_interpreters(said)
            || text::level(said) == Some('F');
        plain.then_some(Opener::Plain)
    }
}

/// `/usr/bin/python3: can't open file …`: printed by the interpreter, not by a program that continues.
fn is_interpreters(text: &str) -> bool {
    text.split_once(": ").is_some_and(|(path, said)| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_interpreter = name.starts_with("python") && !path.contains(' ');
        is_interpreter && ["can't open file ", "No module named "].iter().any(|words| said.starts_with(words))
    })
}

/// The error line; if it has a type but no text, joined with the next line that has text.
pub(super) fn joined(lines: &[&str], at: usize) -> String {
    let text = lines[at].trim();
    let next = || lines[at + 1..].iter().take(3).map(|line| line.trim()).find(|line| !line.is_empty());
    match next() {
        Some(next) if text.ends_with(':') && !is_rule(next) && opener(next).is_none() => format!("{text} {next}"),
        _ => text.to_owned(),
    }
}

/// One past the last line of the details of an error: what follows it without a gap.
pub(super) fn details(lines: &[&str], head: usize) -> usize {
    let rest = lines[head + 1..].iter().take(DETAILS);
    head + 1 + rest.take_while(|line| !line.is_empty() && opener(line).is_none()).count()
}

fn is_rule(line: &str) -> bool {
    ["---", "==="].iter().any(|rule| line.starts_with(rule)) && line.bytes().all(|byte| byte == line.as_bytes()[0])
}

/// Paddle's summary, when a native stack or the summary itself begins at `at` or after rules and
/// blank lines.
pub(super) fn summary(lines: &[&str], at: usize) -> Option<Block> {
    let skip = |from: usize| (from..lines.len()).find(|&line| !lines[line].is_empty() && !is_rule(lines[line]));
    let start = skip(at)?;
    let title = match opener(lines[start])? {
        Opener::PaddleSummary => start,
        Opener::PaddleStack => {
            let end = lines.len().min(start + STACK);
            (start..end).find(|&line| opener(lines[line]) == Some(Opener::PaddleSummary))?
        }
        _ => return None,
    };
    let head = skip(title + 1)?;
    // Its details have blank lines between them and may contain the notice of a signal.
    let belongs = |line: &&&str| matches!(opener(line), None | Some(Opener::Signal));
    let end = head + 1 + lines[head + 1..].iter().take(DETAILS).take_while(belongs).count();
    Some(Block { start, end, ..Block::line(lines, head, Shape::Abort) })
}

/// The message of `std::terminate`: the type in the first line, the text in `what():`.
fn terminate(lines: &[&str], at: usize) -> Block {
    let mut block = Block::line(lines, at, Shape::Abort);
    let kind = lines[at].split_once(" an instance of '").map(|(_, kind)| kind.trim_end_matches('\''));
    let what = (at + 1..lines.len().min(at + 4)).find(|&line| lines[line].trim_start().starts_with("what():"));
    if let Some(head) = what {
        let text = joined(lines, head);
        let text = text.trim_start_matches("what():").trim();
        block.head = head;
        block.headline = kind.map_or_else(|| text.to_owned(), |kind| format!("{kind}: {text}"));
        block.end = details(lines, head);
    }
    block
}
