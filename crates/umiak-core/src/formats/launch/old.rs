//! Flags of launchers before 2.0 whose meaning depends on the other flags.

use std::collections::BTreeSet;

use super::arguments::{Arguments, Source, Value};
use crate::diag::{Code, Diagnostic};

/// Translates `--hosts` and `--endpoints` to current flags.
pub(super) fn lower(given: &mut Arguments) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    let mut stand_for = |given: &mut Arguments, attribute: &'static str, old: &'static str, value: String| {
        if let Some(source) = given.source(attribute) {
            let message = format!("`{old}` and `{}` set the same value", source.name());
            errors.push(Diagnostic::error(Code::L0002, message).hint("leave one of them out"));
        } else {
            given.put(attribute, Value::Text(value.into()), Source::Flag(old));
        }
    };
    if let Some(list) = given.text("hosts").map(str::to_owned) {
        let attribute = if list.contains(',') { "ips" } else { "host" };
        stand_for(given, attribute, "--hosts", list);
    }
    if let Some(list) = given.text("endpoints").map(str::to_owned) {
        let has_servers = ["server_num", "worker_num", "trainer_num", "workers", "trainers"];
        if has_servers.iter().any(|attribute| given.is_set(attribute)) {
            stand_for(given, "servers", "--endpoints", list);
        } else {
            stand_for(given, "ips", "--endpoints", hosts(&list));
        }
    }
    errors
}

/// The hosts of a list of endpoints, without duplicates.
fn hosts(list: &str) -> String {
    let mut seen = BTreeSet::new();
    let hosts = list.split(',').map(|entry| entry.trim().rsplit_once(':').map_or(entry.trim(), |(host, _)| host));
    hosts.filter(|host| seen.insert(*host)).collect::<Vec<_>>().join(",")
}
