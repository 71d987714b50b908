//! Every key of a pipeline with every mistake that can be made with it.

use std::path::Path;

use super::super::keys;
use crate::diag::{Code, Diagnostic, Source};
use crate::formats::document::keys::Table;
use crate::formats::mutated::Shape::{Choice, List, Map, Measure, Name, Not, Switch, Text, Unused, Word};
use crate::formats::mutated::{Format, Shape};
use crate::formats::settings::Settings;
use crate::formats::{Given, check};

/// Any whole number.
const WHOLE: Shape = Not(&["word", "1.5", "[1]", "{a: 1}", "true", "'1'", "''", "1e3"]);
/// A whole number, or one with a fraction, which is cut.
const COUNT: Shape = Not(&["word", "0", "-1", "99999999", "[1]", "{a: 1}", "true", "'1'", "''"]);
const PORT: Shape = Not(&["word", "-1", "65535", "[1]", "{a: 1}", "true", "'1'", "''"]);
/// Seconds, also in quotes.
const SECONDS: Shape = Not(&["word", "1.5", "-2", "[1]", "{a: 1}", "true", "''", "'1.5'"]);
/// Names in one text.
const NAMES: Shape = Not(&["[a]", "{a: b}"]);
const VALUE: Shape = Not(&["true", "{a: 1}", "no", "[true]", "['{{x}}']"]);
const VARIABLE: Shape = Not(&["true", "{a: 1}", "[a]", "off"]);
const LOOP: Shape = Not(&["word", "5", "{a: 1}", "[{a: 1}]", "'a {{x}}'", "true"]);
const COMPONENT: Shape = Not(&["word", "1", "[a]", "''", "true"]);
const OUTPUT: Shape = Not(&["word", "{a: b}", "[[a]]", "[a b]", "['']", "5"]);
const RETRIES: Shape = Not(&["word", "-1", "1.5", "[1]", "true", "''"]);
const MEMBERS: Shape = Not(&["word", "{a: b}", "5", "''"]);
const FRAMEWORK: Shape = Not(&["[a]", "{a: b}"]);
const TEXTS: Shape = Not(&["word", "[a]", "5", "true", "{a: [b]}"]);
const EXPRESSION: Shape = Not(&["[a]", "{a: b}", "'1 <'", "' '"]);

const RULES: &[(&str, Shape, bool)] = &[
    ("name", Name, true),
    ("docker_env", Text, false),
    ("entry_points", Map, false),
    ("components", Map, false),
    ("parallelism", WHOLE, false),
    ("disabled", NAMES, false),
    ("cache", Map, false),
    ("cache/enable", Switch, false),
    ("cache/max_expired_time", SECONDS, false),
    ("cache/fs_scope", List, false),
    ("cache/fs_scope/*/name", Word, true),
    ("cache/fs_scope/*/path", Text, false),
    ("failure_options", Map, false),
    ("failure_options/strategy", Choice, false),
    ("post_process", Map, false),
    ("post_process/*", COMPONENT, false),
    ("post_process/*/command", Text, false),
    ("fs_options", Map, false),
    ("fs_options/main_fs", Map, false),
    ("fs_options/main_fs/name", Word, true),
    ("fs_options/main_fs/mount_path", Text, false),
    ("fs_options/main_fs/sub_path", Text, false),
    ("fs_options/main_fs/read_only", Switch, false),
    ("fs_options/extra_fs", List, false),
    ("fs_options/extra_fs/*/name", Word, true),
    ("fs_options/extra_fs/*/mount_path", Text, false),
    ("fs_options/extra_fs/*/sub_path", Text, false),
    ("fs_options/extra_fs/*/read_only", Switch, false),
    ("components/*", COMPONENT, false),
    ("components/*/command", Text, false),
    ("components/*/parameters", Map, false),
    ("components/*/artifacts", Map, false),
    ("entry_points/*", COMPONENT, false),
    ("entry_points/*/type", Not(&["word", "[a]", "{a: b}", "5"]), false),
    ("entry_points/*/command", Text, false),
    ("entry_points/*/deps", NAMES, false),
    ("entry_points/*/parameters", Map, false),
    ("entry_points/*/parameters/limit", Not(&["true", "{a: 1, type: int}", "{type: int, default: a}"]), false),
    ("entry_points/*/parameters/limit/type", Choice, true),
    ("entry_points/*/parameters/limit/default", Unused, false),
    ("entry_points/*/parameters/*", VALUE, false),
    ("entry_points/*/env", Map, false),
    ("entry_points/*/env/*", VARIABLE, false),
    ("entry_points/*/docker_env", Text, false),
    ("entry_points/*/artifacts", Map, false),
    ("entry_points/process/artifacts/output", Not(&["word", "[a]", "5"]), false),
    ("entry_points/*/artifacts/input", Map, false),
    ("entry_points/*/artifacts/output", OUTPUT, false),
    ("entry_points/*/cache", Map, false),
    ("entry_points/*/cache/enable", Switch, false),
    ("entry_points/*/cache/max_expired_time", SECONDS, false),
    ("entry_points/*/cache/fs_scope", List, false),
    ("entry_points/*/cache/fs_scope/*/name", Word, true),
    ("entry_points/*/cache/fs_scope/*/path", Text, false),
    ("entry_points/*/extra_fs", List, false),
    ("entry_points/*/extra_fs/*/name", Word, true),
    ("entry_points/*/extra_fs/*/mount_path", Text, false),
    ("entry_points/*/extra_fs/*/sub_path", Text, false),
    ("entry_points/*/extra_fs/*/read_only", Switch, false),
    ("entry_points/*/condition", EXPRESSION, false),
    ("entry_points/*/loop_argument", LOOP, false),
    ("entry_points/*/entry_points", Map, false),
    ("entry_points/*/entry_points/*", COMPONENT, false),
    ("entry_points/*/entry_points/*/command", Text, false),
    ("entry_points/*/entry_points/*/deps", NAMES, false),
    ("entry_points/*/reference", Map, false),
    ("entry_points/*/reference/component", Word, true),
    ("entry_points/*/retries", RETRIES, false),
    ("entry_points/*/retries/max", Shape::Number(0), false),
    ("entry_points/*/retries/backoff", Measure, false),
    ("entry_points/*/timeout", Measure, false),
    ("entry_points/*/distributed_job", Map, false),
    ("entry_points/*/distributed_job/framework", FRAMEWORK, true),
    ("entry_points/*/distributed_job/members", MEMBERS, false),
    ("entry_points/*/distributed_job/members/*/role", Word, true),
    ("entry_points/*/distributed_job/members/*/replicas", COUNT, true),
    ("entry_points/*/distributed_job/members/*/image", Text, false),
    ("entry_points/*/distributed_job/members/*/port", PORT, false),
    ("entry_points/*/distributed_job/members/*/command", Text, false),
    ("entry_points/*/distributed_job/members/*/flavour", Map, false),
    ("entry_points/*/distributed_job/members/*/flavour/name", Text, false),
    ("entry_points/*/distributed_job/members/*/flavour/cpu", Measure, false),
    ("entry_points/*/distributed_job/members/*/flavour/mem", Measure, false),
    ("entry_points/*/distributed_job/members/*/flavour/scalar_resources", TEXTS, false),
    ("entry_points/*/distributed_job/members/*/env", Map, false),
    ("entry_points/*/distributed_job/members/*/env/*", VARIABLE, false),
    ("entry_points/*/distributed_job/members/*/queue", Text, false),
    ("entry_points/*/distributed_job/members/*/priority", Text, false),
    ("entry_points/*/distributed_job/members/*/fs", Map, false),
    ("entry_points/*/distributed_job/members/*/fs/name", Word, false),
    ("entry_points/*/distributed_job/members/*/fs/host_path", Text, false),
    ("entry_points/*/distributed_job/members/*/fs/mount_path", Text, false),
    ("entry_points/*/distributed_job/members/*/fs/sub_path", Text, false),
    ("entry_points/*/distributed_job/members/*/fs/read_only", Switch, false),
    ("entry_points/*/distributed_job/members/*/extra_fs", List, false),
    ("entry_points/*/distributed_job/members/*/labels", TEXTS, false),
    ("entry_points/*/distributed_job/members/*/annotations", TEXTS, false),
];

