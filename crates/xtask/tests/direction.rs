//! Which module of `umiak-core` may use which: arrows never turn back. The test reads the sources, so an arrow is
//! seen wherever it is written, in a `use` or in a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module, and what it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("diag", &[]),
    ("facts", &["model"]),
    ("diagnose", &["facts", "model"]),
    ("status", &["facts", "model"]),
    ("mask", &[]),
    ("quote", &[]),
    ("formats", &["diag", "mask", "model", "quote"]),
    ("contract", &["model"]),
    // What a node brings to a round, and what it is told, are messages of that machine.
    ("plan", &["contract", "diag", "facts", "machine", "mask", "model", "quote"]),
    ("machine", &["diagnose", "facts", "model", "status"]),
    ("wire", &["diagnose", "facts", "machine", "model"]),
];

/// A crate, and the crates of ours that it may depend on outside its tests.
const CRATES: &[(&str, &[&str])] = &[
    ("umiak-core", &[]),
    ("umiak-sys", &[]),
    ("umiak", &["umiak-core", "umiak-sys"]),
    // For the benchmarks: the floors, stopping what a launcher leaves behind, and several hosts on one machine.
    ("xtask", &["umiak", "umiak-core", "umiak-sys", "umiak-testkit"]),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let root = crates().join("umiak-core/src");
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources(&root) {
        let relative = file.strip_prefix(&root).unwrap();
        let module = module_of(relative);
        if module == "lib" {
            continue;
        }
        let (_, allowed) = ALLOWED
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("`{module}` is new: say in `ALLOWED` what it may use"));
        for (number, used) in uses(&fs::read_to_string(&file).unwrap()) {
            if used != module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}:{number}: `{module}` uses `{used}`", relative.display()));
            }
            seen.entry(module.clone()).or_default().insert(used);
        }
    }
    assert!(wrong.is_empty(), "arrows that are not in the table:\n{}", wrong.join("\n"));
    for (module, allowed) in ALLOWED {
        for used in *allowed {
            let is_used = seen.get(*module).is_some_and(|seen| seen.contains(*used));
            assert!(is_used, "`{module}` no longer uses `{used}`: take it out of `ALLOWED`");
        }
    }
}

#[test]
fn the_table_has_no_cycle() {
    for (module, _) in ALLOWED {
        let mut reached: Vec<&str> = below(module).to_vec();
        let mut next = 0;
        while next < reached.len() {
            assert_ne!(reached[next], *module, "`{module}` reaches itself");
            reached.extend(below(reached[next]).iter().filter(|name| !reached.contains(name)).collect::<Vec<_>>());
            next += 1;
        }
    }
}

fn below(module: &str) -> &'static [&'static str] {
    ALLOWED.iter().find(|(name, _)| *name == module).map_or(&[], |(_, below)| below)
}

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    for (name, allowed) in CRATES {
        let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        let used = dependencies(&manifest);
        assert_eq!(used, *allowed, "{name}");
    }
}

/// Our own crates in `[dependencies]`, sorted.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut names: Vec<&str> = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| name.starts_with("umiak"))
        .collect();
    names.sort_unstable();
    names
}

/// The modules that a source names as `crate::module`, with the line. Comments and tests do not count: a link in a
/// comment is no arrow, and a test may use anything.
fn uses(text: &str) -> Vec<(usize, String)> {
    let code = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let mut found = Vec::new();
    let mut groups = false;
    for (number, line) in code.filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for rest in line.split("crate::").skip(1) {
            groups |= rest.starts_with('{');
            let module: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push((number + 1, module));
        }
    }
    assert!(!groups, "write `use crate::a::…; use crate::b::…;`, so that this test sees each");
    found
}

fn module_of(relative: &Path) -> String {
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Every source below `directory` that is not a file of tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}
