//! Values of parameters and variables, as they are written.

use crate::diag::{Code, Span};
use crate::formats::document::reader::Reader;
use crate::formats::document::tree::{Node, ScalarKind, Value as Written};
use crate::model::{Float, Value};
use crate::pipeline::text;

use super::template::templates;

/// The deepest list in lists, also in JSON.
const MAX_DEPTH: usize = 48;

/// A value of a parameter: a number, a text or a list.
pub(super) fn value(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<Value> {
    match &node.value {
        Written::List(items) => list(reader, what, items),
        Written::Scalar(_) | Written::Map(_) => scalar(reader, what, node, "a number, a string or a list"),
    }
}

/// A list, whose texts have no templates.
pub(super) fn list(reader: &mut Reader<'_>, what: &str, items: &[Node]) -> Option<Value> {
    let what = format!("an item of {what}");
    let mut read = |item: &Node| {
        let text = item.text().unwrap_or_default();
        if item_kind(item) == Some(ScalarKind::Text) && templates(text).next().is_some() {
            let message = format!("{what} must not contain a template");
            reader.error(Code::F0111, item.at, message, "in a list, texts are literal");
            return None;
        }
        value(reader, &what, item)
    };
    // Every item is read, so that all errors are found.
    let values: Vec<Option<Value>> = items.iter().map(&mut read).collect();
    values.into_iter().collect::<Option<Vec<_>>>().map(Value::List)
}

fn item_kind(node: &Node) -> Option<ScalarKind> {
    match &node.value {
        Written::Scalar(scalar) => Some(scalar.kind),
        Written::List(_) | Written::Map(_) => None,
    }
}

/// A number or a text.
fn scalar(reader: &mut Reader<'_>, what: &str, node: &Node, expected: &str) -> Option<Value> {
    match item_kind(node) {
        Some(ScalarKind::Number) => {
            let value = number(node.text().unwrap_or_default());
            if value.is_none() {
                reader.error(Code::F0013, node.at, format!("{what} must be a finite number"), "");
            }
            value
        }
        Some(ScalarKind::Text) if old_boolean(reader, node).is_none() => {
            reader.text(what, node).map(|text| Value::Text(text.value))
        }
        _ => {
            reader.wrong_type(what, node, expected);
            if old_boolean(reader, node).is_some() {
                reader.hint("YAML 1.1 reads this as a boolean; put it in quotes for a string");
            }
            None
        }
    }
}

/// `yes`, `no`, `on` and `off` without quotes, which are booleans in YAML 1.1.
pub(super) fn old_boolean(reader: &Reader<'_>, node: &Node) -> Option<bool> {
    let Written::Scalar(scalar) = &node.value else { return None };
    if scalar.kind != ScalarKind::Text || scalar.text.len() > 3 {
        return None;
    }
    let value = match scalar.text.to_ascii_lowercase().as_str() {
        "yes" | "on" => true,
        "no" | "off" => false,
        _ => return None,
    };
    (reader.source.slice(node.written) == scalar.text).then_some(value)
}

/// A number of YAML: whole, in any base, or with a fraction. A whole number that is too large for an integer is kept as
/// the text of its digits.
pub(super) fn number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text).replace('_', "");
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let radix = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 10,
    };
    let whole = if radix == 10 { digits.parse() } else { i128::from_str_radix(&digits[2..], radix) };
    if let Ok(whole) = whole {
        let whole: i128 = sign * whole;
        return Some(i64::try_from(whole).map_or_else(|_| Value::Text(whole.to_string()), Value::Int));
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Value::Text(format!("{}{digits}", if sign < 0 { "-" } else { "" })));
    }
    float(digits.parse::<f64>().ok()? * sign as f64)
}

fn float(value: f64) -> Option<Value> {
    value.is_finite().then_some(Value::Float(Float(value)))
}

/// A number without its fraction.
pub(super) fn truncated(value: &Value) -> Option<i64> {
    match value {
        Value::Int(value) => Some(*value),
        Value::Float(Float(value)) if value.abs() < 1e15 => Some(value.trunc() as i64),
        _ => None,
    }
}

/// The value of a variable: a text, or a number as it is written (`0.10` stays `0.10`), without base and exponent.
pub(super) fn variable(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<String> {
    match scalar(reader, what, node, "a string or a number")? {
        Value::Text(text) => Some(text),
        number => {
            let text = node.text().unwrap_or_default();
            let is_plain =
                text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            Some(if is_plain { text.to_owned() } else { decimal(&number) })
        }
    }
}

/// A number in plain decimal.
fn decimal(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Float(Float(value)) => value.to_string(),
        Value::Text(text) => text.clone(),
        Value::List(_) => String::new(),
    }
}

const PATH: fn(&str) -> bool =
    |text| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-'));

/// What a type accepts, in words.
fn accepts(kind: &str) -> &'static str {
    match kind {
        "int" => "a whole number",
        "float" => "a number",
        "path" => "a path of letters, digits, `.`, `/`, `_` and `-`",
        "list" => "a list",
        _ => "a string",
    }
}

