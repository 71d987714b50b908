mod mutated;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use insta::assert_snapshot;

use super::Dialect;
use crate::diag::{Code, Diagnostic, Source};
use crate::formats::document::Document;
use crate::formats::settings::Settings;
use crate::formats::{Given, check, parse};
use crate::model::{
    self, Body, Cache, Contract, Float, Input, Items, Mount, Node, NodeId, OnFailure, Output, Part, Piece, Pipeline,
    Place, Reference, Resources, Restart, Scope, Step, SystemParameter, Text, Value,
};

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.filesystems.insert("data".to_owned(), PathBuf::from("/mnt/data"));
    settings.filesystems.insert("ppl".to_owned(), PathBuf::from("/mnt/ppl"));
    settings
}

fn with(text: &str, params: &[(&str, &str)], disabled: &[&str]) -> Result<Document, Vec<Diagnostic>> {
    let params: Vec<(String, String)> = params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let disabled: Vec<String> = disabled.iter().map(|path| (*path).to_owned()).collect();
    let settings = settings();
    let given = Given { disabled: &disabled, dir: Path::new("/here"), ..Given::new(&params, &settings) };
    parse(&Source::new("run.yaml", text), &given)
}

fn plain(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(Diagnostic::to_plain).collect::<Vec<_>>().join("\n")
}

fn document(text: &str) -> Document {
    with(text, &[], &[]).unwrap_or_else(|errors| panic!("{text}\n{}", plain(&errors)))
}

fn pipeline(text: &str) -> Pipeline {
    document(text).pipeline().unwrap().clone()
}

/// The codes, lines and messages of all errors.
fn errors(text: &str) -> Vec<String> {
    with(text, &[], &[]).expect_err(text).iter().map(said).collect()
}

fn said(one: &Diagnostic) -> String {
    let line = one.labels.first().map(|label| format!("{}: ", label.start.line)).unwrap_or_default();
    format!("{} {line}{}", one.code, one.message)
}

fn dialect(text: &str) -> Option<Dialect> {
    let settings = settings();
    let given = Given { dir: Path::new("/here"), ..Given::new(&[], &settings) };
    check(&Source::new("run.yaml", text), &given).dialect
}

fn checked(text: &str) -> Vec<String> {
    let settings = settings();
    let given = Given { dir: Path::new("/here"), ..Given::new(&[], &settings) };
    check(&Source::new("run.yaml", text), &given).diagnostics.iter().map(said).collect()
}

/// A pipeline with these entry points, in flow style from line 2 on, and further keys.
fn entries(entries: &str, more: &str) -> String {
    format!("name: p\nentry_points:\n{entries}\n{more}\n")
}

fn one(keys: &str) -> String {
    entries(&format!("  s: {{{keys}}}"), "fs_options: {main_fs: {name: ppl}}")
}

fn node<'p>(pipeline: &'p Pipeline, path: &str) -> &'p Node {
    pipeline.iter().find(|(id, _)| pipeline.path(*id) == path).unwrap_or_else(|| panic!("no {path}")).1
}

fn step<'p>(pipeline: &'p Pipeline, path: &str) -> &'p Step {
    match &node(pipeline, path).body {
        Body::Step(step) => step,
        Body::Dag { .. } => panic!("{path} is a DAG"),
    }
}

fn plain_piece(text: &str) -> Piece {
    Piece::Plain(text.to_owned())
}

fn own(name: &str) -> Piece {
    Piece::Of(Reference::Parameter(name.to_owned()))
}

#[test]
fn the_seed() {
    let text =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/paddleflow/distributed.yaml"));
    let document = document(text);
    assert_eq!(dialect(text), Some(Dialect::PullRequest));
    assert_eq!(document.masked, text);
    let json = serde_json::to_string_pretty(document.pipeline().unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Pipeline>(&json).unwrap(), *document.pipeline().unwrap());
    assert_snapshot!(format!("{json}\n{}", plain(&document.notices)));
}

#[test]
fn a_file_system_that_is_not_defined_is_the_current_directory_with_one_notice() {
    let document = document(&entries(
        "  a: {command: x, extra_fs: [{name: other}, {name: other, mount_path: /o}]}\n  b: {command: x}",
        "fs_options: {main_fs: {name: xd}, extra_fs: [{name: other}]}",
    ));
    let notices: Vec<String> = document.notices.iter().map(said).collect();
    assert_eq!(
        notices,
        [
            "F0120 5: file system `xd` is not defined: it is the current directory",
            "F0120 3: file system `other` is not defined: it is the current directory"
        ]
    );
    let work = &step(document.pipeline().unwrap(), "a").job.roles[0].work;
    assert_eq!(work.dir.as_deref(), Some(Path::new("/here")));
    let mount = Mount { name: "other".into(), dir: "/here".into(), path: "/o".into(), read_only: false };
    assert_eq!(work.mounts, [mount]);
}

#[test]
fn mounts_and_working_directories() {
    let work = |more: &str, keys: &str| {
        let pipeline = pipeline(&entries(&format!("  s: {{command: x, {keys}}}"), more));
        let work = &step(&pipeline, "s").job.roles[0].work;
        (work.dir.clone(), work.mounts.iter().map(|one| (one.dir.clone(), one.path.clone())).collect::<Vec<_>>())
    };
    let path = PathBuf::from;
    for (more, keys, dir, mounts) in [
        ("", "", None, vec![]),
        ("fs_options: {main_fs: {name: ppl}}", "", Some("/mnt/ppl"), vec![]),
        ("fs_options: {main_fs: {name: ppl, sub_path: a/./b}}", "", Some("/mnt/ppl/a/b"), vec![]),
        ("fs_options: {main_fs: {name: ppl, mount_path: /m}}", "", Some("/m"), vec![("/mnt/ppl", "/m")]),
        ("fs_options: {extra_fs: [{name: data}]}", "", Some("/mnt/data"), vec![]),
        (
            "fs_options: {extra_fs: [{name: data}]}",
            "extra_fs: [{name: ppl, mount_path: /p}]",
            Some("/p"),
            vec![("/mnt/ppl", "/p")],
        ),
        (
            "fs_options: {main_fs: {name: ppl, mount_path: /m}, extra_fs: [{name: data, mount_path: /d}]}",
            "extra_fs: [{name: ppl, mount_path: /s, sub_path: code, read_only: yes}]",
            Some("/m"),
            vec![("/mnt/ppl", "/m"), ("/mnt/ppl/code", "/s"), ("/mnt/data", "/d")],
        ),
        ("fs_options: {main_fs: {name: ppl}}", "env: {PF_MOUNT_PATH: NONE}", None, vec![]),
    ] {
        let mounts: Vec<_> = mounts.into_iter().map(|(dir, at)| (path(dir), path(at))).collect();
        assert_eq!(work(more, keys), (dir.map(path), mounts), "{more} {keys}");
    }
}

