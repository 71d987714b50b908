//! Messages about nodes.

use std::net::IpAddr;

use crate::driver::short_signal;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::round::messages::{Answer, Expects, Loss, NodeName, Refusal, RefusalKind, Waiting, Why};

use crate::screen::style::duration;

/// Number of missing nodes that are named.
const NAMED: usize = 4;
/// A longer list of nodes is not shown in full.
const LISTED: usize = 64;

/// Characters of a command in a row.
const SHOWN: usize = 160;

/// `joined 6/8, missing 10.0.0.7 (no route), 10.0.0.8 (other token)`, or `joined 2 of 2 to 4, waiting 9 s for 10.0.0.3`.
pub(super) fn waiting(waiting: &Waiting) -> String {
    let mut text = match waiting.most {
        None => format!("joined {}/{}", waiting.joined, waiting.of),
        Some(most) if most == waiting.of => format!("joined {} of {most}", waiting.joined),
        Some(most) => format!("joined {} of {} to {most}", waiting.joined, waiting.of),
    };
    let named = waiting.missing.iter().take(NAMED).map(|missing| match short(&missing.answer) {
        "" => missing.address.to_string(),
        answer => format!("{} ({answer})", missing.address),
    });
    let mut named = named.collect::<Vec<_>>().join(", ");
    if waiting.missing.len() > NAMED {
        named = format!("{named} and {} more", waiting.missing.len() - NAMED);
    }
    match (waiting.window.map(duration), &*named) {
        (None, "") => {}
        (None, named) => text = format!("{text}, missing {named}"),
        // Ranks that this coordinator does not know may still be running.
        (Some(left), "") if waiting.most.is_some_and(|most| waiting.joined >= most) => {
            text = format!("{text}, waiting {left} until ranks of an earlier coordinator have stopped");
        }
        (Some(left), "") => text = format!("{text}, waiting {left} for others"),
        (Some(left), named) => text = format!("{text}, waiting {left} for {named}"),
    }
    text
}

/// This node does not take part yet.
pub(super) fn spare(nodes: usize) -> String {
    let plural = if nodes == 1 { "" } else { "s" };
    format!("the job runs on {nodes} other node{plural}; this one joins when it is needed")
}

/// A short form for the status line.
pub(super) fn short(answer: &Answer) -> &str {
    match answer {
        Answer::Unknown => "",
        Answer::Refused => "not started",
        Answer::NoRoute => "no route",
        Answer::Silent => "no answer",
        Answer::OtherVersion { .. } => "another version",
        Answer::OtherToken => "other token",
        Answer::OtherJob { .. } => "another job",
        Answer::TurnedAway(refusal) => match refusal {
            RefusalKind::OtherNodes => "other list of nodes",
            RefusalKind::Kinds => "another `--run_mode`",
            RefusalKind::Taken => "already joined",
            RefusalKind::Rank => "`--rank` does not fit",
            RefusalKind::Processes => "other number of processes",
            RefusalKind::TooLate => "too late",
        },
        Answer::Left => "left",
        Answer::Failed { why } => why,
    }
}

/// A longer form for a row of a diagnostic.
fn long(answer: &Answer) -> String {
    match answer {
        Answer::Unknown => "not contacted".to_owned(),
        Answer::Refused => "refused: the host is up, but nothing listens on that port".to_owned(),
        Answer::NoRoute => "no route to the host".to_owned(),
        Answer::Silent => "no answer".to_owned(),
        Answer::OtherVersion { version } => format!("another version of umiak, with protocol {version}"),
        Answer::OtherToken => "the token differs".to_owned(),
        Answer::OtherJob { text } => format!("another job: {text}"),
        Answer::TurnedAway(_) | Answer::Left | Answer::Failed { .. } => short(answer).to_owned(),
    }
}

/// `SIGINT on node 192.168.0.2 (gpu-b)`.
pub(super) fn interrupted(by: &NodeName, signal: Option<i32>) -> String {
    let what = signal.map_or_else(|| "`umiak stop`".to_owned(), short_signal);
    format!("{what} on node {}", node(by))
}

pub(super) fn node(node: &NodeName) -> String {
    node.to_string()
}

