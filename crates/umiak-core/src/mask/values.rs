//! Secrets by their value.

use std::borrow::Cow;
use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::MASK;
use super::names::is_secret;
use super::words::{line, masked, secrets_of, words};

/// Values that are known to be secrets; they are masked in any text.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Known(Vec<String>);

/// Shorter values are ignored: they would match everywhere.
const SHORTEST: usize = 3;
/// The same for values that are secrets only because of their variable's name, and may be anything.
const SHORTEST_NAMED: usize = 6;
/// Lines of a value that are masked on their own, as those of a private key.
const SHORTEST_LINE: usize = 8;
/// Longer values are no words of umiak.
const LONGEST_WORD: usize = 16;
/// Values of variables with revealing names that are words of any text.
const USUAL: &[&str] = &[
    "default",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "required",
    "optional",
    "localhost",
    "password",
    "secret",
    "changeme",
    "example",
    "private",
    "public",
    "strict",
    "always",
    "cookie",
];

impl Known {
    pub fn add(&mut self, value: &str) {
        // A YAML block ends with a line feed, which the value in use may not have.
        let value = value.trim();
        if value.chars().count() < SHORTEST || value.contains(MASK) {
            return;
        }
        // Longer values first: one may be a part of another.
        let order = |known: &String| value.len().cmp(&known.len()).then_with(|| known.as_str().cmp(value));
        let Err(place) = self.0.binary_search_by(order) else { return };
        self.0.insert(place, value.to_owned());
        // A variable may have the line feeds of a key as `\n`.
        let lines = value.lines().flat_map(|line| line.split("\\n")).map(str::trim);
        let is_long = |line: &&str| line.len() >= SHORTEST_LINE && *line != value;
        // The lines around a key are no secrets, nor are words.
        let lines: Vec<&str> =
            lines.filter(is_long).filter(|line| !line.starts_with("-----") && !is_wordlike(line)).collect();
        for line in lines {
            self.add(line);
        }
    }

    /// Adds the secrets in a variable, an option or a label: the value, if the name says so, or parts of it.
    pub fn learn(&mut self, name: &str, value: &str) {
        if is_secret(name) {
            self.add_found(value);
        } else {
            for secret in secrets_of(value) {
                self.add_found(&value[secret]);
            }
        }
    }

    /// Adds the secrets in the words of a command line.
    pub fn learn_words(&mut self, line: &[OsString]) {
        for (word, masked) in line.iter().zip(words(line)) {
            let (Some(word), Some(masked)) = (word.to_str(), masked.to_str()) else { continue };
            // The text around each mask is the same in both.
            let mut rest = word;
            let mut parts = masked.split(MASK);
            rest = rest.strip_prefix(parts.next().unwrap_or("")).unwrap_or("");
            for part in parts {
                let end = if part.is_empty() { rest.len() } else { rest.find(part).unwrap_or(rest.len()) };
                self.add_found(&rest[..end]);
                rest = rest.get(end + part.len()..).unwrap_or("");
            }
        }
    }

    fn add_found(&mut self, value: &str) {
        let value = value.trim_matches(['"', '\'']).trim();
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit()) && value.len() < 8;
        let is_path =
            value.starts_with('/') && value.split('/').all(|part| part.len() < 24) && !value.contains(['+', '=']);
        let is_usual = USUAL.contains(&value.to_ascii_lowercase().as_str());
        if value.chars().count() >= SHORTEST_NAMED && !is_number && !is_path && !is_usual {
            self.add(value);
            // `Basic abc123`: the second word may be printed alone.
            let is_token = |word: &&str| word.len() >= 8 && word.bytes().any(|byte| byte.is_ascii_digit());
            for word in value.split_whitespace().filter(is_token).filter(|word| *word != value) {
                self.add(word);
            }
        }
    }

    pub fn extend(&mut self, others: &Self) {
        others.0.iter().for_each(|value| self.add(value));
    }

    /// Returns the words of a command line with secrets masked.
    pub fn words(&self, line: &[OsString]) -> Vec<OsString> {
        let shown = |word: OsString| match word.to_str() {
            Some(text) => self.without(text).into_owned().into(),
            None => word,
        };
        words(line).into_iter().map(shown).collect()
    }

    /// Returns the value of `name` with secrets masked. `name` is empty for words of a command.
    pub fn masked(&self, name: &str, value: &str) -> String {
        masked(name, &self.without(value))
    }

    /// The values that cannot be meant by a sentence of umiak: neither words nor parts of the texts that it shows anyway.
    #[must_use]
    pub fn unmistakable(&self, shown: &[String]) -> Self {
        let is_shown = |value: &String| shown.iter().any(|text| text.contains(value.as_str()));
        Self(self.0.iter().filter(|value| !is_wordlike(value) && !is_shown(value)).cloned().collect())
    }

    /// Returns any text with secrets masked: what is written or shown goes through here.
    pub fn text(&self, text: &str) -> String {
        line(&self.without(text))
    }

    /// The values, longer ones first: one may be a part of another.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// True if a text contains one of them.
    pub fn are_in(&self, text: &str) -> bool {
        self.0.iter().any(|value| text.contains(value.as_str()))
    }

    /// Replaces known values.
    fn without<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut shown = Cow::Borrowed(text);
        for known in &self.0 {
            if shown.contains(known.as_str()) {
                shown = Cow::Owned(shown.replace(known.as_str(), MASK));
            }
        }
        shown
    }
}

