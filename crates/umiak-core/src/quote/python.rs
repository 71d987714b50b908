//! Text as Python prints it, for Paddle's own lines and its configuration block.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

/// `True` or `False`.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// `['--x', 'a b']`
pub(crate) fn list<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<String> = words.into_iter().map(quoted).collect();
    format!("[{}]", words.join(", "))
}

/// Quotes a string as Python's `repr` does: with single quotes, unless the string has only single quotes inside.
/// Bytes that are not UTF-8 appear as in `sys.argv`, one lone surrogate each.
pub(crate) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut text = String::from(quote);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                _ if character == quote => {
                    text.push('\\');
                    text.push(quote);
                }
                _ if (character as u32) < 0x20
                    || ('\u{7f}'..='\u{a0}').contains(&character)
                    || character == '\u{ad}' =>
                {
                    let _ = write!(text, "\\x{:02x}", character as u32);
                }
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\udc{byte:02x}");
        }
    }
    text.push(quote);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_python_does() {
        for (bytes, expected) in [
            (b"a".as_slice(), "'a'"),
            (b"", "''"),
            (b"it's", "\"it's\""),
            (b"\"it's\"", "'\"it\\'s\"'"),
            (b"a\nb\\c\x01\x7f", "'a\\nb\\\\c\\x01\\x7f'"),
            ("启动".as_bytes(), "'启动'"),
            (b"\xff.py", "'\\udcff.py'"),
        ] {
            assert_eq!(quoted(OsStr::from_bytes(bytes)), expected);
        }
        assert_eq!(list(["--x", "a b"].map(OsStr::new)), "['--x', 'a b']");
        assert_eq!(list([]), "[]");
    }
}
