//! The diagnostics of one document: as many as a reader can use, however many there are.

use super::{Code, Diagnostic, Severity};

/// Errors, or notices, that are kept for one document. Further ones are counted.
pub const MAX_KEPT: usize = 50;

/// Characters of a sentence, a label or a hint: a name may be megabytes long.
const MAX_TEXT: usize = 300;
/// Characters of a row.
const MAX_ROW: usize = 1000;

/// Diagnostics in the order in which they were found.
#[derive(Debug, Default)]
pub struct Collected {
    kept: Vec<Diagnostic>,
    more: usize,
}

impl Collected {
    /// Keeps a diagnostic while there is room, and counts it otherwise: it is not made then, because a label copies
    /// text of its document.
    pub fn add(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.has_room() {
            self.kept.push(make().shortened());
        } else {
            self.more += 1;
        }
    }

    pub fn has_room(&self) -> bool {
        self.kept.len() < MAX_KEPT
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// True if one with this code was kept.
    pub fn has(&self, code: Code) -> bool {
        self.kept.iter().any(|diagnostic| diagnostic.code == code)
    }

    /// Completes the diagnostic that was added last, if it was kept.
    pub fn complete_last(&mut self, complete: impl FnOnce(Diagnostic) -> Diagnostic) {
        if self.more == 0
            && let Some(last) = self.kept.pop()
        {
            self.kept.push(complete(last).shortened());
        }
    }

    /// The diagnostics as they were found; the last one says how many more there are.
    pub fn into_vec(self) -> Vec<Diagnostic> {
        let Self { mut kept, more } = self;
        if let (Some(last), 1..) = (kept.last(), more) {
            let (word, severity) = match last.severity {
                Severity::Error => ("error", Severity::Error),
                Severity::Notice => ("notice", Severity::Notice),
            };
            let plural = if more == 1 { "" } else { "s" };
            let rest = Diagnostic::error(Code::F0007, format!("and {more} more {word}{plural}"));
            kept.push(Diagnostic { severity, ..rest });
        }
        kept
    }

    /// The same in the order of files and positions; those without one come first.
    pub fn into_sorted(mut self) -> Vec<Diagnostic> {
        let mut files: Vec<String> = Vec::new();
        for label in self.kept.iter().filter_map(|diagnostic| diagnostic.labels.first()) {
            if !files.contains(&label.file) {
                files.push(label.file.clone());
            }
        }
        let place = |file: &str| files.iter().position(|other| other == file);
        self.kept.sort_by_key(|diagnostic| diagnostic.labels.first().map(|label| (place(&label.file), label.start)));
        self.into_vec()
    }
}

impl Diagnostic {
    fn shortened(mut self) -> Self {
        cut(&mut self.message, MAX_TEXT);
        self.labels.iter_mut().for_each(|label| cut(&mut label.label, MAX_TEXT));
        self.hints.iter_mut().for_each(|hint| cut(hint, MAX_TEXT));
        for (name, value) in &mut self.rows {
            cut(name, MAX_TEXT);
            cut(value, MAX_ROW);
        }
        self
    }
}

fn cut(text: &mut String, most: usize) {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.shrink_to_fit();
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_counted_and_not_made() {
        let mut collected = Collected::default();
        for index in 0..MAX_KEPT + 3 {
            collected.add(|| {
                assert!(index < MAX_KEPT, "made, but not kept");
                Diagnostic::error(Code::F0010, "x".repeat(1000))
            });
        }
        collected.complete_last(|_| panic!("it was not kept"));
        let all = collected.into_sorted();
        assert_eq!(all.len(), MAX_KEPT + 1);
        assert_eq!(all[0].message.chars().count(), MAX_TEXT + 1);
        assert_eq!(all[MAX_KEPT].to_plain(), "error[F0007]: and 3 more errors\n");
    }

    #[test]
    fn nothing_is_added_where_all_are_kept() {
        let mut collected = Collected::default();
        collected.add(|| Diagnostic::notice(Code::F0050, "one"));
        collected.complete_last(|notice| notice.hint("do this"));
        let all = collected.into_vec();
        assert_eq!(all, [Diagnostic::notice(Code::F0050, "one").hint("do this")]);
    }
}
