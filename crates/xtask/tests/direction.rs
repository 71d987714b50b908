//! Which module may use which, without cycles. The test reads the sources, so it finds a dependency wherever it is
//! written, in a `use` or in a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules ("rooms") of a crate.
struct Crate {
    name: &'static str,
    /// Our crates that it may depend on outside its tests, sorted.
    crates: &'static [&'static str],
    /// A room, and the rooms that it may use.
    rooms: &'static [(&'static str, &'static [&'static str])],
    /// Rooms whose dependencies, in both directions, are not checked yet.
    open: &'static [&'static str],
}

const CRATES: &[Crate] = &[
    Crate {
        name: "umiak-core",
        crates: &[],
        rooms: &[
            ("model", &[]),
            ("diag", &[]),
            ("facts", &["model"]),
            ("diagnose", &["diag", "facts", "model"]),
            ("status", &["facts", "model"]),
            ("mask", &[]),
            ("quote", &[]),
            ("formats", &["diag", "mask", "model", "pipeline", "quote"]),
            ("contract", &["model", "quote"]),
            // The offer of a node and its start message are messages of that machine.
            ("plan", &["contract", "diag", "facts", "machine", "mask", "model", "quote"]),
            ("pipeline", &["facts", "mask", "model"]),
            ("machine", &["diagnose", "facts", "model", "pipeline", "status"]),
            ("wire", &["diagnose", "facts", "machine", "model"]),
            ("cluster", &["diag", "facts", "formats", "machine", "mask", "model", "plan", "quote"]),
        ],
        open: &[],
    },
    Crate {
        name: "umiak-sys",
        crates: &[],
        rooms: &[
            ("clock", &[]),
            ("wait", &[]),
            ("watch", &["hooks"]),
            ("terminal", &[]),
            ("limits", &[]),
            ("regular", &[]),
            ("net", &[]),
            ("files", &["host", "regular"]),
            ("holders", &[]),
            ("logger", &["files"]),
            ("observe", &["clock", "descend", "wait"]),
            ("fork", &[]),
            ("host", &["wait"]),
            ("kernel", &["wait"]),
            ("helper", &["fork", "wait"]),
            ("exposed", &["wait"]),
            ("hold", &["wait"]),
            ("descend", &["wait"]),
            ("hooks", &["descend"]),
            ("cgroup", &["descend", "wait"]),
            ("memory", &["cgroup", "descend", "hold", "kernel", "wait"]),
            ("addresses", &["holders"]),
            ("devices", &[]),
            ("ports", &["holders", "wait"]),
            ("protocol", &["descend", "logger", "memory", "mounts", "ports"]),
            ("mounts", &["fork"]),
            ("remote", &["net", "protocol"]),
            ("spawn", &["files", "fork", "memory", "mounts", "protocol"]),
            (
                "guardian",
                &[
                    "addresses",
                    "cgroup",
                    "clock",
                    "descend",
                    "devices",
                    "fork",
                    "hooks",
                    "limits",
                    "logger",
                    "memory",
                    "ports",
                    "protocol",
                    "spawn",
                    "wait",
                ],
            ),
        ],
        open: &[],
    },
    Crate {
        name: "umiak",
        crates: &["umiak-core", "umiak-sys"],
        rooms: &[
            ("clock", &[]),
            ("variables", &[]),
            ("network", &[]),
            ("etcd", &["network"]),
            ("relay", &["network"]),
            ("store", &[]),
            ("secrets", &[]),
            ("log", &["secrets", "variables"]),
            ("host", &["secrets", "variables"]),
            ("screen", &["log", "secrets"]),
            ("history", &[]),
            ("rendezvous", &["clock", "etcd", "network", "store"]),
            // `mpirun` is found as commands of roles are.
            ("engine", &["host"]),
            ("views", &["clock", "history", "screen", "secrets"]),
            ("driver", &["clock", "engine", "history", "host", "network", "screen", "secrets", "store", "views"]),
            (
                "front",
                &[
                    "clock",
                    "driver",
                    "engine",
                    "history",
                    "host",
                    "log",
                    "relay",
                    "rendezvous",
                    "screen",
                    "secrets",
                    "store",
                    "views",
                ],
            ),
            (
                "cli",
                &[
                    "clock", "driver", "engine", "etcd", "front", "history", "host", "log", "network", "screen",
                    "secrets", "store", "views",
                ],
            ),
        ],
        open: &[],
    },
    Crate {
        name: "umiak-testkit",
        crates: &["umiak-core", "umiak-sys"],
        rooms: &[
            ("floor", &[]),
            ("etcd", &["net", "pem"]),
            ("freezer", &[]),
            ("gpus", &[]),
            ("hostile", &[]),
            ("pem", &[]),
            ("programs", &[]),
            ("schema", &[]),
            ("seeds", &[]),
            ("toy", &[]),
            ("net", &["programs"]),
            ("sandbox", &["net", "programs"]),
            ("podman", &["programs", "sandbox"]),
            ("slurm", &["programs", "sandbox"]),
            ("mpi", &["sandbox"]),
            ("kube", &["pem", "programs", "sandbox"]),
            ("components", &["freezer", "kube", "mpi", "net", "podman", "programs", "slurm"]),
            ("terminal", &["sandbox"]),
            ("kill", &["sandbox", "toy"]),
            ("simulate", &["seeds"]),
            ("simulate_roles", &["seeds", "simulate"]),
            ("simulate_round", &["seeds", "simulate"]),
            ("simulate_pipeline", &["seeds"]),
            ("simulate_succession", &["seeds"]),
            ("suite", &["components", "hostile", "kill", "net", "toy"]),
        ],
        open: &[],
    },
    Crate {
        name: "xtask",
        // For the benchmarks: floors, stopping leftovers of a launcher, and several hosts on one machine; for clusters.
        crates: &["umiak", "umiak-core", "umiak-sys", "umiak-testkit"],
        rooms: &[
            ("kube", &[]),
            ("markdown", &[]),
            ("tree", &[]),
            ("pages", &["markdown", "tree"]),
            ("bench", &["markdown"]),
        ],
        open: &[],
    },
];

