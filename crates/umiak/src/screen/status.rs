//! The status line: the last line on the terminal, on stderr.

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

impl StatusLine {
    pub(super) fn render(&self, style: &Style) -> String {
        let elapsed = clock(self.since.elapsed());
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
        let text = if width < 60 {
            format!(" {mark} {elapsed} {what}")
        } else {
            let text = format!(" {mark} {}  {elapsed}  {what}", self.job);
            let whole = format!("{text}{more}");
            if whole.width() <= room { whole } else { text }
        };
        let text = if style.ascii { text.replace(['‹', '›'], "") } else { text };
        style.dim(&fit(&text, room))
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
                let line = StatusLine { job: "slow".to_owned(), since: Instant::now(), doing }.render(&style);
                assert!(line.width() + 3 <= width, "{width}: {line}");
                assert_eq!(line.contains("‹Ctrl-C"), line.ends_with('›'), "{width}: {line}");
                assert!(width < 60 || line.ends_with('›'), "{width}: {line}");
            }
        }
    }

    #[test]
    fn clocks() {
        assert_eq!(clock(Duration::from_secs(192)), "0:03:12");
        assert_eq!(clock(Duration::from_secs(36_000 + 61)), "10:01:01");
    }
}
