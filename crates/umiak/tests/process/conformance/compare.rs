//! Compares two observations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use umiak_core::contract::differences::{Difference, Kind, Surface};

use super::Case;
use super::observe::{LogFile, Observation, is_pod_log};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) surface: Surface,
    pub(super) kind: Kind,
    /// Matched against the patterns of the list.
    pub(super) name: String,
    /// Place and both values, for the message.
    detail: String,
    original_code: Option<i32>,
}

impl Seen {
    fn new(surface: Surface, kind: Kind, name: &str, detail: String) -> Self {
        Self { surface, kind, name: name.to_owned(), detail, original_code: None }
    }

    /// The original's exit code, if it differs from umiak's.
    pub(super) fn original_code(&self) -> Option<i32> {
        self.original_code
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}: {}  {}", self.surface, self.kind, self.name, self.detail)
    }
}

/// Returns all differences.
pub(super) fn compare(case: &Case, list: &[Difference], theirs: &Observation, ours: &Observation) -> Vec<Seen> {
    let mut seen = Vec::new();
    if theirs.code != ours.code {
        let detail = format!("{} became {}", theirs.code, ours.code);
        let difference = Seen::new(Surface::Exit, Kind::Changed, "exit code", detail);
        seen.push(Seen { original_code: Some(theirs.code), ..difference });
    }
    let names = |seen: &Observation| seen.ranks.iter().map(|rank| rank.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(theirs), names(ours), "other ranks");
    for (theirs, ours) in theirs.ranks.iter().zip(&ours.ranks) {
        let place = format!("of rank {}", theirs.name);
        maps(&mut seen, Surface::Variable, &place, &theirs.variables, &ours.variables);
        let text = |facts: &BTreeMap<&'static str, String>| {
            facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        maps(&mut seen, Surface::Process, &place, &text(&theirs.process), &text(&ours.process));
    }
    files(&mut seen, theirs, ours);
    if case.original.is_torch() {
        stdout(&mut seen, &theirs.stdout, &ours.stdout);
    } else {
        check_backups(ours);
    }
    console(&mut seen, case, list, &theirs.console, &ours.console);
    seen
}

fn maps(
    seen: &mut Vec<Seen>,
    surface: Surface,
    place: &str,
    theirs: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
) {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for name in names {
        let (kind, detail) = match (theirs.get(name), ours.get(name)) {
            (Some(original), None) => (Kind::Absent, format!("{place}, {original:?}")),
            (None, Some(own)) => (Kind::Added, format!("{place}, {own:?}")),
            (Some(original), Some(own)) if original != own => {
                (Kind::Changed, format!("{place}, {original:?} became {own:?}"))
            }
            _ => continue,
        };
        seen.push(Seen::new(surface, kind, name, detail));
    }
}

/// Backups are a listed difference; their contents must still be correct and in Paddle's format.
fn check_backups(ours: &Observation) {
    // Only ranks with a number have a backup; servers have none.
    for seen in ours.ranks.iter().filter(|rank| rank.name.parse::<u32>().is_ok()) {
        let name = format!("backup_env.{}.json", seen.name);
        let text = &ours.files.get(&name).unwrap_or_else(|| panic!("no {name}")).text;
        let backup: BTreeMap<String, String> = serde_json::from_str(text).expect("an object of strings");
        for (variable, value) in &backup {
            assert_eq!(seen.variables.get(variable), Some(value), "{name} has another {variable}");
        }
        let rows: Vec<String> = backup.iter().map(|(name, value)| format!("    {name:?}: {value:?}")).collect();
        assert_eq!(*text, format!("{{\n{}\n}}", rows.join(",\n")), "{name}");
    }
}

fn files(seen: &mut Vec<Seen>, theirs: &Observation, ours: &Observation) {
    let names: BTreeSet<&String> = theirs.files.keys().chain(ours.files.keys()).collect();
    for name in names {
        let mut differs = |kind, detail: String| seen.push(Seen::new(Surface::File, kind, name, detail));
        match (theirs.files.get(name), ours.files.get(name)) {
            (Some(_), None) => differs(Kind::Absent, String::new()),
            (None, Some(_)) => differs(Kind::Added, String::new()),
            (Some(original), Some(own)) => {
                if original.mode != own.mode {
                    differs(Kind::Changed, format!("mode {:o} became {:o}", original.mode, own.mode));
                }
                contents(seen, name, &original.text, &own.text);
            }
            (None, None) => {}
        }
    }
}

