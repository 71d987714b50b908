//! Masks secrets in anything umiak writes. They are found by the name of the variable, as a password inside a URL, or
//! because the value is a known secret.

use std::ffi::OsString;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Parts of the names of secrets, compared in upper case. Short ones, which occur inside harmless words (`KEY` in
/// `MONKEY_COUNT`), are matched only as whole words between underscores.
const PARTS: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "APIKEY", "PRIVATE_KEY", "COOKIE"];
const WORDS: &[&str] = &["KEY", "PASS", "PWD", "AUTH", "DSN", "SK", "AK"];

/// The replacement for a secret.
pub const MASK: &str = "********";

/// True if a variable of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if matches!(name.as_str(), "PWD" | "OLDPWD") {
        return false;
    }
    PARTS.iter().any(|part| name.contains(part)) || name.split('_').any(|word| WORDS.contains(&word))
}

/// Returns the value with secrets masked.
pub fn masked(name: &str, value: &str) -> String {
    if is_secret(name) && !value.is_empty() { MASK.to_owned() } else { without_password(value) }
}

/// Returns the words of a command line with secrets masked: `--api-key=abc`, `--api-key abc`, `API_KEY=abc`. A word may
/// be a line for a shell.
pub fn words(words: &[OsString]) -> Vec<OsString> {
    let mut is_value = false;
    let mut written = |word: &OsString| match word.to_str() {
        None => word.clone(),
        Some(text) if !is_value && text.contains(char::is_whitespace) => line(text).into(),
        Some(text) => masked_word(text, &mut is_value).into(),
    };
    words.iter().map(&mut written).collect()
}

/// Masks secrets in a line, whose words are separated by spaces and may be quoted.
pub fn line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let (mut end, mut is_value) = (0, false);
    for word in word_spans(text) {
        shown += &text[end..word.start];
        shown += &masked_word(&text[word.clone()], &mut is_value);
        end = word.end;
    }
    shown + &text[end..]
}

/// The byte ranges of the values of secret flags in a line.
pub fn secrets_of_line(text: &str) -> Vec<Range<usize>> {
    let mut is_value = false;
    let secret = |word: Range<usize>| {
        let start = secret_part(&text[word.clone()], &mut is_value)?;
        Some(word.start + start..word.end)
    };
    word_spans(text).filter_map(secret).collect()
}

fn word_spans(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].len() - text[at..].trim_start().len();
        let start = at;
        at += word_end(&text[start..]);
        (start < at).then_some(start..at)
    })
}

/// The end of the first word: the next space that is not in quotes.
fn word_end(text: &str) -> usize {
    let mut quote = None;
    let end = text.find(|c: char| {
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            _ => {}
        }
        quote.is_none() && c.is_whitespace()
    });
    // An unclosed quote is an apostrophe.
    let end = if quote.is_some() { text.find(char::is_whitespace) } else { end };
    end.unwrap_or(text.len())
}

fn masked_word(text: &str, is_value: &mut bool) -> String {
    match secret_part(text, is_value) {
        Some(start) => format!("{}{MASK}", &text[..start]),
        None => without_password(text),
    }
}

/// The offset at which the secret in a word begins. `is_value` is true if the word is the value of a secret flag, and is
/// set for the next word.
fn secret_part(text: &str, is_value: &mut bool) -> Option<usize> {
    if std::mem::take(is_value) && !text.starts_with('-') {
        return Some(0);
    }
    if let Some((name, value)) = text.split_once('=') {
        return (names_a_secret(name) && !value.is_empty()).then_some(name.len() + 1);
    }
    *is_value = text.starts_with('-') && names_a_secret(text);
    None
}

/// Stricter than [`is_secret`]: `token` in the arguments of a training script often means a token of text.
fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| WORDS.contains(&word) || PARTS.iter().any(|part| word.ends_with(part)))
}

/// Values that are known to be secrets; they are masked in any text.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Known(Vec<String>);

/// Shorter values are ignored: they would match everywhere.
const SHORTEST: usize = 3;

impl Known {
    pub fn add(&mut self, value: &str) {
        // A YAML block ends with a line feed, which the value in use may not have.
        let value = value.trim();
        if value.chars().count() < SHORTEST || value == MASK || self.0.iter().any(|known| known == value) {
            return;
        }
        self.0.push(value.to_owned());
        // Longer values first: one may be a part of another.
        self.0.sort_by_key(|known| std::cmp::Reverse(known.len()));
    }

    pub fn extend(&mut self, others: &Self) {
        others.0.iter().for_each(|value| self.add(value));
    }

    /// Returns the words of a command line with secrets masked.
    pub fn words(&self, line: &[OsString]) -> Vec<OsString> {
        let shown = |word: OsString| match word.to_str() {
            Some(text) => self.masked("", text).into(),
            None => word,
        };
        words(line).into_iter().map(shown).collect()
    }

