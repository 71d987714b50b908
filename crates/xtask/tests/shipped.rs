//! Properties of releases: no test hooks, `unsafe` in one crate only, and a correct `rust-version`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The only file that may contain hooks: a feature removes them.
const HOOKS: &str = "umiak-sys/src/hooks.rs";

#[test]
fn the_binary_is_built_without_hooks() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "umiak", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{lib} {f}"])
        .current_dir(crates())
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    let sys: Vec<&str> = tree.lines().filter(|line| line.starts_with("umiak_sys ")).map(str::trim_end).collect();
    assert!(!sys.is_empty() && sys.iter().all(|line| *line == "umiak_sys"), "features of `umiak-sys`: {sys:?}");
}

#[test]
fn hooks_lie_in_one_file() {
    let shipped = ["umiak-core", "umiak-sys", "umiak"].map(|name| crates().join(name).join("src"));
    let found = naming("UMIAK_TEST_", &shipped);
    assert_eq!(found, [HOOKS]);
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let found = naming("(unsafe_code", &[crates()]);
    assert_eq!(found, ["umiak-sys/src/lib.rs", "umiak-testkit/src/floor.rs", "umiak-testkit/src/toy/process.rs"]);
}

#[test]
fn no_dependency_needs_a_newer_compiler() {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(crates())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let version = |package: &Value| -> Vec<u32> {
        let text = package["rust_version"].as_str().unwrap_or("0");
        text.split('.').map(|number| number.parse().unwrap()).chain([0, 0]).take(3).collect()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let declared = version(packages.iter().find(|package| package["name"] == "umiak").unwrap());
    let newer: Vec<&Value> =
        packages.iter().filter(|package| version(package) > declared).map(|package| &package["id"]).collect();
    assert!(newer.is_empty(), "`rust-version` is {declared:?}, but these need more: {newer:?}");
}

/// The sources below these directories that contain a text outside their tests, relative to `crates/`.
fn naming(text: &str, directories: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(naming(text, &[path]));
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
                && !path.ends_with(file!().trim_start_matches("crates/"))
                && fs::read_to_string(&path).unwrap().contains(text)
            {
                found.push(path.strip_prefix(crates()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}