#[test]
fn file_systems_that_are_refused() {
    for (more, keys, expected) in [
        ("fs_options: {main_fs: {name: ppl, read_only: true}}", "", "F0118 4: `main_fs` cannot be read-only"),
        ("fs_options: {main_fs: {name: ppl, sub_path: /a}}", "", "F0118 4: `sub_path` must not begin with `/`"),
        ("fs_options: {main_fs: {name: ppl, sub_path: a/../..}}", "", "F0118 4: `sub_path` must not contain `..`"),
        (
            "fs_options: {main_fs: {name: ppl, mount_path: /}}",
            "",
            "F0118 4: `mount_path` must be a directory below `/`",
        ),
        (
            "fs_options: {main_fs: {name: ppl, mount_path: /a/..}}",
            "",
            "F0118 4: `mount_path` must be a directory below `/`",
        ),
        ("fs_options: {main_fs: {name: ppl, mount_path: a}}", "", "F0118 4: `mount_path` must begin with `/`"),
        ("fs_options: {main_fs: {mount_path: /a}}", "", "F0012 4: `main_fs` has no `name`"),
        ("", "extra_fs: [{name: a, mount_path: /x}, {name: b, mount_path: /x/}]", "F0118 3: two file systems at `/x/`"),
        ("", "extra_fs: {name: a}", "F0011 3: `extra_fs` must be a list"),
        ("", "cache: {fs_scope: [{name: zz}]}", "F0118 3: file system `zz` of `fs_scope` is not mounted"),
        ("", "artifacts: {output: [a]}", "F0118 3: output artifacts need `fs_options.main_fs`, on which they are kept"),
    ] {
        assert_eq!(errors(&entries(&format!("  s: {{command: x, {keys}}}"), more)), [expected], "{more} {keys}");
    }
}

#[test]
fn keys_are_strict() {
    for (text, expected) in [
        (
            "name: p\nentry_point: {a: {command: x}}\nentry_points: {a: {command: x}}\n",
            "F0010 2: unknown key `entry_point` in the pipeline",
        ),
        (&one("comand: x"), "F0010 3: unknown key `comand` in step `s`"),
        (&one("entry_points: {a: {command: x}}, command: x"), "F0010 3: unknown key `command` in DAG `s`"),
        (&one("artifacts: {outputs: [a]}"), "F0010 3: unknown key `outputs` in `artifacts`"),
        (&one("cache: {enabled: true}"), "F0010 3: unknown key `enabled` in `cache`"),
        (&one("deps: [a]"), "F0011 3: `deps` must be a string"),
        (&one("env: {A: true}"), "F0011 3: `A` in `env` must be a string or a number"),
        (&one("type: dag"), "F0013 3: `type` of step `s` must be `step`"),
        (&one("parameters: {p: true}"), "F0011 3: parameter `p` must be a number, a string or a list"),
        (&one("parameters: {p: yes}"), "F0011 3: parameter `p` must be a number, a string or a list"),
        (&one("parameters: {p: }"), "F0011 3: parameter `p` has no value"),
        (&one("parameters: {p: {{x}}}"), "F0031 3: `{{x}}` without quotes is a YAML mapping, not a template"),
        (&one("artifacts: {output: {a: b}}"), "F0013 3: output `a` of a step has a value"),
        (&one("docker_env: a.tar"), "F0013 3: `docker_env` must be an image, not a `.tar` file"),
        ("name: p\nentry_points: {}\n", "F0012 2: `entry_points` is empty"),
        ("name: p\nentry_points: {a: }\n", "F0012 2: step `a` is empty"),
        ("entry_points: {a: {command: x}}\n", "F0012 1: the pipeline has no `name`"),
        (
            &entries("  s: {command: x}", "failure_options: {strategy: stop}"),
            "F0013 4: `strategy` must be `fail_fast` or `continue`",
        ),
    ] {
        assert_eq!(errors(text), [expected], "{text}");
    }
    pipeline(&one("type: STEP, name: other, command: x, condition: , env: "));
}

#[test]
fn names() {
    let long = "a".repeat(31);
    for (text, of) in [
        (entries("  a_b: {command: x}", ""), "a component"),
        (entries("  1a: {command: x}", ""), "a component"),
        (entries(&format!("  {long}: {{command: x}}"), ""), "a component"),
        (one("parameters: {a-b: 1}"), "a parameter"),
        (one("env: {a.b: 1}"), "a variable"),
        (one("artifacts: {output: [a-b]}"), "an `output` artifact"),
        ("name: 1p\nentry_points: {a: {command: x}}\n".to_owned(), "a pipeline"),
    ] {
        let errors = errors(&text);
        assert!(matches!(&errors[..], [one] if one.starts_with("F0014") && one.contains(of)), "{text} {errors:?}");
    }
    assert_eq!(
        errors(&one("parameters: {Data: 1}, artifacts: {output: [data]}")),
        ["F0015 3: step `s` has the name `data` in two spellings"]
    );
    pipeline(&entries(&format!("  {}: {{command: x}}", "a".repeat(30)), ""));
}

#[test]
fn values() {
    let value = |written: &str| {
        let pipeline = pipeline(&one(&format!("command: x, parameters: {{p: {written}}}")));
        match node(&pipeline, "s").parameters[0].value.clone() {
            model::Given::Value(value) => value,
            model::Given::Text(text) => panic!("{text:?}"),
        }
    };
    let text = |text: &str| Value::Text(text.to_owned());
    for (written, expected) in [
        ("15", Value::Int(15)),
        ("1.0", Value::Float(Float(1.0))),
        ("'15'", text("15")),
        ("\"yes\"", text("yes")),
        ("\"\"", text("")),
        ("[1, [a, 2.5]]", Value::List(vec![Value::Int(1), Value::List(vec![text("a"), Value::Float(Float(2.5))])])),
        ("{type: int, default: 3}", Value::Int(3)),
        ("{type: float, default: 3}", Value::Int(3)),
        ("{type: path, default: /a/b}", text("/a/b")),
        ("{type: list, default: [1]}", Value::List(vec![Value::Int(1)])),
    ] {
        assert_eq!(value(written), expected, "{written}");
    }
    for (written, expected) in [
        ("{type: int, default: a}", "F0011 3: parameter `p` of type `int` must be a whole number"),
        (
            "{type: path, default: 'a b'}",
            "F0011 3: parameter `p` of type `path` must be a path of letters, digits, `.`, `/`, `_` and `-`",
        ),
        ("{type: bool, default: 1}", "F0013 3: `type` must be `string`, `int`, `float`, `path` or `list`"),
        ("{default: 1}", "F0012 3: parameter `p` has no `type`"),
        ("{type: int}", "F0034 3: parameter `s.p` has no value"),
        ("{type: string, default: ''}", "F0034 3: parameter `s.p` has no value"),
        ("['{{x}}']", "F0111 3: an item of parameter `p` must not contain a template"),
        (".inf", "F0013 3: parameter `p` must be a finite number"),
    ] {
        assert_eq!(errors(&one(&format!("command: x, parameters: {{p: {written}}}"))), [expected], "{written}");
    }
}

#[test]
fn variables_keep_their_digits() {
    let pipeline = pipeline(&one(
        "command: x, env: {A: 1.0, B: 0.10, C: 1e3, D: 0x10, E: 007, F: -1, G: '{{p}}x', PF_RUN_ID: a}, parameters: {p: 1}",
    ));
    let Step { job, texts, .. } = step(&pipeline, "s");
    let env: Vec<String> = job.roles[0].work.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["A=1.0", "B=0.10", "C=1000", "D=16", "E=007", "F=-1", "G="]);
    assert_eq!(texts, &[(Place::Variable { role: 0, variable: 6 }, Text(vec![own("p"), plain_piece("x")]))]);
}