    /// Returns the value of `name` with secrets masked. `name` is empty for words of a command.
    pub fn masked(&self, name: &str, value: &str) -> String {
        let mut text = value.to_owned();
        for known in self.0.iter().filter(|known| value.contains(known.as_str())) {
            text = text.replace(known.as_str(), MASK);
        }
        masked(name, &text)
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Known({})", self.0.len())
    }
}

/// Masks the password in `https://user:secret@host`.
fn without_password(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(start) = rest.find("://") {
        let (head, tail) = rest.split_at(start + 3);
        text.push_str(head);
        let end = tail.find(['/', '?', '#', ',', ' ']).unwrap_or(tail.len());
        let authority = &tail[..end];
        match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
            Some((user, host)) => {
                text.push_str(user);
                text.push(':');
                text.push_str(MASK);
                text.push('@');
                text.push_str(host);
            }
            None => text.push_str(authority),
        }
        rest = &tail[end..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for secret in [
            "HF_TOKEN",
            "WANDB_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "DB_PASSWORD",
            "github_token",
            "MYSQL_PWD",
            "BAIDU_AK",
            "NPM_AUTH",
            "SENTRY_DSN",
            "OPENAI_APIKEY",
        ] {
            assert!(is_secret(secret), "{secret}");
        }
        for harmless in ["PATH", "PWD", "OLDPWD", "PADDLE_TRAINER_ID", "MONKEY_COUNT", "AUTHOR", "KEYBOARD", "TASK_ID"]
        {
            assert!(!is_secret(harmless), "{harmless}");
        }
    }

    #[test]
    fn lines_for_a_shell() {
        for (text, shown) in [
            ("python train.py --token=abc --lr 0.1", "python train.py --token=******** --lr 0.1"),
            ("a --password 'b c' d\n  --api-key  x\n", "a --password ******** d\n  --api-key  ********\n"),
            ("API_KEY=x exec a --token --lr 1", "API_KEY=******** exec a --token --lr 1"),
            ("echo don't --token x; curl http://li:pw@h/", "echo don't --token ******** curl http://li:********@h/"),
            ("", ""),
            ("  ", "  "),
        ] {
            assert_eq!(line(text), shown, "{text}");
            let mut masked = text.to_owned();
            for span in secrets_of_line(text).into_iter().rev() {
                masked.replace_range(span, MASK);
            }
            assert_eq!(without_password(&masked), shown, "{text}");
            let words: Vec<OsString> = ["sh", "-c", text, "--token", "a b"].map(OsString::from).to_vec();
            let expected: Vec<OsString> = ["sh", "-c", shown, "--token", MASK].map(OsString::from).to_vec();
            assert_eq!(super::words(&words), expected);
        }
    }

    #[test]
    fn values() {
        assert_eq!(masked("HF_TOKEN", "abc"), MASK);
        assert_eq!(masked("HF_TOKEN", ""), "");
        assert_eq!(masked("X", "http://li:pw@proxy:80/a"), "http://li:********@proxy:80/a");
        assert_eq!(masked("X", "http://proxy:80/a@b:c"), "http://proxy:80/a@b:c");
        assert_eq!(masked("X", "a=redis://:pw@h,b=redis://u:p@h2"), "a=redis://:********@h,b=redis://u:********@h2");
    }

    #[test]
    fn command_lines() {
        for (line, expected) in [
            ("--lr 0.1 --api-key abc --n 2", "--lr 0.1 --api-key ******** --n 2"),
            (
                "--api_key=abc HF_TOKEN=x data=http://li:pw@h",
                "--api_key=******** HF_TOKEN=******** data=http://li:********@h",
            ),
            ("--password --verbose x", "--password --verbose x"),
            ("--token", "--token"),
            ("--max_tokens 4096 tokenizer.name=bert", "--max_tokens 4096 tokenizer.name=bert"),
        ] {
            let given: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(words(&given).join(std::ffi::OsStr::new(" ")), expected);
        }
    }

    #[test]
    fn known_values() {
        let mut known = Known::default();
        for value in ["abc", "abcdef\n", "a/b@c", "ab", "", "abc"] {
            known.add(value);
        }
        for (text, expected) in [
            ("--token abc", "--token ********"),
            ("abcdef", "********"),
            ("redis://:a/b@c@host", "redis://:********@host"),
            ("ab is too short", "ab is too short"),
            ("http://li:pw@proxy", "http://li:********@proxy"),
        ] {
            assert_eq!(known.masked("", text), expected);
        }
        assert_eq!(known.masked("API_KEY", "other"), MASK);
        assert_eq!(format!("{known:?}"), "Known(3)");
    }
}
