//! Masks secrets in anything umiak writes: by the name of a variable, a flag, a header or a key; by shape, as a password in
//! a URL or a token of a well-known form; and because the value is a known secret.
//!
//! [`Known::text`] is the function that every writer uses. A replica's own log is not masked: it is written by the replica.

use std::borrow::Cow;
use std::ffi::OsString;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Parts of the names of secrets, compared in upper case. Short ones, which occur inside harmless words (`KEY` in
/// `MONKEY_COUNT`), are matched only as whole words between underscores.
const PARTS: &[&str] = &[
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "APIKEY",
    "ACCESSKEY",
    "ACCOUNTKEY",
    "PRIVATEKEY",
    "PRIVATE_KEY",
    "SIGNINGKEY",
    "ENCRYPTIONKEY",
    "COOKIE",
    "AUTHORIZATION",
];
const WORDS: &[&str] = &[
    "KEY", "PASS", "PWD", "AUTH", "OAUTH", "OAUTH2", "BEARER", "DSN", "SK", "AK", "PAT", "SAS", "JWT", "CRED", "CREDS",
];
/// Words that name a secret without another word beside them. `key` and `auth` alone have other meanings.
const CLEAR_WORDS: &[&str] = &["PASS", "PWD", "BEARER", "JWT"];
/// Harmless words that end with `PASS`; others, as in `DBPASS`, name a password.
const NO_PASSWORDS: &[&str] = &["COMPASS", "ENCOMPASS", "BYPASS", "SURPASS", "TRESPASS", "OVERPASS", "UNDERPASS"];
/// Beside `TOKENS` they show that tokens are counted: `MAX_TOKENS`.
const COUNTS: &[&str] = &["MAX", "MIN", "NUM", "N", "NEW", "COUNT", "TOTAL", "PER", "BATCH", "LIMIT", "LENGTH", "LEN"];
/// Words of the names of secrets in the query of a URL.
const SIGNATURES: &[&str] = &["SIG", "SIGNATURE"];
/// In the arguments of a training script it often means a token of text (`--max_tokens`, `tokenizer.name`).
const TOKEN: &str = "TOKEN";

/// Beginnings of tokens of well-known services, and the number of characters that follow at least.
const PREFIXES: &[(&str, usize)] = &[
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("hf_", 20),
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("xoxa-", 16),
    ("xoxs-", 16),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("npm_", 30),
    ("pypi-", 30),
    ("dckr_pat_", 16),
    ("ya29.", 20),
];

/// The replacement for a secret.
pub const MASK: &str = "********";

/// True if a variable of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if matches!(name.as_str(), "PWD" | "OLDPWD") || names_a_file(&name) {
        return false;
    }
    let is_counted = || name.split('_').any(|word| COUNTS.contains(&word));
    let is_token = |word: &str| match word {
        "TOKENS" => !is_counted(),
        word => word.contains(TOKEN) && !word.contains("TOKENI"),
    };
    let is_word = |word: &str| WORDS.contains(&word) || is_password(word) || is_token(word);
    PARTS.iter().any(|part| name.contains(part)) || name.split(['_', '-', '.']).any(is_word)
}

/// True for the name of a path, such as `TOKEN_FILE`, in capitals: what it leads to is a secret, and it is not.
fn names_a_file(name: &str) -> bool {
    let last = name.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    matches!(last, "FILE" | "PATH" | "DIR")
}

fn is_password(word: &str) -> bool {
    let is_other = ["JWT", "BEARER", "OAUTH"].iter().any(|end| word.ends_with(end));
    let is_directory = matches!(word, "PWD" | "OLDPWD");
    let is_pass = word.ends_with("PASS") || word.ends_with("PWD");
    is_other || (is_pass && !is_directory && !NO_PASSWORDS.contains(&word))
}

/// Returns the value with secrets masked.
pub fn masked(name: &str, value: &str) -> String {
    if is_secret(name) && !value.is_empty() { MASK.to_owned() } else { line(value) }
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
    joined(found)
}