/// The table of what may be used where.
#[test]
fn templates() {
    const AROUND: &str = "name: p
entry_points:
  up: {command: x, parameters: {a: 1}, artifacts: {output: [art]}}
  maybe: {command: x, parameters: {a: 1}, condition: 1 < 2, artifacts: {output: [art]}}
  side: {command: x, parameters: {a: 1}}
  dag:
    deps: up,maybe
    loop_argument: [1]
    parameters: {dp: 1}
    artifacts: {input: {din: '{{up.art}}'}}
    entry_points:
      first: {command: x, parameters: {a: 1}, artifacts: {output: [art]}}
      s:
        deps: first
";
    const END: &str = "\nfs_options: {main_fs: {name: ppl}}\n";
    let s = |parameters: &str, input: &str, rest: &str| {
        format!(
            "{AROUND}        parameters: {{q: 1, {parameters}}}\n        artifacts: {{input: {{i: '{{{{first.art}}}}', {input}}}, output: [o]}}\n        {rest}{END}"
        )
    };
    let sources = [
        "{{PF_RUN_ID}}",
        "{{q}}",
        "{{i}}",
        "{{o}}",
        "{{first.a}}",
        "{{first.art}}",
        "{{PF_PARENT.dp}}",
        "{{PF_PARENT.din}}",
        "{{PF_PARENT.PF_LOOP_ARGUMENT}}",
        "{{side.a}}",
        "{{nothing}}",
    ];
    let allowed = |make: &dyn Fn(&str) -> String| -> Vec<&str> {
        sources.into_iter().filter(|source| with(&make(source), &[], &[]).is_ok()).collect()
    };
    for (field, make, expected) in [
        (
            "parameters",
            &(|t: &str| s(&format!("p: '{t}'"), "", "")) as &dyn Fn(&str) -> String,
            vec!["{{PF_RUN_ID}}", "{{first.a}}", "{{PF_PARENT.dp}}", "{{PF_PARENT.PF_LOOP_ARGUMENT}}"],
        ),
        ("env", &|t| s("", "", &format!("env: {{E: '{t}'}}")), vec!["{{PF_RUN_ID}}", "{{q}}"]),
        ("command", &|t| s("", "", &format!("command: a {t} b")), vec!["{{PF_RUN_ID}}", "{{q}}", "{{i}}", "{{o}}"]),
        (
            "member command",
            &|t| {
                s(
                    "",
                    "",
                    &format!(
                        "distributed_job: {{framework: paddle, members: [{{role: worker, replicas: 2, command: 'a {t}'}}]}}"
                    ),
                )
            },
            vec!["{{PF_RUN_ID}}", "{{q}}", "{{i}}", "{{o}}"],
        ),
        ("condition", &|t| s("", "", &format!("condition: '{t} > 1'")), vec!["{{PF_RUN_ID}}", "{{q}}", "{{i}}"]),
        ("loop_argument", &|t| s("", "", &format!("loop_argument: '{t}'")), vec!["{{q}}", "{{i}}"]),
        ("input", &|t| s("", &format!("j: '{t}'"), ""), vec!["{{first.art}}", "{{PF_PARENT.din}}"]),
    ] {
        assert_eq!(allowed(make), expected, "{field}");
    }
    // Values of others, with what is missing.
    for (parameters, input, expected) in [
        ("p: '{{side.a}}'", "", "F0111 15: `side` is not in `deps` of step `s`"),
        ("p: '{{up.a}}'", "", "F0111 15: `up` is not in `deps` of step `s`"),
        ("p: '{{first.b}}'", "", "F0030 15: step `first` has no parameter `b`"),
        (
            "p: '{{first.PF_LOOP_ARGUMENT}}'",
            "",
            "F0111 15: `PF_LOOP_ARGUMENT` of step `first` cannot be used by other components",
        ),
        ("p: '{{PF_PARENT.x}}'", "", "F0030 15: DAG `dag` has no parameter `x`"),
        ("p: '{{q}}'", "", "F0111 15: `parameters` cannot use another parameter of the same component, `q`"),
        ("p: '{{PF_FS_ID}}'", "", "F0030 15: step `s` has no parameter `PF_FS_ID`"),
        ("", "j: 'x{{first.art}}'", "F0111 16: artifact `j` of step `s` must be one template"),
        ("", "j: '{{first.nothing}}'", "F0030 16: step `first` has no output artifact `nothing`"),
        ("", "j: '{{PF_PARENT.nothing}}'", "F0030 16: DAG `dag` has no input artifact `nothing`"),
    ] {
        assert_eq!(errors(&s(parameters, input, "")), [expected], "{parameters} {input}");
    }
    let maybe = entries(
        "  maybe: {command: x, condition: 1 < 2, parameters: {a: 1}, artifacts: {output: [art]}}\n  s: {deps: maybe, parameters: {p: '{{maybe.a}}'}, artifacts: {input: {i: '{{maybe.art}}'}}}",
        END,
    );
    assert_eq!(errors(&maybe), ["F0111 4: artifacts of step `maybe` cannot be used, because it has a `condition`"]);
    let top = one("parameters: {p: '{{PF_PARENT.x}}'}");
    assert_eq!(errors(&top), ["F0111 3: `PF_PARENT` in step `s`, which is not in a DAG"]);
    let no_loop = entries("  d:\n    entry_points:\n      s: {parameters: {p: '{{PF_PARENT.PF_LOOP_ARGUMENT}}'}}", "");
    assert_eq!(errors(&no_loop), ["F0111 5: DAG `d` has no `loop_argument`, so there is no item"]);
}

#[test]
fn what_templates_become() {
    let pipeline = pipeline(
        "name: p
entry_points:
  up: {command: 'x {{PF_STEP_NAME}}{{ a }} {{not one}}', parameters: {a: 1}, artifacts: {output: [art]}}
  dag:
    deps: ' up , '
    loop_argument: '{{items}}'
    parameters: {items: '{{up.a}}', t: 'a{{up.a}}b'}
    artifacts: {input: {din: ' {{ up.art }} '}, output: {dout: '{{s.o}}'}}
    entry_points:
      s:
        parameters: {item: '{{PF_PARENT.PF_LOOP_ARGUMENT}}', t: '{{PF_PARENT.t}}'}
        artifacts: {input: {i: '{{PF_PARENT.din}}'}, output: [o]}
      t: {command: x, condition: '{{p}} > 1', parameters: {p: 1}}
fs_options: {main_fs: {name: ppl}}
",
    );
    assert_eq!(pipeline.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["p", "up", "dag", "s", "t"]);
    let of = |reference| Text(vec![Piece::Of(reference)]);
    let Step { job, texts, .. } = step(&pipeline, "up");
    assert_eq!(job.roles[0].work.command, ["/bin/sh", "-c", ""]);
    let command = vec![
        plain_piece("x "),
        Piece::Of(Reference::System(SystemParameter::StepName)),
        own("a"),
        plain_piece(" {{not one}}"),
    ];
    assert_eq!(texts, &[(Place::Word { role: 0, word: 2 }, Text(command))]);
    let dag = node(&pipeline, "dag");
    assert_eq!((dag.parent, &dag.deps[..]), (Pipeline::ROOT, &[NodeId(1)][..]));
    assert_eq!(dag.items, Some(Items::Of(Reference::Parameter("items".into()))));
    let up = |name: &str| Reference::Sibling { node: NodeId(1), name: name.to_owned() };
    assert_eq!(dag.parameters[0].value, model::Given::Text(of(up("a"))));
    assert_eq!(dag.inputs, [Input { name: "din".into(), from: up("art") }]);
    assert_eq!(dag.outputs, [Output { name: "dout".into(), from: Some((NodeId(3), "o".into())) }]);
    let s = node(&pipeline, "dag.s");
    assert_eq!(s.parameters[0].value, model::Given::Text(of(Reference::ParentItem)));
    assert_eq!(s.parameters[1].value, model::Given::Text(of(Reference::Parent("t".into()))));
    assert_eq!(s.inputs[0].from, Reference::Parent("din".into()));
    assert_eq!(node(&pipeline, "dag.t").condition, Some(Text(vec![own("p"), plain_piece(" > 1")])));
    assert_eq!(pipeline.store.unwrap().dir, Path::new("/mnt/ppl"));
}

