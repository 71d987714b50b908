//! Secrets in texts and command lines by their place: the word after a flag, the value after `=`.

use std::ffi::OsString;
use std::ops::Range;

use super::MASK;
use super::names::{is_secret, names_a_secret};
use super::shapes::secrets_by_shape;

/// Returns the value with secrets masked.
pub fn masked(name: &str, value: &str) -> String {
    if is_secret(name) && !value.is_empty() { MASK.to_owned() } else { line(value) }
}

/// Returns the words of a command line with secrets masked: `--api-key=abc`, `--api-key abc`, `API_KEY=abc`. A word may
/// be a line for a shell, a header or JSON.
pub fn words(words: &[OsString]) -> Vec<OsString> {
    let mut before = Before::default();
    let mut written = |word: &OsString| {
        let Some(text) = word.to_str() else { return word.clone() };
        let mut found = Vec::new();
        find_in_argument(text, 0, &mut before, &mut found);
        found.extend(secrets_by_shape(text));
        replaced(text, found).into()
    };
    words.iter().map(&mut written).collect()
}

/// Masks secrets in a text, whose words are separated by spaces and may be quoted.
pub fn line(text: &str) -> String {
    replaced(text, secrets_of(text))
}

/// The byte ranges of secrets in a text. They do not overlap.
pub fn secrets_of(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        find_in_line(line, at, &mut found);
        at += line.len();
    }
    found.extend(secrets_by_shape(text));
    joined(text, found)
}

fn replaced(text: &str, secrets: Vec<Range<usize>>) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    // What is masked already keeps its quotes.
    let is_new = |secret: &Range<usize>| text[secret.clone()].trim_matches(['"', '\'']) != MASK;
    for secret in joined(text, secrets).into_iter().filter(is_new) {
        shown += &text[end..secret.start];
        shown += MASK;
        end = secret.end;
    }
    shown + &text[end..]
}

/// Joins ranges that overlap, and orders them.
fn joined(text: &str, mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !is_left_out(&text[range.clone()]) && !is_complaint(text, range));
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

/// True for `…`, which stands for a value in hints.
fn is_left_out(value: &str) -> bool {
    value.trim_matches(['`', '"', '\'', '.', ',', ';', ':', '?', ')']) == "…"
}

/// What shells and other programs say about a name: `HF_TOKEN: unbound variable`.
const COMPLAINTS: &[&str] = &[
    "unbound variable",
    "parameter not set",
    "parameter null or not set",
    "readonly variable",
    "is read only",
    "bad substitution",
    "ambiguous redirect",
    "cannot overwrite existing file",
    "not found",
    "command not found",
    "no such file or directory",
    "permission denied",
    "operation not permitted",
    "is a directory",
    "not a directory",
    "file exists",
    "read-only file system",
    "input/output error",
];

/// True for a sentence after `NAME:` that is known to be no value.
fn is_complaint(text: &str, range: &Range<usize>) -> bool {
    let value = &text[range.clone()];
    let is_said = |said: &&str| {
        let begins = value.get(..said.len()).is_some_and(|start| start.eq_ignore_ascii_case(said));
        // A value may begin with the same words.
        begins && !value[said.len()..].trim_start().starts_with(char::is_alphanumeric)
    };
    text[..range.start].trim_end().ends_with(':') && COMPLAINTS.iter().any(is_said)
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
    let mut before = Before::default();
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
        find_in_word(&text[word.clone()], at + word.start, &mut before, found);
    }
}

/// A short flag that means a password only to some programs.
struct Habit {
    programs: &'static [&'static str],
    flags: &'static [&'static str],
    /// The value may be in the same word: `-psecret`.
    is_joined: bool,
    /// The value may be the next word.
    is_apart: bool,
    value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Secret,
    /// `user:secret`
    Login,
}