/// Secrets that are recognised wherever they are in a text.
fn secrets_by_shape(text: &str) -> Vec<Range<usize>> {
    [
        secrets_of_json(text),
        secrets_of_urls(text),
        secrets_of_addresses(text),
        secrets_of_assignments(text),
        secrets_of_headers(text),
        tokens(text),
        private_keys(text),
    ]
    .concat()
}

fn replaced(text: &str, secrets: Vec<Range<usize>>) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    // What is masked already keeps its quotes.
    let is_new = |secret: &Range<usize>| text[secret.clone()].trim_matches(['"', '\'']) != MASK;
    for secret in joined(secrets).into_iter().filter(is_new) {
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
    // The variable; `pwd=` and `Pwd=` are passwords.
    if matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let name = name.to_ascii_uppercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    !names_a_file(&name) && words.any(|word| WORDS.contains(&word) || is_clear(word))
}

/// True for a word that names a secret wherever it is.
fn is_clear(word: &str) -> bool {
    let is_part = PARTS.iter().any(|part| word.contains(part));
    is_part || CLEAR_WORDS.contains(&word) || is_password(word) || word.ends_with(TOKEN)
}

/// True for names of secrets in running text: stricter than [`names_a_secret`] for words that mean other things alone.
pub fn clearly_names_a_secret(name: &str) -> bool {
    let is_directory = matches!(name, "PWD" | "OLDPWD");
    let name = name.to_ascii_uppercase();
    if is_directory || names_a_file(&name) {
        return false;
    }
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.iter().any(|word| is_clear(word)) || words.len() > 1 && words.iter().any(|word| WORDS.contains(word))
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

/// The passwords in `https://user:secret@host`, the tokens in `https://token@host`, and the values of names such as `sig`
/// in queries.
fn secrets_of_urls(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // A run of characters without a space may contain many URLs. It is examined once.
    let mut run = 0..0;
    let mut last_at = None;
    for (colon, mark) in text.match_indices("://") {
        let start = colon + mark.len();
        if start >= run.end {
            let is_over = |c: char| c.is_whitespace() || matches!(c, ',' | '"' | '\'' | '\\');
            run = start..start + text[start..].find(is_over).unwrap_or(text.len() - start);
            last_at = text[run.clone()].rfind('@').map(|at| start + at);
            found.extend(secrets_of_query(text, &run));
        }
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let scheme = &text[text[..colon].trim_end_matches(is_scheme).len()..colon];
        let last = scheme.rsplit('+').next().unwrap_or(scheme);
        let is_web = last.eq_ignore_ascii_case("http") || last.eq_ignore_ascii_case("https");
        let end = text[start..run.end].find(['/', '?', '#']).map_or(run.end, |length| start + length);
        found.extend(user_info(text, start..end, last_at, is_web));
    }
    found
}

/// The values of parameters such as `sig`.
fn secrets_of_query(text: &str, run: &Range<usize>) -> Vec<Range<usize>> {
    let url = &text[run.clone()];
    let secret = |(mark, _): (usize, &str)| {
        let part = &url[mark + 1..];
        let part = &part[..part.find(['&', '#']).unwrap_or(part.len())];
        let (name, value) = part.split_once('=')?;
        let is_secret = !value.is_empty() && (names_a_secret(name) || name.split('-').any(is_signature));
        let at = run.start + mark + 1 + name.len() + 1;
        is_secret.then_some(at..at + value.len())
    };
    url.match_indices(['?', '&']).filter_map(secret).collect()
}

/// The secret before the `@` of an authority. `last_at` is the last `@` before the next space.
fn user_info(text: &str, authority: Range<usize>, last_at: Option<usize>, is_web: bool) -> Option<Range<usize>> {
    let start = authority.start;
    let colon = text[authority.clone()].find(':').map(|colon| start + colon);
    if let Some(at) = text[authority.clone()].rfind('@').map(|at| start + at) {
        return match colon.filter(|colon| *colon < at) {
            Some(colon) => (colon + 1 < at).then_some(colon + 1..at),
            // With http, a user without a password is a token.
            None => (is_web && at > start).then_some(start..at),
        };
    }
    // A password with a character that should have been written as `%2F`. What follows a host is a number.
    let (colon, at) = (colon?, last_at?);
    let is_port = text[colon + 1..authority.end].bytes().all(|byte| byte.is_ascii_digit());
    (!is_port && colon + 1 < at).then_some(colon + 1..at)
}

/// The passwords in `user:secret@host`, without a scheme. `image:1.2@sha256:…` has none.
fn secrets_of_addresses(text: &str) -> Vec<Range<usize>> {
    let is_around =
        |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '=' | '(' | ')' | '[' | ']' | '`');
    let is_user = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '%' | '+' | '-');
    let mut next = 0;
    let secret = |part: &str| {
        let start = next;
        next += part.len();
        let run = part.trim_end_matches(is_around);
        let at = run.rfind('@')?;
        let colon = run[..at].find(':')?;
        let (user, host) = (&run[..colon], &run[at + 1..]);
        let is_digest = ["sha256:", "sha512:"].iter().any(|digest| host.starts_with(digest));
        let is_host = host.is_empty() || host.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_other = user.eq_ignore_ascii_case("mailto") || run[colon..].starts_with("://");
        let is_secret = user.chars().all(is_user) && is_host && !is_digest && !is_other && colon + 1 < at;
        is_secret.then_some(start + colon + 1..start + at)
    };
    text.split_inclusive(is_around).filter_map(secret).collect()
}