#[test]
fn dependencies() {
    let two =
        |a: &str, b: &str| entries(&format!("  a: {{command: x, deps: {a}}}\n  b: {{command: x, deps: {b}}}"), "");
    assert_eq!(errors(&two("b", "a")), ["F0110 3: components depend on each other: `a`, `b`"]);
    assert_eq!(errors(&two("a", "''")), ["F0110 3: components depend on each other: `a`"]);
    assert_eq!(errors(&two("'b,zz,'", "''")), ["F0110 3: step `a` depends on an unknown component `zz`"]);
    let nested = entries("  a: {command: x}\n  d:\n    entry_points:\n      e: {command: x, deps: a}", "");
    assert_eq!(errors(&nested), ["F0110 6: step `e` depends on an unknown component `a`"]);
    assert_eq!(pipeline(&two("''", "'a, a'")).nodes[2].deps, [NodeId(1)]);
}

#[test]
fn loops() {
    let items = |written: &str| {
        pipeline(&one(&format!("command: x, loop_argument: {written}, parameters: {{p: [1]}}"))).nodes[1].items.clone()
    };
    let numbers = Items::List(vec![Value::Int(1), Value::Int(2)]);
    for (written, expected) in [
        ("[1, 2]", numbers.clone()),
        ("'[1, 2]'", numbers),
        ("'[]'", Items::List(vec![])),
        ("[]", Items::List(vec![])),
        ("'{{p}}'", Items::Of(Reference::Parameter("p".into()))),
    ] {
        assert_eq!(items(written), Some(expected), "{written}");
    }
    for (written, expected) in [
        ("'1, 2'", "F0113 3: `loop_argument` of step `s` must be a list, a JSON list or a template"),
        ("5", "F0011 3: `loop_argument` of step `s` must be a list, a JSON list or a template"),
        ("'a{{p}}'", "F0113 3: `loop_argument` of step `s` must be one template and nothing else"),
        ("['{{p}}']", "F0111 3: an item of `loop_argument` must not contain a template"),
        ("[{a: b}]", "F0011 3: an item of `loop_argument` must be a number, a string or a list"),
        ("'{{PF_RUN_ID}}'", "F0111 3: `loop_argument` cannot use the system parameter `PF_RUN_ID`"),
    ] {
        assert_eq!(
            errors(&one(&format!("command: x, loop_argument: {written}, parameters: {{p: [1]}}"))),
            [expected],
            "{written}"
        );
    }
}

#[test]
fn conditions() {
    for good in
        ["'{{p}} > 10'", "\"'{{p}}' == 'a'\"", "'{{p}}{{p}} in (1, 2)'", "'{{p}}abc < def'", "1 < 2", "'{{p}}'", "true"]
    {
        pipeline(&one(&format!("command: x, condition: {good}, parameters: {{p: 1}}")));
    }
    for bad in ["'{{p}} >'", "'(1 < 2'", "'{{p}} > > 2'", "' '"] {
        let errors = errors(&one(&format!("command: x, condition: {bad}, parameters: {{p: 1}}")));
        assert_eq!(errors, ["F0113 3: `condition` of step `s` is not an expression"], "{bad}");
    }
}

#[test]
fn components_are_copied() {
    let pipeline = pipeline(
        "name: p
entry_points:
  first: {command: x, parameters: {v: 5}, artifacts: {output: [o]}}
  one: {reference: {component: middle}, deps: first, parameters: {n: '{{first.v}}'}, artifacts: {input: {i: '{{first.o}}'}}}
  two: {reference: {component: bottom}, deps: first, artifacts: {input: {i: '{{first.o}}'}}}
  after: {command: x, deps: 'one, two', parameters: {n: '{{one.n}}'}, artifacts: {input: {i: '{{two.out}}'}}}
components:
  middle: {reference: {component: bottom}, parameters: {m: 7}, artifacts: {input: {i: ''}}}
  bottom:
    parameters: {n: 1, m: 2}
    artifacts: {input: {i: ''}, output: {out: '{{leaf.out}}'}}
    loop_argument: [1, 2]
    entry_points:
      leaf: {command: 'y {{n}}', parameters: {n: '{{PF_PARENT.n}}'}, artifacts: {input: {i: '{{PF_PARENT.i}}'}, output: [out]}}
fs_options: {main_fs: {name: ppl}}
",
    );
    let names: Vec<String> = pipeline.iter().map(|(id, _)| pipeline.path(id)).collect();
    assert_eq!(names, ["", "first", "one", "two", "after", "one.leaf", "two.leaf"]);
    let one = node(&pipeline, "one");
    let first = |name: &str| Reference::Sibling { node: NodeId(1), name: name.to_owned() };
    assert_eq!(one.parameters[0].value, model::Given::Text(Text(vec![Piece::Of(first("v"))])));
    assert_eq!(one.parameters[1].value, model::Given::Value(Value::Int(7)));
    assert_eq!((one.inputs[0].from.clone(), one.deps.clone()), (first("o"), vec![NodeId(1)]));
    assert_eq!(one.outputs[0].from, Some((NodeId(5), "out".into())));
    assert!(one.items.is_some());
    assert_eq!(node(&pipeline, "two").parameters[0].value, model::Given::Value(Value::Int(1)));
    assert_eq!(node(&pipeline, "two.leaf").parent, NodeId(3));
    let after = node(&pipeline, "after");
    assert_eq!(after.inputs[0].from, Reference::Sibling { node: NodeId(3), name: "out".into() });
}

#[test]
fn references_that_are_refused() {
    let using = |keys: &str, component: &str| {
        entries(
            &format!("  s: {{reference: {{component: c}}, {keys}}}"),
            &format!("components:\n  {component}\nfs_options: {{main_fs: {{name: ppl}}}}"),
        )
    };
    let c = "c: {command: x, parameters: {n: 1, t: {type: int, default: 1}}, artifacts: {input: {i: ''}}}";
    for (text, expected) in [
        (using("", "d: {command: x}"), vec!["F0112 3: unknown component `c`"]),
        (using("command: y", "c: {command: x}"), vec!["F0112 3: step `s` has both `reference` and `command`"]),
        (
            using("artifacts: {output: [o]}", "c: {command: x}"),
            vec!["F0112 3: step `s` has `reference` and output artifacts"],
        ),
        (using("parameters: {zz: 1}", "c: {command: x}"), vec!["F0112 3: component `c` has no parameter `zz`"]),
        (
            using("parameters: {t: word}", c),
            vec![
                "F0112 3: step `s` lacks the input artifact `i`",
                "F0011 3: parameter `t` of type `int` must be a whole number",
            ],
        ),
        (using("", "c: {command: x, deps: d}"), vec!["F0110 5: `c` in `components` has `deps`"]),
        (using("", "c: {reference: {component: c}}"), vec!["F0112 5: components contain themselves: `c`"]),
        (
            using("", "c: {entry_points: {e: {reference: {component: c}}}}"),
            vec!["F0112 5: components contain themselves: `c`"],
        ),
        (using("", "c: {command: '{{zz}}'}"), vec!["F0030 5: step `c` has no parameter `zz`"]),
        (
            using("", "c: {command: x, parameters: {p: '{{s.x}}'}}"),
            vec!["F0111 5: a component of `components` cannot use values of other components"],
        ),
        (using("", "c: {command: x, parameters: {p: {type: int}}}"), vec!["F0034 5: parameter `s.p` has no value"]),
    ] {
        assert_eq!(errors(&text), expected, "{text}");
    }
    pipeline(&using("parameters: {p: 5}", "c: {command: x, parameters: {p: {type: int}}}"));
}

