//! Bytes of replicas, line by line, with the name of the replica before each line.
//!
//! A line without an end is held, up to a bound, so that lines of several replicas do not mix. Bytes that are no text
//! pass as they are.

use anstyle::AnsiColor;

/// A line that does not end is passed on in pieces of this size.
const PIECE: usize = 64 << 10;

/// Colours of replicas, by rank: a replica keeps its colour wherever it is shown.
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::Red];

/// `trainer-0 | `, in the colour of its rank where there are colours.
pub fn prefix(name: &str, width: usize, rank: u32, is_coloured: bool) -> String {
    let name = format!("{name:<width$} |");
    let colour = COLOURS[rank as usize % COLOURS.len()].on_default();
    if is_coloured { format!("{colour}{name}{colour:#} ") } else { format!("{name} ") }
}

/// The beginning of a line whose end has not come.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Calls `line` for each complete line, without its line feed.
    pub fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // A line that is there in one piece is not copied.
            if self.partial.is_empty() && piece.ends_with(b"\n") {
                line(&piece[..piece.len() - 1]);
                continue;
            }
            self.partial.extend_from_slice(piece);
            if self.partial.ends_with(b"\n") || self.partial.len() >= PIECE {
                self.finish(&mut line);
            }
        }
    }

    /// Nothing more comes: what is held is a line.
    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            line(self.partial.strip_suffix(b"\n").unwrap_or(&self.partial));
            self.partial.clear();
        }
    }

    /// Takes what is held, before its end.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }
}

/// The output of one replica among several.
#[derive(Debug)]
pub(super) struct Prefixed {
    prefix: Vec<u8>,
    lines: Lines,
    /// Of a line that was drawn over with `\r` only the last state is shown, as a terminal would.
    is_drawn: bool,
    /// What is held is shown when nothing follows: it may be a prompt.
    is_interactive: bool,
    /// The last line shown is ours, and has no end yet.
    is_open: bool,
}

impl Prefixed {
    pub(super) fn new(prefix: Vec<u8>, is_drawn: bool, is_interactive: bool) -> Self {
        Self { prefix, lines: Lines::default(), is_drawn, is_interactive, is_open: false }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        let Self { prefix, lines, is_drawn, is_open, .. } = self;
        lines.feed(bytes, |line| {
            if !std::mem::take(is_open) {
                out.extend_from_slice(prefix);
            }
            out.extend_from_slice(if *is_drawn { last_state(line) } else { line });
            out.push(b'\n');
        });
        out
    }

    /// The beginning of a line that may be a prompt, once nothing more is there.
    pub(super) fn prompt(&mut self) -> Vec<u8> {
        if !self.is_interactive || self.lines.partial.is_empty() {
            return Vec::new();
        }
        let begin = if std::mem::replace(&mut self.is_open, true) { Vec::new() } else { self.prefix.clone() };
        [begin, self.lines.take()].concat()
    }

    /// Something else is shown behind its open line, which is ended by that.
    pub(super) fn interrupt(&mut self) {
        self.is_open = false;
    }

    pub(super) fn finish(&mut self) -> Vec<u8> {
        if self.lines.partial.is_empty() { Vec::new() } else { self.feed(b"\n") }
    }
}

/// What is seen of a line on which a progress bar was drawn again and again.
fn last_state(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.rsplit(|byte| *byte == b'\r').find(|state| !state.is_empty()).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(is_drawn: bool, is_interactive: bool) -> Prefixed {
        Prefixed::new(b"a | ".to_vec(), is_drawn, is_interactive)
    }

    #[test]
    fn lines_are_held_until_they_end() {
        let mut lines = named(false, false);
        assert_eq!(lines.feed(b"one\ntw"), b"a | one\n");
        assert_eq!(lines.prompt(), b"");
        assert_eq!(lines.feed(b"o\n\n\xff"), b"a | two\na | \n");
        assert_eq!(lines.finish(), b"a | \xff\n");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn a_line_without_an_end_is_shown_in_pieces() {
        let mut lines = named(false, false);
        let mut out = Vec::new();
        for _ in 0..5 {
            out.extend(lines.feed(&vec![b'x'; 40 << 10]));
        }
        out.extend(lines.finish());
        let shown: Vec<&[u8]> =
            out.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"a | ")).collect();
        assert_eq!(shown.len(), 3, "two pieces, and the rest");
        assert_eq!(shown.concat(), vec![b'x'; 200 << 10]);
        assert!(lines.lines.partial.is_empty());
    }

    #[test]
    fn a_bar_is_seen_as_it_was_last() {
        assert_eq!(named(true, false).feed(b"\r 10%\r 90%\r100%\n"), b"a | 100%\n");
        assert_eq!(named(true, false).feed(b"\r 10%\r100%\r\n"), b"a | 100%\n");
        assert_eq!(named(true, false).feed(b"plain\r\n"), b"a | plain\n");
        assert_eq!(named(false, false).feed(b" 10%\r100%\n"), b"a |  10%\r100%\n", "bytes in a file");
    }

    #[test]
    fn a_prompt_is_shown_at_once_and_goes_on() {
        let mut lines = named(false, true);
        assert_eq!(lines.feed(b"> f()\n(Pdb) "), b"a | > f()\n");
        assert_eq!(lines.prompt(), b"a | (Pdb) ");
        assert_eq!(lines.prompt(), b"");
        assert_eq!(lines.feed(b"42\n"), b"42\n", "the same line");
        lines.feed(b"(Pdb) ");
        lines.prompt();
        lines.interrupt();
        assert_eq!(lines.feed(b"43\n"), b"a | 43\n");
    }
}
