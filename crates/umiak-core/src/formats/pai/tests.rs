mod mutated;

use crate::diag::{Code, Source};
use crate::formats::document::{Document, Format};
use crate::formats::settings::Settings;
use crate::formats::{Given, check, convert, parse};
use crate::model::{Contract, MinSucceeded, Success};

const HEAD: &str = "protocolVersion: 2\nname: ddp\ntype: job\n";
const IMAGE: &str =
    "prerequisites:\n- {type: dockerimage, name: img, uri: 'a/b:1'}\n- {type: data, name: set, uri: [u0, u1]}\n";
const NEEDS: &str = "dockerImage: img, resourcePerInstance: {cpu: 2, memoryMB: 64, gpu: 0}";

fn document(rest: &str) -> Source {
    Source::new("job.yaml", format!("{HEAD}{IMAGE}{rest}"))
}

fn with_role(role: &str) -> Source {
    document(&format!("taskRoles:\n  worker: {{{NEEDS}, {role}}}\n"))
}

fn parsed(source: &Source) -> Document {
    parse(source, &Given::new(&[], &Settings::default())).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

/// The lines and messages of all errors.
fn errors(source: &Source) -> Vec<String> {
    let errors = parse(source, &Given::new(&[], &Settings::default())).expect_err("it has errors");
    errors
        .iter()
        .map(|error| {
            let line = error.labels.first().map(|label| label.start.line);
            format!("{}{}", line.map(|line| format!("{line}: ")).unwrap_or_default(), error.message)
        })
        .collect()
}

fn notices(source: &Source) -> Vec<String> {
    check(source, &Given::new(&[], &Settings::default()))
        .diagnostics
        .iter()
        .map(|notice| notice.message.clone())
        .collect()
}

fn script(document: &Document, role: usize) -> &str {
    &document.job().unwrap().roles[role].work.command[2]
}

#[test]
fn a_whole_document() {
    let source = document(
        "\
jobRetryCount: 3
parameters: {lr: 0.10, list: [a, b], deep: {x: y}}
taskRoles:
  ps_server:
    instances: 2
    completion: {minFailedInstances: 1, minSucceededInstances: -1}
    dockerImage: img
    resourcePerInstance: {cpu: 1, memoryMB: 512, gpu: 0, ports: {rpc: 2, http: 3}}
    commands: [serve]
  worker:
    instances: 4
    completion: {minFailedInstances: 0, minSucceededInstances: 2}
    dockerImage: img
    data: set
    extraContainerOptions: {shmMB: 1024, other: 1}
    resourcePerInstance: {cpu: 2, memoryMB: 1024, gpu: 1, ports: {SynPort: 1}}
    commands:
    - '  cd work  '
    - train <% $parameters.lr %> <% $parameters.list %> <%$parameters.list[1]%> <% $parameters.deep.x %> <% $data.uri[0] %>
deployments:
- {name: prod, taskRoles: {worker: {preCommands: [before], postCommands: [after]}}}
- {name: test, taskRoles: {worker: {preCommands: [never]}}}
defaults: {virtualCluster: vc1, deployment: prod}
",
    );
    let document = parsed(&source);
    let job = document.job().unwrap().clone();
    assert_eq!((job.name.as_str(), job.policy.success, job.policy.restart.max), ("ddp", Success::First, 3));
    assert_eq!(job.contracts, [Contract::Pai, Contract::Torch]);
    let [servers, workers] = &job.roles[..] else { panic!("{job:?}") };
    assert_eq!((servers.replicas, servers.completion.min_succeeded), (2, MinSucceeded::Never));
    assert_eq!((workers.completion.min_failed, workers.completion.min_succeeded), (1, MinSucceeded::Count(2)));
    let ports = |role: usize| {
        let ports = job.roles[role].work.ports.iter().map(|need| format!("{}:{}", need.name, need.count));
        ports.collect::<Vec<_>>().join(" ")
    };
    assert_eq!((ports(0).as_str(), ports(1).as_str()), ("rpc:2 http:3 ssh:1", "SynPort:1 ssh:1 http:1"));
    let resources = workers.work.resources;
    assert_eq!((resources.cpu_millis, resources.memory_bytes, resources.gpus), (Some(2000), Some(1 << 30), 1));
    assert_eq!((resources.shm_bytes, workers.work.image.as_deref()), (Some(1 << 30), Some("a/b:1")));
    assert_eq!(workers.work.queue.as_deref(), Some("vc1"));
    let commands = "before\ncd work\ntrain 0.10 a,b b y u0\nafter";
    assert_eq!(
        script(&document, 1),
        format!("export PAI_WORK_DIR=$PWD\nset -o errexit -o nounset -o pipefail\n{commands}")
    );
}

#[test]
fn plugins_run_around_the_commands() {
    let plugins = "\
taskRoles:
  worker: {dockerImage: img, resourcePerInstance: {cpu: 0, memoryMB: 0, gpu: 0}, commands: [it's, b], prerequisites: [own]}
extras:
  com.microsoft.pai.runtimeplugin:
  - {plugin: cmd, failurePolicy: ignore, parameters: {callbacks: [{event: taskSucceeds, commands: [last]}]}}
  - {plugin: cmd, taskroles: [other], parameters: {preCommands: [not here]}}
  - {plugin: ssh, parameters: {jobssh: true}}
  submitFrom: x
  mine: 1
";
    let own = "- {type: script, name: own, plugin: com.microsoft.pai.runtimeplugin.cmd, preCommands: [first], postCommands: [late]}\n";
    let source = Source::new("job.yaml", format!("{HEAD}{IMAGE}{own}{plugins}"));
    let document = parsed(&source);
    let expected = "\
export PAI_WORK_DIR=$PWD
part='set -o errexit
first'
bash <(printf '%s\\n' \"$part\") || exit
part='set -o errexit -o nounset -o pipefail
it'\\''s
b'
bash <(printf '%s\\n' \"$part\") || exit
part='last'
bash <(printf '%s\\n' \"$part\") || true
part='set -o errexit
late'
bash <(printf '%s\\n' \"$part\") || exit
";
    assert_eq!(script(&document, 0), expected);
    let told: Vec<&str> = document.notices.iter().map(|notice| notice.message.as_str()).collect();
    let expected = [
        "`extras.mine` is not used",
        "plugin `ssh` is not used",
        "a plugin names a task role `other`, which the job does not have",
    ];
    assert_eq!(told, expected);
}

#[test]
fn every_error_has_its_line() {
    let cases: &[(&str, &[&str])] = &[
        ("taskRoles: {}", &["7: `taskRoles` is empty"]),
        ("taskRols: {}", &["7: unknown key `taskRols` in the document"]),
        (
            "taskRoles:\n  9x: {}",
            &[
                "8: `9x` is not a valid name for a task role",
                "8: task role `9x` has no `resourcePerInstance`",
                "8: task role `9x` has no `dockerImage`",
                "8: task role `9x` has no `commands`",
            ],
        ),
        (
            "jobRetryCount: -1\ntaskRoles: 5",
            &["7: `jobRetryCount` must be a whole number from 0 to 1000000", "8: `taskRoles` must be a mapping"],
        ),
        (
            "defaults: {deployment: x}\ntaskRoles: {a: 1}",
            &["8: task role `a` must be a mapping", "7: unknown deployment `x`"],
        ),
    ];
    for (rest, expected) in cases {
        let mut found = errors(&document(rest));
        let mut expected: Vec<String> = expected.iter().map(|&text| text.to_owned()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{rest}");
    }
    for (role, expected) in [
        ("commands: []", "8: `commands` is empty"),
        ("commands: [a], comands: [b]", "8: unknown key `comands` in task role `worker`"),
        ("commands: ['<% $parameters.x %>']", "8: unknown parameter `$parameters.x`"),
        ("commands: ['<% $parameters.x']", "8: unterminated template"),
        ("commands: ['<% x %>']", "8: `x` is not a valid parameter name"),
        ("commands: [a], data: nothing", "8: unknown prerequisite `nothing`"),
        ("commands: [a], instances: 0", "8: `instances` must be a whole number from 1 to 10000"),
        (
            "commands: [a], completion: {minFailedInstances: -2}",
            "8: `minFailedInstances` must be a whole number from -1 to 10000",
        ),
        ("commands: [a], completion: {min: 1}", "8: unknown key `min` in `completion`"),
    ] {
        assert_eq!(errors(&with_role(role)), [expected], "{role}");
    }
}

#[test]
fn names_that_become_one_are_refused() {
    let role = format!("{{{NEEDS}, commands: [a]}}");
    let source = document(&format!("taskRoles:\n  Work_er: {role}\n  worker: {role}\n"));
    assert_eq!(errors(&source), ["9: task roles `Work_er` and `worker` would use the same variables"]);
    let ports =
        "dockerImage: img, resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0, ports: {a: 1, A: 1}}, commands: [a]";
    let source = document(&format!("taskRoles:\n  worker: {{{ports}}}\n"));
    assert_eq!(errors(&source), ["8: ports `a` and `A` differ only in case"]);
}

#[test]
fn what_has_no_effect_is_named() {
    for (role, expected) in [
        ("commands: [a], taskRetryCount: 2", "`taskRetryCount` is not used while all instances start together"),
        (
            "commands: [a], completion: {minSucceededInstances: 5}",
            "`minSucceededInstances` is more than the instances of task role `worker`",
        ),
        ("commands: ['<% $data.uri %>']", "`$data.uri` is left as it is written"),
        ("commands: [a], extraContainerOptions: {infiniband: true}", "`infiniband` is not used"),
    ] {
        assert_eq!(notices(&with_role(role)), [expected], "{role}");
    }
    let role = format!("{{{NEEDS}, commands: [a]}}");
    let told = notices(&document(&format!("taskRoles:\n  a: {role}\n  b: {role}\n")));
    assert_eq!(told, ["the first task role whose instances all succeed ends the job, and stops the others"]);
}

#[test]
fn secrets_are_known_and_masked() {
    let source = Source::new(
        "job.yaml",
        format!(
            "{HEAD}{IMAGE}secrets: {{token: hunter2-hunter2}}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['x <% $secrets.token %>']}}\n"
        ),
    );
    let document = parsed(&source);
    assert!(script(&document, 0).ends_with("\nx hunter2-hunter2"));
    assert!(!document.masked.contains("hunter2"), "{}", document.masked);
    let text = document.secrets.text("x hunter2-hunter2");
    assert!(!text.contains("hunter2"), "{text}");
    // Below a key that names a secret, and inside the quotes of a script with plugins.
    let nested = Source::new(
        "job.yaml",
        format!(
            "{HEAD}{IMAGE}parameters: {{db: {{password: it's-a-long-one}}}}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['x <% $parameters.db.password %>']}}\nextras: {{com.microsoft.pai.runtimeplugin: [{{plugin: cmd, parameters: {{preCommands: [a]}}}}]}}\n"
        ),
    );
    let document = parsed(&nested);
    let shown = document.secrets.text(script(&document, 0));
    assert!(!shown.contains("long-one"), "{shown}");
    // As OpenPAI shows a job, and as a run's document is.
    for secrets in ["secrets: '******'", "secrets: {token: '********'}"] {
        let text = source.text.replace("secrets: {token: hunter2-hunter2}", secrets);
        let source = Source::new("job.yaml", text);
        assert_eq!(check(&source, &Given::new(&[], &Settings::default())).needed, ["secrets.token"], "{secrets}");
        let given = [("secrets.token".to_owned(), "again".to_owned())];
        let document =
            parse(&source, &Given::new(&given, &Settings::default())).unwrap_or_else(|errors| panic!("{errors:#?}"));
        assert!(script(&document, 0).ends_with("\nx again"), "{secrets}");
    }
}

#[test]
fn parameters_of_the_command_line() {
    let source =
        document(&format!("parameters: {{lr: 1}}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['<% $parameters.lr %>']}}\n"));
    let given = |name: &str| vec![(name.to_owned(), "7".to_owned())];
    let document =
        parse(&source, &Given::new(&given("lr"), &Settings::default())).unwrap_or_else(|errors| panic!("{errors:#?}"));
    assert!(script(&document, 0).ends_with("\n7"));
    let errors = parse(&source, &Given::new(&given("lrr"), &Settings::default())).expect_err("no such parameter");
    assert_eq!(errors[0].message, "`job.yaml` has no parameter `lrr`");
}

/// The first error with this template and these parameters: its message, and what its label and its hints say.
fn refused(template: &str, given: &[(&str, &str)]) -> (String, String) {
    let source = document(&format!(
        "parameters: {{nest: {{k: v}}, nul: , list: [a, b], lr: 1}}\nsecrets: {{tok: abcdefgh}}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['x <% {template} %>']}}\n"
    ));
    let given: Vec<(String, String)> = given.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    match parse(&source, &Given::new(&given, &Settings::default())) {
        Ok(document) => (script(&document, 0).rsplit('\n').next().unwrap_or_default().to_owned(), String::new()),
        Err(errors) => {
            let label = errors[0].labels.first().map(|label| label.label.clone()).filter(|text| !text.is_empty());
            let rows = errors[0].rows.iter().map(|(_, text)| text).chain(&errors[0].hints).cloned();
            (errors[0].message.clone(), label.into_iter().chain(rows).collect::<Vec<_>>().join("; "))
        }
    }
}

#[test]
fn parameters_with_parts_and_without_a_value() {
    for (template, given, message, help) in [
        ("$parameters.nest", &[][..], "`$parameters.nest` is a mapping", "name a part of it, as `$parameters.nest.k`"),
        ("$parameters.nul", &[], "parameter `nul` has no value", "no default; set it with `-p nul=…`"),
        ("$parameters.nul", &[("nul", "5")], "x 5", ""),
        ("$paramters.lr", &[], "unknown parameter `$paramters.lr`", "did you mean `$parameters.lr`?"),
        (
            "$parameters.lr",
            &[("nest", "1")],
            "`nest` is a mapping",
            "has no value of its own; set a part of it: `-p nest.k=…`",
        ),
        ("$parameters.lr", &[("tok", "1")], "`job.yaml` has no parameter `tok`", "did you mean `-p secrets.tok=…`?"),
        ("$parameters.lr", &[("secrets.nope", "1")], "`job.yaml` has no parameter `secrets.nope`", "secrets.tok"),
        (
            "$parameters.list[1]",
            &[("list", "[x,y]")],
            "`-p list=…` does not change `<% $parameters.list.1 %>`",
            "keeps this value; set it with `-p list.1=…`",
        ),
        (
            "$parameters.list",
            &[("list.1", "y")],
            "`-p list.1=…` does not change `<% $parameters.list %>`",
            "keeps this value; set it with `-p list=…`",
        ),
        ("$parameters.list", &[("list", "x,y")], "x x,y", ""),
        ("$parameters.list[1]", &[("list[1]", "Q")], "x Q", ""),
    ] {
        assert_eq!(refused(template, given), (message.to_owned(), help.to_owned()), "{template} {given:?}");
    }
    let source = document(&format!(
        "parameters: {{nul: }}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['<% $parameters.nul %>']}}\n"
    ));
    assert_eq!(check(&source, &Given::new(&[], &Settings::default())).needed, ["nul"]);
    let errors = convert(&source, &Given::new(&[], &Settings::default())).expect_err("it needs a value");
    assert_eq!(errors[0].message, "parameter `nul` has no value");
}

#[test]
fn formats_are_told_apart() {
    let (format, _) = crate::formats::document::recognise(&document("taskRoles: {}"));
    assert_eq!(format, Some(Format::OpenPai));
}

#[test]
fn objects_of_the_controller_are_refused() {
    let framework = "apiVersion: frameworkcontroller.microsoft.com/v1\nkind: Framework\nmetadata: {name: a}\n";
    let inside = framework.replace('\n', "\n  ");
    for (text, line) in [
        (framework.to_owned(), 2),
        (format!("# comment\n---\n{framework}"), 4),
        (format!("{framework}---\n{framework}"), 2),
        (format!("kind: ConfigMap\n---\n{}", framework.replace("Framework\n", "\"Framework\" \n")), 4),
        (format!("kind: List\napiVersion: v1\nitems:\n- kind: Pod\n- {}", inside.trim_end()), 6),
        (format!("{framework}spec: [not YAML\n"), 2),
    ] {
        let errors = parse(&Source::new("f.yaml", text.as_str()), &Given::new(&[], &Settings::default()))
            .expect_err("not a job");
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.message.contains("`Framework`") && error.hints[0].contains("OpenPAI"), "{text}{error:?}");
        assert_eq!(error.labels[0].start.line, line, "{text}");
    }
}

/// Rules between the parts of a document, each with its line.
#[test]
fn parts_that_do_not_fit() {
    let role = format!("{{{NEEDS}, commands: [a]}}");
    let roles = |name: &str| format!("taskRoles:\n  {name}: {role}\n");
    let needs = |resources: &str| {
        format!(
            "taskRoles:\n  w:\n    dockerImage: img\n    commands: [a]\n    resourcePerInstance:\n      {resources}\n"
        )
    };
    for (rest, expected) in [
        (roles("9x"), "8: `9x` is not a valid name for a task role"),
        (roles("a-b"), "8: `a-b` is not a valid name for a task role"),
        (roles("'a b'"), "8: `a b` is not a valid name for a task role"),
        (roles("_"), "8: the name of a task role needs a letter or a digit"),
        (
            format!("taskRoles:\n  a_b: {role}\n\n  AB: {role}\n"),
            "10: task roles `a_b` and `AB` would use the same variables",
        ),
        (
            needs("cpu: 1\n      memoryMB: 1\n      gpu: 0\n      ports:\n        SynPort:"),
            "16: the number of ports `SynPort` must be a whole number",
        ),
        (
            needs("cpu: 1\n      memoryMB: 1\n      gpu: 0\n      ports:\n        a: 1\n        SynPort: 0"),
            "17: the number of ports `SynPort` must be a whole number from 1 to 1024",
        ),
        (
            needs("cpu: 1\n      memoryMB: 1\n      gpu: 0\n      ports:\n        a: 1\n        a-b: 1"),
            "17: `a-b` is not a valid name for a port",
        ),
        (needs("cpu: 1\n      memoryMB: 1\n      gpu: 0\n      ports: {}"), "15: `ports` is empty"),
        (
            needs("cpu: 1\n      memoryMB: 1\n      gpu: 0\n      ports: {a: 1000, b: 1000}"),
            "8: too many ports for each instance: 2000",
        ),
        (needs("memoryMB: 1\n      gpu: 0"), "11: `resourcePerInstance` has no `cpu`"),
        (format!("{}jobRetryCount: 1\ndefaults:\n  deployment: prod\n", roles("w")), "11: unknown deployment `prod`"),
        (
            format!("{}deployments:\n- name: prod\n  taskRoles: {{}}\n", roles("w")),
            "11: `taskRoles` of a deployment is empty",
        ),
        (
            format!(
                "{}deployments:\n- name: prod\n  taskRoles: {{w: {{preCommands: [a]}}}}\n- name: prod\n  taskRoles: {{w: {{preCommands: [a]}}}}\n",
                roles("w")
            ),
            "12: two deployments are named `prod`",
        ),
        (
            format!(
                "taskRoles:\n  w:\n    dockerImage: set\n{}",
                "    commands: [a]\n    resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0}\n"
            ),
            "9: unknown prerequisite `set`",
        ),
        (
            format!(
                "taskRoles:\n  w:\n    prerequisites:\n    - set\n    - sett\n    {}\n",
                "dockerImage: img\n    commands: [a]\n    resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0}"
            ),
            "11: unknown prerequisite `sett`",
        ),
        (
            format!(
                "{}extras:\n  com.microsoft.pai.runtimeplugin:\n  - plugin: cmd\n    parameters:\n      preCommands: [a]\n      callbacks: [{{event: taskStarts, commands: [a]}}]\n",
                roles("w")
            ),
            "14: `cmd` has both `callbacks` and other commands",
        ),
        (format!("{}---\na: 1\n", roles("w")), "10: more than one YAML document in one file"),
    ] {
        assert_eq!(errors(&document(&rest)), [expected], "{rest}");
    }
    let same = document(&roles("w"))
        .text
        .replace("- {type: data, name: set", "- {type: dockerimage, name: img, uri: c}\n- {type: data, name: img");
    assert_eq!(errors(&Source::new("job.yaml", same)), ["6: two prerequisites of type `dockerimage` are named `img`"]);
}

/// A deployment names roles as they are written, a plugin by their internal names.
#[test]
fn roles_that_are_not_there() {
    let deployed = |name: &str| {
        let role = format!("{{{NEEDS}, commands: [a]}}");
        notices(&document(&format!(
            "taskRoles:\n  Work_er: {role}\ndeployments:\n- name: prod\n  taskRoles: {{{name}: {{preCommands: [a]}}}}\n"
        )))
    };
    assert_eq!(deployed("Work_er"), [""; 0]);
    assert_eq!(deployed("worker"), ["a deployment names a task role `worker`, which the job does not have"]);
}

fn converted(source: &Source) -> String {
    convert(source, &Given::new(&[], &Settings::default())).unwrap_or_else(|errors| panic!("{errors:#?}")).text
}

/// The native document has the same job: the conversion checks that itself.
#[test]
fn a_document_becomes_a_native_one() {
    let path = "fixtures/documents/openpai/everything.yaml";
    let source =
        Source::new(path, include_str!("../../../../../fixtures/documents/openpai/everything.yaml").to_owned());
    let text = converted(&source);
    assert!(!text.contains("s3cret"), "{text}");
    insta::assert_snapshot!(text);
    let native = Source::new("native.yaml", text);
    let checked = check(&native, &Given::new(&[], &Settings::default()));
    assert!(checked.needed.contains(&"token".to_owned()), "{:?}", checked.needed);
    let told: Vec<&str> = checked.diagnostics.iter().map(|notice| notice.message.as_str()).collect();
    assert_eq!(told, ["queue `prod` is not in `umiak.toml`"; 2]);
    assert_eq!(converted(&native), native.text, "a native document stays as it is");
}

#[test]
fn a_role_with_a_name_that_is_too_long_is_not_dropped() {
    let long = "w".repeat(201);
    let source = document(&format!(
        "taskRoles:\n  {long}: {{{NEEDS}, commands: ['true']}}\n  b: {{{NEEDS}, commands: ['true']}}\n"
    ));
    assert_eq!(errors(&source), ["8: invalid name for the task role"]);
}

#[test]
fn other_documents_become_native_ones() {
    for text in [
        include_str!("../../../../../fixtures/documents/openpai/full.yaml"),
        include_str!("../../../../../fixtures/documents/openpai/anchors.yaml"),
        include_str!("../../../../../fixtures/documents/openpai/least.yaml"),
        include_str!("../../../../../examples/jobs/openpai.yaml"),
    ] {
        let native = Source::new("native.yaml", converted(&Source::new("job.yaml", text)));
        let checked = check(&native, &Given::new(&[], &Settings::default()));
        assert!(checked.diagnostics.iter().all(|notice| notice.code == Code::F0050), "{:?}", checked.diagnostics);
    }
}

#[test]
fn parameters_are_inserted_where_they_cannot_be_kept() {
    let text = "parameters: {a: it's, b: 1}\ntaskRoles:\n  worker: {NEEDS, commands: ['echo <% $parameters.a %> <% $parameters.b %>']}\nextras: {com.microsoft.pai.runtimeplugin: [{plugin: cmd, parameters: {preCommands: ['true']}}]}\n";
    let text = converted(&document(&text.replace("NEEDS", NEEDS)));
    assert!(text.contains("echo it'\\''s 1'\n") && !text.contains("params:"), "{text}");
    assert!(text.contains("# The values of its parameters are inserted.\n"), "{text}");
}

#[test]
fn a_conversion_that_would_differ_is_refused() {
    let long = "w".repeat(64);
    let source = document(&format!("taskRoles:\n  {long}: {{{NEEDS}, commands: ['true']}}\n"));
    let errors = convert(&source, &Given::new(&[], &Settings::default())).unwrap_err();
    assert!(errors[0].message.starts_with("no native document does the same"), "{errors:?}");
    assert!(errors[0].rows[0].1.contains("is not a valid name for a role"), "{errors:?}");
}

#[test]
fn errors_of_a_conversion_are_those_of_the_document() {
    for text in ["taskRoles: {}\n", "taskRoles: [a]\nname: [\n", ""] {
        let source = document(text);
        let errors = convert(&source, &Given::new(&[], &Settings::default())).unwrap_err();
        assert_eq!(errors, check(&source, &Given::new(&[], &Settings::default())).diagnostics, "{text}");
    }
    // Secrets that OpenPAI has masked are not needed.
    let masked = document(&format!(
        "secrets: '******'\ntaskRoles:\n  worker: {{{NEEDS}, commands: ['echo <% $secrets.a %>']}}\n"
    ));
    assert!(converted(&masked).contains("secrets:\n  a:\n"));
    let given = [("lr".to_owned(), "0.5".to_owned())];
    let source = document(&format!("parameters: {{lr: 1}}\ntaskRoles:\n  worker: {{{NEEDS}, commands: [x]}}\n"));
    assert!(convert(&source, &Given::new(&given, &Settings::default())).unwrap().text.contains("params:\n  lr: 0.5\n"));
}

/// Thousands of names and secrets take a moment, not minutes.
#[test]
fn large_documents_are_converted() {
    let lines = |line: fn(u32) -> String| (0..1000).map(line).collect::<String>();
    let text = format!(
        "parameters:\n{}secrets:\n{}taskRoles:\n  worker:\n    dockerImage: img\n    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 0}}\n    commands:\n{}",
        lines(|n| format!("  p{n}: {n}\n")),
        lines(|n| format!("  s{n}: Value-{n}-x\n")),
        lines(|n| format!("    - a <% $parameters.p{n} %> <% $secrets.s{n} %> --token Word-{n}-y Value-{n}-x\n")),
    );
    let text = converted(&document(&text));
    assert!(
        text.contains("        a {{ p7 }} {{ s7 }} --token {{ token_") && !text.contains("Value-"),
        "{}",
        &text[..4000]
    );
}

/// Errors show whole lines.
#[test]
fn errors_do_not_show_secrets() {
    for (head, secrets) in [
        (HEAD, "{zwei: hunter2-hunter2, drei: pa55word-zzz, zwei: other-zzzz}"),
        (HEAD, "[hunter2-hunter2, pa55word-zzz]"),
        (HEAD, "{drei: pa55word-zzz, [x]: hunter2-hunter2}"),
        ("umiak: v1\n", "{zwei: hunter2-hunter2, drei: pa55word-zzz, zwei: other-zzzz}"),
    ] {
        let source = Source::new("job.yaml", format!("{head}secrets: {secrets}\n"));
        let errors = parse(&source, &Given::new(&[], &Settings::default())).expect_err("it has errors");
        let line = source.text.lines().count();
        assert!(errors.iter().any(|error| error.labels.iter().any(|label| label.start.line == line)), "{errors:?}");
        for error in errors {
            let text = error.to_plain();
            assert!(!["hunter2", "pa55word", "other-zzzz"].iter().any(|secret| text.contains(secret)), "{text}");
        }
    }
}