/// True for words and numbers as names and sentences have them: `trainer-0`, `workerlog`, `Failed`.
fn is_wordlike(value: &str) -> bool {
    let is_word = |part: &str| {
        let is_lower = part.chars().skip(1).all(char::is_lowercase);
        let is_upper = part.chars().all(char::is_uppercase);
        let is_number = part.len() < 8 && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number || part.chars().all(char::is_alphabetic) && (is_lower || is_upper)
    };
    value.chars().count() < LONGEST_WORD && value.split(['-', '_', '.', '/', ':', ' ']).all(is_word)
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
    fn learned_values() {
        let mut known = Known::default();
        for (name, value) in [
            ("HF_TOKEN", "abcdef123"),
            ("API_KEY", "1"),
            ("AUTH", "disabled"),
            ("KEY", "123456"),
            ("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1"),
            ("DATABASE_URL", "postgres://li:hunter22@h/db"),
            ("SSH_PRIVATE_KEY", "-----BEGIN X-----\nMIIEpAIBAAKCAQEA0123\nEjRWeA==\noptional\n-----END X-----"),
            ("TLS_KEY", "-----BEGIN X-----\\nq83vEjRWeJA0123abc\\nq83vEjQ=\\n-----END X-----"),
            ("LR", "0.125"),
        ] {
            known.learn(name, value);
        }
        known.learn_words(&["--password", "sesame1", "--lr", "0.5", "--db=li:open99@h"].map(OsString::from));
        for (text, expected) in [
            ("it said abcdef123.", "it said ********."),
            ("1 of 123456 is disabled in /tmp/ssh-x/agent.1", "1 of 123456 is disabled in /tmp/ssh-x/agent.1"),
            ("hunter22 sesame1 open99", "******** ******** ********"),
            ("MIIEpAIBAAKCAQEA0123", "********"),
            ("EjRWeA== is optional", "******** is optional"),
            ("q83vEjRWeJA0123abc q83vEjQ= -----END X-----", "******** ******** -----END X-----"),
            ("lr 0.125 0.5", "lr 0.125 0.5"),
        ] {
            assert_eq!(known.text(text), expected);
        }
    }

    #[test]
    fn words_of_umiak_are_no_secrets_in_its_own_sentences() {
        let mut known = Known::default();
        for value in
            ["trainer", "rank", "workerlog.0", "Aborted", "SIGTERM", "trainer-0", "run-000001", "run2026x", "hunter2"]
        {
            known.add(value);
        }
        let sentence =
            "run-000001: trainer-0 Aborted by SIGTERM, see /data/run2026x/workerlog.0; the rank said hunter2";
        let own = known.unmistakable(&["/data/run2026x".to_owned()]);
        assert_eq!(own.text(sentence), sentence.replace("hunter2", MASK));
        assert_eq!(known.text("trainer said run2026x"), "******** said ********");
        for distinct in ["aXbYcZdE", "correct-horse-battery", "pa55word", "123456789", "s3cret"] {
            assert!(!is_wordlike(distinct), "{distinct}");
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
