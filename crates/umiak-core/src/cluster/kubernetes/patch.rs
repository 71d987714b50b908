//! Patches of a user for rendered objects, and what Kubernetes expands.

use serde_json::{Map, Value};

/// Applies a JSON merge patch (RFC 7386), except that lists are merged by `name` if all of their items have one, as those of
/// containers, variables and volumes do.
pub(super) fn apply(value: &mut Value, patch: &Map<String, Value>) {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(object) = value else { return };
    for (key, change) in patch {
        match change {
            Value::Null => drop(object.shift_remove(key)),
            Value::Object(change) => apply(object.entry(key).or_insert(Value::Null), change),
            Value::Array(changes) => {
                let own = object.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                match own {
                    Value::Array(own) if own.iter().chain(changes).all(|item| name(item).is_some()) => {
                        merge(own, changes);
                    }
                    _ => *own = change.clone(),
                }
            }
            _ => drop(object.insert(key.clone(), change.clone())),
        }
    }
}

fn name(item: &Value) -> Option<&str> {
    item.get("name")?.as_str()
}

fn merge(own: &mut Vec<Value>, changes: &[Value]) {
    for change in changes {
        match (own.iter_mut().find(|item| name(item) == name(change)), change) {
            (Some(item), Value::Object(change)) => apply(item, change),
            _ => own.push(change.clone()),
        }
    }
}

/// A text that Kubernetes does not change when it expands `$(NAME)` in commands, arguments and values of variables.
pub(super) fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        literal.push(letter);
        if letter == '$' && letters.peek().is_some_and(|next| matches!(next, '$' | '(')) {
            literal.push('$');
        }
    }
    literal
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn patches() {
        let mut pod = json!({
            "metadata": {"labels": {"a": "1"}},
            "spec": {
                "restartPolicy": "Never",
                "tolerations": [{"key": "x"}],
                "containers": [{"name": "main", "image": "a", "env": [{"name": "A", "value": "1"}]}],
            },
        });
        let patch = json!({
            "metadata": {"labels": {"b": "2"}},
            "spec": {
                "restartPolicy": null,
                "hostNetwork": true,
                "tolerations": [{"key": "y"}],
                "containers": [{"name": "main", "env": [{"name": "B", "value": "2"}]}, {"name": "side", "image": "s"}],
                "affinity": {"nodeAffinity": null},
            },
        });
        apply(&mut pod, patch.as_object().unwrap());
        let expected = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}},
            "spec": {
                "tolerations": [{"key": "y"}],
                "containers": [
                    {"name": "main", "image": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                    {"name": "side", "image": "s"},
                ],
                "hostNetwork": true,
                "affinity": {},
            },
        });
        assert_eq!(pod, expected);
    }

    /// As the kubelet does it, with no variable known (`k8s.io/kubernetes/third_party/forked/golang/expansion`).
    fn expanded(text: &str) -> String {
        let letters: Vec<char> = text.chars().collect();
        let mut expanded = String::new();
        let mut at = 0;
        while at < letters.len() {
            match (letters[at], letters.get(at + 1)) {
                ('$', Some('$')) => {
                    expanded.push('$');
                    at += 1;
                }
                ('$', Some('(')) if letters[at..].contains(&')') => {
                    expanded += "<expanded>";
                    at += letters[at..].iter().position(|letter| *letter == ')').unwrap_or(0);
                }
                (letter, _) => expanded.push(letter),
            }
            at += 1;
        }
        expanded
    }

    proptest! {
        #[test]
        fn nothing_is_expanded(text in "[a$()角]{0,12}") {
            prop_assert_eq!(expanded(&literal(&text)), text);
        }
    }
}
