//! The replicas whose output the console shows, and the replica with the caller's stdin.

use super::{Plan, Replica};
use crate::diag::{Code, Diagnostic, nearest};
use crate::model::{OnConsole, PrefixOf, Rank, Show, Slot, Stream, Whose, replica_parts};

/// How this node's replicas use the console.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Console {
    /// Replicas whose output is shown, in the order of the plan.
    pub shown: Vec<Slot>,
    /// True if lines start with the name of their replica, because several are shown on all nodes.
    pub is_prefixed: bool,
    /// Length of the longest name that is shown here.
    pub width: usize,
    /// The replica that `--stdin` connects to the caller's stdin.
    pub stdin: Option<Slot>,
}

impl Plan {
    /// Fails if a word names no replica of the job on any node.
    pub fn console(&self, show: &Show, stdin: Option<&Whose>) -> Result<Console, Diagnostic> {
        let all = self.names();
        let known = || all.iter().map(|(name, rank)| (name.as_str(), Some(*rank)));
        if let Show::Some(whose) = show
            && let Some(word) = whose.unknown(&known())
        {
            return Err(unknown("--show", &word, &all)
                .hint("write `first`, `all`, `none`, a role, a replica, or ranks as in `0-3`"));
        }
        let stdin = stdin.map(|whose| self.reader(whose, &all)).transpose()?.flatten();
        let first = || stdin.or_else(|| self.mirrored().map(|replica| replica.slot));
        let is_of = |replica: &Replica| match show {
            Show::Usual if self.streams.is_some() || self.is_document() && self.job.roles.len() > 1 => true,
            Show::Usual | Show::First => first() == Some(replica.slot),
            Show::All => true,
            Show::None => false,
            Show::Some(whose) => whose.is_of(&replica.name, Some(replica.rank)),
        };
        let shown: Vec<&Replica> = self.replicas.iter().filter(|replica| is_of(replica)).collect();
        let is_prefixed = match show {
            Show::All => all.len() > 1,
            Show::Some(whose) => known().filter(|(name, rank)| whose.is_of(name, *rank)).count() > 1,
            Show::Usual | Show::First | Show::None => shown.len() > 1,
        };
        Ok(Console {
            is_prefixed,
            width: shown.iter().map(|replica| replica.name.len()).max().unwrap_or(0),
            shown: shown.into_iter().map(|replica| replica.slot).collect(),
            stdin,
        })
    }

    /// What precedes the lines of a stream that has a log of its own; `None` if the console does not show it. `host` is the
    /// name of this host.
    pub fn stream_prefix(&self, replica: &Replica, stream: Stream, host: &str) -> Option<String> {
        let (rules, (_, member)) = (self.streams.as_ref()?, self.member(replica)?);
        let role = &self.options.torch.role;
        match rules.on_console(member.local_rank, stream) {
            OnConsole::Hidden => None,
            OnConsole::Plain => Some(String::new()),
            OnConsole::Prefixed => {
                let Rank(rank) = member.rank;
                Some(rules.prefix(PrefixOf { role, local_rank: member.local_rank, rank, host }))
            }
        }
    }

    /// The replica that reads the caller's stdin, if it runs on this node.
    fn reader(&self, whose: &Whose, all: &[(String, Rank)]) -> Result<Option<Slot>, Diagnostic> {
        let hint = "write one replica: its name as in `trainer-3`, or its rank";
        let known = all.iter().map(|(name, rank)| (name.as_str(), Some(*rank)));
        if let Some(word) = whose.unknown(&known) {
            return Err(unknown("--stdin", &word, all).hint(hint));
        }
        match known.filter(|(name, rank)| whose.is_of(name, *rank)).count() {
            1 => {}
            count => {
                let message = format!("`--stdin` names {count} replicas, but only one can have stdin");
                return Err(Diagnostic::error(Code::L0001, message).hint(hint));
            }
        }
        let own = self.replicas.iter().find(|replica| whose.is_of(&replica.name, Some(replica.rank)));
        Ok(own.map(|replica| replica.slot))
    }

    /// All replicas of the job, on all nodes.
    fn names(&self) -> Vec<(String, Rank)> {
        if self.is_document() {
            return self.replicas.iter().map(|replica| (replica.name.clone(), replica.rank)).collect();
        }
        let members = self.topology().members.iter();
        members.map(|member| (format!("{}-{}", member.part.role(), member.index), member.rank)).collect()
    }
}

fn unknown(flag: &str, word: &str, all: &[(String, Rank)]) -> Diagnostic {
    let mut roles: Vec<&str> = all.iter().map(|(name, _)| replica_parts(name).0).collect();
    roles.dedup();
    let error = Diagnostic::error(Code::L0001, format!("`{flag}`: the job has no role or replica `{word}`"))
        .row("roles", roles.join(", "))
        .row("ranks", format!("0 to {}", all.len().saturating_sub(1)));
    match nearest(word, roles) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::document::tests::plan;

    /// The replicas shown, of two servers and two trainers, followed by `|` if lines have names.
    fn shown(show: &str, stdin: Option<&str>) -> String {
        let plan = plan();
        let show = if show.is_empty() { Show::Usual } else { Show::parse(show) };
        let console = plan.console(&show, stdin.map(|word| Whose::parse([word])).as_ref()).unwrap();
        let names = console.shown.iter().map(|slot| plan.at(*slot).unwrap().name.as_str());
        let bar = if console.is_prefixed { " |" } else { "" };
        format!("{}{bar}", names.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn several_roles_are_all_shown_by_name() {
        assert_eq!(shown("", None), "param-server-0 param-server-1 trainer-0 trainer-1 |");
        assert_eq!(shown("all", None), shown("", None));
        assert_eq!(shown("first", None), "trainer-0", "the first that decides");
        assert_eq!(shown("none", None), "");
        assert_eq!(shown("trainer", None), "trainer-0 trainer-1 |");
        assert_eq!(shown("1,3", None), "param-server-1 trainer-1 |");
        assert_eq!(shown("trainer-1", None), "trainer-1", "one needs no name");
        assert_eq!(shown("first", Some("trainer-1")), "trainer-1", "prompts must be seen");
    }

    #[test]
    fn one_role_shows_its_first_replica() {
        let mut plan = plan();
        plan.job.roles.truncate(1);
        plan.replicas.truncate(2);
        let console = plan.console(&Show::Usual, None).unwrap();
        assert_eq!((console.shown.len(), console.is_prefixed), (1, false));
    }

    #[test]
    fn words_that_name_nothing_are_errors() {
        let message = |show: &str, stdin: Option<&str>| {
            let error =
                plan().console(&Show::parse(show), stdin.map(|word| Whose::parse([word])).as_ref()).unwrap_err();
            error.message
        };
        assert_eq!(message("4", None), "`--show`: the job has no role or replica `rank 4`");
        assert_eq!(message("first", Some("train")), "`--stdin`: the job has no role or replica `train`");
        assert_eq!(message("first", Some("trainer")), "`--stdin` names 2 replicas, but only one can have stdin");
    }
}