/// A list of nodes; of a long one, the first place where it differs from the other list.
fn nodes(expects: &Expects, other: &Expects) -> String {
    match expects {
        Expects::List(list) if list.len() > LISTED => {
            let nodes = format!("{} nodes", list.len());
            let Expects::List(other) = other else { return nodes };
            let same = list.iter().zip(other).take_while(|(ours, theirs)| ours == theirs).count();
            match list.get(same) {
                Some(address) if !other.is_empty() => format!("{nodes}; number {} is {address}", same + 1),
                _ => nodes,
            }
        }
        Expects::List(list) => list.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(","),
        Expects::Count { nodes, sort_ip: true } => format!("{nodes}, with `--sort_ip`"),
        Expects::Count { nodes, sort_ip: false } => nodes.to_string(),
        Expects::Range { min, max } => format!("{min}:{max}"),
    }
}

/// The error on the refused node.
pub(super) fn refused(refusal: &Refusal) -> Diagnostic {
    explain(Diagnostic::error, Code::R0002, refusal, ("this node", "the coordinator"))
}

/// The notice on the coordinator's console.
pub(super) fn has_refused(address: IpAddr, host: &str, refusal: &Refusal) -> Diagnostic {
    let notice = explain(Diagnostic::notice, Code::R0008, refusal, ("that node", "this node"));
    notice.row("node", format!("{address} ({host})"))
}

/// The same for nodes that are not named.
pub(super) fn refused_more(count: u64) -> Diagnostic {
    let nodes = if count == 1 { "connection that does not fit" } else { "connections that do not fit" };
    Diagnostic::notice(Code::R0008, format!("refused {count} more {nodes} this job"))
        .hint("start a job with a token (`--token-file`) to refuse strangers before they can send anything")
}

fn explain(
    new: fn(Code, String) -> Diagnostic,
    code: Code,
    refusal: &Refusal,
    (guest, host): (&str, &str),
) -> Diagnostic {
    match refusal {
        Refusal::OtherNodes { ours, theirs } => {
            let (what, hint) = match (ours, theirs) {
                (Expects::List(_), Expects::List(_)) => {
                    ("the lists of nodes differ", "give every node the same list, in the same order")
                }
                (Expects::Count { nodes: ours, .. }, Expects::Count { nodes: theirs, .. }) if ours == theirs => {
                    ("only some nodes have `--sort_ip`", "give it to all nodes, or to none")
                }
                (Expects::Count { .. } | Expects::Range { .. }, Expects::Count { .. } | Expects::Range { .. }) => {
                    ("the numbers of nodes differ", "give every node the same `--nnodes`")
                }
                _ => ("only some nodes have a list of nodes", "give every node the same list, or none of them"),
            };
            new(code, what.to_owned()).row(host, nodes(ours, theirs)).row(guest, nodes(theirs, ours)).hint(hint)
        }
        Refusal::Kinds { ours, theirs, first } => {
            new(code, format!("{guest} runs a `{}` job, but {} a `{}` job", theirs.word(), node(first), ours.word()))
                .hint("give every node the same `--run_mode` and the same flags for servers")
        }
        Refusal::NotListed { address, list } => new(code, format!("`{address}` is not in the list of nodes"))
            .row("nodes", nodes(&Expects::List(list.clone()), &Expects::List(Vec::new())))
            .hint("name one of the listed nodes with `--host`"),
        Refusal::Taken { by, from, same_command } => {
            let hint = if *same_command {
                "stop the umiak that runs there, or give each job its own `--job_id`"
            } else {
                "give each job on the same nodes its own `--job_id`"
            };
            let joined = match from {
                Some(from) => format!("{} from {from}", node(by)),
                None => node(by),
            };
            new(code, format!("`{}` has already joined this job", by.address)).row("joined", joined).hint(hint)
        }
        Refusal::Rank { rank, nodes, by: Some(by) } => {
            new(code, format!("`--rank {rank}` was given to two of {nodes} nodes")).row("the other", node(by))
        }
        Refusal::Rank { rank, nodes, by: None } => new(
            code,
            format!("`--rank {rank}` is out of range: the ranks of {nodes} nodes are 0 to {}", nodes.saturating_sub(1)),
        ),
        Refusal::MixedRanks => {
            new(code, "only some nodes have `--rank`".to_owned()).hint("give it to all nodes, or to none")
        }
        Refusal::Processes { ours, theirs, first } => {
            new(code, format!("{guest} starts {theirs} processes, but {} starts {ours}", node(first)))
                .hint("make the numbers equal, or allow it with `--uneven` on every node")
        }
        Refusal::Full { nodes } => new(code, format!("all {nodes} nodes have already joined"))
            .hint("for a second job, choose another port in `--master`"),
        Refusal::GivenUp => new(code, format!("{guest} was lost for too long, and the job has gone on without it"))
            .hint("start it again there: it joins as a new node"),
        Refusal::TooLate => new(code, "the job has started without this node, or is over".to_owned())
            .hint("stop it on all nodes and start it again; for a second job, use another `--job_id`"),
    }
}

