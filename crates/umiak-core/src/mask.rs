//! Masks secrets in anything umiak writes. They are found by the name of a variable, a flag, a header or a key of JSON, as
//! a password or a signature inside a URL, or because the value is a known secret.

use std::ffi::OsString;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Parts of the names of secrets, compared in upper case. Short ones, which occur inside harmless words (`KEY` in
/// `MONKEY_COUNT`), are matched only as whole words between underscores.
const PARTS: &[&str] = &[
    TOKEN,
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "APIKEY",
    "ACCESSKEY",
    "PRIVATEKEY",
    "PRIVATE_KEY",
    "COOKIE",
    "AUTHORIZATION",
];
const WORDS: &[&str] = &["KEY", "PASS", "PWD", "AUTH", "DSN", "SK", "AK", "PAT", "JWT"];
/// Words of the names of secrets in the query of a URL.
const SIGNATURES: &[&str] = &["SIG", "SIGNATURE"];
/// In the arguments of a training script it often means a token of text (`--max_tokens`, `tokenizer.name`).
const TOKEN: &str = "TOKEN";

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
    if is_secret(name) && !value.is_empty() { MASK.to_owned() } else { replaced(value, secrets_of_urls(value)) }
}

/// Returns the words of a command line with secrets masked: `--api-key=abc`, `--api-key abc`, `API_KEY=abc`. A word may
/// be a line for a shell, a header or JSON.
pub fn words(words: &[OsString]) -> Vec<OsString> {
    let mut is_value = false;
    let mut written = |word: &OsString| {
        let Some(text) = word.to_str() else { return word.clone() };
        let mut found = Vec::new();
        if !is_value && text.contains(char::is_whitespace) {
            find_in_line(text, 0, &mut found);
        } else {
            find_in_word(text, 0, &mut is_value, &mut found);
        }
        found.extend(secrets_of_json(text));
        found.extend(secrets_of_urls(text));
        replaced(text, found).into()
    };
    words.iter().map(&mut written).collect()
}

/// Masks secrets in a line, whose words are separated by spaces and may be quoted.
pub fn line(text: &str) -> String {
    replaced(text, [secrets_of_line(text), secrets_of_urls(text)].concat())
}

/// The byte ranges of secrets in a line, except those in URLs. They do not overlap.
pub fn secrets_of_line(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    find_in_line(text, 0, &mut found);
    found.extend(secrets_of_json(text));
    joined(found)
}

fn replaced(text: &str, secrets: Vec<Range<usize>>) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    for secret in joined(secrets) {
        shown += &text[end..secret.start];
        shown += MASK;
        end = secret.end;
    }
    shown + &text[end..]
}

/// Joins ranges that overlap, and orders them.
fn joined(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
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

/// `at` is the offset of the line in the whole text.
fn find_in_line(text: &str, at: usize, found: &mut Vec<Range<usize>>) {
    let mut is_value = false;
    for (position, word) in word_spans(text).enumerate() {
        // A header: `Authorization: Basic abc`.
        if position == 0
            && text[word.clone()].strip_suffix(':').is_some_and(|name| is_plain(name) && names_a_secret(name))
        {
            let value = text[word.end..].trim();
            let start = text.len() - text[word.end..].trim_start().len();
            found.extend((!value.is_empty()).then_some(at + start..at + start + value.len()));
            return;
        }
        find_in_word(&text[word.clone()], at + word.start, &mut is_value, found);
    }
}

/// `is_value` is true if the word is a secret because of the word before it, and is set for the next word.
fn find_in_word(text: &str, at: usize, is_value: &mut bool, found: &mut Vec<Range<usize>>) {
    if std::mem::take(is_value) && !text.starts_with('-') {
        return found.push(at..at + text.len());
    }
    let is_name = |name: &str| !name.contains("://") && !name.contains(char::is_whitespace);
    let (name, value) = text.split_once('=').filter(|(name, _)| is_name(name)).unwrap_or(("", text));
    if names_a_secret(name) {
        if !value.is_empty() {
            found.push(at + text.len() - value.len()..at + text.len());
        }
        return;
    }
    let quotes = ['"', '\'', '\\'];
    let start = value.len() - value.trim_start_matches(quotes).len();
    let inner = value.trim_matches(quotes);
    if start > 0 && inner.contains(char::is_whitespace) {
        return find_in_line(inner, at + text.len() - value.len() + start, found);
    }
    let is_scheme = inner.rsplit(':').next().is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
    let is_flag = inner.starts_with('-') && is_plain(inner) && names_a_secret(inner);
    *is_value = name.is_empty() && (is_scheme || is_flag);
}

fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// True for names of flags, headers and keys. Stricter than [`is_secret`] for tokens.
fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_in = |word: &str, part: &str| if part == TOKEN { word.ends_with(part) } else { word.contains(part) };
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| WORDS.contains(&word) || PARTS.iter().any(|part| is_in(word, part)))
}

/// The values of keys that name a secret, in JSON or the like: `{"password": "abc"}`, also with escaped quotes.
fn secrets_of_json(text: &str) -> Vec<Range<usize>> {
    let secret = |(colon, _)| {
        let key = text[..colon].trim_end();
        let quote = ["\\\"", "\"", "'"].into_iter().find(|quote| key.ends_with(quote))?;
        let key = key.strip_suffix(quote)?;
        let name = &key[key.rfind(quote)? + quote.len()..];
        if !names_a_secret(name) {
            return None;
        }
        let value = text[colon + 1..].trim_start();
        let start = text.len() - value.len();
        if let Some(value) = value.strip_prefix(quote) {
            let is_end = |(at, _): &(usize, &str)| quote.len() > 1 || !value[..*at].ends_with('\\');
            let length = value.match_indices(quote).find(is_end).map_or(value.len(), |(at, _)| at);
            let start = start + quote.len();
            return (length > 0).then_some(start..start + length);
        }
        let length = value.find(|c: char| c.is_whitespace() || ",}]'\"".contains(c)).unwrap_or(value.len());
        (length > 0 && !value.starts_with(['{', '['])).then_some(start..start + length)
    };
    text.match_indices(':').filter_map(secret).collect()
}

