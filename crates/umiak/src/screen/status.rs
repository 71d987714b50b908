//! The status line: the last line on the terminal, on stderr. For a pipeline, a block of lines: its nodes are below it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthStr as _;

use super::style::{Mark, Style, fit};

/// The content of the status line.
#[derive(Debug, Clone)]
pub struct StatusLine {
    pub job: String,
    pub since: Instant,
    pub doing: Activity,
}

/// What the job does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// Waiting for other nodes.
    Waiting(String),
    Ranks {
        live: usize,
        total: usize,
        /// They are being stopped.
        stopping: bool,
    },
    /// Replicas of several roles.
    Roles {
        /// Name, number running, total.
        roles: Vec<(String, usize, usize)>,
        stopping: bool,
    },
    /// Steps of a pipeline.
    Steps { done: usize, all: usize, running: usize, failed: usize, stopping: bool },
}

/// The nodes of a pipeline, below its status line.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    /// How many steps use results of earlier runs.
    pub cached: usize,
    pub rows: Vec<NodeRow>,
}

/// A node, or several nodes that are shown as one.
#[derive(Debug, Clone)]
pub struct NodeRow {
    pub mark: Mark,
    /// The mark and the name, indented.
    pub head: String,
    pub time: NodeTime,
    pub note: String,
}

/// How long a node has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeTime {
    Unknown,
    Since(Instant),
    Took(Duration),
}

/// What is drawn below all other output.
#[derive(Debug, Clone)]
pub(super) struct StatusBlock {
    pub(super) line: StatusLine,
    pub(super) nodes: Option<Nodes>,
}

/// A line of the block, with its width in cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockLine {
    pub(super) text: String,
    pub(super) width: usize,
}

impl StatusBlock {
    /// At most `height` lines.
    pub(super) fn render(&self, style: &Style, height: usize, now: Instant) -> Vec<BlockLine> {
        let Some(Nodes { cached, rows }) = &self.nodes else {
            let text = self.line.render(style, now);
            return vec![BlockLine { width: text.width(), text: style.dim(&text) }];
        };
        let head = self.line.head(style, *cached, now);
        let rows = &rows[..rows.len().min(height.saturating_sub(1))];
        let (width, widest) = (style.width(), style.width() / 2);
        let is_in_columns = |row: &&NodeRow| row.time != NodeTime::Unknown || !row.note.is_empty();
        let column = rows.iter().filter(is_in_columns).map(|row| row.head.width()).max().unwrap_or(0).min(widest);
        let line = |row: &NodeRow| {
            let name = style.cut(&row.head, widest);
            let rest = if width < NARROW {
                format!(" {}", row.time(now))
            } else {
                format!("{:>gap$}  {}", row.time(now), row.note, gap = column.saturating_sub(name.width()) + 9)
            };
            let rest = style.cut(rest.trim_end(), width.saturating_sub(name.width() + 1));
            BlockLine { width: name.width() + rest.width(), text: style.painted(row.mark, &name) + &rest }
        };
        std::iter::once(BlockLine { width: head.width(), text: style.bold(&head) })
            .chain(rows.iter().map(line))
            .collect()
    }
}

impl NodeRow {
    /// `0:37`, `1:02:03`.
    fn time(&self, now: Instant) -> String {
        let took = match self.time {
            NodeTime::Unknown => return String::new(),
            NodeTime::Since(since) => now.saturating_duration_since(since),
            NodeTime::Took(took) => took,
        };
        let text = clock(took);
        text.strip_prefix("0:").map_or_else(|| text.clone(), |text| text.strip_prefix('0').unwrap_or(text).to_owned())
    }
}

/// A terminal with fewer columns gets the short form.
const NARROW: usize = 60;
/// Cells of the bar.
const BAR: usize = 20;

impl StatusLine {
    /// The first line of a pipeline, as long as there is room: `▸ run-000034 ctr  0:02:41  3/5 steps  1 running …`.
    fn head(&self, style: &Style, cached: usize, now: Instant) -> String {
        let Activity::Steps { done, all, running, failed, stopping } = self.doing else {
            return self.render(style, now);
        };
        let mark = style.mark(if stopping { Mark::Stopped } else { Mark::Running });
        let elapsed = clock(now.saturating_duration_since(self.since));
        let room = style.width().saturating_sub(3);
        let counts = format!("{done}/{all} steps  {running} running  {cached} cached  {failed} failed");
        let mut text = format!(" {mark} {}  {elapsed}  {counts}", self.job);
        if style.width() < NARROW || text.width() > room {
            let signs = [(running, Mark::Running), (cached, Mark::Cached), (failed, Mark::Failed)];
            let mut short = format!(" {mark} {elapsed}  {done}/{all}");
            for (count, mark) in signs.into_iter().filter(|(count, _)| *count > 0) {
                let _ = write!(short, "  {count} {}", style.mark(mark));
            }
            return fit(&short, room);
        }
        let (full, empty) = if style.ascii { ("#", ".") } else { ("█", "░") };
        let cells = BAR.min(room.saturating_sub(text.width() + 2));
        let filled = (done * cells).checked_div(all).unwrap_or(0).min(cells);
        let bar = format!("  {}{}", full.repeat(filled), empty.repeat(cells - filled));
        let (_, _, hint) = with_hint(String::new(), stopping);
        for more in [bar.as_str(), hint] {
            let more = if style.ascii { more.replace(['‹', '›'], "") } else { more.to_owned() };
            if text.width() + more.width() <= room {
                text += &more;
            }
        }
        fit(&text, room)
    }

