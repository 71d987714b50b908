//! Values as text, and lists read from text.

use serde_json::{Number, Value as Json};

use crate::model::{Float, Value};

/// A value as it is inserted into a text: numbers in decimal, without an exponent; a list as `[1 2 3]`.
pub fn print(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Float(Float(number)) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::List(items) => format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" ")),
    }
}

/// The items of a loop: a list, or a text with a JSON list. Whole numbers stay whole: 1000000 is not 1e+06.
pub fn items(value: Value) -> Result<Vec<Value>, String> {
    match value {
        Value::List(items) => Ok(items),
        Value::Text(text) => {
            let json = serde_json::from_str(&text).map_err(|error| format!("it is not a JSON list: {error}"))?;
            match value_of(json)? {
                Value::List(items) => Ok(items),
                _ => Err("it is JSON, but not a list".to_owned()),
            }
        }
        Value::Int(_) | Value::Float(_) => Err("it is a number, not a list".to_owned()),
    }
}

/// A number of JSON. A whole number that is too large for an integer is kept as the text of its digits; `None` for one
/// whose digits are not known.
pub fn number(number: &Number) -> Option<Value> {
    let whole = || number.as_u64().map(|whole| Value::Text(whole.to_string()));
    let float = || number.as_f64().filter(|float| float.abs() < 2f64.powi(63)).map(|float| Value::Float(Float(float)));
    number.as_i64().map(Value::Int).or_else(whole).or_else(float)
}

fn value_of(json: Json) -> Result<Value, String> {
    match json {
        Json::Number(number) => {
            self::number(&number).ok_or_else(|| "it has a number that is too large; put it in quotes".to_owned())
        }
        Json::String(text) => Ok(Value::Text(text)),
        Json::Array(items) => items.into_iter().map(value_of).collect::<Result<_, _>>().map(Value::List),
        Json::Null => Err("its items are numbers, texts and lists, not null".to_owned()),
        Json::Bool(value) => Err(format!("its items are numbers, texts and lists, not {value}")),
        Json::Object(_) => Err("its items are numbers, texts and lists, not objects".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn float(number: f64) -> Value {
        Value::Float(Float(number))
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn numbers_are_plain_decimals() {
        for (value, printed) in [
            (Value::Int(-10), "-10"),
            (Value::Int(1_000_000), "1000000"),
            (float(0.1), "0.1"),
            (float(1.0), "1"),
            (float(1e6), "1000000"),
            (float(1e21), "1000000000000000000000"),
            (float(1e-7), "0.0000001"),
            (text("a b"), "a b"),
            (
                Value::List(vec![Value::Int(1), float(2.5), text("x"), Value::List(vec![Value::Int(3)])]),
                "[1 2.5 x [3]]",
            ),
            (Value::List(Vec::new()), "[]"),
        ] {
            assert_eq!(print(&value), printed);
        }
    }

    #[test]
    fn loops_run_over_lists() {
        let of = |json: &str| items(text(json));
        assert_eq!(
            of("[1, -2, 2.5, \"a\", [3]]\n").unwrap().iter().map(print).collect::<Vec<_>>().join(","),
            "1,-2,2.5,a,[3]"
        );
        assert_eq!(
            of("[1000000, 9007199254740993]").unwrap(),
            [Value::Int(1_000_000), Value::Int(9_007_199_254_740_993)]
        );
        assert_eq!(of("[18446744073709551615]").unwrap(), [text("18446744073709551615")]);
        assert_eq!(of("[1e3, 1.0]").unwrap(), [float(1000.0), float(1.0)]);
        assert_eq!(of("[]").unwrap(), []);
        assert_eq!(items(Value::List(vec![Value::Int(7)])).unwrap(), [Value::Int(7)]);
        for (json, message) in [
            ("1,2", "it is not a JSON list: trailing characters at line 1 column 2"),
            ("", "it is not a JSON list: EOF while parsing a value at line 1 column 0"),
            ("\"a\"", "it is JSON, but not a list"),
            ("[18446744073709551616]", "it has a number that is too large; put it in quotes"),
            ("[null]", "its items are numbers, texts and lists, not null"),
            ("[true]", "its items are numbers, texts and lists, not true"),
            ("[[{}]]", "its items are numbers, texts and lists, not objects"),
        ] {
            assert_eq!(of(json).unwrap_err(), message, "{json}");
        }
        assert!(of(&"[".repeat(100_000)).unwrap_err().contains("recursion limit"));
        assert_eq!(items(Value::Int(3)).unwrap_err(), "it is a number, not a list");
    }

    proptest! {
        /// A list that is written as JSON is read back.
        #[test]
        fn lists_are_read_back(numbers: Vec<i64>, texts: Vec<String>) {
            let list: Vec<Value> = numbers.into_iter().map(Value::Int).chain(texts.into_iter().map(Value::Text)).collect();
            prop_assert_eq!(items(Value::Text(serde_json::to_string(&list).unwrap())).unwrap(), list);
        }

        #[test]
        fn any_text_is_a_list_or_not(json in "\\PC{0,40}") {
            let _ = items(Value::Text(json));
        }
    }
}