const HABITS: &[Habit] = &[
    Habit {
        programs: &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mysqlimport",
            "mysqlshow",
            "mysqlcheck",
            "mysqlslap",
            "mysqlsh",
            "mariadb",
            "mariadb-dump",
            "mariadb-admin",
            "mariadb-import",
            "mycli",
        ],
        flags: &["-p"],
        is_joined: true,
        is_apart: false,
        value: Value::Secret,
    },
    Habit { programs: &["sshpass"], flags: &["-p"], is_joined: true, is_apart: true, value: Value::Secret },
    Habit { programs: &["redis-cli"], flags: &["-a"], is_joined: false, is_apart: true, value: Value::Secret },
    Habit {
        programs: &["curl"],
        flags: &["-u", "--user", "-U", "--proxy-user"],
        is_joined: true,
        is_apart: true,
        value: Value::Login,
    },
];

impl Habit {
    /// The habits of the program that this word runs.
    fn of(word: &str) -> Option<&'static Self> {
        let name = word.rsplit('/').next().unwrap_or(word);
        HABITS.iter().find(|habit| habit.programs.contains(&name))
    }

    /// True if the next word is the value of this one. Flags of a letter may be joined: `-sSu`.
    fn announces(&self, word: &str) -> bool {
        let is_group = |flag: &str| {
            let letters = word.strip_prefix('-').unwrap_or("");
            flag.len() == 2 && letters.ends_with(&flag[1..]) && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
        };
        self.is_apart && self.flags.iter().any(|flag| word == *flag || self.value == Value::Login && is_group(flag))
    }

    /// Where the value begins that is joined with its flag.
    fn joined_at(&self, word: &str) -> Option<usize> {
        let at = |flag: &&str| {
            let rest = word.strip_prefix(flag)?;
            let sign = if flag.starts_with("--") { rest.strip_prefix('=')? } else { rest };
            (!sign.is_empty()).then(|| word.len() - sign.len())
        };
        self.flags.iter().filter(|_| self.is_joined).find_map(at)
    }
}

impl Value {
    fn secret(self, text: &str) -> Option<Range<usize>> {
        match self {
            Self::Secret => Some(0..text.len()),
            Self::Login => text.find(':').map(|colon| colon + 1..text.len()).filter(|secret| !secret.is_empty()),
        }
    }
}

/// What the words before a word say about it.
#[derive(Default)]
struct Before {
    value: Option<Value>,
    habit: Option<&'static Habit>,
}

/// An element of a printed list: what is between its quotes, if brackets or commas are around them.
fn element(text: &str) -> Option<Range<usize>> {
    let rest = text.trim_start_matches(['[', '(', '{']);
    let start = text.len() - rest.len();
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let end = start + rest.rfind(quote).filter(|end| *end > 0)?;
    let after = &text[end + 1..];
    let is_around = (start > 0 || !after.is_empty()) && after.chars().all(|c| matches!(c, ']' | ')' | '}' | ',' | ';'));
    is_around.then_some(start + 1..end)
}

/// An argument, which may be a line for a shell.
fn find_in_argument(text: &str, at: usize, before: &mut Before, found: &mut Vec<Range<usize>>) {
    let is_option = |(name, _): (&str, &str)| name.starts_with('-') && is_plain(name) && names_a_secret(name);
    let is_one = before.value.is_some() || text.split_once('=').is_some_and(is_option);
    if !is_one && text.contains(char::is_whitespace) {
        find_in_line(text, at, found);
    } else {
        find_in_word(text, at, before, found);
    }
}