/// The notice on a node whose `--max_restart` does not apply.
pub(super) fn other_restarts(restarts: u32, own: u32) -> Diagnostic {
    Diagnostic::notice(Code::L0023, "the coordinator's `--max_restart` applies to all nodes")
        .row("coordinator", restarts.to_string())
        .row("this node", own.to_string())
        .hint("give every node the same `--max_restart`")
}

/// The notice about a node with another command, on the coordinator's node or on that node.
pub(super) fn other_command(other: &NodeName, own: &str, theirs: &str, is_host: bool) -> Diagnostic {
    let message = if is_host {
        format!("node {} runs another command than this node", node(other))
    } else {
        format!("this node runs another command than the coordinator's node, {}", node(other))
    };
    let (own, theirs) = around_difference(own, theirs);
    Diagnostic::notice(Code::R0045, message)
        .row("this node", own)
        .row(other.address.to_string(), theirs)
        .hint("give every node of a job the same script and arguments; for a second job, use another job id")
}

/// Two different lines, or what of them fits into a row: from the first word that differs.
fn around_difference(one: &str, other: &str) -> (String, String) {
    let same = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    let word = one.as_bytes()[..same].iter().rposition(|byte| *byte == b' ').map_or(0, |space| space + 1);
    let cut = |line: &str| {
        let (from, before) = if line.chars().count() > SHOWN { (word, "… ") } else { (0, "") };
        let rest: String = line[from..].chars().take(SHOWN).collect();
        let (before, after) = (if from == 0 { "" } else { before }, if line[from..] == rest { "" } else { " …" });
        if rest.is_empty() { "(end of the command)".to_owned() } else { format!("{before}{rest}{after}") }
    };
    (cut(one), cut(other))
}

/// The notice about etcd while the job runs, with or without ranks.
pub(super) fn etcd_trouble(why: Diagnostic, has_ranks: bool) -> Diagnostic {
    let what = match why.code {
        Code::R0032 | Code::R0033 | Code::R0035 | Code::R0037 => "etcd refuses requests",
        _ => "etcd is not reached",
    };
    let then = if has_ranks { "ranks keep running" } else { "ranks start again when it answers" };
    let notice = Diagnostic::notice(Code::R0042, format!("{what}; {then}")).row("reason", why.message);
    let notice = why.rows.iter().fold(notice, |notice, (name, text)| notice.row(name, text));
    why.hints.into_iter().fold(notice, Diagnostic::hint)
}

/// The error if the coordinator rejects this node.
pub(super) fn turned_away(answer: &Answer, at: &str) -> Diagnostic {
    let hint = match answer {
        Answer::OtherToken => "give every node the same `--token-file` or `UMIAK_TOKEN`",
        Answer::OtherVersion { .. } => "install the same umiak on every node",
        _ => "give each job its own `--job_id`, or choose another port",
    };
    Diagnostic::error(Code::R0002, "the coordinator rejected this node")
        .row("coordinator", at)
        .row("answer", long(answer))
        .hint(hint)
}

/// The error if the coordinator was never reached.
pub(super) fn not_reached(answer: &Answer, at: &str) -> Diagnostic {
    Diagnostic::error(Code::R0001, "the first node could not be reached in time")
        .row("coordinator", at)
        .row("answer", long(answer))
        .hint("start the same command on every node, and check that a firewall does not block that port")
}