/// Compares files that list an environment by variable, all others by bytes.
fn contents(seen: &mut Vec<Seen>, name: &str, theirs: &str, ours: &str) {
    let place = format!("in {name}");
    if name.starts_with("envlog.") {
        return blocks(seen, &place, theirs, ours);
    }
    if is_pod_log(name) {
        return pod_logs(seen, name, theirs, ours);
    }
    // Blanks in JSON do not matter.
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    if theirs != ours && (json(theirs).is_none() || json(theirs) != json(ours)) {
        let detail = format!("{theirs:?} became {ours:?}");
        seen.push(Seen::new(Surface::File, Kind::Changed, name, detail));
    }
}

/// Compares `NAME=value` lines in byte order, one block for each run.
fn blocks(seen: &mut Vec<Seen>, place: &str, theirs: &str, ours: &str) {
    let split = |text: &str| {
        let mut blocks: Vec<BTreeMap<String, String>> = Vec::new();
        let mut previous = String::new();
        for line in text.lines() {
            let (name, value) = line.split_once('=').expect("NAME=value");
            if blocks.is_empty() || name <= previous.as_str() {
                blocks.push(BTreeMap::new());
            }
            name.clone_into(&mut previous);
            blocks.last_mut().expect("just made").insert(name.to_owned(), value.to_owned());
        }
        blocks
    };
    let (theirs, ours) = (split(theirs), split(ours));
    assert_eq!(theirs.len(), ours.len(), "{place}: another number of blocks, or another order");
    for (theirs, ours) in theirs.iter().zip(&ours) {
        maps(seen, Surface::Variable, place, theirs, ours);
    }
}

/// Paddle's own lines must be present; the order inside `environ` does not matter.
fn pod_logs(seen: &mut Vec<Seen>, name: &str, theirs: &str, ours: &str) {
    let place = format!("in {name}");
    for line in theirs.lines() {
        if let Some(theirs) = environ(line) {
            let ours = ours.lines().find_map(environ).unwrap_or_default();
            maps(seen, Surface::Variable, &place, &theirs, &ours);
        } else if !ours.lines().any(|own| own == line) {
            seen.push(Seen::new(Surface::File, Kind::Absent, name, format!("line {line:?}")));
        }
    }
    if let Some(line) = ours.lines().find(|line| !LogFile::is_own_line_of_pod_log(line)) {
        seen.push(Seen::new(Surface::File, Kind::Changed, name, format!("further lines: {line:?} …")));
    }
}

/// Parses `environ({'A': '1', 'B': '2'})`, for values without quotes.
fn environ(line: &str) -> Option<BTreeMap<String, String>> {
    let pairs = line.strip_prefix("environ({'")?.strip_suffix("'})")?;
    pairs
        .split("', '")
        .map(|pair| pair.split_once("': '").map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// Ranks write to torchrun's own stdout, and torchrun itself never does: all lines are equal, their order is not.
fn stdout(seen: &mut Vec<Seen>, theirs: &[String], ours: &[String]) {
    if theirs != ours {
        let detail = format!("{theirs:?} became {ours:?}");
        seen.push(Seen::new(Surface::Console, Kind::Changed, "stdout", detail));
    }
}

/// Counts a missing line and a new line as one change if an entry of that kind covers both.
fn console(seen: &mut Vec<Seen>, case: &Case, list: &[Difference], theirs: &BTreeSet<String>, ours: &BTreeSet<String>) {
    // Lines quoted from a log are prefixed with a bar.
    let quoted = |line: &str| ours.contains(&format!("  │ {line}"));
    let mut absent: Vec<&String> = theirs.difference(ours).filter(|line| !quoted(line)).collect();
    let mut added: Vec<&String> = ours.difference(theirs).collect();
    for entry in list {
        let generation = case.original.generation();
        let covers = |line: &String| entry.covers(Surface::Console, generation, case.jobs, Kind::Changed, line);
        while let (Some(from), Some(to)) =
            (absent.iter().position(|line| covers(line)), added.iter().position(|line| covers(line)))
        {
            let (from, to) = (absent.remove(from), added.remove(to));
            seen.push(Seen::new(Surface::Console, Kind::Changed, from, format!("became {to:?}")));
        }
    }
    seen.extend(absent.into_iter().map(|line| Seen::new(Surface::Console, Kind::Absent, line, String::new())));
    seen.extend(added.into_iter().map(|line| Seen::new(Surface::Console, Kind::Added, line, String::new())));
}