fn find_in_word(text: &str, at: usize, before: &mut Before, found: &mut Vec<Range<usize>>) {
    if let Some(inside) = element(text) {
        return find_in_argument(&text[inside.clone()], at + inside.start, before, found);
    }
    let mut push = |secret: Range<usize>| found.push(at + secret.start..at + secret.end);
    if let Some(value) = before.value.take()
        && !text.starts_with('-')
    {
        return value.secret(text).into_iter().for_each(push);
    }
    if let Some(habit) = before.habit {
        // A program has one password; `sshpass -p x ssh -p 22` runs another.
        let next = Some(habit).filter(|habit| habit.value == Value::Login);
        if let Some(start) = habit.joined_at(text) {
            before.habit = next;
            let secret = habit.value.secret(&text[start..]);
            return secret.into_iter().for_each(|secret| push(start + secret.start..start + secret.end));
        }
        if habit.announces(text) {
            *before = Before { value: Some(habit.value), habit: next };
            return;
        }
    }
    let is_name = |name: &str| !name.contains("://") && !name.contains(char::is_whitespace);
    let (name, value) = text.split_once('=').filter(|(name, _)| is_name(name)).unwrap_or(("", text));
    let value_at = text.len() - value.len();
    if names_a_secret(name) {
        let inside = element(value).unwrap_or(0..value.len());
        if !inside.is_empty() {
            push(value_at + inside.start..value_at + inside.end);
        }
        return;
    }
    let quotes = ['"', '\'', '\\'];
    let start = value.len() - value.trim_start_matches(quotes).len();
    let inner = value.trim_matches(quotes);
    if start > 0 && inner.contains(char::is_whitespace) {
        return find_in_line(inner, at + value_at + start, found);
    }
    before.habit = match inner.chars().last() {
        // The end of a command for a shell.
        Some(';' | '|' | '&') => None,
        _ => Habit::of(inner).or(before.habit),
    };
    let is_scheme = inner.rsplit(':').next().is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
    let is_flag = inner.starts_with('-') && is_plain(inner) && names_a_secret(inner);
    before.value = (name.is_empty() && (is_scheme || is_flag)).then_some(Value::Secret);
}

fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("mysql -uroot -phunter2 -P3306 -p db", "mysql -uroot -p******** -P3306 -p db"),
            ("cd x; /usr/bin/mysqldump -px | train -path", "cd x; /usr/bin/mysqldump -p******** | train -path"),
            ("sshpass -p x ssh -p 22 h", "sshpass -p ******** ssh -p 22 h"),
            (
                "curl -sSu li:a:b https://h --user=li:x --proxy-user li:y -uli:z -u li",
                "curl -sSu li:******** https://h --user=li:******** --proxy-user li:******** -uli:******** -u li",
            ),
            ("docker run --user 1000:1000 -u 1:2 -p80:80", "docker run --user 1000:1000 -u 1:2 -p80:80"),
            ("['--api-key=abc', '--lr=1']", "['--api-key=********', '--lr=1']"),
            ("['--api-key', 'abc', '--lr'] x", "['--api-key', '********', '--lr'] x"),
            ("(\"--token=a b\", 'curl', '-u', 'li:x')", "(\"--token=********\", 'curl', '-u', 'li:********')"),
            ("", ""),
            ("  ", "  "),
            ("Authorization: ", "Authorization: "),
        ] {
            assert_eq!(line(text), shown, "{text}");
            let mut masked = text.to_owned();
            for span in secrets_of(text).into_iter().rev() {
                masked.replace_range(span, MASK);
            }
            assert_eq!(super::masked("", &masked), shown, "{text}");
            let words: Vec<OsString> = ["sh", "-c", text, "--token", "a b"].map(OsString::from).to_vec();
            let expected: Vec<OsString> = ["sh", "-c", shown, "--token", MASK].map(OsString::from).to_vec();
            assert_eq!(super::words(&words), expected);
        }
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
            ("Authorization:Bearer abc", "Authorization:******** ********"),
            ("{\"db\":{\"password\":\"a\",\"port\":5}}", "{\"db\":{\"password\":\"********\",\"port\":5}}"),
            ("{\\\"token\\\":\\\"a\\\"} {'key':3}", "{\\\"token\\\":\\\"********\\\"} {'key':********}"),
            ("--max_tokens 4096 tokenizer.name=bert", "--max_tokens 4096 tokenizer.name=bert"),
        ] {
            let given: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(words(&given).join(std::ffi::OsStr::new(" ")), expected);
        }
    }
}
