//! The JSON schema of a native document, from the table of its keys.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::keys::{CONTRACTS, DOCUMENT, Key, KeyKind, MAX_RESTARTS, ROLE, STEP, TABLES, Table, UNLIMITED};

/// The schema that `umiak schema job` prints, for editors and other tools.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    for table in TABLES.iter().filter(|table| !std::ptr::eq(**table, &raw const DOCUMENT)) {
        definitions.insert(definition(table), object(table));
    }
    definitions.insert("scalar".to_owned(), json!({"type": ["string", "number", "boolean"]}));
    definitions.insert(
        "template".to_owned(),
        json!({"type": "string", "pattern": "\\{\\{.*\\}\\}", "description": "Filled from `params`."}),
    );
    definitions.insert(
        "duration".to_owned(),
        json!({
            "description": "`500ms`, `10s`, `5m` or `5min`, `6h`, `1d`, `1w`, and sums of them (`1h30m`); a number is seconds.",
            "oneOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
        }),
    );
    let mut root = Map::new();
    root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".to_owned(), json!("umiak job, v1"));
    if let Value::Object(document) = object(&DOCUMENT) {
        root.extend(document);
    }
    root.insert("patternProperties".to_owned(), json!({"^x-": true}));
    root.insert("required".to_owned(), json!(["umiak"]));
    root.insert("oneOf".to_owned(), json!([{"required": ["roles"]}, {"required": ["steps"]}]));
    root.insert("$defs".to_owned(), Value::Object(definitions));
    Value::Object(root)
}

/// `restart_of_a_role`.
fn definition(table: &Table) -> String {
    let words: String = table.title.chars().filter(|c| *c != '`').collect();
    words.to_lowercase().replace(' ', "_")
}

fn reference(table: &Table) -> Value {
    json!({"$ref": format!("#/$defs/{}", definition(table))})
}

fn object(table: &Table) -> Value {
    // A step may have the keys of its only role.
    let more = if std::ptr::eq(table, &raw const STEP) { ROLE.keys } else { &[] };
    let keys = table.keys.iter().chain(more);
    let properties: Map<String, Value> = keys.map(|key| (key.name.to_owned(), property(key))).collect();
    json!({"type": "object", "description": table.help, "additionalProperties": false, "properties": properties})
}

/// An empty key means the same as an omitted one; the schema does not say so.
fn property(key: &Key) -> Value {
    let mut description = key.help.to_owned();
    if !key.default.is_empty() {
        let _ = write!(description, " Default: {}.", key.default);
    }
    let mut value = of(&key.kind);
    value["description"] = json!(description);
    value
}

/// A number of restarts.
fn restarts() -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": MAX_RESTARTS});
    json!({"anyOf": [number, {"const": UNLIMITED}, {"$ref": "#/$defs/template"}]})
}

fn of(kind: &KeyKind) -> Value {
    let template = json!({"$ref": "#/$defs/template"});
    let or_template = |value: Value| json!({"anyOf": [value, template]});
    match kind {
        KeyKind::Version => json!({"const": "v1"}),
        KeyKind::Text => json!({"$ref": "#/$defs/scalar"}),
        KeyKind::Number(least, most) => or_template(json!({"type": "integer", "minimum": least, "maximum": most})),
        KeyKind::Bool => or_template(json!({"type": "boolean"})),
        KeyKind::Duration => json!({"$ref": "#/$defs/duration"}),
        KeyKind::Cpu | KeyKind::Memory => json!({"type": ["string", "number"]}),
        KeyKind::Choice(words) => or_template(json!({"enum": words})),
        KeyKind::Texts => json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/scalar"}}),
        KeyKind::Params => json!({
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        }),
        KeyKind::Command => json!({
            "anyOf": [{"$ref": "#/$defs/scalar"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/scalar"}}],
        }),
        KeyKind::Contracts => {
            let names: Vec<&str> = CONTRACTS.iter().map(|(name, _)| *name).collect();
            let one = json!({"anyOf": [{"enum": names}, template]});
            json!({"anyOf": [one, {"type": "array", "items": one}]})
        }
        KeyKind::AllOr => json!({"anyOf": [{"enum": ["all", "never"]}, {"type": "integer", "minimum": 1}, template]}),
        KeyKind::Restart => restarts(),
        KeyKind::Restarts(table) => json!({"anyOf": [restarts(), reference(table)]}),
        KeyKind::Named(table) => json!({
            "type": "object",
            "minProperties": 1,
            "additionalProperties": false,
            "patternProperties": {"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$": reference(table)},
        }),
        KeyKind::Ports(table) => json!({
            "type": "object",
            "additionalProperties": false,
            "patternProperties": {
                "^[A-Za-z0-9_]{1,63}$": {"anyOf": [{"type": "integer", "minimum": 1}, reference(table), template]},
            },
        }),
        KeyKind::StartAfter(table) => {
            let one = json!({"anyOf": [{"type": "string"}, reference(table)]});
            json!({"anyOf": [one, {"type": "array", "items": one}]})
        }
        KeyKind::Maps(table) => json!({"type": "array", "items": reference(table)}),
        KeyKind::Names => json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
        KeyKind::Lines => json!({"type": "array", "items": {"$ref": "#/$defs/scalar"}}),
        KeyKind::Counts => json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}),
        KeyKind::Any => json!({}),
        KeyKind::Mapping(table) => {
            let table = reference(table);
            json!({"anyOf": [table]})
        }
    }
}