#[test]
fn references_that_multiply() {
    let mut text = "name: p\nentry_points: {s: {reference: {component: c0}}}\ncomponents:\n".to_owned();
    for level in 0..30 {
        let next = level + 1;
        let _ = writeln!(
            text,
            "  c{level}: {{entry_points: {{a: {{reference: {{component: c{next}}}}}, b: {{reference: {{component: c{next}}}}}}}}}"
        );
    }
    text += "  c30: {command: x}";
    assert_eq!(errors(&text), ["F0112 2: the pipeline has too many components"]);
    let mut text = "name: p\nentry_points: {s: {reference: {component: c0}}}\ncomponents:\n".to_owned();
    for level in 0..1000 {
        let _ = writeln!(text, "  c{level}: {{entry_points: {{a: {{reference: {{component: c{}}}}}}}}}", level + 1);
    }
    text += "  c1000: {command: x}";
    assert_eq!(errors(&text), ["F0112 2: components are nested too deep"]);
    let long = "y".repeat(100_000);
    let many: Vec<String> = (0..900).map(|n| format!("  s{n}: {{reference: {{component: c}}}}")).collect();
    let text = entries(&many.join("\n"), &format!("components: {{c: {{command: {long}}}}}"));
    assert_eq!(errors(&text), ["F0008 3: references copy components too often"]);
}

#[test]
fn parameters_of_the_command_line() {
    let text = "name: p
entry_points:
  a: {command: x, parameters: {n: 1, t: {type: int, default: 2}}}
  d:
    parameters: {n: '{{PF_RUN_ID}}'}
    entry_points:
      b: {command: x, parameters: {n: z}}
      c: {reference: {component: k}}
components:
  k: {command: x, parameters: {n: 5, need: {type: list}}}
post_process:
  post: {command: x, parameters: {n: 1}}
";
    let params = [("n", "9"), ("d.b.n", "8"), ("d.c.need", "[1]"), ("a.t", "4")];
    let pipeline =
        with(text, &params, &[]).unwrap_or_else(|errors| panic!("{}", plain(&errors))).pipeline().unwrap().clone();
    let value = |path: &str, nth: usize| node(&pipeline, path).parameters[nth].value.clone();
    let text_value = |text: &str| model::Given::Value(Value::Text(text.to_owned()));
    assert_eq!(
        (value("a", 0), value("a", 1)),
        (model::Given::Value(Value::Int(9)), model::Given::Value(Value::Int(4)))
    );
    assert_eq!((value("d", 0), value("d.b", 0)), (text_value("9"), text_value("8")));
    assert_eq!(
        (value("d.c", 0), value("post", 0)),
        (model::Given::Value(Value::Int(9)), model::Given::Value(Value::Int(9)))
    );
    assert_eq!(value("d.c", 1), model::Given::Value(Value::List(vec![Value::Int(1)])));
    let refused = |key: &str, value: &str| {
        let errors = with(text, &[(key, value), ("d.c.need", "[1]")], &[]).unwrap_err();
        errors.iter().map(said).collect::<Vec<_>>()
    };
    assert_eq!(refused("zz", "1"), ["F0033 `run.yaml` has no parameter `zz`"]);
    assert_eq!(refused("a.zz", "1"), ["F0033 `run.yaml` has no parameter `a.zz`"]);
    assert_eq!(refused("k.n", "1"), ["F0033 `run.yaml` has no parameter `k.n`"]);
    assert_eq!(refused("t", "word"), ["F0011 3: `-p t` must be a whole number"]);
    let settings = settings();
    let given = Given { dir: Path::new("/here"), ..Given::new(&[], &settings) };
    let checked = check(&Source::new("run.yaml", text), &given);
    assert_eq!((checked.work, checked.needed), (None, vec!["d.c.need".to_owned()]));
    // A value is never searched for templates.
    let document = with(text, &[("a.n", "{{PF_RUN_ID}}"), ("d.c.need", "[]")], &[]).unwrap();
    assert_eq!(node(document.pipeline().unwrap(), "a").parameters[0].value, text_value("{{PF_RUN_ID}}"));
    assert_eq!(document.notices[0].code, Code::F0054);
}

#[test]
fn disabled() {
    let text = |disabled: &str| {
        format!(
            "name: p
disabled: {disabled}
entry_points:
  a: {{command: '{{{{nothing}}}}', parameters: {{v: 1}}, artifacts: {{output: [o]}}}}
  b: {{command: x, deps: a}}
  d:
    artifacts: {{output: {{o: '{{{{e.o}}}}'}}}}
    entry_points:
      e: {{command: x, artifacts: {{output: [o]}}}}
      f: {{command: x}}
  r: {{reference: {{component: k}}}}
components:
  k: {{entry_points: {{g: {{command: x, parameters: {{v: 1}}}}, h: {{command: x, deps: g, parameters: {{v: '{{{{g.v}}}}'}}}}}}}}
fs_options: {{main_fs: {{name: ppl}}}}
"
        )
    };
    let found = pipeline(&text("'a, d.f, r.h'"));
    let of = |path: &str| node(&found, path).disabled;
    assert!(of("a") && of("d.f") && of("r.h") && !of("b") && !of("d.e") && !of("r.g"));
    assert_eq!(node(&found, "b").deps, [NodeId(1)]);
    let whole = pipeline(&text("'a, d, b, r'"));
    assert!(whole.nodes[1..].iter().all(|node| node.disabled) && whole.nodes.len() == 5);
    for (disabled, expected) in [
        ("'a, zz'", "F0114 2: the pipeline has no component `zz`"),
        ("'a, a'", "F0114 2: `a` is disabled twice"),
        ("'a, d.e'", "F0114 2: `d.e` is disabled, but DAG `d` uses its values"),
        ("'a, r.g'", "F0114 2: `r.g` is disabled, but step `h` uses its values"),
        ("b", "F0030 4: step `a` has no parameter `nothing`"),
    ] {
        assert_eq!(errors(&text(disabled)), [expected], "{disabled}");
    }
    assert!(with(&text("a"), &[], &["d.f"]).is_ok_and(|document| node(document.pipeline().unwrap(), "d.f").disabled));
    assert_eq!(with(&text("a"), &[], &["zz"]).unwrap_err()[0].code, Code::F0114);
}