/// Why all nodes stop, if no rank is named. `None` for a requested stop. `coordinator` is its address.
pub(super) fn why(why: &Why, coordinator: &str) -> Option<Diagnostic> {
    Some(match why {
        // The next attempt says that nodes have joined.
        Why::Interrupted { .. } | Why::Joined { .. } | Why::Scaled { .. } => return None,
        Why::RankFailed { node: name, .. } => {
            Diagnostic::error(Code::R0004, format!("a rank failed on node {}, which sent no details", node(name)))
                .hint("check its console and its logs")
        }
        Why::NodeLost { node: name, how } => {
            Diagnostic::error(Code::R0004, format!("node {} was lost: {}", node(name), how))
                .hint("check its console, its kernel log and the network between the nodes")
        }
        Why::Unable { node: name, why } => {
            Diagnostic::error(Code::R0006, format!("node {} cannot continue: {why}", node(name)))
        }
        Why::Refused { node: name, refusal } => {
            let error = explain(Diagnostic::error, Code::R0002, refusal, ("that node", "the coordinator"));
            error.row("refused", node(name))
        }
        Why::TimeUp { waiting: missing } => {
            let list = missing.missing.iter().map(|missing| format!("{}  {}", missing.address, long(&missing.answer)));
            let list = list.collect::<Vec<_>>().join("\n");
            let diagnostic = Diagnostic::error(
                Code::R0001,
                format!("only {} of {} nodes joined in time", missing.joined, missing.of),
            );
            let diagnostic = if list.is_empty() { diagnostic } else { diagnostic.row("missing", list) };
            diagnostic.hint("start the same command on every node; `--rdzv-timeout` waits longer")
        }
        Why::Hung => Diagnostic::error(Code::R0013, "no rank of any node made progress")
            .hint("`umiak explain` on the coordinator's node shows what the ranks were doing"),
        Why::CoordinatorLost { how: Loss::GaveUp } => refused(&Refusal::GivenUp),
        Why::CoordinatorLost { how } => Diagnostic::error(Code::R0005, format!("the coordinator was lost: {how}"))
            .row("coordinator", coordinator)
            .hint("check its console, its kernel log and the network between the nodes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use umiak_core::machine::round::messages::Missing;

    #[test]
    fn waits() {
        let missing = |answer| Missing { address: IpAddr::from([10, 0, 0, 3]), answer };
        let told = |of, most, window, missing| waiting(&Waiting { joined: 1, of, missing, most, window });
        let window = Some(std::time::Duration::from_secs(9));
        assert_eq!(told(8, None, None, vec![missing(Answer::NoRoute)]), "joined 1/8, missing 10.0.0.3 (no route)");
        assert_eq!(told(2, Some(2), None, vec![]), "joined 1 of 2");
        assert_eq!(told(1, Some(4), window, vec![]), "joined 1 of 1 to 4, waiting 9.0 s for others");
        assert_eq!(
            told(1, Some(4), window, vec![missing(Answer::Unknown)]),
            "joined 1 of 1 to 4, waiting 9.0 s for 10.0.0.3"
        );
        assert!(told(8, None, None, vec![missing(Answer::Unknown); 6]).ends_with("10.0.0.3 and 2 more"));
    }

    #[test]
    fn commands_that_differ() {
        let name = NodeName { node: 1, address: IpAddr::from([10, 0, 0, 3]), host: "gpu-c".to_owned() };
        assert_eq!(
            other_command(&name, "train.py --lr 0.1", "train.py --lr 0.2", true).to_plain(),
            "notice[R0045]: node 10.0.0.3 (gpu-c) runs another command than this node\n  this node  train.py --lr 0.1\n  10.0.0.3   train.py --lr 0.2\nhint: give every node of a job the same script and arguments; for a second job, use another job id\n"
        );
        let long = format!("train.py {} --lr", "é".repeat(SHOWN));
        let pair = |one: &str, other: &str| around_difference(&format!("{long} {one}"), &format!("{long}{other}"));
        assert_eq!(pair("0.1", " 0.2 --epochs 3"), ("… 0.1".to_owned(), "… 0.2 --epochs 3".to_owned()));
        assert_eq!(pair("0.1", ""), ("… --lr 0.1".to_owned(), "… --lr".to_owned()));
    }
}
