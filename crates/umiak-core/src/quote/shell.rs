//! Words in a shell's syntax.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

/// Quotes the word if needed. Control characters and bytes that are not UTF-8 are written as bash's `$'\x…'`.
pub(crate) fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%^".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| is_plain(&byte)) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let mut text = String::from("$'");
            for byte in word.as_bytes() {
                match byte {
                    b'\'' | b'\\' => {
                        text.push('\\');
                        text.push(char::from(*byte));
                    }
                    b' '..=b'~' => text.push(char::from(*byte)),
                    _ => {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
            }
            text.push('\'');
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_quotes_has_them() {
        for (bytes, expected) in [
            (b"--gpus=0,1".as_slice(), "--gpus=0,1"),
            (b"", "''"),
            (b"a b", "'a b'"),
            (b"it's", r"'it'\''s'"),
            (b"$HOME;*", "'$HOME;*'"),
            ("启动.py".as_bytes(), "'启动.py'"),
            (b"a\nb'", r"$'a\x0ab\''"),
            (b"\xff.py", r"$'\xff.py'"),
        ] {
            assert_eq!(quoted(OsStr::from_bytes(bytes)), expected);
        }
    }
}
