//! A job as a native document, as a person would write it: defaults are left out, short mappings are on one line, and
//! scripts are blocks.
//!
//! Texts of the job may contain [`reference()`]s to parameters. They become `{{ name }}`; all other braces stay literal.

use std::fmt::Write as _;
use std::time::Duration;

use super::keys::{CONTRACTS, PARTS, UNLIMITED};
use super::lower::{MAX_PLATFORM, START_TIMEOUT};
use crate::formats::units;
use crate::model::{
    Completion, Contract, Exits, Job, MinSucceeded, Mount, Policy, PortNeed, Resources, Restart, Role, RoleRestart,
    Scope, StartAfter, Success, When,
};

/// Around the name of a parameter, in texts of a job. Documents do not contain such characters: they have no meaning.
const OPEN: char = '\u{f8f0}';
const CLOSE: char = '\u{f8f1}';

/// Longer mappings have a line for each key.
const MAX_FLOW: usize = 80;

/// A document to be written.
pub(crate) struct Draft {
    pub(crate) job: Job,
    pub(crate) params: Vec<(String, String)>,
    /// The names of secrets, whose values must be given.
    pub(crate) secrets: Vec<String>,
    pub(crate) comments: Comments,
}

/// Comments, by the part of the document above which they are written.
#[derive(Default)]
pub(crate) struct Comments {
    pub(crate) document: Vec<String>,
    pub(crate) policy: Vec<String>,
    /// By the position of the role.
    pub(crate) roles: Vec<Vec<String>>,
}

/// The parameter of this name, in a text of a job.
pub(crate) fn reference(name: &str) -> String {
    format!("{OPEN}{name}{CLOSE}")
}

/// True if a text contains a reference.
pub(crate) fn has_reference(text: &str) -> bool {
    text.contains([OPEN, CLOSE])
}

/// The text with its parts between references changed.
pub(crate) fn outside_references(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    let part = |part: &str| match part.split_once(OPEN) {
        Some((before, reference)) => format!("{}{OPEN}{reference}", change(before)),
        None => change(part),
    };
    text.split_inclusive(CLOSE).map(part).collect()
}

/// The text of the document.
pub(crate) fn write(draft: &Draft) -> String {
    let Draft { job, params, secrets, comments } = draft;
    let mut text = String::new();
    comment(&mut text, 0, &comments.document);
    line(&mut text, 0, "umiak", "v1");
    line(&mut text, 0, "name", &scalar(job.name.as_str()));
    if !job.labels.is_empty() {
        mapping(&mut text, 0, "labels", job.labels.iter().map(|(name, value)| (scalar(name), value.as_str())));
    }
    if !params.is_empty() {
        // Parameters are not filled: their braces are literal.
        text += "params:\n";
        for (name, value) in params {
            line(&mut text, 1, &scalar(name), &block(value, 2));
        }
    }
    if !secrets.is_empty() {
        comment(&mut text, 0, &["Values of secrets are not copied: give them with `-p NAME=VALUE`.".to_owned()]);
        text += "secrets:\n";
        for name in secrets {
            line(&mut text, 1, &scalar(name), "");
        }
    }
    if !job.contracts.is_empty() {
        line(&mut text, 0, "contracts", &contracts(&job.contracts));
    }
    if job.agent_store {
        line(&mut text, 0, "store", "agent");
    }
    comment(&mut text, 0, &comments.policy);
    let policy = policy(&job.policy);
    let short = flow(&policy);
    if short.len() > MAX_FLOW {
        text += "policy:\n";
        for (name, value) in &policy {
            line(&mut text, 1, name, value);
        }
    } else if !policy.is_empty() {
        line(&mut text, 0, "policy", &short);
    }
    text += "roles:\n";
    for (index, of_role) in job.roles.iter().enumerate() {
        comment(&mut text, 1, comments.roles.get(index).map(Vec::as_slice).unwrap_or_default());
        let _ = writeln!(text, "  {}:", scalar(of_role.name.as_str()));
        role(&mut text, job, index, of_role);
    }
    text
}

