//! Tables and cells.

use std::fmt::Write as _;

/// A table. Cells are Markdown; only bars and line feeds are escaped. Every row has as many cells as `head`.
pub(crate) fn table<Row: IntoIterator<Item = String>>(head: &[&str], rows: impl IntoIterator<Item = Row>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let cells: Vec<String> = row.into_iter().map(|cell| escaped(&cell)).collect();
        assert_eq!(cells.len(), head.len(), "{cells:?}");
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Escapes a cell: a bar would end the cell, even in code; a line feed would end the row.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

/// `text` as code; empty text stays empty.
pub(crate) fn code(text: &str) -> String {
    match text {
        "" => String::new(),
        // A backtick inside needs a longer fence.
        text if text.contains('`') => format!("`` {text} ``"),
        text => format!("`{text}`"),
    }
}

/// Several names as code, separated by commas.
pub(crate) fn codes<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(code).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_in_their_row() {
        let text = table(&["a", "b"], [["x|y".to_owned(), "1\n2".to_owned()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| x\\|y | 1 2 |\n");
    }

    #[test]
    fn code_with_backticks_has_a_longer_fence() {
        assert_eq!(code("version `?"), "`` version `? ``");
        assert_eq!(codes(["--gpus", "--devices"]), "`--gpus`, `--devices`");
    }
}
