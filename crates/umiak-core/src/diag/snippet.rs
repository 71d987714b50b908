//! Renders labels as text: the line, and a mark under the labelled part.
//!
//! ```text
//!     ╭─[pipeline.yaml:27:12]
//!  27 │     queue: gpu-a
//!     ·            ──┬── `pserver` asks for `gpu-a`
//!     ╰────
//! ```
//!
//! Readable without colour. Wide characters count as two cells, tabs become spaces, other control characters become
//! visible symbols, and long lines are cut around the mark.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::shown::{shown, visible};
use super::source::Label;

/// Maximum width of a shown line, in cells.
const WIDTH: usize = 100;
/// Cells that stay visible before the mark of a line that is cut.
const LEAD: usize = 30;
const TAB: usize = 4;

/// Renders one frame for each file, in the order of their first labels. Lines are in order.
pub(super) fn render(labels: &[Label]) -> String {
    let mut text = String::new();
    let mut files: Vec<&str> = Vec::new();
    for label in labels {
        if !files.contains(&label.file.as_str()) {
            files.push(&label.file);
        }
    }
    let gutter = labels.iter().map(|label| label.start.line.to_string().len()).max().unwrap_or(1).max(2);
    for file in files {
        let mut of_file: Vec<&Label> = labels.iter().filter(|label| label.file == file).collect();
        let first = of_file[0].start;
        let _ = writeln!(text, " {:gutter$} ╭─[{}:{}:{}]", "", shown(file), first.line, first.column);
        of_file.sort_by_key(|label| label.start);
        let mut last = 0;
        for label in of_file {
            let cut = cut(&label.line, &label.marked);
            if label.start.line != last {
                let line = format!(" {:>gutter$} │ {}", label.start.line, cut.line);
                let _ = writeln!(text, "{}", line.trim_end());
                last = label.start.line;
            }
            let _ = writeln!(text, " {:gutter$} · {}{}", "", " ".repeat(cut.before), mark(cut.marked, &label.label));
        }
        let _ = writeln!(text, " {:gutter$} ╰────", "");
    }
    text
}

/// `──┬── label`.
fn mark(width: usize, label: &str) -> String {
    let width = width.max(1);
    if label.is_empty() {
        return "─".repeat(width);
    }
    let left = (width - 1) / 2;
    format!("{}┬{} {}", "─".repeat(left), "─".repeat(width - 1 - left), shown(label))
}

/// The shown part of a line, and the position of its mark, in cells.
struct Cut {
    line: String,
    before: usize,
    marked: usize,
}

fn cut(line: &str, marked: &std::ops::Range<usize>) -> Cut {
    let (head, rest) = line.split_at(marked.start);
    let (middle, tail) = rest.split_at(marked.end - marked.start);
    let mut column = 0;
    let mut cells = |text: &str| -> Vec<(String, usize)> {
        let mut cells = Vec::new();
        for c in text.chars() {
            let cell = if c == '\t' { " ".repeat(TAB - column % TAB) } else { visible(c).to_string() };
            let width = cell.width();
            column += width;
            cells.push((cell, width));
        }
        cells
    };
    let (head, middle, tail) = (cells(head), cells(middle), cells(tail));
    let width = |cells: &[(String, usize)]| cells.iter().map(|(_, width)| width).sum::<usize>();
    let fits = width(&head) + width(&middle) + width(&tail) <= WIDTH;
    let (head, left) = if fits || width(&head) <= LEAD { (head, "") } else { (last(&head, LEAD), "…") };
    let room = WIDTH.saturating_sub(width(&head) + left.width());
    let (rest, right) = {
        let all: Vec<_> = middle.iter().chain(&tail).cloned().collect();
        if fits || width(&all) <= room { (all, "") } else { (first(&all, room.saturating_sub(1)), "…") }
    };
    let before = left.width() + width(&head);
    let shown = width(&rest);
    let text = |cells: &[(String, usize)]| cells.iter().map(|(cell, _)| cell.as_str()).collect::<String>();
    Cut { line: format!("{left}{}{}{right}", text(&head), text(&rest)), before, marked: width(&middle).min(shown) }
}

fn first(cells: &[(String, usize)], room: usize) -> Vec<(String, usize)> {
    let mut width = 0;
    cells
        .iter()
        .take_while(|(_, cell)| {
            width += cell;
            width <= room
        })
        .cloned()
        .collect()
}

fn last(cells: &[(String, usize)], room: usize) -> Vec<(String, usize)> {
    let mut width = 0;
    let kept = cells
        .iter()
        .rev()
        .take_while(|(_, cell)| {
            width += cell;
            width <= room
        })
        .count();
    cells[cells.len() - kept..].to_vec()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::source::{Source, Span};
    use super::*;

    fn shown(text: &str, word: &str, label: &str) -> String {
        let source = Source::new("job.yaml", text);
        let start = text.find(word).unwrap();
        render(&[source.label(Span::new(start, start + word.len()), label)])
    }

    #[test]
    fn marks() {
        assert_snapshot!(shown("a:\n    queue: gpu-a\n", "gpu-a", "`pserver` asks for `gpu-a`"), @r"
            ╭─[job.yaml:2:12]
          2 │     queue: gpu-a
            ·            ──┬── `pserver` asks for `gpu-a`
            ╰────
        ");
        assert_snapshot!(shown("角色: {训练: 宽, b: x}\n", "宽", "wide"), @r"
            ╭─[job.yaml:1:10]
          1 │ 角色: {训练: 宽, b: x}
            ·              ┬─ wide
            ╰────
        ");
        assert_snapshot!(shown("a:\tb\tc\u{1b}[31m\u{202e}\r\n", "c", ""), @r"
            ╭─[job.yaml:1:6]
          1 │ a:  b   c␛[31m�
            ·         ─
            ╰────
        ");
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let long = format!("{}: NEEDLE{}", "k".repeat(300), "v".repeat(300));
        assert_snapshot!(shown(&long, "NEEDLE", "here"), @r"
            ╭─[job.yaml:1:303]
          1 │ …kkkkkkkkkkkkkkkkkkkkkkkkkkkk: NEEDLEvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv…
            ·                                ──┬─── here
            ╰────
        ");
    }

    #[test]
    fn two_places_and_two_files() {
        let one = Source::new("job.yaml", "a: 1\nb: 2\n");
        let other = Source::new("umiak.toml", "x = 1\n");
        let labels = [
            one.label(Span::new(8, 9), "again"),
            one.label(Span::new(0, 1), "first"),
            other.label(Span::new(0, 1), "and here"),
        ];
        assert_snapshot!(render(&labels), @r"
            ╭─[job.yaml:2:4]
          1 │ a: 1
            · ┬ first
          2 │ b: 2
            ·    ┬ again
            ╰────
            ╭─[umiak.toml:1:1]
          1 │ x = 1
            · ┬ and here
            ╰────
        ");
    }
}