/// The values of names of secrets: `Password=abc;`, `password='a b'`, `db_password: abc`.
fn secrets_of_assignments(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (mark, sign) in text.match_indices(['=', ':']) {
        // A value may contain more of them.
        if found.last().is_none_or(|last| last.end <= mark) {
            found.extend(assigned(text, mark, sign));
        }
    }
    found
}

/// The value after this sign, if the name before it is the name of a secret.
fn assigned(text: &str, mark: usize, sign: &str) -> Option<Range<usize>> {
    let key = text[..mark].trim_end_matches(' ');
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name = &key[key.trim_end_matches(is_name).len()..];
    let rest = &text[mark + sign.len()..];
    // `a::b` and `12:30` have no space.
    let is_mark = sign == "=" && !rest.starts_with('=') || sign == ":" && rest.starts_with([' ', '\t']);
    // `$TOKEN = x` is a comparison.
    let is_use = key[..key.len() - name.len()].ends_with(['$', '{']) && sign == "=";
    if !is_mark || is_use || name.is_empty() || !clearly_names_a_secret(name) {
        return None;
    }
    let value = rest.trim_start_matches([' ', '\t']);
    let start = text.len() - value.len();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
    if let Some(quote) = quote
        && let Some(length) = value[1..].find(quote)
    {
        return (length > 0).then_some(start + 1..start + 1 + length);
    }
    if key.len() < mark {
        return None;
    }
    let is_last = |c: char| matches!(c, '"' | '\'' | '\n');
    let length = if sign == ":" {
        let bytes = value.as_bytes();
        let is_end =
            |(at, c): &(usize, char)| is_last(*c) || *c == '}' || *c == ',' && bytes.get(at + 1) == Some(&b' ');
        let end = value.char_indices().find(is_end).map_or(value.len(), |(at, _)| at);
        value[..end].trim_end().len()
    } else {
        let word = &value[..value.find(|c: char| c.is_whitespace() || is_last(c)).unwrap_or(value.len())];
        // The next one of a query: `&name=`.
        let next = word.find('&').filter(|at| word[*at..].contains('='));
        word.find(';').or(next).unwrap_or(word.len())
    };
    (length > 0).then_some(start..start + length)
}