#[test]
fn post_steps() {
    let post = |post: &str| {
        entries(
            "  s: {command: x, parameters: {v: 1}}",
            &format!(
                "post_process: {{{post}}}\ncomponents: {{k: {{entry_points: {{e: {{command: x}}}}}}, l: {{command: y}}}}\nfs_options: {{main_fs: {{name: ppl}}}}\ncache: {{enable: true}}"
            ),
        )
    };
    let found = pipeline(&post("end: {command: x, artifacts: {output: [o]}}"));
    let id = found.post.unwrap();
    assert_eq!((found.node(id).name.as_str(), found.node(id).parent), ("end", Pipeline::ROOT));
    let Body::Dag { children } = &found.nodes[0].body else { panic!() };
    assert!(!children.contains(&id));
    assert!(step(&found, "s").cache.is_some() && step(&found, "end").cache.is_none());
    assert_eq!(step(&pipeline(&post("end: {reference: {component: l}}")), "end").job.roles[0].work.command[2], "y");
    for (keys, expected) in [
        ("a: {command: x}, b: {command: x}", "`post_process` has more than one step"),
        ("s: {command: x}", "`s` is in both `post_process` and `entry_points`"),
        ("a: {deps: s}", "the step `a` of `post_process` cannot have `deps`"),
        ("a: {entry_points: {b: {command: x}}}", "the step `a` of `post_process` cannot have components of its own"),
        ("a: {reference: {component: k}}", "the step `a` of `post_process` cannot have components of its own"),
        ("a: {condition: 1 < 2}", "the step `a` of `post_process` cannot have a `condition`"),
        ("a: {loop_argument: [1]}", "the step `a` of `post_process` cannot have a `loop_argument`"),
        ("a: {cache: {enable: true}}", "the step `a` of `post_process` cannot have an enabled `cache`"),
        ("a: {parameters: {p: '{{s.v}}'}}", "a step of `post_process` cannot use values of other components"),
    ] {
        assert_eq!(errors(&post(keys)), [format!("F0119 4: {expected}")], "{keys}");
    }
}

#[test]
fn caches() {
    let cache = |global: &str, own: &str| {
        let text = entries(
            &format!("  s: {{command: x, cache: {{{own}}}}}"),
            &format!("cache: {{{global}}}\nfs_options: {{main_fs: {{name: ppl}}, extra_fs: [{{name: data}}]}}"),
        );
        step(&pipeline(&text), "s").cache.clone()
    };
    let some = |age: Option<u64>, scope: &[&str]| {
        Some(Cache { max_age: age.map(Duration::from_secs), scope: scope.iter().map(PathBuf::from).collect() })
    };
    for (global, own, expected) in [
        ("", "", None),
        ("enable: true", "", some(None, &[])),
        ("enable: true", "enable: false", None),
        ("enable: false", "enable: on", some(None, &[])),
        ("enable: true, max_expired_time: 400", "", some(Some(400), &[])),
        ("enable: true, max_expired_time: 400", "max_expired_time: '-1'", some(None, &[])),
        ("enable: true, max_expired_time: '60'", "max_expired_time: 0", some(Some(0), &[])),
        (
            "enable: true, fs_scope: [{name: ppl, path: '/a,b/c'}]",
            "fs_scope: [{name: data}]",
            some(None, &["/mnt/data", "/mnt/ppl/a", "/mnt/ppl/b/c"]),
        ),
    ] {
        assert_eq!(cache(global, own), expected, "{global}; {own}");
    }
    for (own, expected) in [
        ("max_expired_time: -2", "F0013 3: `max_expired_time` must be a whole number from -1 to 3000000000"),
        ("max_expired_time: soon", "F0011 3: `max_expired_time` must be a whole number"),
        ("fs_scope: a", "F0011 3: `fs_scope` must be a list"),
        ("fs_scope: [{name: ppl, path: ../x}]", "F0118 3: `path` must not contain `..`"),
    ] {
        assert_eq!(errors(&one(&format!("cache: {{{own}}}"))), [expected], "{own}");
    }
}

#[test]
fn parallelism_and_strategies() {
    for (written, expected) in [("", 10), ("1", 1), ("20", 20), ("21", 20), ("0", 10), ("-3", 10), ("99999999999", 20)]
    {
        let document = document(&entries("  s: {command: x}", &format!("parallelism: {written}")));
        let is_clamped = !written.is_empty() && written != expected.to_string();
        assert_eq!(
            (document.pipeline().unwrap().parallelism, document.notices.len()),
            (expected, usize::from(is_clamped)),
            "{written}"
        );
    }
    for (written, expected) in [("{}", OnFailure::FailFast), ("{strategy: continue}", OnFailure::Continue)] {
        let text = entries("  s: {command: x}", &format!("failure_options: {written}"));
        assert_eq!(pipeline(&text).on_failure, expected);
    }
}

#[test]
fn what_steers_a_step() {
    let pipeline = pipeline(&one(
        "command: 'bash -c \"echo\"', docker_env: i, parameters: {f: flavour2}, env: {PF_JOB_FLAVOUR: '{{f}}', PF_JOB_QUEUE_NAME: default, PF_JOB_PRIORITY: HIGH, PF_JOB_RESTART_POLICY: OnFailure, PF_JOB_MODE: Pod}, retries: {max: 2, backoff: 5s}, timeout: 1h",
    ));
    let job = &step(&pipeline, "s").job;
    assert_eq!(job.name.as_str(), "s");
    let [role] = &job.roles[..] else { panic!() };
    assert_eq!(
        (role.replicas, role.work.image.as_deref(), role.work.queue.as_deref(), role.work.priority.as_deref()),
        (1, Some("i"), Some("default"), Some("high"))
    );
    assert_eq!(role.work.command, ["/bin/sh", "-c", "bash -c \"echo\""]);
    let gpu = Resources {
        cpu_millis: Some(4000),
        memory_bytes: Some(8 << 30),
        gpus: 1,
        shm_bytes: None,
        storage_bytes: None,
    };
    assert_eq!(role.work.resources, gpu);
    assert_eq!((role.restart.scope, role.restart.rule.max), (Scope::Replica, Restart::UNLIMITED));
    assert!(role.work.env.iter().all(|(name, _)| name != "PF_JOB_MODE"), "the pipeline sets it");
    assert_eq!((job.policy.restart.max, job.policy.restart.backoff), (2, Duration::from_secs(5)));
    assert_eq!(job.policy.timeout, Some(Duration::from_secs(3600)));
    assert_eq!(
        errors(&one("env: {PF_JOB_PRIORITY: urgent}")),
        ["F0013 3: the priority must be `low`, `normal` or `high`"]
    );
    let unknown = one("env: {PF_JOB_FLAVOUR: huge}");
    assert_eq!(errors(&unknown), ["F0017 3: unknown flavour `huge`"]);
    assert_eq!(checked(&unknown), ["F0121 3: flavour `huge` is not defined here"]);
    let late = one("env: {PF_JOB_FLAVOUR: '{{PF_RUN_ID}}'}");
    assert_eq!(checked(&late), ["F0051 3: `PF_JOB_FLAVOUR` depends on values of the run, and is not used"]);
}

fn distributed(framework: &str, members: &str, step: &str) -> String {
    entries(
        &format!("  s:\n    {step}\n    distributed_job:\n      framework: {framework}\n      members: [{members}]"),
        "docker_env: global",
    )
}

