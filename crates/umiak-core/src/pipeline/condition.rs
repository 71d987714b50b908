//! Conditions: an expression that is true or false, after its references were replaced by their values as text.
//!
//! The grammar is that of govaluate, which PaddleFlow uses. From the loosest to the tightest binding:
//!
//! | operators | operands |
//! |---|---|
//! | `? :`, `??` | a condition and two values; the second value if the first is missing |
//! | `\|\|` | true and false |
//! | `&&` | true and false |
//! | `== !=`, `> >= < <=`, `=~ !~`, `in` | any two values; two numbers or two texts; a text and a regular expression; a value and a list |
//! | `& \| ^` | numbers, as 64-bit integers |
//! | `<< >>` | numbers, as 64-bit integers |
//! | `+ -` | numbers; `+` also joins texts |
//! | `* / %` | numbers |
//! | `**` | numbers |
//! | `! - ~` before a value | true or false; a number |
//!
//! Operators of one row are evaluated from left to right. Values are numbers (doubles), texts in single or double quotes,
//! `true`, `false`, words, which are texts, and lists: `(1, 2)`. A number does not equal a text. Three differences from
//! govaluate: numbers may have an exponent (`1e-5`), a text is never a date, and `a ? b : c ? d : e` is `a ? b : (c ? d : e)`.

use std::fmt;

use regex::RegexBuilder;
use thiserror::Error;

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 64 * 1024;
/// The deepest nesting of parentheses, signs and `? :`.
const MAX_DEPTH: u32 = 100;
/// The largest compiled regular expression, in bytes.
const MAX_PATTERN: usize = 256 * 1024;
/// The longest text in a message, in characters.
const MAX_SHOWN: usize = 40;

/// Why an expression is neither true nor false.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}, at character {at}")]
pub struct Error {
    /// The position in the expression, from 1.
    pub at: usize,
    pub message: String,
}

/// Evaluates an expression.
pub fn evaluate(text: &str) -> Result<bool, Error> {
    match Parser::read(text, true)? {
        Value::Bool(value) => Ok(value),
        other => Err(Error { at: 1, message: format!("the result is {other}, not true or false") }),
    }
}

/// Checks the form of an expression that has no references. Types are checked when it is evaluated.
pub fn check(text: &str) -> Result<(), Error> {
    Parser::read(text, false).map(|_| ())
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    /// The value of `a ? b` if `a` is false.
    Missing,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => write!(f, "the number {number}"),
            Self::Text(text) => write!(f, "the text `{}`", shorten(text, MAX_SHOWN)),
            Self::List(_) => f.write_str("a list"),
            Self::Missing => f.write_str("no value"),
        }
    }
}

