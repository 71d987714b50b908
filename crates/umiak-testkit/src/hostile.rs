//! Documents made to exhaust memory or time, and the peak memory of a program that reads one.

use std::fmt::Display;
use std::process::Command;

use nix::sys::resource::{UsageWho, getrusage};

/// The word after which the test binary starts a program and measures it.
const MODE: &str = "peak";

/// Arguments of the test binary that run a program and write its peak resident memory, in bytes, to a file.
pub fn measured<'a>(file: &'a str, program: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&[MODE, file, program], arguments].concat()
}

pub fn run_if_asked() -> Option<u8> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, mode, file, program, rest @ ..] = arguments.as_slice() else { return None };
    if mode != MODE {
        return None;
    }
    let status = Command::new(program).args(rest).status().expect("the program starts");
    // In kibibytes; of the largest child, which is the only one.
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the usage of a child").max_rss() * 1024;
    std::fs::write(file, peak.to_string()).expect("the sandbox can be written");
    Some(status.code().map_or(255, |code| code as u8))
}

/// A hostile document.
#[derive(Debug)]
pub struct Hostile {
    pub name: &'static str,
    pub text: String,
}

/// `count` entries, joined by commas.
fn list<T: Display>(count: usize, entry: impl FnMut(usize) -> T) -> String {
    (0..count).map(entry).map(|entry| entry.to_string()).collect::<Vec<_>>().join(", ")
}

/// A document with one role that has these entries beside its command.
fn role(entries: &str) -> String {
    format!("umiak: v1\nroles: {{main: {{command: x, {entries}}}}}\n")
}

/// Documents of OpenPAI.
fn openpai(bytes: usize) -> Vec<(&'static str, String)> {
    let document = |parts: &str| format!("{{protocolVersion: 2, name: j, type: job, {parts}}}\n");
    let needs = "dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0}";
    let image = "{type: dockerimage, name: i, uri: u}";
    let many = |size: usize| bytes / size;
    let nested =
        (0..30).fold("x".to_owned(), |inner, level| format!("{{{}{level}: {inner}}}", "k".repeat(bytes / 100)));
    let items = list(many(8), |item| item);
    let roles = |role: &str| list(many(200), |name| format!("r{name}: {{{needs}, {role}}}"));
    let plugin =
        |parameters: &str| format!("extras: {{com.microsoft.pai.runtimeplugin: [{{plugin: cmd, {parameters}}}]}}");
    let used = |text: &str| format!("prerequisites: [{image}], taskRoles: {{w: {{{needs}, commands: [\"{text}\"]}}}}");
    vec![
        (
            "roles that use one large prerequisite",
            document(&format!(
                "prerequisites: [{image}, {{type: data, name: d, uri: [{items}]}}], taskRoles: {{{}}}",
                roles("data: d, commands: ['<% $data.uri %>']")
            )),
        ),
        (
            "roles with the commands of one plugin",
            document(&format!(
                "prerequisites: [{image}], taskRoles: {{{}}}, {}",
                roles("commands: [x]"),
                plugin(&format!("parameters: {{preCommands: ['{}']}}", "y".repeat(bytes / 2)))
            )),
        ),
        (
            "a plugin for many roles",
            document(&format!(
                "prerequisites: [{image}], taskRoles: {{{}}}, {}",
                roles("commands: [x]"),
                plugin(&format!(
                    "taskroles: [{}], parameters: {{preCommands: [y]}}",
                    list(many(16), |name| format!("q{name}"))
                ))
            )),
        ),
        ("nested parameters with long names", document(&format!("parameters: {nested}, {}", used("x")))),
        ("references that stay", document(&used(&"<%$data.x%>".repeat(many(12))))),
        (
            "masked secrets",
            document(&format!("secrets: '******', {}", used(&list(many(24), |name| format!("<%$secrets.s{name}%>"))))),
        ),
        (
            "many prerequisites",
            document(&format!(
                "prerequisites: [{image}, {}], taskRoles: {{w: {{{needs}, prerequisites: [{}], commands: [x]}}}}",
                list(many(60), |name| format!("{{type: script, name: s{name}}}")),
                list(many(20), |name| format!("s{name}"))
            )),
        ),
    ]
}