/// Reports a value that its type does not accept; false then.
pub(super) fn typed(reader: &mut Reader<'_>, what: &str, kind: &str, value: &Value, at: Span) -> bool {
    let is_right = match (kind, value) {
        ("string", Value::Text(_))
        | ("list", Value::List(_))
        | ("int" | "float", Value::Int(_))
        | ("float", Value::Float(_)) => true,
        // Too large for an integer.
        ("float", Value::Text(text)) => number(text).as_ref() == Some(value),
        ("path", Value::Text(text)) => PATH(text),
        _ => false,
    };
    if !is_right {
        reader.error(Code::F0011, at, format!("{what} of type `{kind}` must be {}", accepts(kind)), "");
    }
    is_right
}

/// A value of the command line, converted to the type of the parameter; what is expected if that is impossible. `old` is
/// the value that it replaces, for a parameter without a type.
pub(super) fn given(text: &str, kind: Option<&str>, old: Option<&Value>) -> Result<Value, &'static str> {
    let plain = || Value::Text(text.to_owned());
    let trimmed = text.trim();
    let value = match kind {
        None => match old {
            Some(Value::Int(_) | Value::Float(_)) => number(trimmed),
            Some(Value::List(_)) => json_list(trimmed),
            _ => None,
        }
        .or_else(|| Some(plain())),
        Some("int") => number(trimmed).filter(|value| matches!(value, Value::Int(_))),
        Some("float") => number(trimmed),
        Some("list") => json_list(trimmed),
        Some("path") => PATH(text).then(plain),
        Some(_) => Some(plain()),
    };
    value.ok_or_else(|| accepts(kind.unwrap_or_default()))
}

/// A list in JSON, of numbers, texts and lists.
pub(super) fn json_list(text: &str) -> Option<Value> {
    fn convert(value: serde_json::Value, depth: usize) -> Option<Value> {
        match value {
            serde_json::Value::String(text) => Some(Value::Text(text)),
            serde_json::Value::Number(number) => text::number(&number),
            serde_json::Value::Array(items) if depth < MAX_DEPTH => {
                items.into_iter().map(|item| convert(item, depth + 1)).collect::<Option<Vec<_>>>().map(Value::List)
            }
            _ => None,
        }
    }
    convert(serde_json::from_str(text).ok()?, 0).filter(|value| matches!(value, Value::List(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, expected) in [
            ("15", Value::Int(15)),
            ("-7", Value::Int(-7)),
            ("+7", Value::Int(7)),
            ("0x1F", Value::Int(31)),
            ("-0x10", Value::Int(-16)),
            ("0o17", Value::Int(15)),
            ("1_000", Value::Int(1000)),
            ("0.10", Value::Float(Float(0.1))),
            ("1e3", Value::Float(Float(1000.0))),
            ("9223372036854775807", Value::Int(i64::MAX)),
            ("9223372036854775808", Value::Text("9223372036854775808".to_owned())),
            ("-0xFFFFFFFFFFFFFFFF", Value::Text("-18446744073709551615".to_owned())),
            (
                "-1000000000000000000000000000000000000000001",
                Value::Text("-1000000000000000000000000000000000000000001".to_owned()),
            ),
        ] {
            assert_eq!(number(text), Some(expected), "{text}");
        }
        for text in [".inf", "nan", "", "-", "0x", "a"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn values_of_the_command_line() {
        let int = Value::Int(1);
        for (text, kind, old, expected) in [
            ("5", None, Some(&int), Ok(Value::Int(5))),
            ("five", None, Some(&int), Ok(Value::Text("five".into()))),
            ("5", None, None, Ok(Value::Text("5".into()))),
            ("5", Some("int"), None, Ok(Value::Int(5))),
            ("5.5", Some("int"), None, Err("a whole number")),
            ("5", Some("float"), None, Ok(Value::Int(5))),
            ("1e-3", Some("float"), None, Ok(Value::Float(Float(0.001)))),
            (
                "[1, \"a\", [2.5]]",
                Some("list"),
                None,
                Ok(Value::List(vec![
                    Value::Int(1),
                    Value::Text("a".into()),
                    Value::List(vec![Value::Float(Float(2.5))]),
                ])),
            ),
            ("1,2", Some("list"), None, Err("a list")),
            ("a b", Some("path"), None, Err("a path of letters, digits, `.`, `/`, `_` and `-`")),
            ("5", Some("string"), None, Ok(Value::Text("5".into()))),
        ] {
            assert_eq!(given(text, kind, old), expected, "{text} {kind:?}");
        }
        assert_eq!(
            json_list("[18446744073709551615]"),
            Some(Value::List(vec![Value::Text("18446744073709551615".into())]))
        );
        assert_eq!(json_list("[18446744073709551616]"), None);
        assert_eq!(json_list("[true]"), None);
        assert_eq!(json_list(&"[".repeat(100_000)), None);
    }
}