impl Crate {
    fn root(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(self.name)
    }

    fn below(&self, room: &str) -> Option<&'static [&'static str]> {
        self.rooms.iter().find(|(name, _)| *name == room).map(|(_, below)| *below)
    }

    fn is_open(&self, room: &str) -> bool {
        self.open.contains(&room)
    }
}

#[test]
fn rooms_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for one in CRATES {
        let root = one.root().join("src");
        let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in sources(&root) {
            let relative = file.strip_prefix(&root).unwrap();
            let room = room_of(relative);
            if matches!(room.as_str(), "lib" | "main") || one.is_open(&room) {
                continue;
            }
            let Some(allowed) = one.below(&room) else {
                wrong.push(format!("{}: `{room}` is new: add it to the table with the rooms it may use", one.name));
                continue;
            };
            for (number, used) in uses(&fs::read_to_string(&file).unwrap(), depth(relative)) {
                if used == room || one.is_open(&used) {
                    continue;
                }
                if !allowed.contains(&used.as_str()) {
                    wrong.push(format!("{}/src/{}:{number}: `{room}` uses `{used}`", one.name, relative.display()));
                }
                seen.entry(room.clone()).or_default().insert(used);
            }
        }
        for (room, allowed) in one.rooms {
            for used in *allowed {
                let is_used = seen.get(*room).is_some_and(|seen| seen.contains(*used));
                if !is_used {
                    wrong.push(format!("{}: `{room}` no longer uses `{used}`: remove it from the table", one.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "the table of rooms is not up to date:\n{}", wrong.join("\n"));
}

#[test]
fn the_tables_have_no_cycle() {
    for one in CRATES {
        for (room, below) in one.rooms {
            let mut reached: Vec<&str> = below.to_vec();
            let mut next = 0;
            while next < reached.len() {
                assert_ne!(reached[next], *room, "{}: `{room}` reaches itself", one.name);
                let further = one.below(reached[next]).unwrap_or_default();
                reached.extend(further.iter().filter(|name| !reached.contains(name)).collect::<Vec<_>>());
                next += 1;
            }
        }
    }
}

#[test]
fn rooms_of_the_tables_exist() {
    for one in CRATES {
        for room in one.rooms.iter().map(|(room, _)| room).chain(one.open) {
            let root = one.root().join("src");
            let exists = root.join(format!("{room}.rs")).exists() || root.join(room).is_dir();
            assert!(exists, "{} has no `{room}`", one.name);
        }
    }
}

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    for one in CRATES {
        let manifest = fs::read_to_string(one.root().join("Cargo.toml")).unwrap();
        assert_eq!(dependencies(&manifest), *one.crates, "{}", one.name);
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

/// The rooms that a source names as `crate::room`, or with enough `super::` to leave its own, with the line. Comments
/// and tests do not count: a link in a comment is no dependency, and a test may use anything.
fn uses(text: &str, depth: usize) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test = |number: usize| number > 0 && lines[number - 1].trim() == "#[cfg(test)]";
    let tests = (0..lines.len()).find(|number| is_test(*number) && lines[*number].starts_with("mod tests {"));
    let out = "super::".repeat(depth);
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate().take(tests.unwrap_or(lines.len())) {
        if line.trim_start().starts_with("//") || is_test(number) {
            continue;
        }
        for rest in line.split("crate::").skip(1).chain(line.split(&out).skip(1)) {
            assert!(!rest.starts_with('{'), "`{line}`: write one `use` for each room, so that this test sees each");
            found.push((number + 1, rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()));
        }
    }
    found
}

#[test]
fn arrows_are_seen() {
    let text = "use crate::a::B;\n// crate::no\nlet x = super::super::c::d(crate::e::f());\n#[cfg(test)]\nuse crate::no;\n\
                use super::no;\n#[cfg(test)]\nmod tests {\n    use crate::no;\n";
    let found: Vec<(usize, String)> = uses(text, 2);
    let named = |name: &str, line| (line, name.to_owned());
    assert_eq!(found, [named("a", 1), named("e", 3), named("c", 3)]);
}

/// The top-level module of a source.
fn room_of(relative: &Path) -> String {
    let first = relative.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// How many `super` lead from a source to the crate root.
fn depth(relative: &Path) -> usize {
    relative.components().count() - usize::from(relative.ends_with("mod.rs"))
}

/// All sources below `directory` except test files.
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