/// Pipelines of PaddleFlow.
fn paddleflow(bytes: usize) -> Vec<(&'static str, String)> {
    let many = |size: usize| bytes / size;
    let pipeline = |steps: &str, more: &str| format!("{{name: p, entry_points: {{{steps}}}, {more}}}\n");
    let (ring, side) = (many(30), ((bytes / 7) as f64).sqrt() as usize);
    let refers = |component: usize| format!("{{reference: {{component: c{component}}}}}");
    let doubled = |level: usize| {
        let next = refers(level + 1);
        format!("c{level}: {{entry_points: {{a: {next}, b: {next}}}}}")
    };
    let members = list(many(40), |_| "{role: worker, replicas: 1, command: x}");
    vec![
        (
            "components that double",
            pipeline(
                &format!("s: {}", refers(0)),
                &format!("components: {{{}, c30: {{command: x}}}}", list(30, doubled)),
            ),
        ),
        (
            "components in components",
            pipeline(
                &format!("s: {}", refers(0)),
                &format!(
                    "components: {{{}}}",
                    list(many(50), |level| format!("c{level}: {{entry_points: {{a: {}}}}}", refers(level + 1)))
                ),
            ),
        ),
        (
            "copies of a long command",
            pipeline(
                &list(many(70), |step| format!("s{step}: {}", refers(0))),
                &format!("components: {{c0: {{command: {}}}}}", "y".repeat(bytes / 2)),
            ),
        ),
        (
            "a ring of steps",
            pipeline(&list(ring, |step| format!("s{step}: {{command: x, deps: s{}}}", (step + 1) % ring)), ""),
        ),
        (
            "every step after every step",
            pipeline(
                &list(side, |step| {
                    format!("s{step}: {{command: x, deps: '{}'}}", list(side, |other| format!("s{other}")))
                }),
                "",
            ),
        ),
        (
            "unknown dependencies",
            pipeline(&list(many(60), |step| format!("s{step}: {{command: x, deps: unknown{step}}}")), ""),
        ),
        (
            "many dependencies and parameters of one step",
            pipeline(
                &format!(
                    "{}, last: {{command: x, deps: '{}', parameters: {{{}}}}}",
                    list(many(100), |step| format!("s{step}: {{command: x, parameters: {{v: 1}}}}")),
                    list(many(100), |step| format!("s{step}")),
                    list(many(100), |step| format!("p{step}: '{{{{s{step}.v}}}}'"))
                ),
                "",
            ),
        ),
        (
            "unknown names in one command",
            pipeline(&format!("s: {{command: '{}'}}", list(many(12), |name| format!("{{{{p{name}}}}}"))), ""),
        ),
        ("braces", pipeline(&format!("s: {{command: '{}'}}", "{".repeat(bytes)), "")),
        (
            "names in two spellings",
            pipeline(
                &format!(
                    "s: {{command: x, parameters: {{{}}}}}",
                    list(many(20), |name| format!("a{name}: 1, A{name}: 1"))
                ),
                "",
            ),
        ),
        (
            "secret parameters of steps",
            pipeline(
                &list(many(120), |step| {
                    let from = step.saturating_sub(1);
                    format!(
                        "s{step}: {{command: x, deps: s{from}, parameters: {{p: '{{{{s{from}.p}}}}'}}, env: {{TOKEN: '{{{{p}}}}'}}}}"
                    )
                }),
                "",
            ),
        ),
        (
            "disabled components",
            pipeline(
                &list(many(60), |step| format!("s{step}: {{command: x}}")),
                &format!("disabled: '{}'", list(many(20), |step| format!("s{step}"))),
            ),
        ),
        ("members", pipeline(&format!("s: {{distributed_job: {{framework: paddle, members: [{members}]}}}}"), "")),
        (
            "file systems",
            pipeline(
                "s: {command: x}",
                &format!(
                    "fs_options: {{extra_fs: [{}]}}",
                    list(many(40), |fs| format!("{{name: f{fs}, mount_path: /m{fs}}}"))
                ),
            ),
        ),
        (
            "items of a loop",
            pipeline(&format!("s: {{command: x, loop_argument: [{}], disabled: a}}", list(many(4), |_| 1)), ""),
        ),
        ("a list in lists", pipeline(&format!("s: {{command: x, loop_argument: '{}'}}", "[".repeat(bytes)), "")),
        ("a long condition", pipeline(&format!("s: {{command: x, condition: '{}'}}", "(".repeat(bytes)), "")),
    ]
}

