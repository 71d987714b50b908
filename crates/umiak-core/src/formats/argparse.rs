//! A small parser with the behaviour of Python's `argparse` (3.11), driven by a table of options.
//!
//! Common launchers use `argparse` with one grammar: options, then one positional (the script), then everything else
//! for the script. This module parses exactly that grammar from `OsString`s, so that paths and script arguments need
//! not be UTF-8. It contains no particular flags, no types beyond the helpers at the end, and no user messages.
//!
//! Kept from `argparse`: `--x v` and `--x=v`, unambiguous abbreviations, a negative number or a word with a
//! space as a value, `-` as a word, `--` before the script, one `--` directly after the script dropped,
//! unknown options collected and not followed by a value, `-h` acted on at its position.
//!
//! Different on purpose: `-` and `_` are equal in long options; arguments after the script or after `-h` are never
//! parsed (3.11 rejects an ambiguous abbreviation even there); `--x=--` has the value `--` (3.11 makes it an
//! empty list); all errors of the line are reported, not only the first.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use thiserror::Error;

/// One spelling of one option. An alias is a further entry with the same key.
#[derive(Debug, Clone, Copy)]
pub struct Opt {
    /// With its dashes.
    pub name: &'static str,
    /// The caller's number for the setting.
    pub key: usize,
    pub takes: Takes,
    pub matching: Matching,
}

/// The value that an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Value,
    Nothing,
    /// A value after `=`, or nothing. `argparse` would take the next word too.
    Attached,
    /// A truth value after `=` or as the next word (`True`, `0`), or nothing. `argparse` has no such kind: one option was
    /// a switch in one release and took a value in another.
    Truth,
}

/// How a long option may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matching {
    /// `-` or `_` between words, and any prefix that is unique in the lowest tier with a match. With tiers, a table that
    /// combines two programs keeps the abbreviations of the first.
    Abbreviated { tier: u8 },
    /// `-` or `_` between words, never abbreviated.
    Whole,
}

/// The result of parsing a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `-h` came before the script, with no error before it.
    Help,
    Line(Line),
}

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// In the order of the command line.
    pub items: Vec<Item>,
    pub script: Option<OsString>,
    pub script_args: Vec<OsString>,
    /// True if `--` came before the script.
    pub separated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Known(Given),
    /// Looks like an option but is not in the table. A value as a separate word is not consumed.
    Unknown(OsString),
}

/// An option of the table, as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub key: usize,
    /// The table's spelling.
    pub name: &'static str,
    /// The user's spelling, including `=value` if present.
    pub token: OsString,
    pub value: Option<OsString>,
    /// True if the value was a separate word.
    pub is_separate: bool,
}

