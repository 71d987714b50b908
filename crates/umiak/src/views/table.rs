//! Tables for people: columns that fit the terminal, coloured by state.

use umiak_core::diag::shown;
use unicode_width::UnicodeWidthStr as _;

use crate::screen::Style;
use crate::screen::style::{Mark, fit};

/// A cell: its text, and its colour, which is applied after padding.
#[derive(Debug, Clone)]
pub(crate) struct TableCell {
    pub(crate) text: String,
    pub(crate) mark: Option<Mark>,
    /// True if truncation keeps the end, as for a path.
    pub(crate) keeps_end: bool,
}

impl TableCell {
    pub(crate) fn marked(text: String, mark: Mark) -> Self {
        Self { mark: Some(mark), ..text.into() }
    }

    pub(crate) fn path(text: String) -> Self {
        Self { keeps_end: true, ..text.into() }
    }

    fn fitted(&self, style: &Style, width: usize) -> String {
        if self.text.width() <= width || width == 0 || !self.keeps_end {
            return style.cut(&self.text, width);
        }
        let backwards: String = self.text.chars().rev().collect();
        style.cut_mark().to_owned() + &fit(&backwards, width - 1).chars().rev().collect::<String>()
    }
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self { text: shown(&text).into_owned(), mark: None, keeps_end: false }
    }
}

/// Which columns shrink or disappear when the terminal is too narrow, in this order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Giving<'a> {
    /// Truncated first, to no less than [`LEAST`] cells.
    pub(crate) cut: &'a [usize],
    /// Left out when that is not enough.
    pub(crate) drop: &'a [usize],
    /// Truncated when nothing is left to leave out.
    pub(crate) last: &'a [usize],
}

/// Smallest width of a truncated column.
const LEAST: usize = 8;

/// Columns two spaces apart. Columns that are empty in every row are left out.
pub(crate) fn table(style: &Style, head: &[&str], rows: &[Vec<TableCell>], giving: Giving<'_>) -> String {
    let mut used: Vec<usize> = (0..head.len()).filter(|c| rows.iter().any(|row| !row[*c].text.is_empty())).collect();
    let mut widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().map(|row| row[column].text.width()).max().unwrap_or(0).max(head[column].width()))
        .collect();
    let whole = widths.clone();
    let mut drop = giving.drop.iter();
    loop {
        let total: usize = used.iter().map(|column| widths[*column] + 2).sum();
        let mut over = total.saturating_sub(2).saturating_sub(style.width());
        let mut cut = |columns: &[usize]| {
            for column in columns.iter().filter(|column| used.contains(column)) {
                let cut = widths[*column].saturating_sub(LEAST).min(over);
                widths[*column] -= cut;
                over -= cut;
            }
            over
        };
        if cut(giving.cut) == 0 {
            break;
        }
        let Some(column) = drop.next() else {
            cut(giving.last);
            break;
        };
        used.retain(|other| other != column);
        widths.clone_from(&whole);
    }
    let line = |cells: &[TableCell]| {
        let mut text = String::new();
        for (position, column) in used.iter().enumerate() {
            let cell = cells[*column].fitted(style, widths[*column]);
            let gap = if position + 1 == used.len() { 0 } else { widths[*column] - cell.width() + 2 };
            text.push_str(&cells[*column].mark.map_or(cell.clone(), |mark| style.painted(mark, &cell)));
            text.push_str(&" ".repeat(gap));
        }
        format!("{}\n", text.trim_end())
    };
    let head: Vec<TableCell> = head.iter().map(|name| TableCell::marked((*name).to_owned(), Mark::Waiting)).collect();
    std::iter::once(line(&head)).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: usize) -> String {
        let style = Style { fixed_width: Some(width), ..Style::default() };
        let row = |name: &str, code: &str, log: &str| {
            vec![name.to_owned().into(), code.to_owned().into(), TableCell::path(log.to_owned())]
        };
        let rows = [row("a", "0", "/home/li/log/workerlog.0"), row("训练训练训练训练", "137", "/log/workerlog.1")];
        table(&style, &["name", "code", "log"], &rows, Giving { cut: &[2, 0], drop: &[1], last: &[] })
    }

    #[test]
    fn columns_are_cut_and_then_left_out() {
        assert_eq!(
            drawn(99),
            "name              code  log\na                 0     /home/li/log/workerlog.0\n训练训练训练训练  137   /log/workerlog.1\n"
        );
        assert_eq!(
            drawn(36),
            "name              code  log\na                 0     …workerlog.0\n训练训练训练训练  137   …workerlog.1\n"
        );
        assert_eq!(drawn(24), "name      code  log\na         0     …erlog.0\n训练训…   137   …erlog.1\n");
        assert_eq!(drawn(18), "name      log\na         …erlog.0\n训练训…   …erlog.1\n");
        for width in 18..99 {
            assert!(drawn(width).lines().all(|line| line.width() <= width), "{width}");
        }
    }
}
