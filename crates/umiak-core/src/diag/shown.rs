//! Text from documents, command lines, logs and other hosts, as it may be printed: nothing in it controls a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

const TAB: &str = "    ";

/// One line of text as it may be printed. Control characters become symbols, a tab becomes spaces. The end of a line is
/// a control character too: the rest would pass for a line of ours.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_changed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push_str(TAB),
            c => shown.push(visible(c)),
        }
    }
    Cow::Owned(shown)
}

/// A character as it may be printed: a symbol for a control character, or for one that changes the direction of text.
pub fn visible(c: char) -> char {
    match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        // Noncharacters stand for colours on their way to the terminal.
        c if is_obscure(c) || matches!(c, '\u{fdd0}'..='\u{fdef}') || c.width().is_none() => '\u{fffd}',
        c => c,
    }
}

fn is_changed(c: char) -> bool {
    visible(c) != c
}

/// C1 controls, line separators, and marks that change the direction of text. JSON leaves them as they are.
fn is_obscure(c: char) -> bool {
    matches!(
        c,
        '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// JSON with escapes instead of these characters. Its meaning is the same: they occur in strings only.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| c == '\x7f' || is_obscure(c);
    if !json.chars().any(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        if is_escaped(c) {
            let _ = write!(shown, "\\u{:04x}", c as u32);
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_controls_a_terminal_is_shown() {
        assert_eq!(shown("a\x1b[31m\r\n\x07\x08\x7f\tb"), "a␛[31m␍␊␇␈␡    b");
        assert_eq!(shown("\u{9b}2J\u{202e}\u{2066}\u{200f}\u{2028}"), "\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
        assert!(matches!(shown("角色 é 👩‍🔬 {\"a\": 1}"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn json_means_the_same(text in any::<String>(), odd in "[\x7f-\u{9f}\u{202a}-\u{202e}a]{0,9}") {
            let value = serde_json::json!({ &odd: [text, odd] });
            let shown = shown_json(&value.to_string()).into_owned();
            prop_assert!(!shown.chars().any(|c| c.is_control() || is_obscure(c)));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }

        #[test]
        fn nothing_is_left(text in any::<String>()) {
            prop_assert!(!shown(&text).chars().any(|c| c.is_control() || is_obscure(c)));
        }
    }
}
