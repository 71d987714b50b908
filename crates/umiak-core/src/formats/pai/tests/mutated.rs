//! Every key of the protocol with every mistake that can be made with it.

use super::super::keys;
use crate::diag::{Code, Diagnostic, Source};
use crate::formats::document::keys::Table;
use crate::formats::document::tree::{Scalar, ScalarKind};
use crate::formats::mutated::Shape::{Choice, Lines, Map, Maps, Name, Not, Number, Text, Unused, Version, Word, Words};
use crate::formats::mutated::{Format, Shape, Tree, Trial};
use crate::formats::settings::Settings;
use crate::formats::{Given, check};

const SWITCH: Shape = Not(&["word", "1", "'true'", "[true]", "{a: b}", "yes", "''"]);

const RULES: &[(&str, Shape, bool)] = &[
    ("protocolVersion", Version, true),
    ("name", Name, true),
    ("type", Choice, true),
    ("version", Text, false),
    ("contributor", Text, false),
    ("description", Text, false),
    ("prerequisites", Maps, false),
    ("parameters", Map, false),
    ("secrets", Map, false),
    ("jobRetryCount", Number(0), false),
    ("taskRoles", Map, true),
    ("deployments", Maps, false),
    ("defaults", Map, false),
    ("extras", Map, false),
    ("prerequisites/*/protocolVersion", Version, false),
    ("prerequisites/*/name", Name, true),
    ("prerequisites/*/type", Choice, true),
    ("prerequisites/*/version", Text, false),
    ("prerequisites/*/contributor", Text, false),
    ("prerequisites/*/description", Text, false),
    ("prerequisites/image/uri", Word, true),
    ("prerequisites/image/auth", Map, false),
    ("prerequisites/image/auth/username", Text, false),
    ("prerequisites/image/auth/password", Text, false),
    ("prerequisites/image/auth/registryuri", Text, false),
    ("prerequisites/cifar/uri", Words, false),
    ("prerequisites/results/uri", Text, false),
    ("prerequisites/code/uri", Text, false),
    ("prerequisites/cifar/require", Words, false),
    ("prerequisites/code/plugin", Word, false),
    ("prerequisites/code/failurePolicy", Choice, false),
    ("prerequisites/code/callbacks", Maps, false),
    ("prerequisites/code/callbacks/*/event", Choice, true),
    ("prerequisites/code/callbacks/*/commands", Lines, true),
    ("taskRoles/*", Map, false),
    ("taskRoles/*/protocolVersion", Version, false),
    ("taskRoles/*/instances", Number(1), false),
    ("taskRoles/*/completion", Map, false),
    ("taskRoles/*/completion/minFailedInstances", Number(-1), false),
    ("taskRoles/*/completion/minSucceededInstances", Number(-1), false),
    ("taskRoles/*/taskRetryCount", Number(-2), false),
    ("taskRoles/*/prerequisites", Words, false),
    ("taskRoles/*/dockerImage", Word, true),
    ("taskRoles/*/data", Word, false),
    ("taskRoles/*/output", Word, false),
    ("taskRoles/*/script", Word, false),
    ("taskRoles/*/extraContainerOptions", Map, false),
    ("taskRoles/*/extraContainerOptions/shmMB", Number(0), false),
    ("taskRoles/*/extraContainerOptions/infiniband", SWITCH, false),
    ("taskRoles/*/resourcePerInstance", Map, true),
    ("taskRoles/*/resourcePerInstance/cpu", Number(0), true),
    ("taskRoles/*/resourcePerInstance/memoryMB", Number(0), true),
    ("taskRoles/*/resourcePerInstance/gpu", Number(0), true),
    ("taskRoles/*/resourcePerInstance/ports", Map, false),
    ("taskRoles/*/resourcePerInstance/ports/*", Number(1), false),
    ("taskRoles/*/commands", Lines, true),
    ("deployments/*/name", Name, true),
    ("deployments/*/taskRoles", Map, true),
    ("deployments/*/taskRoles/*", Map, false),
    ("deployments/*/taskRoles/*/preCommands", Lines, false),
    ("deployments/*/taskRoles/*/postCommands", Lines, false),
    ("defaults/virtualCluster", Word, false),
    ("defaults/deployment", Word, false),
    ("extras/gangAllocation", SWITCH, false),
    ("extras/com.microsoft.pai.runtimeplugin", Maps, false),
    ("extras/com.microsoft.pai.runtimeplugin/*/plugin", Word, true),
    ("extras/com.microsoft.pai.runtimeplugin/*/taskroles", Words, false),
    ("extras/com.microsoft.pai.runtimeplugin/*/failurePolicy", Choice, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters", Map, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters/preCommands", Lines, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters/postCommands", Lines, false),
    ("extras/com.microsoft.pai.runtimeplugin/ssh/parameters", Unused, false),
    ("extras/storages", Unused, false),
    ("extras/hivedScheduler", Unused, false),
    ("extras/hivedScheduler/jobPriorityClass", Choice, false),
    ("extras/jobStatusChangeNotification", Unused, false),
    ("extras/submitFrom", Unused, false),
];

/// Mappings with fixed keys, by their place, and whether they may have others.
static TABLES: [(&str, &Table, bool); 14] = [
    ("", &keys::DOCUMENT, false),
    ("prerequisites/*", &keys::PREREQUISITE, true),
    ("prerequisites/image", &keys::IMAGE, false),
    ("prerequisites/image/auth", &keys::AUTH, false),
    ("prerequisites/code/callbacks/*", &keys::CALLBACK, false),
    ("taskRoles/*", &keys::ROLE, false),
    ("taskRoles/*/completion", &keys::COMPLETION, false),
    ("taskRoles/*/resourcePerInstance", &keys::RESOURCES, false),
    ("taskRoles/*/extraContainerOptions", &keys::CONTAINER, true),
    ("deployments/*", &keys::DEPLOYMENT, false),
    ("deployments/*/taskRoles/*", &keys::DEPLOYED_ROLE, false),
    ("defaults", &keys::DEFAULTS, true),
    ("extras", &keys::EXTRAS, true),
    ("extras/com.microsoft.pai.runtimeplugin/*", &keys::PLUGIN, false),
];

fn format() -> Format {
    let own = [
        ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters", vec!["preCommands", "postCommands"], true),
        ("prerequisites/code", vec!["callbacks", "failurePolicy"], true),
    ];
    let tables = TABLES.iter().map(|(place, table, is_open)| (*place, table.names().collect(), *is_open));
    Format {
        full: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/openpai/full.yaml")),
        rules: RULES,
        tables: tables.chain(own).collect(),
        item_names: &["name", "plugin"],
        read: |source: &Source| check(source, &Given::new(&[], &Settings::default())).diagnostics,
        // What refers to it is refused, and a mapping whose only entry it was.
        follows: |error: &Diagnostic| {
            matches!(error.code, Code::F0017 | Code::F0030) || error.message == "`taskRoles` of a deployment is empty"
        },
        is_told: |path| path == "extras",
    }
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
    // An image has a table of its own.
    let is_it = |path: &str, pattern: &str| path.contains("/image/") == pattern.contains("/image/");
    format().examples(&TABLES, is_it, |error| matches!(error.code, Code::F0017 | Code::F0030));
}

/// Templates that cannot be filled, with the word that must be named.
const TEMPLATES: &[(&str, &str)] = &[
    ("<% $parameters.mistake %>", "`$parameters.mistake`"),
    ("<% $secrets.mistake %>", "`$secrets.mistake`"),
    ("<%$parameters.files[9]%>", "`$parameters.files[9]`"),
    ("<% $parameters.deep %>", "`$parameters.deep`"),
    ("<% $parameters.deep.key.more %>", "`$parameters.deep.key.more`"),
    ("<% $parameters %>", "`$parameters`"),
    ("<% $parameters. %>", "`$parameters.`"),
    ("<% mistake %>", "`mistake`"),
    ("<%%>", "``"),
    ("<% $mistake.key %>", "`$mistake.key`"),
    ("<% $data. %>", "`$data.`"),
    ("<% $parameters.open", "unterminated template"),
    ("<% $parameters.open }}", "unterminated template"),
    ("{{ x }} <% {{ x }} %>", "`{{ x }}`"),
];

#[test]
fn a_wrong_template() {
    let format = format();
    let mut trial = Trial::new(&format);
    let tree = format.tree();
    let filled = ["commands", "preCommands", "postCommands"];
    for place in tree.places() {
        let path = format.path(&tree, &place);
        let words: Vec<&str> = path.split('/').collect();
        let is_line = matches!(words[..], [.., list, "*"] if filled.contains(&list)) || path.contains("/auth/");
        if !is_line || path.contains("deployments/test") {
            continue;
        }
        for (template, word) in TEMPLATES {
            let mut tree = tree.clone();
            let entry = tree.at(&place);
            entry.marked = true;
            let Tree::Leaf(Scalar { text, kind }) = &mut entry.value else { panic!("{path} is a text") };
            *kind = ScalarKind::Text;
            let lines = text.lines().count();
            *text = if lines > 1 { format!("{text}more {template} x\n") } else { format!("{text} {template}") };
            trial.refused_at(&format!("{path}: {template}"), &tree, word, Some(template));
        }
    }
    trial.finish("wrong template");
}