/// The passwords in `https://user:secret@host`, and the values of names such as `sig` in queries.
fn secrets_of_urls(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (colon, mark) in text.match_indices("://") {
        let start = colon + mark.len();
        let end = text[start..].find(['/', '?', '#', ',', ' ']).map_or(text.len(), |length| start + length);
        let authority = &text[start..end];
        if let Some((user, _)) = authority.rsplit_once('@')
            && let Some((name, _)) = user.split_once(':')
        {
            found.push(start + name.len() + 1..start + user.len());
        }
        let is_over = |c: char| c.is_whitespace() || matches!(c, ',' | '"' | '\'' | '\\');
        let url = &text[start..start + text[start..].find(is_over).unwrap_or(text.len() - start)];
        for (mark, _) in url.match_indices(['?', '&']) {
            let part = &url[mark + 1..];
            let part = &part[..part.find(['&', '#']).unwrap_or(part.len())];
            if let Some((name, value)) = part.split_once('=')
                && !value.is_empty()
                && (names_a_secret(name) || name.split('-').any(is_signature))
            {
                let at = start + mark + 1 + name.len() + 1;
                found.push(at..at + value.len());
            }
        }
    }
    found
}

fn is_signature(word: &str) -> bool {
    SIGNATURES.iter().any(|signature| word.eq_ignore_ascii_case(signature))
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
            "SSH_PASSPHRASE",
            "GITHUB_PAT",
            "SSH_PRIVATEKEY",
            "JWT",
            "AUTHORIZATION",
        ] {
            assert!(is_secret(secret), "{secret}");
            assert!(names_a_secret(secret), "{secret}");
        }
        for harmless in [
            "PATH",
            "PWD",
            "OLDPWD",
            "PADDLE_TRAINER_ID",
            "MONKEY_COUNT",
            "AUTHOR",
            "KEYBOARD",
            "TASK_ID",
            "PATIENCE",
            "PYTHONPATH",
            "COMPAT",
        ] {
            assert!(!is_secret(harmless), "{harmless}");
            assert!(!names_a_secret(harmless) || harmless.ends_with("PWD"), "{harmless}");
        }
    }

    #[test]
    fn lines_for_a_shell() {
        for (text, shown) in [
            ("python train.py --token=abc --lr 0.1", "python train.py --token=******** --lr 0.1"),
            ("a --password 'b c' d\n  --api-key  x\n", "a --password ******** d\n  --api-key  ********\n"),
            ("API_KEY=x exec a --token --lr 1", "API_KEY=******** exec a --token --lr 1"),
            ("echo don't --token x; curl http://li:pw@h/", "echo don't --token ******** curl http://li:********@h/"),
            (
                "curl -H 'Authorization: Bearer x y' -H \"X-Api-Key: z\" https://h/a",
                "curl -H 'Authorization: ********' -H \"X-Api-Key: ********\" https://h/a",
            ),
            (
                "sh -c 'train --passphrase x --lr 1' --cmd=\"a --token y\"",
                "sh -c 'train --passphrase ******** --lr 1' --cmd=\"a --token ********\"",
            ),
            (
                "train --db '{\"password\": \"x y\", \"host\": \"h\"}' --lr 1",
                "train --db '{\"password\": \"********\", \"host\": \"h\"}' --lr 1",
            ),
            ("", ""),
            ("  ", "  "),
            ("Authorization: ", "Authorization: "),
        ] {
            assert_eq!(line(text), shown, "{text}");
            let mut masked = text.to_owned();
            for span in secrets_of_line(text).into_iter().rev() {
                masked.replace_range(span, MASK);
            }
            assert_eq!(super::masked("", &masked), shown, "{text}");
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
        for (url, shown) in [
            ("https://h/c?sv=1&sig=a%2Fb&se=2", "https://h/c?sv=1&sig=********&se=2"),
            ("https://h/o?X-Amz-Signature=ab#x", "https://h/o?X-Amz-Signature=********#x"),
            ("'https://h?access_token=ab' x", "'https://h?access_token=********' x"),
            ("https://u:p@h/?key=a&design=b", "https://u:********@h/?key=********&design=b"),
            ("s3://bucket/key/x?version=3", "s3://bucket/key/x?version=3"),
        ] {
            assert_eq!(masked("X", url), shown);
            assert_eq!(line(url), shown);
        }
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
            (
                "--passphrase a --credentials b --private-key c --jwt=d --PAT e",
                "--passphrase ******** --credentials ******** --private-key ******** --jwt=******** --PAT ********",
            ),
            ("--path a --patience 3 --compat x --sig 1", "--path a --patience 3 --compat x --sig 1"),
            ("Bearer abc bearer.py", "Bearer ******** bearer.py"),
            ("Authorization:Bearer abc", "Authorization:Bearer ********"),
            ("{\"db\":{\"password\":\"a\",\"port\":5}}", "{\"db\":{\"password\":\"********\",\"port\":5}}"),
            ("{\\\"token\\\":\\\"a\\\"} {'key':3}", "{\\\"token\\\":\\\"********\\\"} {'key':********}"),
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