/// The beginning of a text.
pub(super) fn shorten(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Value(Value),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// The binary operators, from the loosest to the tightest.
const OPERATORS: [&[&str]; 8] = [
    &["||"],
    &["&&"],
    &["==", "!=", ">=", "<=", "=~", "!~", ">", "<", "in"],
    &["&", "|", "^"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
    &["**"],
];

/// Longer symbols before their beginnings.
const SYMBOLS: [&str; 29] = [
    "&&", "||", "==", "!=", ">=", "<=", "=~", "!~", "<<", ">>", "**", "??", ">", "<", "&", "|", "^", "+", "-", "*",
    "/", "%", "!", "~", "?", ":", "(", ")", ",",
];

/// Reads and evaluates in one pass. What is not `live` is only read, as the right side of `false && …`.
struct Parser<'a> {
    text: &'a str,
    /// Where the next token is looked for.
    rest: usize,
    token: Token,
    /// Where `token` begins.
    start: usize,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn read(text: &'a str, live: bool) -> Result<Value, Error> {
        let mut parser = Self { text, rest: 0, token: Token::End, start: 0, depth: 0 };
        if text.len() > MAX_LENGTH {
            return Err(parser.wrong(format!("an expression may have at most {MAX_LENGTH} bytes")));
        }
        parser.advance()?;
        let value = parser.choice(live)?;
        match parser.token {
            Token::End => Ok(value),
            _ => Err(parser.unexpected("an operator")),
        }
    }

    fn wrong(&self, message: impl Into<String>) -> Error {
        self.wrong_at(self.start, message)
    }

    fn wrong_at(&self, offset: usize, message: impl Into<String>) -> Error {
        Error { at: self.text[..offset].chars().count() + 1, message: message.into() }
    }

    fn unexpected(&self, expected: &str) -> Error {
        match &self.token {
            Token::End => self.wrong(format!("expected {expected}, found the end")),
            Token::Symbol(symbol) => self.wrong(format!("expected {expected}, found `{symbol}`")),
            Token::Value(value) => self.wrong(format!("expected {expected}, found {value}")),
        }
    }

    fn advance(&mut self) -> Result<(), Error> {
        let rest = &self.text[self.rest..];
        let rest = rest.trim_start();
        self.start = self.text.len() - rest.len();
        let (token, length) = match rest.chars().next() {
            None => (Token::End, 0),
            Some(first) if first.is_ascii_digit() || first == '.' => self.number(rest)?,
            Some(first) if first.is_alphabetic() || first == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                if rest[end..].starts_with('.') {
                    return Err(self.wrong_at(self.start + end, "a word with a `.` must be quoted"));
                }
                let token = match &rest[..end] {
                    "true" => Token::Value(Value::Bool(true)),
                    "false" => Token::Value(Value::Bool(false)),
                    "in" | "IN" => Token::Symbol("in"),
                    word => Token::Value(Value::Text(word.to_owned())),
                };
                (token, end)
            }
            Some(quote @ ('\'' | '"')) => self.quoted(rest, quote)?,
            Some('[') => self.quoted(rest, ']')?,
            Some(first) => match SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
                Some(symbol) => (Token::Symbol(symbol), symbol.len()),
                None if first == '=' => return Err(self.wrong("`=` is not an operator; use `==`")),
                None => return Err(self.wrong(format!("unexpected character `{}`", first.escape_debug()))),
            },
        };
        self.rest = self.start + length;
        self.token = token;
        Ok(())
    }

    fn number(&self, rest: &str) -> Result<(Token, usize), Error> {
        let is_part = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
        let mut end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let hexadecimal = rest[..end].strip_prefix("0x").or_else(|| rest[..end].strip_prefix("0X"));
        // The sign of an exponent.
        if hexadecimal.is_none() && rest[..end].ends_with(['e', 'E']) && rest[end..].starts_with(['+', '-']) {
            end += 1 + rest[end + 1..].find(|c| !is_part(c)).unwrap_or(rest.len() - end - 1);
        }
        let number = match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as f64),
            None => rest[..end].parse().ok(),
        };
        let wrong =
            || self.wrong(format!("`{}` is not a number; quote it if it is text", shorten(&rest[..end], MAX_SHOWN)));
        number.map(|number| (Token::Value(Value::Number(number)), end)).ok_or_else(wrong)
    }

    /// A text up to `close`. A backslash takes the next character as it is.
    fn quoted(&self, rest: &str, close: char) -> Result<(Token, usize), Error> {
        let mut text = String::new();
        let mut characters = rest.char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => text.extend(characters.next().map(|(_, next)| next)),
                _ if character == close => return Ok((Token::Value(Value::Text(text)), at + close.len_utf8())),
                _ => text.push(character),
            }
        }
        Err(self.wrong(format!("`{close}` is missing after this")))
    }

    fn eat(&mut self, symbol: &str) -> Result<bool, Error> {
        let found = matches!(self.token, Token::Symbol(found) if found == symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(format!("nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// `a ? b : c` and `a ?? b`.
    fn choice(&mut self, live: bool) -> Result<Value, Error> {
        let mut value = self.binary(0, live)?;
        loop {
            let start = self.start;
            if self.eat("?")? {
                let holds = match value {
                    _ if !live => false,
                    Value::Bool(holds) => holds,
                    other => {
                        return Err(self.wrong_at(start, format!("`?` needs true or false before it, not {other}")));
                    }
                };
                let first = self.nested(|parser| parser.choice(live && holds))?;
                value = if live && holds { first } else { Value::Missing };
                if self.eat(":")? {
                    let second = self.nested(|parser| parser.choice(live && !holds))?;
                    value = if holds { value } else { second };
                }
            } else if self.eat("??")? {
                let is_missing = value == Value::Missing;
                let second = self.binary(0, live && is_missing)?;
                value = if is_missing { second } else { value };
            } else {
                return Ok(value);
            }
        }
    }

    fn binary(&mut self, loosest: usize, live: bool) -> Result<Value, Error> {
        let mut left = self.operand(live)?;
        loop {
            let Token::Symbol(symbol) = self.token else { return Ok(left) };
            let Some(level) = OPERATORS.iter().position(|level| level.contains(&symbol)) else { return Ok(left) };
            if level < loosest {
                return Ok(left);
            }
            let start = self.start;
            self.advance()?;
            let decided = matches!((symbol, &left), ("&&", Value::Bool(false)) | ("||", Value::Bool(true)));
            let right = self.binary(level + 1, live && !decided)?;
            if live && !decided {
                left = apply(symbol, left, right).map_err(|message| self.wrong_at(start, message))?;
            }
        }
    }

    fn operand(&mut self, live: bool) -> Result<Value, Error> {
        let start = self.start;
        match self.token {
            Token::Value(ref mut value) => {
                let value = std::mem::replace(value, Value::Missing);
                self.advance()?;
                Ok(value)
            }
            Token::Symbol(sign @ ("!" | "-" | "~")) => {
                self.advance()?;
                let value = self.nested(|parser| parser.operand(live))?;
                if !live {
                    return Ok(value);
                }
                match (sign, value) {
                    ("!", Value::Bool(value)) => Ok(Value::Bool(!value)),
                    ("-", Value::Number(number)) => Ok(Value::Number(-number)),
                    ("~", Value::Number(number)) => Ok(Value::Number(!(number as i64) as f64)),
                    ("!", other) => Err(self.wrong_at(start, format!("`!` needs true or false, not {other}"))),
                    (_, other) => Err(self.wrong_at(start, format!("`{sign}` needs a number, not {other}"))),
                }
            }
            Token::Symbol("(") => {
                self.advance()?;
                self.nested(|parser| {
                    let first = parser.choice(live)?;
                    if parser.eat(")")? {
                        return Ok(first);
                    }
                    let mut values = vec![first];
                    while parser.eat(",")? {
                        values.push(parser.choice(live)?);
                    }
                    if parser.eat(")")? { Ok(Value::List(values)) } else { Err(parser.unexpected("`)`")) }
                })
            }
            Token::Symbol(_) | Token::End => Err(self.unexpected("a value")),
        }
    }
}

fn apply(symbol: &str, left: Value, right: Value) -> Result<Value, String> {
    use Value::{Bool, List, Number, Text};
    let integer = |number: f64| number as i64;
    Ok(match (symbol, left, right) {
        ("==", left, right) => Bool(left == right),
        ("!=", left, right) => Bool(left != right),
        ("&&", Bool(left), Bool(right)) => Bool(left && right),
        ("||", Bool(left), Bool(right)) => Bool(left || right),
        (">", Number(left), Number(right)) => Bool(left > right),
        (">", Text(left), Text(right)) => Bool(left > right),
        (">=", Number(left), Number(right)) => Bool(left >= right),
        (">=", Text(left), Text(right)) => Bool(left >= right),
        ("<", Number(left), Number(right)) => Bool(left < right),
        ("<", Text(left), Text(right)) => Bool(left < right),
        ("<=", Number(left), Number(right)) => Bool(left <= right),
        ("<=", Text(left), Text(right)) => Bool(left <= right),
        ("=~", Text(left), Text(pattern)) => Bool(matches(&left, &pattern)?),
        ("!~", Text(left), Text(pattern)) => Bool(!matches(&left, &pattern)?),
        ("in", left, List(values)) => Bool(values.contains(&left)),
        // A list of one value has no comma.
        ("in", left, right @ (Number(_) | Text(_))) => Bool([right].contains(&left)),
        ("+", Number(left), Number(right)) => Number(left + right),
        ("+", left @ (Text(_) | Number(_)), right @ (Text(_) | Number(_))) => Text(plain(left) + &plain(right)),
        ("-", Number(left), Number(right)) => Number(left - right),
        ("*", Number(left), Number(right)) => Number(left * right),
        ("/", Number(left), Number(right)) => Number(left / right),
        ("%", Number(left), Number(right)) => Number(left % right),
        ("**", Number(left), Number(right)) => Number(left.powf(right)),
        ("&", Number(left), Number(right)) => Number((integer(left) & integer(right)) as f64),
        ("|", Number(left), Number(right)) => Number((integer(left) | integer(right)) as f64),
        ("^", Number(left), Number(right)) => Number((integer(left) ^ integer(right)) as f64),
        ("<<", Number(left), Number(right)) => Number((left as u64).checked_shl(right as u32).unwrap_or(0) as f64),
        (">>", Number(left), Number(right)) => Number((left as u64).checked_shr(right as u32).unwrap_or(0) as f64),
        (symbol, left, right) => {
            let needs = match symbol {
                "&&" | "||" => "true or false on both sides",
                ">" | ">=" | "<" | "<=" => "two numbers or two texts",
                "=~" | "!~" => "two texts",
                "in" => "a list after it, as in `x in (1, 2)`",
                "+" => "two numbers or texts",
                _ => "two numbers",
            };
            return Err(format!("`{symbol}` needs {needs}, not {left} and {right}"));
        }
    })
}

fn plain(value: Value) -> String {
    match value {
        Value::Text(text) => text,
        Value::Number(number) => number.to_string(),
        Value::Bool(_) | Value::List(_) | Value::Missing => String::new(),
    }
}

fn matches(text: &str, pattern: &str) -> Result<bool, String> {
    let regex = RegexBuilder::new(pattern).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build();
    let wrong = |error: regex::Error| match error {
        regex::Error::CompiledTooBig(_) => {
            format!("the regular expression `{}` is too large", shorten(pattern, MAX_SHOWN))
        }
        _ => format!("`{}` is not a valid regular expression", shorten(pattern, MAX_SHOWN)),
    };
    regex.map(|regex| regex.is_match(text)).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expressions() {
        for (text, expected) in [
            // The example of PaddleFlow, with its values in place.
            ("10 > 0", true),
            ("10 < 0", false),
            // Numbers compare as numbers, texts by their characters.
            ("9 > 10", false),
            ("'9' > '10'", true),
            ("abc < def", true),
            ("\"abc\" == abc", true),
            ("1 == '1'", false),
            ("1 != '1'", true),
            ("1.0 == 1", true),
            ("0x10 == 16", true),
            ("1e-5 < 3.2E+1", true),
            (".5 < 1", true),
            ("true == true", true),
            ("café >= cafd", true),
            ("[two words] == 'two words'", true),
            (r"'it\'s' == [it's]", true),
            // Precedence.
            ("1 + 2 * 3 == 7", true),
            ("(1 + 2) * 3 == 9", true),
            ("2 * 3 ** 2 == 18", true),
            ("-2 ** 2 == 4", true),
            ("2 ** 3 ** 2 == 64", true),
            ("10 - 4 - 3 == 3", true),
            ("100 / 10 / 5 == 2", true),
            ("7 % 4 == 3", true),
            ("1 << 2 + 1 == 8", true),
            ("6 & 3 == 2", true),
            ("6 | 1 ^ 7 == 0", true),
            ("1 << 64 == 0", true),
            ("8 >> 2 == 2", true),
            ("~0 == -1", true),
            ("1 < 2 == true", true),
            ("true || false && false", true),
            ("(true || false) && false", false),
            ("!false && !(1 > 2)", true),
            ("!!true", true),
            // What is not needed is not evaluated.
            ("false && 1 > abc", false),
            ("true || 1", true),
            ("false ? 1 > abc : true", true),
            ("1 > 0 ? true : false", true),
            ("false ? true : false ? true : false", false),
            ("true ? false : true", false),
            ("(false ? 1) ?? 2 == 2 ? true : false", true),
            // Texts and lists.
            ("'a' + 1 == a1", true),
            ("prod =~ '^p.*d$'", true),
            ("prod !~ '^x'", true),
            ("b in (a, b, 3)", true),
            ("3 in (a, b, 3)", true),
            ("'3' in (a, b, 3)", false),
            ("3 in (3)", true),
            ("1 in (2, 3) || a in (a)", true),
            (" \t1\n<\u{a0}2 ", true),
            ("1/0 > 5", true),
        ] {
            assert_eq!(evaluate(text), Ok(expected), "{text}");
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn errors_name_the_place() {
        for (text, message) in [
            ("", "expected a value, found the end, at character 1"),
            ("1 +", "expected a value, found the end, at character 4"),
            ("1 2", "expected an operator, found the number 2, at character 3"),
            ("10 > abc", "`>` needs two numbers or two texts, not the number 10 and the text `abc`, at character 4"),
            ("5", "the result is the number 5, not true or false, at character 1"),
            ("abc", "the result is the text `abc`, not true or false, at character 1"),
            ("a.b == c", "a word with a `.` must be quoted, at character 2"),
            ("a-b == c", "`-` needs two numbers, not the text `a` and the text `b`, at character 2"),
            ("1.2.3 > 1", "`1.2.3` is not a number; quote it if it is text, at character 1"),
            ("3abc == 1", "`3abc` is not a number; quote it if it is text, at character 1"),
            ("1 = 1", "`=` is not an operator; use `==`, at character 3"),
            ("'abc", "`'` is missing after this, at character 1"),
            ("(1 > 0", "expected `)`, found the end, at character 7"),
            ("1 > 0)", "expected an operator, found `)`, at character 6"),
            ("é > 1 $ 2", "unexpected character `$`, at character 7"),
            ("!1", "`!` needs true or false, not the number 1, at character 1"),
            ("-a > 1", "`-` needs a number, not the text `a`, at character 1"),
            ("1 && true", "`&&` needs true or false on both sides, not the number 1 and true, at character 3"),
            ("1 ? 2 : 3", "`?` needs true or false before it, not the number 1, at character 3"),
            ("a in true", "`in` needs a list after it, as in `x in (1, 2)`, not the text `a` and true, at character 3"),
            ("a =~ '('", "`(` is not a valid regular expression, at character 3"),
            ("a =~ '(a{999}){999}'", "the regular expression `(a{999}){999}` is too large, at character 3"),
            // `??` binds loosest.
            ("(true ? 1) ?? 2 == 1", "the result is the number 1, not true or false, at character 1"),
            ("false ? true", "the result is no value, not true or false, at character 1"),
        ] {
            assert_eq!(evaluate(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn size_is_limited() {
        let deep = |count: usize| format!("{}true{}", "(".repeat(count), ")".repeat(count));
        assert_eq!(evaluate(&deep(100)), Ok(true));
        assert!(evaluate(&deep(101)).unwrap_err().message.contains("more than 100 deep"));
        assert!(evaluate(&"!".repeat(60_000)).unwrap_err().message.contains("more than 100 deep"));
        assert!(evaluate(&"true ? ".repeat(9_000)).unwrap_err().message.contains("more than 100 deep"));
        assert!(evaluate(&" ".repeat(MAX_LENGTH + 1)).unwrap_err().message.contains("at most"));
        let long = format!("{}true", "true && ".repeat(8_000));
        assert_eq!(evaluate(&long), Ok(true));
        assert_eq!(evaluate(&format!("x{}", " == x".repeat(12_000))), Ok(false));
    }

    proptest! {
        #[test]
        fn any_text_has_an_answer(text in "\\PC{0,60}") {
            let _ = evaluate(&text);
            let _ = check(&text);
        }

        /// What evaluates has a good form.
        #[test]
        fn any_tokens_have_an_answer(
            words in prop::collection::vec(prop::sample::select(
                [&SYMBOLS[..], &["in", "1", "2.5", "-3", "a", "'b'", "true", "false", "0x", "1e", "'", "[x]", "é"]].concat()
            ), 0..30),
            space in "[ ]{0,1}",
        ) {
            let text = words.join(&space);
            if evaluate(&text).is_ok() {
                prop_assert_eq!(check(&text), Ok(()));
            }
        }

        /// Numbers are compared as Rust compares them.
        #[test]
        fn numbers_compare(left: f64, right: f64) {
            prop_assume!(left.is_finite() && right.is_finite());
            prop_assert_eq!(evaluate(&format!("{left} < {right}")), Ok(left < right));
            prop_assert_eq!(evaluate(&format!("{left:e} <= {right:e}")), Ok(left <= right));
        }
    }
}