/// A line that does not fit the table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArgError {
    #[error("ambiguous option: {token} could match {}", .candidates.join(", "))]
    Ambiguous { token: String, candidates: Vec<&'static str> },
    #[error("argument {name}: expected one argument")]
    MissingValue { name: &'static str },
    #[error("argument {name}: ignored explicit argument '{value}'")]
    UnwantedValue { name: &'static str, value: String },
}

const HELP: &str = "--help";

/// Parses a command line. `-h` and `--help` always exist.
pub fn parse(options: &[Opt], argv: &[OsString]) -> Result<Outcome, Vec<ArgError>> {
    let mut line = Line { items: Vec::new(), script: None, script_args: Vec::new(), separated: false };
    let mut errors = Vec::new();
    let mut position = 0;
    while let Some(token) = argv.get(position) {
        position += 1;
        match classify(options, token) {
            Class::Word => {
                line.script = Some(token.clone());
                // `argparse` drops one `--` together with the script.
                let swallowed = usize::from(argv.get(position).is_some_and(|next| next == "--"));
                line.script_args = argv[position + swallowed..].to_vec();
                break;
            }
            Class::Separator => {
                line.separated = true;
                line.script = argv.get(position).cloned();
                line.script_args = argv.get(position + 1..).unwrap_or_default().to_vec();
                break;
            }
            Class::Unknown => line.items.push(Item::Unknown(token.clone())),
            Class::Ambiguous(candidates) => {
                errors.push(ArgError::Ambiguous { token: token.to_string_lossy().into_owned(), candidates });
            }
            Class::Help { attached: None } if errors.is_empty() => return Ok(Outcome::Help),
            Class::Help { attached: None } => {}
            Class::Help { attached: Some(value) } => errors.push(unwanted(HELP, &value)),
            Class::Known { option, attached } => {
                let given = |value, is_separate| {
                    Item::Known(Given { key: option.key, name: option.name, token: token.clone(), value, is_separate })
                };
                match (option.takes, attached) {
                    (Takes::Nothing | Takes::Attached, None) => line.items.push(given(None, false)),
                    (Takes::Nothing, Some(value)) => errors.push(unwanted(option.name, &value)),
                    (Takes::Value | Takes::Attached | Takes::Truth, Some(value)) => {
                        line.items.push(given(Some(value), false));
                    }
                    (Takes::Truth, None) => {
                        let next = argv.get(position).filter(|next| next.to_str().and_then(bool_text).is_some());
                        position += usize::from(next.is_some());
                        line.items.push(given(next.cloned(), next.is_some()));
                    }
                    (Takes::Value, None) => match argv.get(position) {
                        Some(next) if matches!(classify(options, next), Class::Word) => {
                            line.items.push(given(Some(next.clone()), true));
                            position += 1;
                        }
                        _ => errors.push(ArgError::MissingValue { name: option.name }),
                    },
                }
            }
        }
    }
    if errors.is_empty() { Ok(Outcome::Line(line)) } else { Err(errors) }
}

fn unwanted(name: &'static str, value: &OsStr) -> ArgError {
    ArgError::UnwantedValue { name, value: value.to_string_lossy().into_owned() }
}

/// The class of one token, without its context.
enum Class<'t> {
    /// The script, or a value.
    Word,
    /// `--`
    Separator,
    Known {
        option: &'t Opt,
        attached: Option<OsString>,
    },
    Help {
        attached: Option<OsString>,
    },
    Ambiguous(Vec<&'static str>),
    Unknown,
}

fn classify<'t>(options: &'t [Opt], token: &OsStr) -> Class<'t> {
    let bytes = token.as_bytes();
    if bytes == b"--" {
        return Class::Separator;
    }
    if bytes.len() < 2 || bytes[0] != b'-' {
        return Class::Word;
    }
    if bytes[1] != b'-' {
        return classify_short(options, bytes);
    }
    let (name, attached) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, None),
    };
    if name == HELP.as_bytes() {
        return Class::Help { attached };
    }
    if let Some(option) = options.iter().find(|option| is_exact(option, name)) {
        return Class::Known { option, attached };
    }
    // `--help` belongs to the first tier: every program has it.
    let help = HELP.as_bytes().starts_with(name).then_some((0, None));
    let matched: Vec<(u8, Option<&Opt>)> = options
        .iter()
        .filter_map(|option| match option.matching {
            Matching::Abbreviated { tier } if is_prefix(option, name) => Some((tier, Some(option))),
            _ => None,
        })
        .chain(help)
        .collect();
    let lowest = matched.iter().map(|(tier, _)| *tier).min();
    let mut candidates = matched.into_iter().filter(|(tier, _)| Some(*tier) == lowest).map(|(_, option)| option);
    match (candidates.next(), candidates.next()) {
        (None, _) => classify_stranger(bytes),
        (Some(Some(option)), None) => Class::Known { option, attached },
        (Some(None), None) => Class::Help { attached },
        (Some(first), Some(second)) => Class::Ambiguous(
            [first, second]
                .into_iter()
                .chain(candidates)
                .map(|option| option.map_or(HELP, |option| option.name))
                .collect(),
        ),
    }
}

/// A one-letter option of the table, alone or repeated; one with a value may have it attached: `-r3`, `-r=3`. `-h` is
/// help, and an error when followed by other letters; everything else with a single dash is unknown.
fn classify_short<'t>(options: &'t [Opt], bytes: &[u8]) -> Class<'t> {
    let takes_value = |option: &&Opt| option.name.as_bytes() == &bytes[..2] && option.takes == Takes::Value;
    if let Some(option) = options.iter().find(takes_value) {
        let attached = bytes[2..].strip_prefix(b"=").unwrap_or(&bytes[2..]);
        return Class::Known { option, attached: (bytes.len() > 2).then(|| OsString::from_vec(attached.to_vec())) };
    }
    let is_letter =
        |option: &&Opt| option.name.len() == 2 && bytes[1..].iter().all(|b| *b == option.name.as_bytes()[1]);
    if let Some(option) = options.iter().find(is_letter) {
        return Class::Known { option, attached: None };
    }
    let Some(tail) = bytes.strip_prefix(b"-h") else { return classify_stranger(bytes) };
    let foreign = tail.iter().position(|byte| *byte != b'h');
    Class::Help { attached: foreign.map(|at| OsString::from_vec(tail[at..].to_vec())) }
}

/// Not an option: a negative number and anything with a space are words.
fn classify_stranger(bytes: &[u8]) -> Class<'static> {
    if is_negative_number(bytes) || bytes.contains(&b' ') { Class::Word } else { Class::Unknown }
}

