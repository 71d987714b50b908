//! Secrets that are recognised wherever they are in a text: in URLs and addresses, behind a name and a sign, and tokens of
//! a well-known form.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::names::{clearly_names_a_secret, names_a_secret};

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

/// No token is shorter.
const SHORTEST_TOKEN: usize = 20;

/// Words of the names of secrets in the query of a URL.
const SIGNATURES: &[&str] = &["SIG", "SIGNATURE"];

/// The header of a JWT begins with `{"`, in base64.
const JWT: &str = "eyJ";

/// Words of headers, and the beginnings of tokens: most texts have none of them, and this is much faster than looking for
/// each.
static HEADERS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("(?i-u:bearer |authorization)").expect("a constant pattern"));
static BEGINNINGS: LazyLock<Regex> = LazyLock::new(|| {
    let all: Vec<String> = PREFIXES.iter().map(|(prefix, _)| *prefix).chain([JWT]).map(regex::escape).collect();
    Regex::new(&all.join("|")).expect("a constant pattern")
});

/// Secrets that are recognised wherever they are in a text.
pub(super) fn secrets_by_shape(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    if text.bytes().any(|byte| matches!(byte, b':' | b'=')) {
        found.extend(secrets_of_json(text));
        found.extend(secrets_of_urls(text));
        found.extend(secrets_of_addresses(text));
        found.extend(secrets_of_assignments(text));
    }
    if HEADERS.is_match(text) {
        found.extend(secrets_of_headers(text));
    }
    if text.len() >= SHORTEST_TOKEN && BEGINNINGS.is_match(text) {
        found.extend(tokens(text));
    }
    found.extend(private_keys(text));
    found
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
        found.extend(hook(text, start, end..run.end));
    }
    found
}

/// Parts of the paths of webhooks: whoever has what follows can post.
const HOOKS: &[&str] = &["hook", "hooks", "webhook", "webhooks", "webhookb2"];

/// The secret path of a webhook: `https://hooks.slack.com/services/T…/B…/…`, `https://discord.com/api/webhooks/1/…`. Of a
/// bot of Telegram the secret is a part: `https://api.telegram.org/bot1:…/send`.
fn hook(text: &str, host: usize, path: Range<usize>) -> Option<Range<usize>> {
    let end = text[path.clone()].find(['?', '#']).map_or(path.end, |length| path.start + length);
    let is_host = text[host..path.start].split('.').next().is_some_and(|name| HOOKS.contains(&name));
    let mut at = path.start;
    // Before the first slash is nothing.
    for (position, part) in text[path.start..end].split('/').enumerate() {
        let start = at;
        at += part.len() + 1;
        if let Some((bot, _)) = part.split_once(':')
            && bot.strip_prefix("bot").is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return Some(start + "bot".len()..start + part.len());
        }
        if HOOKS.contains(&part) || is_host && position == 1 {
            return text[..end].get(at..).filter(|rest| has_key(rest)).map(|_| at..end);
        }
    }
    None
}

/// True if a part of a path looks random.
fn has_key(path: &str) -> bool {
    let is_key = |part: &str| {
        let has = |is_it: fn(&u8) -> bool| part.as_bytes().iter().any(is_it);
        part.len() >= 8 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic)
    };
    path.split('/').any(is_key)
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
    find(JWT, &|token| token.len() >= SHORTEST_TOKEN && token.split('.').count() >= 3);
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

#[cfg(test)]
mod tests {
    use super::super::{MASK, line, masked};

    #[test]
    fn no_token_is_shorter() {
        assert!(super::PREFIXES.iter().all(|(prefix, least)| prefix.len() + least >= super::SHORTEST_TOKEN));
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
            (
                "to https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX.",
                "to https://hooks.slack.com/services/********",
            ),
            (
                "https://discord.com/api/webhooks/1234/aB3-x_yz09?wait=1",
                "https://discord.com/api/webhooks/********?wait=1",
            ),
            (
                "'https://open.feishu.cn/open-apis/bot/v2/hook/1a2b3c4d-5e6f'",
                "'https://open.feishu.cn/open-apis/bot/v2/hook/********'",
            ),
            (
                "https://x.webhook.office.com/webhookb2/1a2b3c4d@9f8e/IncomingWebhook/1a/2b",
                "https://x.webhook.office.com/webhookb2/********",
            ),
            ("https://api.telegram.org/bot123:AAab-cd/sendMessage", "https://api.telegram.org/bot********/sendMessage"),
            ("https://mattermost.example/hooks/xyz1abc2def3ghi4jkl5", "https://mattermost.example/hooks/********"),
            ("https://hooks.slack.com/services", "https://hooks.slack.com/services"),
            ("https://docs.example/webhooks/getting-started", "https://docs.example/webhooks/getting-started"),
            ("li:pw@10.0.0.1:6170", "li:********@10.0.0.1:6170"),
            ("--ips 10.0.0.1,li:pw@h", "--ips 10.0.0.1,li:********@h"),
            ("li@10.0.0.1:/data", "li@10.0.0.1:/data"),
            ("pytorch:2.1@sha256:0123", "pytorch:2.1@sha256:0123"),
            ("Server=h;User=li;Password=a b;Port=1", "Server=h;User=li;Password=******** b;Port=1"),
            ("Server=h;pwd=x,y;Port=1", "Server=h;pwd=********;Port=1"),
            ("AccountName=a;AccountKey=abc==;End", "AccountName=a;AccountKey=********;End"),
            ("Namespace(password='a b', lr=1)", "Namespace(password='********', lr=1)"),
            ("test $API_TOKEN = other", "test $API_TOKEN = other"),
            ("db_password = 'a b'", "db_password = '********'"),
            ("--api-key '********' 'a b'", "--api-key '********' 'a b'"),
            ("KeyError: 'token'", "KeyError: 'token'"),
            ("  12 | env: {DB_PASSWORD: abc, LR: 1}", "  12 | env: {DB_PASSWORD: ********, LR: 1}"),
            ("bash: line 1: HF_TOKEN: unbound variable", "bash: line 1: HF_TOKEN: unbound variable"),
            ("HF_TOKEN: unbound variable (exit 1)", "HF_TOKEN: unbound variable (exit 1)"),
            ("API_KEY: parameter null or not set\nx", "API_KEY: parameter null or not set\nx"),
            ("cat: /etc/passwd: Permission denied", "cat: /etc/passwd: Permission denied"),
            ("HF_TOKEN: unbound variables2", "HF_TOKEN: ********"),
            ("DB_PASSWORD: permission denied abc", "DB_PASSWORD: ********"),
            ("set it with `-p password=…`, or `--token …`", "set it with `-p password=…`, or `--token …`"),
            ("did you mean `-p secrets.tok=…`?", "did you mean `-p secrets.tok=…`?"),
            ("-p password=…abc", "-p password=********"),
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
}