/// A document on one line with these roles.
fn roles(roles: &str) -> String {
    format!("{{umiak: v1, roles: {{{roles}}}}}\n")
}

/// Documents of about this many bytes.
pub fn documents(bytes: usize) -> Vec<Hostile> {
    let many = |each: usize| (bytes / each).max(2);
    let half = "s".repeat(bytes / 2);
    let side = ((bytes / 7) as f64).sqrt() as usize;
    let (ring, aliases) = (many(45), many(6).min(9000));
    let anchored = |anchor: &str, alias: &str| {
        format!("umiak: v1\nx-a: &a {anchor}\nx-b: [{}]\nroles: {{main: {{command: x}}}}\n", list(aliases, |_| alias))
    };
    let filled = |params: &str, command: &str| {
        format!("umiak: v1\nparams: {{{params}}}\nroles: {{main: {{command: {command}}}}}\n")
    };
    let all = [
        (
            "duplicate keys, JSON",
            format!(r#"{{"umiak":"v1","roles":{{{}}}}}"#, list(many(22), |_| r#""a":{"command":"x"}"#)),
        ),
        (
            "duplicate keys on one line",
            roles(&format!("a: {{command: x, env: {{{}}}}}", list(many(22), |_| "AAAAAAA: aaaaaaaaaa"))),
        ),
        ("duplicate keys", format!("umiak: v1\nroles:\n{}", "  a: {command: x}\n".repeat(many(18)))),
        (
            "a ring of roles",
            roles(&list(ring, |role| format!("r{role}: {{command: x, start_after: r{}}}", (role + 1) % ring))),
        ),
        (
            "every role after every role",
            roles(&list(side, |role| {
                format!("r{role}: {{command: x, start_after: [{}]}}", list(side, |other| format!("r{other}")))
            })),
        ),
        ("unknown keys", role(&list(many(15), |key| format!("replicaz{key}: 1")))),
        (
            "unknown roles",
            roles(&list(many(60), |role| {
                format!("rrrrrrrrrrrrrrrrrrrr{role}: {{command: x, start_after: qrrrrrrrrrrrrrrrrrrr{role}}}")
            })),
        ),
        (
            "unknown parameters",
            filled(
                &list(many(60), |name| format!("pppppppppppppppppppp{name}: 1")),
                &format!("[{}]", list(many(60), |name| format!("\"{{{{ qppppppppppppppppppp{name} }}}}\""))),
            ),
        ),
        ("parameters without values", filled(&list(many(9), |name| format!("p{name}: ")), "x")),
        ("many templates in one string", filled("a: b", &format!("\"{}\"", "{{a}}".repeat(many(5))))),
        ("bad templates in one string", filled("a: b", &format!("\"{}\"", "{{?}}".repeat(many(5))))),
        ("templates without quotes", filled("a: b", &format!("[{}]", list(many(7), |_| "{{a}}")))),
        ("a long number", role(&format!("replicas: {}", "9".repeat(bytes)))),
        ("a long key", format!("umiak: v1\n\"{}\": 1\n", "k".repeat(bytes))),
        (
            "a long name of a role",
            roles(&format!(
                "\"{half}\": {{command: x, {}, ports: {{{}}}}}",
                list(many(40), |key| format!("k{key}: 0")),
                list(many(40), |port| format!("p{port}: 0"))
            )),
        ),
        ("deep nesting", format!("umiak: v1\nx-a: {}{}\n", "[".repeat(many(2)), "]".repeat(many(2)))),
        ("small values", format!("umiak: v1\nx-a: [{}]\n", "a,".repeat(many(2)))),
        ("small mappings", format!("umiak: v1\nx-a: [{}]\n", "{},".repeat(many(3)))),
        ("an alias of a long string", anchored(&format!("\"{half}\""), "*a")),
        ("an alias of a long string with escapes", anchored(&format!("\"\\n{half}\""), "*a")),
        ("an alias of a long secret", anchored(&format!("\"http://u:p@h/{half}\""), "*a")),
        ("an alias of a list", anchored(&format!("[{}]", list(1000, |_| "x")), "*a")),
        (
            "a merge key with a long string",
            format!(
                "umiak: v1\nx-a: &a {{A: \"{half}\"}}\nroles: {{{}}}\n",
                list(many(80), |role| format!("r{role}: {{command: x, env: {{<<: *a}}}}"))
            ),
        ),
        (
            "anchors in anchors",
            format!(
                "umiak: v1\nx-a: {}\"{half}\"{}\n",
                list(40, |anchor| format!("&a{anchor} [")).replace(", ", ""),
                "]".repeat(40)
            ),
        ),
        (
            "a long parameter used often",
            filled(&format!("a: \"{half}\""), &format!("[{}]", list(many(20), |_| "\"{{a}}\""))),
        ),
        (
            "a long parameter in one string",
            filled(&format!("a: \"{half}\""), &format!("\"{}\"", "{{a}}".repeat(many(10)))),
        ),
        (
            "an alias of a template",
            format!(
                "umiak: v1\nparams: {{a: \"{half}\"}}\nx-a: &a \"{{{{a}}}}\"\nroles: {{main: {{command: [{}]}}}}\n",
                list(aliases, |_| "*a")
            ),
        ),
        ("notices", role(&format!("env: {{{}}}", list(many(14), |name| format!("A{name}: $HOME"))))),
        ("unknown queues", roles(&list(many(40), |role| format!("r{role}: {{command: x, queue: q{role}}}")))),
        ("unknown flavours", roles(&list(many(40), |role| format!("r{role}: {{command: x, flavour: flavur{role}}}")))),
        (
            "secrets",
            format!(
                "umiak: v1\nx-a: [{}]\nroles: {{main: {{command: x}}}}\n",
                list(many(20), |secret| format!("http://u:p{secret}@h"))
            ),
        ),
        (
            "secrets in a command",
            format!(
                "umiak: v1\nroles: {{main: {{command: \"{}\"}}}}\n",
                list(many(16), |secret| format!("--token=p{secret}")).replace(", ", " ")
            ),
        ),
        (
            "secret parameters",
            format!(
                "umiak: v1\nparams: {{{}}}\nroles: {{main: {{command: x, env: {{TOKEN: \"{}\"}}}}}}\n",
                list(many(30), |name| format!("a{name}: x")),
                list(many(30), |name| format!("{{{{ a{name} }}}}"))
            ),
        ),
        ("unclosed", format!("umiak: v1\nroles: {{main: {{command: [{}", "x,".repeat(many(2)))),
        ("another format", format!("a: [{}]\n", "x,".repeat(many(2)))),
        ("empty lines", format!("umiak: v1\n{}roles: {{main: {{replicas: z}}}}\n", "\n".repeat(bytes))),
        ("many documents", "---\n".repeat(many(4))),
        ("characters without width", format!("umiak: v1\n\"a{}\": 1\n", "\u{301}".repeat(many(2)))),
    ];
    all.into_iter().chain(openpai(bytes)).chain(paddleflow(bytes)).map(|(name, text)| Hostile { name, text }).collect()
}