fn is_exact(option: &Opt, name: &[u8]) -> bool {
    option.name.len() == name.len() && is_prefix(option, name)
}

fn is_prefix(option: &Opt, name: &[u8]) -> bool {
    let full = option.name.as_bytes();
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte };
    // The dashes in front are dashes.
    name.len() <= full.len()
        && (0..name.len()).all(|at| name[at] == full[at] || (at > 1 && folded(name[at]) == folded(full[at])))
}

/// `-5`, `-0.5`, `-.5`.
fn is_negative_number(bytes: &[u8]) -> bool {
    let Some(number) = bytes.strip_prefix(b"-") else { return false };
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    match number.iter().position(|byte| *byte == b'.') {
        None => !number.is_empty() && digits(number),
        Some(dot) => digits(&number[..dot]) && dot + 1 < number.len() && digits(&number[dot + 1..]),
    }
}

/// A whole number as Python's `int` parses it: surrounding whitespace, a sign, single `_` between digits.
pub fn int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let well_formed = digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    if well_formed { text.replace('_', "").parse().ok() } else { None }
}

/// A truth value, as Python's `strtobool` parses it.
pub fn bool_text(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "on" | "1" => Some(true),
        "n" | "no" | "f" | "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn value(name: &'static str, key: usize, tier: u8) -> Opt {
        Opt { name, key, takes: Takes::Value, matching: Matching::Abbreviated { tier } }
    }

    const OPTIONS: &[Opt] = &[
        value("--log_dir", 0, 0),
        value("--log_level", 1, 0),
        value("--gpus", 2, 0),
        value("--rank", 3, 0),
        value("--host", 4, 0),
        value("--rank_mapping_path", 5, 1),
        value("--workers", 6, 1),
        value("--worker_num", 7, 1),
        Opt { name: "--dry-run", key: 8, takes: Takes::Nothing, matching: Matching::Whole },
        Opt { name: "-v", key: 10, takes: Takes::Nothing, matching: Matching::Whole },
        Opt { name: "--output", key: 9, takes: Takes::Value, matching: Matching::Whole },
        Opt { name: "-r", key: 12, takes: Takes::Value, matching: Matching::Whole },
        Opt { name: "--use_cloud", key: 11, takes: Takes::Truth, matching: Matching::Whole },
    ];

    fn run(words: &[&str]) -> Result<Outcome, Vec<ArgError>> {
        parse(OPTIONS, &words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    /// `name=value …| script | args` in one line, for tables.
    fn show(words: &[&str]) -> String {
        match run(words) {
            Ok(Outcome::Help) => "help".to_owned(),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            Ok(Outcome::Line(line)) => {
                let items: Vec<String> = line
                    .items
                    .iter()
                    .map(|item| match item {
                        Item::Known(given) => match &given.value {
                            Some(value) => format!("{}={}", given.name, value.to_string_lossy()),
                            None => given.name.to_owned(),
                        },
                        Item::Unknown(token) => format!("?{}", token.to_string_lossy()),
                    })
                    .collect();
                let args: Vec<_> = line.script_args.iter().map(|arg| arg.to_string_lossy()).collect();
                let script = line.script.map_or("-".to_owned(), |script| format!("<{}>", script.to_string_lossy()));
                format!("{} {script} {}", items.join(" "), args.join(" ")).trim().to_owned()
            }
        }
    }

    #[test]
    fn reads_as_argparse_does() {
        let cases: &[(&[&str], &str)] = &[
            (&["--gpus", "0,1", "t.py", "--gpus", "2"], "--gpus=0,1 <t.py> --gpus 2"),
            (&["--gpus=0,1", "t.py"], "--gpus=0,1 <t.py>"),
            (&["--gpus=", "t.py"], "--gpus= <t.py>"),
            (&["--gpus", "", "t.py"], "--gpus= <t.py>"),
            (&["--gpus=a=b", "t.py"], "--gpus=a=b <t.py>"),
            (&["--gp", "1", "t.py"], "--gpus=1 <t.py>"),
            (&["--log-dir", "d", "t.py"], "--log_dir=d <t.py>"),
            (&["--log-d=d", "t.py"], "--log_dir=d <t.py>"),
            (&["--log", "d", "t.py"], "ambiguous option: --log could match --log_dir, --log_level"),
            (&["--rank", "-1", "t.py"], "--rank=-1 <t.py>"),
            (&["--rank", "-.5", "t.py"], "--rank=-.5 <t.py>"),
            (&["--rank", "-1a", "t.py"], "argument --rank: expected one argument"),
            (&["--gpus", "-a b", "t.py"], "--gpus=-a b <t.py>"),
            (&["--gpus", "-", "t.py"], "--gpus=- <t.py>"),
            (&["--gpus", "--", "t.py"], "argument --gpus: expected one argument"),
            (&["--gpus", "--rank", "1"], "argument --gpus: expected one argument"),
            (&["--gpus"], "argument --gpus: expected one argument"),
            (&["--what", "v", "t.py"], "?--what <v> t.py"),
            (&["--what=v", "-x", "t.py"], "?--what=v ?-x <t.py>"),
            (&["-5", "t.py"], "<-5> t.py"),
            (&["--", "t.py", "--", "a"], "<t.py> -- a"),
            (&["--", "--", "a"], "<--> a"),
            (&["t.py", "--", "a", "--", "b"], "<t.py> a -- b"),
            (&["t.py", "a", "--", "b"], "<t.py> a -- b"),
            (&["--"], "-"),
            (&[], "-"),
            (&["", "a"], "<> a"),
            (&["t.py", "--log", "x"], "<t.py> --log x"),
            (&["-h"], "help"),
            (&["-hh"], "help"),
            (&["--hel"], "help"),
            (&["--h"], "ambiguous option: --h could match --host, --help"),
            (&["-hx"], "argument --help: ignored explicit argument 'x'"),
            (&["--help=x"], "argument --help: ignored explicit argument 'x'"),
            (&["--what", "-h"], "help"),
            (&["-v", "t.py", "-v"], "-v <t.py> -v"),
            (&["-vv", "-vx", "t.py"], "-v ?-vx <t.py>"),
            (&["t.py", "-h"], "<t.py> -h"),
            (&["-r", "3", "t.py"], "-r=3 <t.py>"),
            (&["-r3", "-r=0:1", "t.py"], "-r=3 -r=0:1 <t.py>"),
            (&["-r", "-v"], "argument -r: expected one argument"),
            (&["--gpus", "-h"], "argument --gpus: expected one argument"),
            (&["--use_cloud", "t.py"], "--use_cloud <t.py>"),
            (&["--use-cloud", "True", "t.py"], "--use_cloud=True <t.py>"),
            (&["--use_cloud=0", "t.py"], "--use_cloud=0 <t.py>"),
            (&["--use", "t.py"], "?--use <t.py>"),
        ];
        for (words, expected) in cases {
            assert_eq!(show(words), *expected, "{words:?}");
        }
    }

    #[test]
    fn tiers_and_whole_options() {
        assert_eq!(show(&["--ran", "0", "t"]), "--rank=0 <t>", "the first tier wins");
        assert_eq!(show(&["--rank_m", "f", "t"]), "--rank_mapping_path=f <t>");
        assert_eq!(show(&["--worker_n", "2", "t"]), "--worker_num=2 <t>");
        assert_eq!(show(&["--work", "2", "t"]), "ambiguous option: --work could match --workers, --worker_num");
        assert_eq!(show(&["--dry-run", "--output", "json", "t"]), "--dry-run --output=json <t>");
        assert_eq!(show(&["--dry_run", "t"]), "--dry-run <t>");
        assert_eq!(show(&["__dry_run", "t"]), "<__dry_run> t");
        assert_eq!(show(&["--out=json", "t"]), "?--out=json <t>");
        assert_eq!(show(&["--dry-run=1", "t"]), "argument --dry-run: ignored explicit argument '1'");
    }

    #[test]
    fn all_errors_are_reported() {
        let errors = run(&["--gpus", "--log", "--dry-run=1", "t"]).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
    }

    #[test]
    fn tokens_need_not_be_utf8() {
        let odd = OsString::from_vec(vec![b'-', b'-', 0xff]);
        let script = OsString::from_vec(vec![0xfe, b'.', b'p', b'y']);
        let directory = OsString::from_vec(b"--log_dir=\xff".to_vec());
        let Ok(Outcome::Line(line)) = parse(OPTIONS, &[odd.clone(), directory, script.clone(), odd.clone()]) else {
            panic!("a line")
        };
        assert_eq!(line.items[0], Item::Unknown(odd.clone()));
        let Item::Known(given) = &line.items[1] else { panic!("known") };
        assert_eq!(given.value, Some(OsString::from_vec(vec![0xff])));
        assert_eq!((line.script, line.script_args), (Some(script), vec![odd]));
    }

    #[test]
    fn numbers_and_truth() {
        for (text, expected) in [
            ("5", Some(5)),
            (" -5 ", Some(-5)),
            ("+1_000", Some(1000)),
            ("1__0", None),
            ("_1", None),
            ("", None),
            ("5.0", None),
            ("0x5", None),
            ("--5", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(int(text), expected, "{text:?}");
        }
        assert_eq!((bool_text("YES"), bool_text("off"), bool_text("2")), (Some(true), Some(false), None));
    }
}
