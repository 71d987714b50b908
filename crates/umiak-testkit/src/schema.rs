//! Checks JSON against a schema, strictly: an unknown key is an error. Supports only what our schemas use, and those of
//! Kubernetes' custom kinds, except patterns.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What is wrong with the value, if anything.
pub fn violation(schema: &Value, value: &Value) -> Option<String> {
    Checker { root: schema }.check(schema, value, "$").err()
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let known = self.keys(schema, value, at)?;
        let unknown = value.as_object().into_iter().flat_map(Map::keys).find(|key| !known.contains(*key));
        match unknown.filter(|_| !is_open(schema)) {
            Some(key) => Err(format!("{at}: `{key}` is not in the schema")),
            None => Ok(()),
        }
    }

    /// The keys of an object that the schema defines, if everything else is valid.
    fn keys(&self, schema: &Value, value: &Value, at: &str) -> Result<BTreeSet<String>, String> {
        let mut known = BTreeSet::new();
        let Some(schema) = schema.as_object() else {
            return if schema == &Value::Bool(false) { Err(format!("{at}: not allowed")) } else { Ok(known) };
        };
        let has_type = |name: &Value| match name.as_str() {
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("number") => value.is_number(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            Some("null") => value.is_null(),
            _ => false,
        };
        let is_typed = match schema.get("type") {
            None => true,
            Some(Value::Array(names)) => names.iter().any(has_type),
            Some(name) => has_type(name),
        };
        let is_named = schema.get("enum").and_then(Value::as_array).is_none_or(|words| words.contains(value))
            && schema.get("const").is_none_or(|constant| constant == value);
        let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
        let (letters, items) = (value.as_str().map(|text| text.chars().count()), value.as_array().map(Vec::len));
        let is_in_bounds = [
            (value.as_f64(), "minimum", "maximum"),
            (letters.map(|count| count as f64), "minLength", "maxLength"),
            (items.map(|count| count as f64), "minItems", "maxItems"),
        ]
        .into_iter()
        .filter_map(|(size, least, most)| Some((size?, limit(least), limit(most))))
        .all(|(size, least, most)| least.is_none_or(|least| size >= least) && most.is_none_or(|most| size <= most));
        if !is_typed || !is_named || !is_in_bounds {
            return Err(format!("{at}: {value} is not allowed"));
        }
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            let found = self.root.pointer(name.trim_start_matches('#'));
            known.extend(self.keys(found.ok_or_else(|| format!("no `{name}`"))?, value, at)?);
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            known.extend(self.keys(part, value, at)?);
        }
        for choice in ["oneOf", "anyOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()) {
            let results: Vec<_> = choice.iter().map(|part| self.keys(part, value, at)).collect();
            let fits: Vec<_> = results.iter().flatten().collect();
            if fits.is_empty() {
                let reasons: Vec<_> = results.into_iter().filter_map(Result::err).collect();
                return Err(format!("{at}: none of {}", reasons.join("; ")));
            }
            known.extend(fits.into_iter().flatten().cloned());
        }
        if let Some(object) = value.as_object() {
            for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                if !name.as_str().is_some_and(|name| object.contains_key(name)) {
                    return Err(format!("{at}: {name} is missing"));
                }
            }
            let properties = schema.get("properties").and_then(Value::as_object);
            for (key, value) in object {
                let place = format!("{at}.{key}");
                if let Some(schema) = properties.and_then(|properties| properties.get(key)) {
                    self.check(schema, value, &place)?;
                    known.insert(key.clone());
                } else if let Some(schema) = schema.get("additionalProperties") {
                    self.check(schema, value, &place)?;
                    known.insert(key.clone());
                }
            }
        }
        if let (Some(values), Some(items)) = (value.as_array(), schema.get("items")) {
            for (position, value) in values.iter().enumerate() {
                self.check(items, value, &format!("{at}[{position}]"))?;
            }
        }
        Ok(known)
    }
}

/// True if the schema allows anything.
fn is_open(schema: &Value) -> bool {
    schema == &Value::Bool(true)
        || schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true))
        || schema.as_object().is_some_and(|schema| schema.keys().all(|key| key == "description"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_to_the_schema() {
        let schema = json!({
            "type": "object",
            "properties": {"v": {"type": "integer", "minimum": 1, "maximum": 9}, "kind": {"$ref": "#/$defs/Kind"}, "names": {"items": {"type": "string"}}},
            "required": ["v"],
            "oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}],
            "$defs": {"Kind": {"enum": ["x", "y"]}},
        });
        for (value, is_right) in [
            (json!({"v": 1, "a": 1}), true),
            (json!({"v": 1, "b": [null], "kind": "x", "names": ["n"]}), true),
            (json!({"a": 1}), false),
            (json!({"v": 1}), false),
            (json!({"v": 0, "a": 1}), false),
            (json!({"v": 1, "a": 2}), false),
            (json!({"v": 1, "a": 1, "kind": "z"}), false),
            (json!({"v": 1, "a": 1, "names": [1]}), false),
            (json!({"v": 1, "a": 1, "more": 1}), false),
        ] {
            assert_eq!(violation(&schema, &value).is_none(), is_right, "{value}: {:?}", violation(&schema, &value));
        }
    }
}
