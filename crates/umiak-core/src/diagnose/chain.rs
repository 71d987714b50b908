//! Chooses which of several errors in one log is shown.
//!
//! A failing program prints several errors: exceptions raised while handling others, errors of a
//! second thread, the runtime's abort at exit. The last one is rarely the cause.

use super::blocks::{Block, Link, Shape};
use super::signatures::{self, Kind, Signature};
use super::text;

/// Maximum number of lines between two errors of the same failure.
const GAP: usize = 10;
/// A program that printed this many lines after an error has survived it.
const STALE: usize = 200;

/// Lines before a consequence that are searched for its cause.
const BEFORE: usize = 60;
/// Errors at the end of the log that are considered; a program that printed more is in a loop.
const ERRORS: usize = 50;

/// The error of one log: a chain of tracebacks, and the one that shows the reason.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    /// First and one past the last line of the whole chain.
    pub(super) lines: (usize, usize),
    pub(super) block: Block,
    pub(super) signature: Option<&'static Signature>,
}

impl Choice {
    fn of(lines: &[&str], block: &Block) -> Self {
        let details = block.head + 1..block.end.min(lines.len()).max(block.head + 1);
        // Lines of a library's logger in between are not part of the message.
        let details = lines[details].iter().map(|line| line.trim()).filter(|line| text::level(line).is_none());
        let message = std::iter::once(block.headline.as_str()).chain(details);
        let signature = signatures::of_message(message);
        Self { lines: (block.start, block.end), block: block.clone(), signature }
    }

    /// True if the message is about another process or an earlier error.
    fn is_foreign(&self) -> bool {
        self.signature.is_some_and(|signature| signature.kind != Kind::Cause)
    }

    pub(super) fn is_echo(&self) -> bool {
        self.signature.is_some_and(|signature| signature.kind == Kind::Consequence)
    }

    fn is_grave(&self) -> bool {
        self.signature.is_some_and(|signature| signature.grave)
    }

    /// Priority among the errors of the same failure.
    pub(super) fn standing(&self) -> u8 {
        match (self.signature.map(|signature| signature.kind), self.block.shape) {
            (None | Some(Kind::Cause), Shape::Python) => 6,
            // An abort after an exception is only how the runtime exits: the exception shows the reason, and
            // if that was a lost peer, an abort without a signature changes nothing.
            (Some(Kind::Cause), Shape::Abort) => 5,
            (Some(Kind::Waiting | Kind::Consequence), _) => 4,
            (Some(Kind::Victim), Shape::Python | Shape::Abort) => 3,
            (None, Shape::Abort) => 2,
            (Some(_), Shape::Notice) => 1,
            (None, Shape::Notice) => 0,
        }
    }

    /// True if `next`, chained to this one, replaces it.
    fn gives_way_to(&self, next: &Self) -> bool {
        match next.block.link {
            Link::None | Link::Nested => true,
            // `raise … from` names the cause; but if that is only a consequence (a failed subprocess), the error raised
            // from it says more.
            Link::Cause => self.is_echo() && next.signature.is_some_and(|signature| signature.kind == Kind::Cause),
            // The handled error may be harmless (a missing cache file) or the reason (a wrapper around
            // "connection reset"). The newer one wins unless it is about another process and the older one is
            // the rank's own, or it has no signature and the older one does.
            Link::Handling => match next.signature {
                Some(_) if next.is_foreign() => self.is_foreign(),
                Some(signature) => signature.grave || !self.is_grave(),
                None => !self.is_foreign() && !self.is_grave(),
            },
        }
    }
}

/// The errors of a log with chains resolved, in log order.
pub(super) fn resolve(lines: &[&str], blocks: &[Block]) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    for block in &blocks[blocks.len().saturating_sub(ERRORS)..] {
        let next = Choice::of(lines, block);
        match choices.last_mut() {
            Some(last) if block.link != Link::None => {
                let span = (last.lines.0, block.end);
                if last.gives_way_to(&next) {
                    // Frames of the user's code may be only in the other part of the chain.
                    let place = next.block.place.clone().or_else(|| last.block.place.take());
                    *last = Choice { block: Block { place, aside: last.block.aside, ..next.block }, ..next };
                } else if last.block.place.is_none() {
                    last.block.place.clone_from(&block.place);
                }
                last.lines = span;
            }
            _ => choices.push(next),
        }
    }
    choices
}

/// The error that ended the program: among those printed together at the end, the one with the highest priority.
pub(super) fn choose(lines: &[&str], choices: &[Choice]) -> Option<Choice> {
    let mut best: Option<&Choice> = None;
    // First line of the same failure so far.
    let mut start = lines.len();
    for choice in choices.iter().rev() {
        let far = start.saturating_sub(choice.lines.1) > if best.is_some() { GAP } else { STALE };
        if far {
            break;
        }
        if !choice.block.aside && best.is_none_or(|best| choice.standing() > best.standing()) {
            best = Some(choice);
        }
        start = choice.lines.0;
    }
    best.cloned()
}

/// The error that `echo` is a consequence of: the nearest line before it with the signature of a cause, else the
/// nearest error of another thread, before or after it (threads print in any order), else the nearest report of a
/// lost peer before it.
pub(super) fn origin(lines: &[&str], choices: &[Choice], echo: &Choice) -> Option<Choice> {
    let own = |choice: &&Choice| !choice.block.aside && !choice.is_foreign() && choice.block.shape != Shape::Notice;
    let (before, after): (Vec<_>, Vec<_>) = choices
        .iter()
        .filter(|choice| choice.lines != echo.lines)
        .partition(|choice| choice.block.start < echo.block.start);
    let first = echo.lines.0.saturating_sub(BEFORE);
    let line = (first..echo.lines.0).rev().filter(|&at| text::is_serious(lines[at])).find_map(|at| {
        let signature = signatures::of_line(lines[at].trim()).filter(|signature| signature.kind == Kind::Cause)?;
        match before.iter().find(|choice| (choice.lines.0..choice.lines.1).contains(&at)) {
            Some(choice) => Some(*choice).filter(own).cloned(),
            None => Some(Choice {
                signature: Some(signature),
                block: Block { head: at, headline: lines[at].trim().to_owned(), ..echo.block.clone() },
                ..echo.clone()
            }),
        }
    });
    // If all processes of a launcher inside the rank lost a peer, the rank lost a peer.
    let lost = |choice: &&Choice| {
        choice.signature.is_some_and(|signature| signature.kind == Kind::Victim) && choice.lines.1 >= first
    };
    let own = before.iter().rev().copied().find(own).or_else(|| after.into_iter().find(own));
    line.or_else(|| own.or_else(|| before.iter().rev().copied().find(lost)).cloned())
}
