//! Lists of `ip:port`, as in `--servers` and similar flags.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::arguments::Arguments;
use super::checks::parse_address;
use crate::diag::{Code, Diagnostic};
use crate::model::{Endpoint, Port};

/// The first port for entries without one: servers, trainers and so on get consecutive ports from here.
const FIRST_PORT: u16 = 6170;

/// The longest list. One host has about as many ports, and every node holds all lists.
const MOST: usize = 65_535;

/// One flag's list.
#[derive(Debug)]
pub(super) struct List {
    attribute: &'static str,
    /// The flag or variable that set the list.
    pub(super) name: &'static str,
    /// The stages, separated by `;` if the list allows them; otherwise one.
    pub(super) stages: Vec<Vec<Entry>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) address: IpAddr,
    port: Option<Port>,
}

impl List {
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.stages.iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.stages.iter().map(Vec::len).sum()
    }

    /// The endpoints, once all ports are known.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = Vec<Endpoint>> {
        let endpoint = |entry: &Entry| Some(Endpoint { address: entry.address, port: entry.port? });
        self.stages.iter().map(move |stage| stage.iter().filter_map(endpoint).collect())
    }
}

/// The form of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) stages: bool,
    pub(super) ports_may_lack: bool,
}

/// The list of the flag, if given.
pub(super) fn read(arguments: &Arguments, attribute: &'static str, form: Form) -> Result<Option<List>, Diagnostic> {
    let Some(text) = arguments.text(attribute) else { return Ok(None) };
    let name = arguments.name(attribute);
    let wrong = |message: String| arguments.wrong_value(attribute, message).row("list", shown(text));
    let mut stages = Vec::new();
    let mut place = 0;
    for stage in text.split(|c| form.stages && c == ';') {
        let mut entries = Vec::new();
        for word in stage.split(',').map(str::trim) {
            place += 1;
            entries.push(entry(word, form).map_err(|(problem, hint)| {
                let error = wrong(format!("entry {place} of `{name}` {problem}"));
                if hint.is_empty() { error } else { error.hint(hint) }
            })?);
        }
        stages.push(entries);
    }
    let list = List { attribute, name, stages };
    let with_ports = list.entries().filter(|entry| entry.port.is_some()).count();
    if with_ports != 0 && with_ports != list.len() {
        let error = wrong(format!("some entries of `{name}` have no port"));
        return Err(error.hint("give every entry a port, or no entry"));
    }
    if list.len() > MOST {
        return Err(wrong(format!("`{name}` has {} entries; the maximum is {MOST}", list.len())));
    }
    Ok(Some(list))
}

/// One entry; or the problem, as the end of a sentence, and a hint.
fn entry(word: &str, form: Form) -> Result<Entry, (String, String)> {
    let Some((address, port)) = split(word) else {
        let is = if word.is_empty() { "empty".to_owned() } else { format!("`{word}`, not `ip:port`") };
        let hint = "separate entries with single commas; host names are not accepted";
        return Err((format!("is {is}"), hint.to_owned()));
    };
    match port.map(|text| super::own::port(text).ok_or(text)) {
        Some(Ok(port)) => Ok(Entry { address, port: Some(port) }),
        Some(Err(text)) => Err((format!("has the port `{text}`, which is not in the range 1-65535"), String::new())),
        None if form.ports_may_lack => Ok(Entry { address, port: None }),
        None => {
            let example = Endpoint { address, port: Port::new(FIRST_PORT).expect("not 0") };
            let hint = format!("write `{example}`, with a port that is free on that host");
            Err((format!("has no port: `{word}`"), hint))
        }
    }
}

/// The address, and the text of the port, if any. IPv6 addresses with a port are in brackets.
fn split(word: &str) -> Option<(IpAddr, Option<&str>)> {
    let (host, port) = if let Some(end) = word.find(']') {
        let (host, tail) = word.split_at(end + 1);
        (host, if tail.is_empty() { None } else { Some(tail.strip_prefix(':')?) })
    } else if word.matches(':').count() > 1 {
        (word, None)
    } else {
        word.split_once(':').map_or((word, None), |(host, port)| (host, Some(port)))
    };
    let address = if host == "localhost" { Ipv4Addr::LOCALHOST.into() } else { parse_address(host)? };
    Some((address, port))
}

/// The list for messages; a long list is shortened.
fn shown(text: &str) -> String {
    const SHOWN: usize = 8;
    let entries: Vec<&str> = text.split(',').collect();
    if entries.len() <= SHOWN {
        return text.to_owned();
    }
    format!("{},… ({} entries)", entries[..SHOWN].join(","), entries.len())
}

/// The position of an endpoint: the attribute, its name in messages, and the entry.
type Place = (&'static str, &'static str, usize);

/// Refuses duplicate endpoints, and assigns consecutive ports to entries without one, after as many ports as `lists`
/// gives for each list.
pub(super) fn settle(lists: &mut [(&mut List, usize)]) -> Result<(), Diagnostic> {
    let mut seen: BTreeMap<(IpAddr, u16), Place> = BTreeMap::new();
    for (list, _) in lists.iter() {
        for (place, entry) in (1..).zip(list.entries()) {
            let Some(port) = entry.port else { continue };
            let here = (list.attribute, list.name, place);
            if let Some(first) = seen.insert((entry.address, port.get()), here) {
                return Err(twice(Endpoint { address: entry.address, port }, first, here));
            }
        }
    }
    for (list, before) in lists.iter_mut() {
        let mut next = FIRST_PORT.saturating_add(u16::try_from(*before).unwrap_or(u16::MAX));
        for (place, entry) in (1..).zip(list.stages.iter_mut().flatten()) {
            if entry.port.is_some() {
                continue;
            }
            // Skip ports of other lists on this host: in Paddle the job would fail.
            while seen.contains_key(&(entry.address, next)) && next < u16::MAX {
                next += 1;
            }
            if next == u16::MAX {
                let message = format!("`{}` has more entries without ports than there are ports", list.name);
                return Err(Diagnostic::error(Code::L0001, message));
            }
            seen.insert((entry.address, next), (list.attribute, list.name, place));
            entry.port = Port::new(next);
            next += 1;
        }
    }
    Ok(())
}

fn twice(endpoint: Endpoint, first: Place, second: Place) -> Diagnostic {
    let error = if first.0 == second.0 {
        let message = format!("`{}` lists {endpoint} twice, the second time as entry {}", first.1, second.2);
        Diagnostic::error(Code::L0001, message)
    } else {
        let message = format!("{endpoint} is in both `{}` and `{}`", first.1, second.1);
        let row = |place: Place| format!("entry {}", place.2);
        Diagnostic::error(Code::L0002, message).row(first.1, row(first)).row(second.1, row(second))
    };
    error.hint("every process needs its own port; correct one of the entries")
}
