//! Lists of names in messages.

/// `a`, `b` or `c`, each in backticks.
pub(super) fn either(names: &[&str]) -> String {
    joined(names, "or")
}

/// `a`, `b` and `c`, each in backticks.
pub(super) fn both(names: &[&str]) -> String {
    joined(names, "and")
}

fn joined(names: &[&str], last: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(either(&["a"]), "`a`");
        assert_eq!(either(&["a", "b"]), "`a` or `b`");
        assert_eq!(both(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
