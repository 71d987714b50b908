//! Splits a piece of a log into lines, without terminal control sequences.

use std::borrow::Cow;

use super::python;
use super::signatures;

/// Bytes at the end of the input that are read, at most.
const MAX_TAIL: usize = 256 * 1024;
/// Bytes of one line that are read. A longer error message has its essential part at the start.
const MAX_LINE: usize = 1024;
/// States of one line that are read.
const MAX_STATES: usize = 64;
/// Characters of one line that are kept as evidence.
pub(super) const WIDTH: usize = 300;

/// A cleaned line and its number in the file, if known.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) text: String,
    pub(super) number: Option<u64>,
}

/// Splits the end of a log into cleaned lines.
pub(super) fn rows(tail: &[u8], first_line: Option<u64>) -> Vec<Row> {
    let (skipped, tail) = tail.split_at(tail.len().saturating_sub(MAX_TAIL));
    let skipped = skipped.split(|&byte| byte == b'\n').count() as u64 - 1;
    let first = first_line.map(|line| line.saturating_add(skipped));
    let tail = tail.strip_suffix(b"\n").unwrap_or(tail);
    tail.split(|&byte| byte == b'\n')
        .zip(0u64..)
        .map(|(line, index)| Row { text: clean(line), number: first.map(|first| first.saturating_add(index)) })
        .collect()
}

/// One line as a terminal would finally show it: the last state of a progress bar, without colours and
/// control characters, without the rank prefix that launchers put before every line. What is drawn over an error does
/// not hide it.
fn clean(line: &[u8]) -> String {
    let state = |segment: &[u8]| {
        let segment = plain(&String::from_utf8_lossy(&segment[..segment.len().min(MAX_LINE)]));
        without_rank(&segment).to_owned()
    };
    // A bar's last `\r` is often followed by nothing, or by an escape that clears the line.
    let mut states = line.rsplit(|&byte| byte == b'\r').map(state).filter(|state| !state.is_empty());
    let Some(last) = states.next() else { return String::new() };
    let is_error = |state: &String| python::is_error(state) || signatures::of_line(state).is_some();
    let mut earlier = states.take(MAX_STATES).peekable();
    if earlier.peek().is_none() || is_error(&last) { last } else { earlier.find(is_error).unwrap_or(last) }
}