    /// Without colours.
    fn render(&self, style: &Style, now: Instant) -> String {
        let elapsed = clock(now.saturating_duration_since(self.since));
        let width = style.width();
        let (mark, what, more) = match &self.doing {
            Activity::Waiting(what) => (Mark::Waiting, what.clone(), ""),
            Activity::Ranks { live, total, stopping } => {
                let ranks = format!("{live}/{total} {}", style.mark(Mark::Running));
                with_hint(ranks, *stopping)
            }
            Activity::Roles { roles, stopping } => {
                let running = style.mark(Mark::Running);
                let words = roles.iter().map(|(name, live, total)| format!("{name} {live}/{total} {running}"));
                with_hint(words.collect::<Vec<_>>().join("  "), *stopping)
            }
            Activity::Steps { done, all, running, failed, stopping } => {
                let failed =
                    if *failed > 0 { format!("  {failed} {}", style.mark(Mark::Failed)) } else { String::new() };
                let steps = format!("{done}/{all} steps  {running} {}{failed}", style.mark(Mark::Running));
                with_hint(steps, *stopping)
            }
        };
        let mark = style.mark(mark);
        // The terminal shows `^C` after the line, and would wrap it.
        let room = width.saturating_sub(3);
        let text = if width < NARROW {
            format!(" {mark} {elapsed} {what}")
        } else {
            let text = format!(" {mark} {}  {elapsed}  {what}", self.job);
            let whole = format!("{text}{more}");
            if whole.width() <= room { whole } else { text }
        };
        let text = if style.ascii { text.replace(['‹', '›'], "") } else { text };
        fit(&text, room)
    }

    /// The same for a plain line: the verb and the other parts.
    pub fn plain(&self) -> (&'static str, Vec<String>) {
        let verb = |stopping: bool| if stopping { "Stopping" } else { "Running" };
        let (verb, mut parts) = match &self.doing {
            Activity::Waiting(what) => ("Waiting", vec![what.clone()]),
            Activity::Ranks { live, total, stopping } => (verb(*stopping), vec![format!("{live}/{total} ranks")]),
            Activity::Roles { roles, stopping } => {
                let words = roles.iter().map(|(name, live, total)| format!("{name} {live}/{total}"));
                (verb(*stopping), words.collect())
            }
            Activity::Steps { done, all, running, failed, stopping } => {
                let words =
                    vec![format!("{done}/{all} steps"), format!("{running} running"), format!("{failed} failed")];
                (verb(*stopping), words)
            }
        };
        parts.push(format!("{} since the start", clock(self.since.elapsed())));
        (verb, parts)
    }

    /// When the shown time changes next.
    pub(super) fn until_next_second(&self) -> Duration {
        Duration::from_secs(1).saturating_sub(Duration::from_nanos(u64::from(self.since.elapsed().subsec_nanos())))
    }
}

/// The lines of a pipeline on a terminal of this height, for tests of what is shown.
#[cfg(test)]
pub(crate) fn drawn(style: &Style, line: &StatusLine, nodes: Nodes, height: usize, now: Instant) -> String {
    let block = StatusBlock { line: line.clone(), nodes: Some(nodes) };
    let lines = block.render(style, height.saturating_sub(super::BESIDE), now);
    lines.into_iter().map(|line| line.text + "\n").collect()
}

fn with_hint(who: String, stopping: bool) -> (Mark, String, &'static str) {
    if stopping {
        (Mark::Stopped, who, "  stopping  ‹Ctrl-C kill›")
    } else {
        (Mark::Running, who, "  ‹Ctrl-C stop›")
    }
}

/// `0:03:12`.
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_is_whole_or_left_out_and_leaves_room() {
        for stopping in [false, true] {
            for width in 20..120 {
                let style = Style { fixed_width: Some(width), ..Style::default() };
                let doing = Activity::Ranks { live: 2, total: 2, stopping };
                let now = Instant::now();
                let line = StatusLine { job: "slow".to_owned(), since: now, doing }.render(&style, now);
                assert!(line.width() + 3 <= width, "{width}: {line}");
                assert_eq!(line.contains("‹Ctrl-C"), line.ends_with('›'), "{width}: {line}");
                assert!(width < 60 || line.ends_with('›'), "{width}: {line}");
            }
        }
    }

    #[test]
    fn nodes_are_below_the_line_and_fit() {
        let now = Instant::now();
        let row = |name: &str, time, note: &str| NodeRow {
            mark: Mark::Running,
            head: format!("  ▸ {name}"),
            time,
            note: note.to_owned(),
        };
        let took = NodeTime::Took(Duration::from_secs(3_723));
        let rows = vec![row("train", took, "pserver ▸▸"), row("a", NodeTime::Since(now), ""), row("b", took, "")];
        let doing = Activity::Steps { done: 1, all: 4, running: 3, failed: 0, stopping: false };
        let line = StatusLine { job: "p".to_owned(), since: now, doing };
        let seen = |width: usize, height: usize| {
            let style = Style { fixed_width: Some(width), ..Style::default() };
            drawn(&style, &line, Nodes { cached: 2, rows: rows.clone() }, height, now)
        };
        assert_eq!(
            seen(80, 24),
            " ▸ p  0:00:00  1/4 steps  3 running  2 cached  0 failed  █████░░░░░░░░░░░░░░░\n  ▸ train  1:02:03  pserver ▸▸\n  ▸ a         0:00\n  ▸ b      1:02:03\n"
        );
        assert_eq!(seen(30, 5), " ▸ 0:00:00  1/4  3 ▸  2 ≈\n  ▸ train 1:02:03\n");
        assert_eq!(seen(80, 1).lines().count(), 1);
    }

    #[test]
    fn clocks() {
        assert_eq!(clock(Duration::from_secs(192)), "0:03:12");
        assert_eq!(clock(Duration::from_secs(36_000 + 61)), "10:01:01");
    }
}
