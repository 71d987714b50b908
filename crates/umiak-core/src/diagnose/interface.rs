//! Messages about a network interface that the host does not have: which variable names it, and which ones are there.

use super::signatures::NO_INTERFACE;
use crate::facts::Evidence;

/// Names that are listed.
const LISTED: usize = 8;
/// The kernel's limit for a name.
const NAME: usize = 15;

/// A message, and the variable that it is about.
struct Row {
    words: &'static str,
    variable: &'static str,
    /// The name of the interface follows.
    names: bool,
}

/// Tensorpipe only warns, and uses the loopback interface.
const ROWS: [Row; 2] = [
    Row { words: "Unable to find address for: ", variable: "GLOO_SOCKET_IFNAME", names: true },
    // The first letter is left out: it may be large or small.
    Row { words: "o socket interface found", variable: "NCCL_SOCKET_IFNAME", names: false },
];

/// True if the interfaces of the host would explain this error.
pub fn is_missing(evidence: &Evidence) -> bool {
    evidence.signature.as_ref().is_some_and(|signature| signature.code == NO_INTERFACE)
}

/// Completes the hint. `present` are the interfaces that have an address.
pub fn complete(evidence: &mut Evidence, present: &[String]) {
    let lines = evidence.headline.iter().map(|line| &line.text).chain(&evidence.traceback).chain(&evidence.last_lines);
    let mut found =
        lines.flat_map(|line| ROWS.iter().filter_map(move |row| Some((row, line.split_once(row.words)?.1))));
    let Some((row, behind)) = found.next() else { return };
    let name: String = behind.chars().take_while(|c| !c.is_whitespace()).take(NAME).collect();
    let names = if row.names && !name.is_empty() {
        format!("`{}` names `{name}`, but ", row.variable)
    } else {
        format!("no interface fits `{}`; ", row.variable)
    };
    let listed: Vec<String> = present.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let more = present.len().saturating_sub(LISTED);
    let there = match (listed.join(", "), more) {
        (_, _) if listed.is_empty() => "no interface of this host has an address".to_owned(),
        (listed, 0) => format!("this host has {listed}"),
        (listed, more) => format!("this host has {listed} and {more} more"),
    };
    if let Some(signature) = &mut evidence.signature {
        signature.hint = Some(format!("{names}{there}: name an interface that is there, or remove the variable"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::extract;
    use super::*;

    fn hint(log: &str, present: &[&str]) -> String {
        let mut evidence = extract(log.as_bytes(), None, None);
        assert!(is_missing(&evidence), "{evidence:?}");
        complete(&mut evidence, &present.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        evidence.signature.and_then(|signature| signature.hint).unwrap()
    }

    #[test]
    fn the_hint_names_variable_and_interfaces() {
        let gloo = include_str!("../../../../fixtures/logs/U4106_gloo.log");
        let nccl = include_str!("../../../../fixtures/logs/U4106.log");
        assert_eq!(
            hint(gloo, &["lo", "ens5"]),
            "`GLOO_SOCKET_IFNAME` names `eth7`, but this host has `lo`, `ens5`: name an interface that is there, or remove the variable"
        );
        assert!(hint(gloo, &[]).contains("names `eth7`, but no interface of this host has an address: "));
        assert!(hint(nccl, &["lo"]).starts_with("no interface fits `NCCL_SOCKET_IFNAME`; this host has `lo`: "));
        let many = ["lo"; 20];
        assert!(hint(gloo, &many).contains("`lo` and 12 more"), "{}", hint(gloo, &many));
    }

    #[test]
    fn other_messages_keep_their_hint() {
        let log = "RuntimeError: Unable to resolve hostname to a (local) address\n";
        let mut evidence = extract(log.as_bytes(), None, None);
        let before = evidence.clone();
        complete(&mut evidence, &["lo".to_owned()]);
        assert_eq!(evidence, before);
        assert!(!is_missing(&extract(b"KeyError: 'a'\n", None, None)));
    }
}
