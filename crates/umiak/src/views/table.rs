//! Tables for people: columns that fit the terminal, in the colours of what they say.

use unicode_width::UnicodeWidthStr as _;

use crate::screen::Style;
use crate::screen::style::{Mark, fit};

/// In the colour of what it says.
pub(crate) fn painted(style: &Style, mark: Mark, text: &str) -> String {
    match mark {
        Mark::Failed => style.red(text),
        Mark::Done => style.green(text),
        Mark::Lost | Mark::Restarted => style.yellow(text),
        Mark::Running => style.bold(text),
        Mark::Waiting | Mark::Stopped => style.dim(text),
    }
}

/// A cell: what stands there, and how it is painted once it is padded.
#[derive(Debug, Clone)]
pub(crate) struct TableCell {
    pub(crate) text: String,
    pub(crate) mark: Option<Mark>,
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self { text, mark: None }
    }
}

/// Columns two spaces apart. `soft` is the column that gives way where the terminal is too narrow; columns that are
/// empty in every row are left out.
pub(crate) fn table(style: &Style, head: &[&str], rows: &[Vec<TableCell>], soft: usize) -> String {
    let used: Vec<bool> = (0..head.len()).map(|column| rows.iter().any(|row| !row[column].text.is_empty())).collect();
    let mut widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().map(|row| row[column].text.width()).max().unwrap_or(0).max(head[column].width()))
        .collect();
    let total: usize = (0..head.len()).filter(|column| used[*column]).map(|column| widths[column] + 2).sum();
    let over = total.saturating_sub(2).saturating_sub(style.width());
    widths[soft] = widths[soft].saturating_sub(over).max(widths[soft].min(8));
    let last = used.iter().rposition(|used| *used).unwrap_or(0);
    let line = |cells: &mut dyn Iterator<Item = (String, Option<Mark>)>| {
        let mut text = String::new();
        for (column, (cell, mark)) in cells.enumerate().filter(|(column, _)| used[*column]) {
            let cell = fit(&cell, widths[column]);
            let gap = if column == last { 0 } else { widths[column] - cell.width() + 2 };
            text.push_str(&mark.map_or(cell.clone(), |mark| painted(style, mark, &cell)));
            text.push_str(&" ".repeat(gap));
        }
        format!("{}\n", text.trim_end())
    };
    let mut text = line(&mut head.iter().map(|name| ((*name).to_owned(), Some(Mark::Waiting))));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(|cell| (cell.text.clone(), cell.mark))));
    }
    text
}