/// Removes escape sequences, control characters and trailing blanks.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' => skip_escape(&mut chars),
            '\t' => out.push_str("    "),
            char if char.is_control() => {}
            char => out.push(char),
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// Consumes the rest of an escape sequence: `[…m` and the like, `]…BEL` (titles, links), or one character.
fn skip_escape(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        Some('[') => {
            chars.find(|char| ('\u{40}'..='\u{7e}').contains(char));
        }
        Some(']') => {
            while let Some(char) = chars.next() {
                if char == '\u{7}' {
                    break;
                }
                if char == '\u{1b}' {
                    chars.next();
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Strips `[rank3]: ` (torch), `[default3]:` (torchrun's tee) and `[1,3]<stderr>:` (mpirun).
fn without_rank(line: &str) -> &str {
    let strip = |line: &str| -> Option<usize> {
        let inside = line.strip_prefix('[')?;
        let (name, rest) = inside.split_once(']')?;
        let rest = rest.strip_prefix("<stderr>").or_else(|| rest.strip_prefix("<stdout>")).unwrap_or(rest);
        let rest = rest.strip_prefix(':')?;
        let rank = name.rsplit(',').next()?.trim_start_matches(|char: char| char.is_ascii_alphabetic() || char == '_');
        let is_rank = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
        is_rank.then(|| line.len() - rest.strip_prefix(' ').unwrap_or(rest).len())
    };
    let mut line = line;
    while let Some(length) = strip(line) {
        line = &line[length..];
    }
    line
}

/// True unless the line is marked as harmless.
pub(super) fn is_serious(line: &str) -> bool {
    let harmless = ["INFO", "DEBUG", "WARN", "Warning", "warning", "retry", "ignored"];
    !harmless.iter().any(|word| line.contains(word)) && !matches!(level(line), Some('I' | 'W'))
}

/// The level of a line that glog or torch's logger wrote: `W1103 05:08:55.1 7 x.cc:1] …` (with a year in newer
/// versions), `[W1103 05:08:55.1 x.cpp:1] …`, `[W x.cpp:1] …`.
pub(super) fn level(line: &str) -> Option<char> {
    let line = line.trim_start();
    let text = line.strip_prefix('[').unwrap_or(line);
    let level = text.chars().next().filter(|level| matches!(level, 'I' | 'W' | 'E' | 'F'))?;
    let (date, rest) = text[1..].split_once(' ')?;
    let is_date = matches!(date.len(), 4 | 8) && date.bytes().all(|byte| byte.is_ascii_digit());
    let is_dated = is_date && rest.split_once(':').is_some_and(|(hour, _)| hour.len() == 2);
    let names_file = || rest.split_once(']').is_some_and(|(place, _)| place.contains(".cpp:"));
    (is_dated || (date.is_empty() && text.len() < line.len() && names_file())).then_some(level)
}

/// The text in at most `width` characters; the last one is `…` if the text was cut.
pub(super) fn bounded(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// At most `height` lines: the first, a note of how many are omitted, and the last ones.
pub(super) fn folded<'a>(lines: &[&'a str], height: usize) -> Vec<Cow<'a, str>> {
    if lines.len() <= height {
        return lines.iter().map(|&line| Cow::Borrowed(line)).collect();
    }
    let left_out = lines.len() - (height - 2);
    let mut out = vec![Cow::Borrowed(lines[0]), Cow::Owned(format!("  … {left_out} lines omitted"))];
    out.extend(lines[lines.len() - (height - 2)..].iter().map(|&line| Cow::Borrowed(line)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tail: &[u8]) -> Vec<String> {
        rows(tail, None).into_iter().map(|row| row.text).collect()
    }

    #[test]
    fn terminal_noise() {
        let cases: [(&[u8], &str); 12] = [
            (b"plain", "plain"),
            (b"windows\r", "windows"),
            (b" 10%|#  | 1/10\r 20%|## | 2/10", " 20%|## | 2/10"),
            (b"done\r\x1b[K", "done"),
            (b"RuntimeError: boom\rok", "RuntimeError: boom"),
            (b" 20%|## | 2/10\rRuntimeError: boom\r\n", "RuntimeError: boom"),
            (b"CUDA out of memory. Tried to allocate 2 GiB\r 30%|", "CUDA out of memory. Tried to allocate 2 GiB"),
            (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07text", "red text"),
            (b"\xff\xfe bytes", "\u{fffd}\u{fffd} bytes"),
            (b"[rank3]: Traceback", "Traceback"),
            (b"[default0]:[rank0]:   File", "  File"),
            (b"[1,3]<stderr>:boom\x00", "boom"),
        ];
        for (raw, expected) in cases {
            assert_eq!(texts(raw), [expected], "{raw:?}");
        }
        assert_eq!(texts(b"[E1103 05:08:55.1 a.cpp:1] x"), ["[E1103 05:08:55.1 a.cpp:1] x"]);
    }

    #[test]
    fn levels() {
        let cases = [
            ("F0103 05:08:55.123456  1164 tensor.cc:12] Check failed: a == b", Some('F')),
            ("I20261103 05:08:55.123456  1164 tcp_utils.cc:132] connected", Some('I')),
            ("[W1103 05:08:55.091231 socket.cpp:752] refused", Some('W')),
            ("[E ProcessGroupGloo.cpp:138] Gloo connectFullMesh failed", Some('E')),
            ("[W] look", None),
            ("W socket.cpp:3] look", None),
            ("Error: 3", None),
            ("I am here: now", None),
            ("W", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(level(line), expected, "{line}");
        }
    }

    #[test]
    fn numbers_count_what_was_not_looked_at() {
        let mut tail = b"x\n".repeat(MAX_TAIL);
        tail.extend(b"end\n");
        let rows = rows(&tail, Some(11));
        let last = rows.last().unwrap();
        assert_eq!((last.text.as_str(), last.number), ("end", Some(11 + MAX_TAIL as u64)));
    }

    #[test]
    fn bounds() {
        assert_eq!(bounded("häuser", 6), "häuser");
        assert_eq!(bounded("häuser", 4), "häu…");
        assert_eq!(folded(&["a", "b", "c", "d", "e"], 4), ["a", "  … 3 lines omitted", "d", "e"]);
    }
}