/// `Bearer abc` in running text; and what follows `Authorization:`, to the end of the line or the quote.
fn secrets_of_headers(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut found = Vec::new();
    for (at, word) in lower.match_indices("bearer ") {
        let start = at + word.len();
        let token = &text[start..start + token_length(&text[start..])];
        if token.len() >= 20 || token.len() >= 6 && token.bytes().any(|byte| byte.is_ascii_digit()) {
            found.push(start..start + token.len());
        }
    }
    let mut end = 0;
    for (at, word) in lower.match_indices("authorization") {
        if at < end {
            continue;
        }
        let rest = &text[at + word.len()..];
        let value = rest.trim_start_matches(['"', '\'', ' ', '\\']);
        let Some(value) = value.strip_prefix([':', '=']) else { continue };
        let value = value.trim_start_matches([' ', '"', '\'', '\\']);
        let length = value.find(['"', '\'', '\n', '\\', ',']).unwrap_or(value.len());
        let start = text.len() - value.len();
        end = start + length;
        found.extend((length > 0).then_some(start..end));
    }
    found
}

/// Tokens of a well-known form.
fn tokens(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let is_start = |at: usize| !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let mut find = |prefix: &str, is_it: &dyn Fn(&str) -> bool| {
        let mut end = 0;
        for (at, _) in text.match_indices(prefix).filter(|(at, _)| is_start(*at)) {
            if at < end {
                continue;
            }
            // If this is none, what begins later in the same word is none either.
            end = at + token_length(&text[at..]);
            found.extend(is_it(&text[at..end]).then_some(at..end));
        }
    };
    for (prefix, least) in PREFIXES {
        find(prefix, &|token| {
            let rest = token.strip_prefix(prefix).unwrap_or("");
            rest.len() >= *least && rest.bytes().any(|byte| byte.is_ascii_digit())
        });
    }
    // The header of a JWT begins with `{"`, in base64.
    find("eyJ", &|token| token.len() >= 20 && token.split('.').count() >= 3);
    found
}

fn token_length(text: &str) -> usize {
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '+' | '/' | '=');
    text.find(|c| !is_token(c)).unwrap_or(text.len())
}