#[test]
fn members_inherit() {
    let text = distributed(
        "paddle",
        "{role: pworker, replicas: 2.0, port: 8080, flavour: {name: flavour1, cpu: '9', scalarResources: {nvidia.com/gpu: '2'}}, env: {A: member, NEW: 1, PF_RUN_ID: own}, priority: low, fs: {name: data, mountPath: /d}, labels: {team: ads}}, {role: pserver, replicas: 1, image: own, command: serve, flavour: {mem: 2Gi}, extra_fs: [{name: data, mount_path: /e}]}, {role: worker, replicas: 1, queue: q1}",
        "command: 'train {{e}}'\n    parameters: {e: 1}\n    env: {A: step, B: '{{e}}', PF_JOB_FLAVOUR: flavour2, PF_JOB_QUEUE_NAME: q1, PF_JOB_PRIORITY: high, PF_RUN_ID: none}",
    );
    let pipeline = pipeline(&text);
    let Step { job, texts, .. } = step(&pipeline, "s");
    let names: Vec<(&str, u32)> = job.roles.iter().map(|role| (role.name.as_str(), role.replicas)).collect();
    assert_eq!(names, [("pserver", 1), ("worker", 2), ("worker-2", 1)]);
    let [server, first, second] = &job.roles[..] else { panic!() };
    assert_eq!(server.work.command[2], "serve");
    assert_eq!((server.work.image.as_deref(), first.work.image.as_deref()), (Some("own"), Some("global")));
    assert_eq!((server.completion.decides, first.completion.decides), (false, true));
    let parts: Vec<_> = job.roles.iter().map(|role| role.part).collect();
    assert_eq!(parts, [Some(Part::Server), Some(Part::Trainer), Some(Part::Trainer)]);
    assert_eq!((&job.contracts[..], job.policy.linger), (&[Contract::PaddleJob][..], Some(Duration::from_secs(30))));
    let resources = |cpu: Option<u32>, gib: Option<u64>, gpus| Resources {
        cpu_millis: cpu,
        memory_bytes: gib.map(|gib| gib << 30),
        gpus,
        shm_bytes: None,
        storage_bytes: None,
    };
    assert_eq!(server.work.resources, resources(None, Some(2), 0));
    assert_eq!(first.work.resources, resources(Some(1000), Some(1), 2));
    assert_eq!(second.work.resources, resources(Some(4000), Some(8), 1));
    assert_eq!((first.work.ports[0].fixed, second.work.ports.len()), (Some(8080), 0));
    let env = |role: &model::Role| {
        role.work
            .env
            .iter()
            .filter(|(name, _)| !name.starts_with("PF_JOB"))
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(env(first), ["B=", "A=member", "NEW=1", "PF_RUN_ID=own"]);
    assert_eq!(env(second), ["A=step", "B="]);
    let priority = |role: &model::Role| role.work.priority.clone().unwrap();
    assert_eq!((priority(first), priority(second)), ("low".into(), "high".into()));
    assert_eq!((first.work.dir.as_deref(), second.work.dir.as_deref()), (Some(Path::new("/d")), None));
    assert_eq!(server.work.mounts[0].path, Path::new("/e"));
    assert_eq!(job.labels["team"], "ads");
    let texts: Vec<Place> = texts.iter().map(|(place, _)| *place).collect();
    assert_eq!(
        texts,
        [
            Place::Variable { role: 0, variable: 1 },
            Place::Word { role: 1, word: 2 },
            Place::Variable { role: 1, variable: 0 },
            Place::Word { role: 2, word: 2 },
            Place::Variable { role: 2, variable: 1 },
        ]
    );
}

#[test]
fn distributed_jobs_that_are_refused() {
    let two = "{role: worker, replicas: 2}";
    for (framework, members, expected) in [
        ("ray", two, "F0115 6: framework `ray` is not supported"),
        ("spark", two, "F0115 6: framework `spark` is not supported"),
        ("mxnet", two, "F0115 6: framework `mxnet` is not supported"),
        ("aitj", two, "F0115 6: framework `aitj` is not supported"),
        ("padle", two, "F0115 6: unknown framework `padle`"),
        ("", two, "F0012 6: `distributed_job` of step `s` has no `framework`"),
        (
            "paddle",
            "{role: worker, replicas: 1}",
            "F0116 5: the distributed job of step `s` needs at least two workers, or servers beside one",
        ),
        (
            "paddle",
            "{role: pserver, replicas: 1}",
            "F0116 5: the distributed job of step `s` needs a member with the role `worker`",
        ),
        (
            "paddle",
            "{role: master, replicas: 1}, {role: worker, replicas: 2}",
            "F0116 7: `paddle` has no role `master`",
        ),
        (
            "pytorch",
            "{role: driver, replicas: 1}, {role: worker, replicas: 2}",
            "F0116 7: `pytorch` has no role `driver`",
        ),
        ("mpi", two, "F0116 5: the distributed job of step `s` needs a member with the role `master`"),
        (
            "mpi",
            "{role: pserver, replicas: 1}, {role: worker, replicas: 2}, {role: master, replicas: 1}",
            "F0116 7: `mpi` has no role `pserver`",
        ),
        ("paddle", "{role: worker, replicas: 0}", "F0013 7: `replicas` must be a whole number from 1 to 10000"),
        ("paddle", "{role: worker, replicas: '2'}", "F0011 7: `replicas` must be a whole number"),
        ("paddle", "{replicas: 2}", "F0012 7: a member has no `role`"),
        ("paddle", "{role: worker}", "F0012 7: a member has no `replicas`"),
        (
            "paddle",
            "{role: worker, replicas: 2, port: 65535}",
            "F0013 7: `port` must be a whole number from 0 to 65534",
        ),
        (
            "paddle",
            "{role: worker, replicas: 2, priority: most}",
            "F0013 7: the priority must be `low`, `normal` or `high`",
        ),
        (
            "paddle",
            "{role: worker, replicas: 2, queue: gpu-a}, {role: pserver, replicas: 1, queue: gpu-b}",
            "F0117 7: members of step `s` use different queues",
        ),
        (
            "paddle",
            "{role: worker, replicas: 2, queue: gpu-a}",
            "F0117 7: members of step `s` use another queue than the step",
        ),
        ("paddle", "{role: worker, replicas: 2, command: '{{zz}}'}", "F0030 7: step `s` has no parameter `zz`"),
        ("paddle", "5", "F0011 7: a member must be a mapping"),
        (
            "paddle",
            "{role: worker, replicas: 2, flavour: {cpu: many}}",
            "F0013 7: `cpu` must be a number of CPUs such as `2`, `0.5` or `500m`",
        ),
    ] {
        assert_eq!(errors(&distributed(framework, members, "command: x")), [expected], "{framework} {members}");
    }
    let queue = distributed("paddle", "{role: worker, replicas: 2, queue: gpu-a}", "env: {PF_JOB_QUEUE_NAME: gpu-b}");
    assert_eq!(errors(&queue), ["F0117 7: members of step `s` use another queue than the step"]);
    for good in [
        "{role: worker, replicas: 2, queue: default-queue}",
        "{role: worker, replicas: 2, queue: ''}",
        "{role: pserver, replicas: 1}, {role: pworker, replicas: 1}",
    ] {
        pipeline(&distributed("paddle", good, "command: x"));
    }
    for (framework, members) in [
        ("pytorch", "{role: master, replicas: 1}, {role: worker, replicas: 1}"),
        ("mpi", "{role: master, replicas: 1}, {role: worker, replicas: 1}"),
        ("ray", ""),
    ] {
        pipeline(&distributed(framework, members, "command: x"));
    }
}

#[test]
fn frameworks() {
    let decides = |framework: &str, members: &str| {
        let pipeline = pipeline(&distributed(framework, members, "command: x"));
        let job = &step(&pipeline, "s").job;
        let roles = job.roles.iter().map(|role| (role.part, role.completion.decides)).collect::<Vec<_>>();
        (job.contracts.clone(), roles)
    };
    let with = |role: &str| format!("{{role: worker, replicas: 2}}, {{role: {role}, replicas: 1}}");
    let parts = |first, decides: bool| vec![(Some(first), decides), (Some(Part::Trainer), !decides)];
    for (framework, role, contract, first, leads) in [
        ("paddle", "pserver", Contract::PaddleJob, Part::Server, false),
        ("pytorch", "master", Contract::PytorchJob, Part::Leader, true),
        ("tensorflow", "pserver", Contract::Tensorflow, Part::Server, false),
    ] {
        assert_eq!(decides(framework, &with(role)), (vec![contract], parts(first, leads)), "{framework}");
        let workers = (vec![contract], vec![(Some(Part::Trainer), true)]);
        assert_eq!(decides(framework, "{role: worker, replicas: 2}"), workers, "{framework}");
    }
    assert_eq!(decides("mpi", &with("master")), (vec![Contract::Mpi], parts(Part::Leader, true)));
}

/// The step's command is the launcher's; workers wait, and need no time to end by themselves.
#[test]
fn workers_of_mpi() {
    let members =
        "{role: worker, replicas: 2}, {role: pworker, replicas: 1, command: own}, {role: master, replicas: 1}";
    let pipeline = pipeline(&distributed("mpi", members, "command: mpirun x"));
    let job = &step(&pipeline, "s").job;
    let commands: Vec<&str> = job.roles.iter().map(|role| role.work.command[2].as_str()).collect();
    assert_eq!(commands, ["mpirun x", "", "own"]);
    assert_eq!(job.policy.linger, None);
}

#[test]
fn unknown_keys_of_members_are_notices() {
    let text = distributed(
        "paddle",
        "{role: worker, replicas: 2, comand: x, id: 5, flavour: {nam: f, scalar_resources: {amd.com/gpu: 1}}, annotations: {a: b}}",
        "command: x",
    );
    assert_eq!(
        checked(&text),
        [
            "F0051 7: `comand` of a member is not used",
            "F0051 7: `nam` of `flavour` is not used",
            "F0051 7: `amd.com/gpu` of a flavour is not used",
            "F0051 7: `annotations` of a member is not used",
            "F0123 5: `distributed_job` is rejected by PaddleFlow's develop branch",
            "F0123 7: `annotations` of a member is ignored by early versions of pull request #1164",
        ]
    );
}

#[test]
fn dialects() {
    let dialect = |text: &str| dialect(text).unwrap();
    assert_eq!(dialect(&one("command: x")), Dialect::Develop);
    assert_eq!(dialect(&distributed("paddle", "", "command: x")), Dialect::PullRequest);
    assert_eq!(
        dialect(&distributed("paddle", "{role: worker, replicas: 2, priority: low}", "command: x")),
        Dialect::PullRequestEarly
    );
    assert_eq!(dialect(&one("command: x, retries: 3")), Dialect::Umiak);
    assert_eq!(
        checked(&one("command: x, retries: 3, timeout: 5s")),
        [
            "F0123 3: `retries` is a key of umiak, which PaddleFlow rejects",
            "F0123 3: `timeout` is a key of umiak, which PaddleFlow rejects"
        ]
    );
    for retries in ["unlimited", "{max: unlimited}"] {
        let pipeline = pipeline(&one(&format!("command: x, retries: {retries}")));
        assert_eq!(step(&pipeline, "s").job.policy.restart.max, Restart::UNLIMITED);
    }
    assert_eq!(
        checked(&one("command: x, parameters: {PF_RUN_ID: x}")),
        ["F0051 3: parameter `PF_RUN_ID` is not used: templates mean the system parameter"]
    );
}

#[test]
fn the_json_form() {
    let json = r#"{"name": "p", "dockerEnv": "i", "entryPoints": {"entryPoints": {"command": "x {{loopArgument}}", "loopArgument": [1], "parameters": {"loopArgument": 1},
  "extraFS": [{"name": "data", "mountPath": "/d", "subPath": "s", "readOnly": true}], "cache": {"enable": true, "maxExpiredTime": 5, "fsScope": [{"name": "data"}]},
  "distributedJob": {"framework": "paddle", "members": [{"role": "worker", "replicas": 2, "flavour": {"scalarResources": {"nvidia.com/gpu": "1"}}}]}}},
  "failureOptions": {"strategy": "continue"}, "postProcess": {"end": {"command": "x"}}, "fsOptions": {"mainFS": {"name": "ppl"}, "extraFS": []}}"#;
    let yaml = "name: p
