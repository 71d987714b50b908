//! Output of replicas, line by line, with the name of the replica in front.
//!
//! An unfinished line is held, up to a limit, so that lines of several replicas do not mix. Lines may have any bytes.

use anstyle::AnsiColor;

/// Longer lines are split into pieces of this size.
const PIECE: usize = 64 << 10;

/// Colours of replicas, by rank: a replica has the same colour everywhere.
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::Red];

/// `trainer-0 | `, in the colour of its rank if enabled.
pub fn prefix(name: &str, width: usize, rank: u32, is_coloured: bool) -> String {
    let name = format!("{name:<width$} |");
    let colour = COLOURS[rank as usize % COLOURS.len()].on_default();
    if is_coloured { format!("{colour}{name}{colour:#} ") } else { format!("{name} ") }
}

/// Splits bytes into lines. Holds the unfinished one.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Calls `line` for each complete line, without its line feed.
    pub fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // A complete line is not copied.
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

    /// Calls `line` for the unfinished line, if any.
    pub fn finish(&mut self, mut line: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            line(self.partial.strip_suffix(b"\n").unwrap_or(&self.partial));
            self.partial.clear();
        }
    }

    /// Takes the unfinished line.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }
}

/// The output of one replica among several.
#[derive(Debug)]
pub(super) struct Prefixed {
    /// Empty if lines have no prefix. Such a line that is redrawn with `\r`, as by a progress bar, is shown as it is drawn.
    prefix: Vec<u8>,
    lines: Lines,
    /// Show only the last state of a line that was redrawn with `\r`, as a terminal does.
    is_drawn: bool,
    /// Show an unfinished line when nothing follows: it may be a prompt.
    is_interactive: bool,
    /// The last line on the screen is of this replica, and unfinished.
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
            out.extend_from_slice(if *is_drawn && !prefix.is_empty() { last_state(line) } else { line });
            out.push(b'\n');
        });
        out
    }

    /// The unfinished line, if it may be a prompt or a progress bar.
    pub(super) fn prompt(&mut self) -> Vec<u8> {
        let is_bar = self.prefix.is_empty() && self.lines.partial.contains(&b'\r');
        if !(self.is_interactive || is_bar) || self.lines.partial.is_empty() {
            return Vec::new();
        }
        let begin = if std::mem::replace(&mut self.is_open, true) { Vec::new() } else { self.prefix.clone() };
        [begin, self.lines.take()].concat()
    }

    /// Other output has ended the open line.
    pub(super) fn interrupt(&mut self) {
        self.is_open = false;
    }

    pub(super) fn finish(&mut self) -> Vec<u8> {
        if self.lines.partial.is_empty() { Vec::new() } else { self.feed(b"\n") }
    }
}

/// The last state of a line that was redrawn with `\r`, as by a progress bar.
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
    fn a_bar_without_a_prefix_is_shown_as_it_is_drawn() {
        let mut lines = Prefixed::new(Vec::new(), true, false);
        assert_eq!(lines.feed(b"epoch 1\npart"), b"epoch 1\n");
        assert_eq!(lines.prompt(), b"", "the rest of the line may follow");
        assert_eq!((lines.feed(b"ial\n\r 10%"), lines.prompt()), (b"partial\n".to_vec(), b"\r 10%".to_vec()));
        assert_eq!((lines.feed(b"\r 20%"), lines.prompt()), (Vec::new(), b"\r 20%".to_vec()));
        assert_eq!(lines.feed(b"\r100%\n"), b"\r100%\n");
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