type Pair = (&'static str, String);

fn policy(policy: &Policy) -> Vec<Pair> {
    let default = Policy::default();
    let mut pairs = Vec::new();
    let own = restart(&policy.restart);
    // The short form, with the other keys beside it.
    if own.iter().any(|(name, _)| name.contains("platform")) {
        pairs.push(("restarts", flow(&own)));
    } else {
        pairs.extend(own.into_iter().map(|(name, value)| (if name == "max" { "restarts" } else { name }, value)));
    }
    let mut push = |name, is_default: bool, value: String| pairs.extend((!is_default).then_some((name, value)));
    push("timeout", policy.timeout.is_none(), limit(policy.timeout));
    push("hang", policy.hang.is_none(), limit(policy.hang));
    push("grace", policy.stop.grace == default.stop.grace, units::written(policy.stop.grace));
    let success = match policy.success {
        Success::All => "all",
        Success::First => "first",
        Success::End => "end",
    };
    push("success", policy.success == default.success, success.to_owned());
    push("exits", policy.exits.is_none(), policy.exits.map_or("", Exits::word).to_owned());
    push("linger", policy.linger.is_none(), limit(policy.linger));
    push("gang", policy.gang == default.gang, policy.gang.to_string());
    push("settle", policy.settle == default.settle, units::written(policy.settle));
    pairs
}

/// What differs from the defaults of `restarts`.
fn restart(rule: &Restart) -> Vec<Pair> {
    let count = |count: u32| if count == Restart::UNLIMITED { UNLIMITED.to_owned() } else { count.to_string() };
    let default = Restart::default();
    let mut pairs = Vec::new();
    let mut push = |name, is_default: bool, value: String| pairs.extend((!is_default).then_some((name, value)));
    push("max", rule.max == 0, count(rule.max));
    push("max_platform", rule.max_platform == MAX_PLATFORM, count(rule.max_platform));
    push("backoff", rule.backoff == default.backoff, units::written(rule.backoff));
    push("platform_backoff", rule.platform_backoff.is_none(), limit(rule.platform_backoff));
    let longest = default.max_backoff.max(rule.backoff).max(rule.platform_backoff.unwrap_or_default());
    push("max_backoff", rule.max_backoff == longest, units::written(rule.max_backoff));
    push("window", rule.window.is_none(), limit(rule.window));
    pairs
}

fn role(text: &mut String, job: &Job, index: usize, role: &Role) {
    let work = &role.work;
    let mut put = |name, is_default: bool, value: String| {
        if !is_default {
            line(text, 2, name, &value);
        }
    };
    put("replicas", role.replicas == 1, role.replicas.to_string());
    let order: Vec<String> = role.start_after.iter().map(|after| start_after(job, *after)).collect();
    put("start_after", order.is_empty(), one_or_list(&order));
    for (name, value) in [("image", &work.image), ("queue", &work.queue), ("priority", &work.priority)] {
        put(name, value.is_none(), templated(value.as_deref().unwrap_or_default()));
    }
    let resources = resources(&work.resources);
    put("resources", resources.is_empty(), flow(&resources));
    put("ports", work.ports.is_empty(), ports(&work.ports));
    if let Some(dir) = &work.dir {
        put("dir", false, templated(&dir.to_string_lossy()));
    }
    put("own_dir", !work.own_dir, "true".to_owned());
    put("mounts", work.mounts.is_empty(), list(&work.mounts.iter().map(mount).collect::<Vec<_>>()));
    put("completes", role.completion.decides, "false".to_owned());
    let completion = completion(&role.completion);
    put("completion", completion.is_empty(), flow(&completion));
    put("restarts", role.restart == RoleRestart::default(), role_restart(&role.restart));
    put("timeout", role.timeouts.run.is_none(), limit(role.timeouts.run));
    let is_awaited = |after: &StartAfter| usize::from(after.role) == index && after.when == When::Ready;
    let start = job.roles.iter().flat_map(|role| &role.start_after).any(is_awaited).then_some(START_TIMEOUT);
    put("start_timeout", role.timeouts.start == start, limit(role.timeouts.start));
    put("grace", role.grace.is_none(), limit(role.grace));
    put("contracts", work.contracts.is_none(), contracts(work.contracts.as_deref().unwrap_or_default()));
    let part = PARTS.iter().find(|(_, part)| Some(*part) == role.part);
    put("part", part.is_none(), part.map_or("", |(word, _)| word).to_owned());
    if !work.env.is_empty() {
        mapping(text, 2, "env", work.env.iter().map(|(name, value)| (scalar(name), value.as_str())));
    }
    command(text, &work.command);
}

fn mount(mount: &Mount) -> String {
    let [dir, path] = [&mount.dir, &mount.path].map(|path| templated(&path.to_string_lossy()));
    let read_only = mount.read_only.then(|| ("read_only", "true".to_owned()));
    flow(&[("dir", dir), ("path", path)].into_iter().chain(read_only).collect::<Vec<_>>())
}

fn command(text: &mut String, words: &[String]) {
    match words {
        [shell, flag, script] if shell == "/bin/sh" && flag == "-c" => value(text, 2, "command", script),
        words if words.iter().any(|word| word.contains('\n')) => {
            text.push_str("    command:\n");
            for word in words {
                let _ = writeln!(text, "      - {}", leaf(word, 4));
            }
        }
        words => line(text, 2, "command", &list(&words.iter().map(|word| templated(word)).collect::<Vec<_>>())),
    }
}

fn start_after(job: &Job, after: StartAfter) -> String {
    let other = &job.roles[usize::from(after.role)];
    let usual = if other.work.ports.is_empty() { When::Started } else { When::Ready };
    let name = scalar(other.name.as_str());
    let when = match after.when {
        when if when == usual => return name,
        When::Started => "started",
        When::Ready => "ready",
        When::Succeeded => "succeeded",
    };
    flow(&[("role", name), ("when", when.to_owned())])
}

fn resources(resources: &Resources) -> Vec<Pair> {
    let mut pairs = Vec::new();
    pairs.extend(resources.cpu_millis.map(|millis| ("cpu", units::cpu_written(millis))));
    pairs.extend(resources.memory_bytes.map(|bytes| ("memory", units::memory_written(bytes))));
    pairs.extend((resources.gpus > 0).then(|| ("gpu", resources.gpus.to_string())));
    pairs.extend(resources.shm_bytes.map(|bytes| ("shm", units::memory_written(bytes))));
    pairs.extend(resources.storage_bytes.map(|bytes| ("storage", units::memory_written(bytes))));
    pairs
}

fn ports(ports: &[PortNeed]) -> String {
    let one = |port: &PortNeed| {
        let count = port.fixed.map_or_else(|| port.count.to_string(), |fixed| format!("{{port: {fixed}}}"));
        format!("{}: {count}", scalar(&port.name))
    };
    format!("{{{}}}", ports.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn completion(completion: &Completion) -> Vec<Pair> {
    let default = Completion::default();
    let mut pairs = Vec::new();
    if completion.min_failed != default.min_failed {
        pairs.push(("min_failed", completion.min_failed.to_string()));
    }
    match completion.min_succeeded {
        MinSucceeded::All => {}
        MinSucceeded::Count(count) => pairs.push(("min_succeeded", count.to_string())),
        MinSucceeded::Never => pairs.push(("min_succeeded", "never".to_owned())),
    }
    pairs
}

fn role_restart(restarts: &RoleRestart) -> String {
    let mut pairs = restart(&restarts.rule);
    if restarts.scope == Scope::Role {
        pairs.push(("scope", "role".to_owned()));
    }
    match pairs.as_slice() {
        [] => "0".to_owned(),
        [("max", max)] => max.clone(),
        pairs => flow(pairs),
    }
}

fn contracts(contracts: &[Contract]) -> String {
    let name = |contract: &Contract| CONTRACTS.iter().find(|(_, known)| known == contract).map_or("", |(name, _)| name);
    match contracts {
        [one] => name(one).to_owned(),
        all => list(&all.iter().map(|contract| name(contract).to_owned()).collect::<Vec<_>>()),
    }
}

fn limit(limit: Option<Duration>) -> String {
    limit.map(units::written).unwrap_or_default()
}

fn one_or_list(items: &[String]) -> String {
    if let [one] = items { one.clone() } else { list(items) }
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.join(", "))
}

fn flow(pairs: &[Pair]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

fn comment(text: &mut String, depth: usize, lines: &[String]) {
    for line in lines.iter().flat_map(|comment| comment.lines()) {
        let line: String = line.chars().filter(|c| is_printable(*c)).collect();
        let _ = writeln!(text, "{:1$}{2}", "", 2 * depth, format!("# {line}").trim_end());
    }
}

fn line(text: &mut String, depth: usize, name: &str, value: &str) {
    let space = if value.is_empty() { "" } else { " " };
    let _ = writeln!(text, "{:1$}{name}:{space}{value}", "", 2 * depth);
}

fn mapping<'a>(text: &mut String, depth: usize, name: &str, entries: impl Iterator<Item = (String, &'a str)>) {
    line(text, depth, name, "");
    entries.for_each(|(name, of_name)| value(text, depth + 1, &name, of_name));
}

/// A text of any length.
fn value(text: &mut String, depth: usize, name: &str, value: &str) {
    line(text, depth, name, &leaf(value, depth + 1));
}

/// A text at the end of a line: a block below it, if it has several lines.
fn leaf(text: &str, depth: usize) -> String {
    block(&filled(text), depth)
}

fn block(text: &str, depth: usize) -> String {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let is_block = text.contains('\n')
        && !body.is_empty()
        && !body.ends_with('\n')
        && !body.starts_with([' ', '\n', '\t'])
        && body.chars().all(|c| c == '\n' || is_printable(c));
    if !is_block {
        return scalar(text);
    }
    let mut block = if body.len() == text.len() { "|-" } else { "|" }.to_owned();
    for line in body.split('\n') {
        let _ = write!(block, "\n{:1$}{line}", "", if line.is_empty() { 0 } else { 2 * depth });
    }
    block
}

/// A text on one line.
fn templated(text: &str) -> String {
    scalar(&filled(text))
}

/// Literal braces, and templates for references.
fn filled(text: &str) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', OPEN]) {
        filled += &rest[..at];
        rest = &rest[at..];
        if let Some((name, behind)) = rest.strip_prefix(OPEN).and_then(|inner| inner.split_once(CLOSE)) {
            let _ = write!(filled, "{{{{ {name} }}}}");
            rest = behind;
            continue;
        }
        let braces = if rest.starts_with("{{") { "{{" } else { "{" };
        let behind = rest.strip_prefix(braces).unwrap_or_default();
        // A single brace is literal, except in front of a template.
        match braces {
            "{" if !behind.starts_with(['{', OPEN]) => filled.push('{'),
            braces => _ = write!(filled, "{{{{ '{braces}' }}}}"),
        }
        rest = behind;
    }
    filled + rest
}