docker_env: i
entry_points:
  entryPoints:
    command: 'x {{loopArgument}}'
    loop_argument: [1]
    parameters: {loopArgument: 1}
    extra_fs: [{name: data, mount_path: /d, sub_path: s, read_only: true}]
    cache: {enable: true, max_expired_time: 5, fs_scope: [{name: data}]}
    distributed_job: {framework: paddle, members: [{role: worker, replicas: 2, flavour: {scalar_resources: {nvidia.com/gpu: '1'}}}]}
failure_options: {strategy: continue}
post_process: {end: {command: x}}
fs_options: {main_fs: {name: ppl}, extra_fs: []}
";
    assert_eq!(pipeline(json), pipeline(yaml));
    let both = "{\"name\": \"p\", \"dockerEnv\": \"a\", \"docker_env\": \"b\", \"entryPoints\": {\"s\": {\"command\": \"x\"}}}";
    assert_eq!(errors(both), ["F0006 1: duplicate key `docker_env`"]);
}

#[test]
fn secrets() {
    let text = "name: p
entry_points:
  a: {command: x, parameters: {plain: s3cretvalue, api_key: othersecret, typed_token: {type: string, default: typedsecret}}}
  b:
    deps: a
    command: run
    parameters: {p: '{{a.plain}}', shown: visible}
    env: {DB_PASSWORD: '{{p}}', LOGIN_TOKEN: literalsecret, OTHER: '{{shown}}'}
  c: {command: 'curl --token abcdefgh123'}
";
    let document = document(text);
    for secret in ["s3cretvalue", "othersecret", "typedsecret", "literalsecret"] {
        assert!(!document.masked.contains(secret), "{}", document.masked);
    }
    assert!(document.masked.contains("visible"));
    for secret in ["s3cretvalue", "othersecret", "typedsecret"] {
        assert_eq!(document.secrets.masked("", &format!("x {secret}")), "x ********");
    }
    let given = with(text, &[("a.plain", "fromcommandline")], &[]).unwrap();
    assert_eq!(given.secrets.masked("", "x fromcommandline"), "x ********");
    assert_eq!(self::document(&document.masked).masked, document.masked);
}

#[test]
fn all_errors_at_once() {
    let text = "name: 1
parallelism: many
entry_points:
  train: {comand: x, deps: prepare, parameters: {e: {{epoch}}}, env: {A: [1]}}
  prepare: {command: 'y {{train.e}} {{zz}}', deps: train, loop_argument: 5}
  dag: {entry_points: {}, env: {a: b}}
components: {c: {command: x, deps: y}}
failure_options: {strategie: x}
";
    assert_snapshot!(plain(&with(text, &[("nothing", "1")], &["other"]).unwrap_err()));
}