fn format() -> Format {
    Format {
        full: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/paddleflow/full.yaml")),
        rules: RULES,
        tables: TABLES.iter().map(|(place, table, is_open)| (*place, table.names().collect(), *is_open)).collect(),
        item_names: &["role"],
        read,
        follows: |error| {
            matches!(
                error.code,
                Code::F0003
                    | Code::F0012
                    | Code::F0013
                    | Code::F0030
                    | Code::F0110
                    | Code::F0111
                    | Code::F0112
                    | Code::F0114
                    | Code::F0116
                    | Code::F0118
            )
        },
        is_told: |path| path.contains("distributed_job"),
    }
}

static TABLES: [(&str, &Table, bool); 16] = [
    ("", &keys::DOCUMENT, false),
    ("cache", &keys::CACHING, false),
    ("cache/fs_scope/*", &keys::SCOPE, false),
    ("failure_options", &keys::FAILURE, false),
    ("fs_options", &keys::FILES, false),
    ("fs_options/main_fs", &keys::MOUNT, false),
    ("fs_options/extra_fs/*", &keys::MOUNT, false),
    ("entry_points/process", &keys::DAG, false),
    ("entry_points/process/artifacts", &keys::DAG_ARTIFACTS, false),
    ("entry_points/preprocess/parameters/limit", &keys::PARAMETER, false),
    ("entry_points/show/reference", &keys::REFERENCE, false),
    ("entry_points/preprocess/retries", &keys::RETRIES, false),
    ("entry_points/train/distributed_job", &keys::DISTRIBUTED, true),
    ("entry_points/train/distributed_job/members/pserver", &keys::MEMBER, true),
    ("entry_points/train/distributed_job/members/pserver/flavour", &keys::FLAVOUR, true),
    ("entry_points/train/distributed_job/members/pserver/fs", &keys::MEMBER_FS, true),
];

fn read(source: &Source) -> Vec<Diagnostic> {
    let settings = Settings::default();
    check(source, &Given { dir: Path::new("/here"), ..Given::new(&[], &settings) }).diagnostics
}

#[test]
fn the_full_document_has_every_key() {
    format().has_every_key();
}

#[test]
fn a_wrong_type() {
    format().wrong_types();
}

#[test]
fn a_missing_key() {
    format().missing_keys();
}

#[test]
fn an_extra_key() {
    format().extra_keys();
}

#[test]
fn a_duplicate_key() {
    format().duplicate_keys();
}

/// The examples of the reference page. Names in them may be unknown here.
#[test]
fn every_example() {
    let format = format();
    format.examples(
        &TABLES,
        |_, _| true,
        |error| (format.follows)(error) || matches!(error.code, Code::F0015 | Code::F0017),
    );
}