/// A scalar as YAML: without quotes where they are not needed.
fn scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else if text.chars().all(|c| c != '\t' && is_printable(c)) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        let mut quoted = String::from("\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                '\n' => quoted += "\\n",
                '\t' => quoted += "\\t",
                c if is_printable(c) => quoted.push(c),
                c => _ = write!(quoted, "\\U{:08x}", u32::from(c)),
            }
        }
        quoted + "\""
    }
}

/// True for a text that needs no quotes anywhere, also in a flow mapping.
fn is_plain(text: &str) -> bool {
    let is_null = matches!(text, "" | "~" | "null" | "Null" | "NULL");
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "_-./+=@%$: ".contains(c);
    let word = text.strip_prefix("--").or_else(|| text.strip_prefix(['-', '/', '$', '.'])).unwrap_or(text);
    let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    !is_null && begins && text.chars().all(is_safe) && !text.ends_with([' ', ':']) && !text.contains(": ")
}

/// True for characters that YAML permits unescaped and that a terminal shows as one.
fn is_printable(c: char) -> bool {
    c == '\t' || !(c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::diag::Source;
    use crate::formats::settings::Settings;
    use crate::formats::{Given, parse};
    use crate::model::RoleName;

    fn read(text: &str) -> Job {
        let document = parse(&Source::new("x.yaml", text), &Given::new(&[], &Settings::default()));
        document.unwrap_or_else(|errors| panic!("{text}\n{}", errors[0].to_plain())).job().unwrap().clone()
    }

    /// The document of a job, which is the same job.
    fn written(job: &Job, params: &[(String, String)]) -> String {
        let (job, params) = (job.clone(), params.to_vec());
        let draft = Draft { job, params, secrets: Vec::new(), comments: Comments::default() };
        let text = write(&draft);
        assert_eq!(read(&text), draft.job, "{text}");
        text
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "tests read fixtures")]
    fn documents_are_written_as_they_are_read() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut count = 0;
        for folder in ["fixtures/documents/good", "examples/jobs"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
                // Only jobs are written.
                if !text.contains("\nsteps:") {
                    written(&read(text.trim_start_matches('\u{feff}')), &[]);
                    count += 1;
                }
            }
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn every_policy() {
        for (keys, expected) in [
            (
                "policy: {restarts: 2, backoff: 10s, timeout: 1h30m}",
                "policy: {restarts: 2, backoff: 10s, timeout: 1h30m}",
            ),
            (
                "policy: {restarts: {max: unlimited, max_platform: 0}}",
                "policy: {restarts: {max: unlimited, max_platform: 0}}",
            ),
            ("policy: {backoff: 1m}", "policy: {backoff: 1m}"),
            (
                "policy: {hang: 5m, grace: 1m, success: end, gang: false, settle: 1ms}",
                "policy: {hang: 5m, grace: 1m, success: end, gang: false, settle: 1ms}",
            ),
            ("policy: {}", "name: x\nroles:"),
            (
                "policy: {exits: pai, restarts: {platform_backoff: 1m, max_platform: 5, max: 1, window: 1h}, grace: 1s}",
                "policy:\n  restarts: {max: 1, max_platform: 5, platform_backoff: 1m, window: 1h}\n  grace: 1s\n  exits: pai\n",
            ),
            ("policy: {linger: 30s}", "policy: {linger: 30s}\n"),
            ("contracts: pai", "contracts: pai\n"),
            ("contracts: [pai, torch]", "contracts: [pai, torch]\n"),
        ] {
            let text = written(&read(&format!("umiak: v1\n{keys}\nroles: {{main: {{command: x}}}}")), &[]);
            assert!(text.contains(expected), "{text}");
        }
        let roles = "  a:\n    replicas: 2\n    resources: {cpu: 500m, memory: 6500Mi, gpu: 1, shm: 1Gi, storage: 10Gi}\n    ports: {rpc: 2, http: {port: 80}}\n    completes: false\n    restarts: {max: 3, max_backoff: 1m, scope: role}\n    timeout: 1m\n    start_timeout: 1h\n    grace: 0s\n    contracts: []\n    env:\n      A: 0.10\n      'odd,name': |\n        two\n          lines\n    command: [true, --a, 'b c#']\n  'null':\n    replicas: 3\n    start_after: [a, {role: a, when: started}]\n    completion: {min_failed: 0, min_succeeded: 2}\n    restarts: 0\n    command: |\n      one\n\n      two\n";
        let text = format!("umiak: v1\nname: x\nroles:\n{roles}");
        assert_eq!(written(&read(&text), &[]), text);
    }

    #[test]
    fn references_and_braces() {
        for (text, expected) in [
            (format!("a {} b", reference("x")), "a {{ x }} b"),
            (format!("${{{}}}", reference("x")), "${{ '{' }}{{ x }}}"),
            ("{{ x }} {{{ {".to_owned(), "{{ '{{' }} x }} {{ '{{' }}{ {"),
            (format!("{{{{{{{}", reference("x")), "{{ '{{' }}{{ '{' }}{{ x }}"),
        ] {
            assert_eq!(filled(&text), expected);
        }
        let changed = outside_references(&format!("x{}x", reference("x")), |part| part.replace('x', "y"));
        assert_eq!(changed, format!("y{}y", reference("x")));
    }

    proptest! {
        #[test]
        fn any_text_is_read_again(
            texts in prop::collection::vec("([ -~]|[\\n\\t\\r{}'\"#:,&*|>%@`~?!-]|[^\\x00\u{f8f0}\u{f8f1}]){0,12}", 4),
        ) {
            let mut role = Role::new(RoleName::new("main").unwrap(), 1);
            role.work.command = vec!["a".to_owned(), texts[0].clone(), texts[1].clone()];
            role.work.env = vec![("A".to_owned(), texts[2].clone())];
            let mut job = read("umiak: v1\nroles: {main: {command: x}}");
            job.roles = vec![role];
            let text = written(&job, &[("p".to_owned(), texts[3].clone())]);
            let with = text.replace("command:\n", "command:\n      - 'x{{ p }}'\n").replace("command: [", "command: ['x{{ p }}', ");
            assert_eq!(read(&with).roles[0].work.command[0][1..], texts[3], "{with}");
        }
    }
}