/// What is between the lines around a private key.
fn private_keys(text: &str) -> Vec<Range<usize>> {
    const KEY: &str = "PRIVATE KEY-----";
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(KEY).map(|at| from + at) {
        let start = at + KEY.len();
        let end = text[start..].find("-----END").map_or(text.len(), |length| start + length);
        found.extend((start < end).then_some(start..end));
        // Behind the line that ends it, which has the same words.
        from = text[end..].find(KEY).map_or(text.len(), |at| end + at + KEY.len());
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
/// The same for values that are secrets only because of their variable's name, and may be anything.
const SHORTEST_NAMED: usize = 6;
/// Lines of a value that are masked on their own, as those of a private key.
const SHORTEST_LINE: usize = 16;
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
        let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE && *line != value);
        // The lines around a key are no secrets.
        let lines: Vec<&str> = lines.filter(|line| !line.starts_with("-----")).collect();
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

    /// Returns any text with secrets masked: what is written or shown goes through here.
    pub fn text(&self, text: &str) -> String {
        line(&self.without(text))
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
            "MYJWT",
            "DBPWD",
            "MYBEARER",
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
            "PASSPHRASE",
            "DBPASS",
            "BEARER",
            "OAUTH",
            "GITLAB_PAT",
            "PRIVATEKEY",
            "ACCESSKEYID",
            "AZURE_STORAGE_SAS",
            "authToken",
            "dbPassword",
        ] {
            assert!(is_secret(secret), "{secret}");
            assert!(names_a_secret(secret), "{secret}");
        }
        for secret in ["API_TOKENS", "TOKENVALUE"] {
            assert!(is_secret(secret), "{secret}");
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
            "COMPASS_HOME",
            "TOKENIZERS_PARALLELISM",
            "TOKENIZER_PATH",
            "HF_TOKEN_FILE",
            "SSH_KEY_PATH",
            "MAX_TOKENS",
            "MONKEY",
            "BYPASS",
            "SASS_PATH",
            "DISPATCH",
        ] {
            assert!(!is_secret(harmless), "{harmless}");
            assert!(!names_a_secret(harmless), "{harmless}");
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

    /// Nothing of a secret is left, and nothing else is changed.
    #[test]
    fn shapes() {
        for (text, shown) in [
            ("https://tok123@h/a.git", "https://********@h/a.git"),
            ("git+https://tok123@h/a.git", "git+https://********@h/a.git"),
            ("ssh://git@h/a.git", "ssh://git@h/a.git"),
            ("https://u:p/w@h/x", "https://u:********@h/x"),
            ("http://h:80/a@b", "http://h:80/a@b"),
            ("li:pw@10.0.0.1:6170", "li:********@10.0.0.1:6170"),
            ("--ips 10.0.0.1,li:pw@h", "--ips 10.0.0.1,li:********@h"),
            ("li@10.0.0.1:/data", "li@10.0.0.1:/data"),
            ("pytorch:2.1@sha256:0123", "pytorch:2.1@sha256:0123"),
            ("Server=h;User=li;Password=a b;Port=1", "Server=h;User=li;Password=******** b;Port=1"),
            ("Server=h;pwd=x,y;Port=1", "Server=h;pwd=********;Port=1"),
            ("AccountName=a;AccountKey=abc==;End", "AccountName=a;AccountKey=********;End"),
            ("Namespace(password='a b', lr=1)", "Namespace(password=******** lr=1)"),
            ("test $API_TOKEN = other", "test $API_TOKEN = other"),
            ("db_password = 'a b'", "db_password = '********'"),
            ("--api-key '********' 'a b'", "--api-key '********' 'a b'"),
            ("KeyError: 'token'", "KeyError: 'token'"),
            ("  12 | env: {DB_PASSWORD: abc, LR: 1}", "  12 | env: {DB_PASSWORD: ********, LR: 1}"),
            ("curl -H Authorization: Bearer abc.def", "curl -H Authorization: ********"),
            ("got Bearer abc123def from peer", "got Bearer ******** from peer"),
            ("run --password hunter2 now", "run --password ******** now"),
            ("x eyJhbGciOi.eyJzdWIiOiI.sIgNaTuRe y", "x ******** y"),
            ("key ghp_0123456789abcdefghij0123.", "key ********"),
            ("hf_download_of_a_dataset_was_slow", "hf_download_of_a_dataset_was_slow"),
            ("id AKIA0123456789ABCDEF", "id ********"),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nz",
                "-----BEGIN RSA PRIVATE KEY-----********-----END RSA PRIVATE KEY-----\nz",
            ),
        ] {
            assert_eq!(line(text), shown);
            assert_eq!(line(shown), shown, "masked twice");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

        /// Whatever is around it, and however often it is masked.
        #[test]
        fn no_form_shows_its_secret(
            secret in "[A-Za-z0-9]{8,24}",
            before in "[ a-z(:/=\"'@.,-]{0,12}",
            after in "[ a-z):/=\"'@.,;-]{0,12}",
            form in proptest::sample::select(vec![
                "https://{}@host/x",
                "postgres://li:{}@db/x",
                "Server=h;Password={};Port=1",
                "db_password={}",
                "--password {} ",
                "--api-key={}",
                "DB_PASSWORD: {}",
                "{\"password\": \"{}\"}",
                "Authorization: Basic {}",
                "ghp_0123456789{}0123456789",
                "eyJ{}.eyJ{}.{}",
            ]),
        ) {
            // What follows a word without a space belongs to it, and a quote that is open may change what a word is.
            let (before, after) = (before.replace(['"', '\''], " "), after.replace(['"', '\''], " "));
            let text = format!("{before} {} {after}", form.replace("{}", &secret));
            let shown = line(&text);
            proptest::prop_assert!(!shown.contains(&secret), "{} became {}", text, shown);
        }
    }

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
            ("SSH_PRIVATE_KEY", "-----BEGIN X-----\nMIIEpAIBAAKCAQEA0123\n-----END X-----"),
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
            ("lr 0.125 0.5", "lr 0.125 0.5"),
        ] {
            assert_eq!(known.text(text), expected);
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
