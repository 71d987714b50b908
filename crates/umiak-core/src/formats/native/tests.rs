use std::path::{Path, PathBuf};
use std::time::Duration;

use insta::assert_snapshot;
use proptest::prelude::*;

use super::keys::{DOCUMENT, ROLE, STEP, TABLES, Table};
use super::*;
use crate::diag::{Diagnostic, Source};
use crate::formats::document::{self, Document, Format, decode};
use crate::formats::{Given, parse};
use crate::model::{
    Body, Completion, Contract, Job, MinSucceeded, NodeId, OnFailure, Piece, Pipeline, Resources, Restart, Scope,
    StartAfter, Text, When,
};

fn documents(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents").join(kind);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[expect(clippy::disallowed_methods, reason = "tests read fixtures")]
fn source(path: &Path) -> Source {
    decode(path.file_name().unwrap().to_str().unwrap(), &std::fs::read(path).unwrap()).unwrap()
}

fn plain(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(Diagnostic::to_plain).collect::<Vec<_>>().join("\n")
}

fn given(text: &str, params: &[(&str, &str)]) -> Result<Document, String> {
    let params: Vec<(String, String)> = params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    parse(&Source::new("job.yaml", text), &Given::new(&params, &Settings::default())).map_err(|errors| plain(&errors))
}

fn job(text: &str) -> Job {
    given(text, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}")).job().unwrap().clone()
}

fn refused(text: &str) -> String {
    given(text, &[]).expect_err(text)
}

/// A document with one role, whose other keys are given.
fn role(keys: &str) -> String {
    format!(
        "umiak: v1\nroles:\n  first: {{command: \"true\", ports: {{rpc: 1}}}}\n  main: {{command: \"true\", {keys}}}\n"
    )
}

#[test]
fn a_port_number_is_not_a_count() {
    let errors = refused(&role("ports: {http: 8080}"));
    assert!(errors.contains("the number of ports `http` must be a whole number from 1 to 1024"), "{errors}");
    assert!(errors.contains("hint: for a fixed port, write `{port: 8080}`"), "{errors}");
    job(&role("ports: {http: {port: 8080}}"));
}

fn pipeline(text: &str) -> Pipeline {
    let document = given(text, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    document.pipeline().unwrap_or_else(|| panic!("{text}")).clone()
}

#[test]
fn steps_are_jobs() {
    let text = "umiak: v1\nname: p\nlabels: {a: b}\nparams: {n: 2}\ncontracts: torch\nparallelism: 3\non_failure: continue\nsteps:\n  a: {command: x, restarts: 2, timeout: 5s}\n  b:\n    after: [a, a]\n    if: \"{{ n }} > 1\"\n    policy: {timeout: 1h}\n    contracts: [paddle]\n    roles: {r: {command: [y, \"{{ n }}\"], replicas: 2}}\n  c: {after: b, command: z, contracts: []}\n";
    let pipeline = pipeline(text);
    assert_eq!((pipeline.name.as_str(), pipeline.parallelism, pipeline.on_failure), ("p", 3, OnFailure::Continue));
    assert_eq!(pipeline.labels.len(), 1);
    assert_eq!(pipeline.steps(), 3);
    let [root, a, b, c] = pipeline.nodes.as_slice() else { panic!("{pipeline:?}") };
    assert_eq!(root.body, Body::Dag { children: vec![NodeId(1), NodeId(2), NodeId(3)] });
    assert_eq!([&a.deps, &b.deps, &c.deps], [&vec![], &vec![NodeId(1)], &vec![NodeId(2)]]);
    assert_eq!(b.condition, Some(Text(vec![Piece::Plain("2 > 1".to_owned())])));
    let jobs: Vec<&Job> = pipeline.jobs().collect();
    assert_eq!(jobs[0].roles[0].name.as_str(), "main");
    assert_eq!(jobs[0].roles[0].restart.rule.max, 2);
    assert_eq!(jobs[0].roles[0].timeouts.run, Some(Duration::from_secs(5)));
    assert_eq!(jobs[1].name.as_str(), "b");
    assert_eq!(jobs[1].roles[0].work.command, ["y", "2"]);
    assert_eq!(jobs[1].policy.timeout, Some(Duration::from_secs(3600)));
    let contracts: Vec<_> = jobs.iter().map(|job| job.contracts.clone()).collect();
    assert_eq!(contracts, [vec![Contract::Torch], vec![Contract::Paddle], vec![Contract::Torch]]);
    assert_eq!(jobs[2].roles[0].work.contracts, Some(vec![]));
}

#[test]
fn steps_are_disabled_by_name() {
    let source = Source::new("job.yaml", "umiak: v1\nsteps: {prepare: {command: x}, train: {command: x}}\n");
    let settings = Settings::default();
    let with = |disabled: &[String]| parse(&source, &Given { disabled, ..Given::new(&[], &settings) });
    let document = with(&["train".to_owned()]).unwrap();
    let disabled: Vec<bool> = document.pipeline().unwrap().nodes.iter().map(|node| node.disabled).collect();
    assert_eq!(disabled, [false, false, true]);
    let errors = plain(&with(&["trai".to_owned()]).unwrap_err());
    assert!(errors.contains("the pipeline has no step `trai`") && errors.contains("did you mean `train`?"), "{errors}");
}

#[test]
fn mpi_needs_a_launcher_and_workers() {
    let with = |parts: [&str; 2]| {
        format!("umiak: v1\ncontracts: mpi\nroles: {{a: {{command: x{}}}, b: {{command: x{}}}}}\n", parts[0], parts[1])
    };
    assert_eq!(job(&with([", part: leader", ", part: trainer"])).contracts, [Contract::Mpi]);
    for parts in [["", ""], [", part: leader", ""], ["", ", part: trainer"]] {
        let errors = refused(&with(parts));
        assert!(errors.contains("contract `mpi` needs a launcher and workers"), "{errors}");
    }
}

#[test]
fn the_example_of_the_design() {
    let design = documents("good").into_iter().find(|path| path.ends_with("design.yaml")).unwrap();
    let document = parse(&source(&design), &Given::new(&[], &Settings::default())).unwrap();
    assert_eq!(document.notices, []);
    let job = document.job().unwrap().clone();
    assert_eq!(job.name.as_str(), "ctr");
    assert_eq!(job.contracts, [Contract::Paddle]);
    assert_eq!(job.policy.restart.max, 2);
    assert_eq!(job.policy.restart.max_platform, 10);
    assert_eq!(job.policy.restart.backoff, Duration::from_secs(10));
    assert_eq!(job.policy.timeout, Some(Duration::from_secs(6 * 3600)));
    assert!(job.policy.gang);
    let [pserver, trainer] = job.roles.as_slice() else { panic!() };
    assert_eq!(pserver.work.command, ["/bin/sh", "-c", "python ps.py"]);
    assert_eq!((pserver.replicas, pserver.completion.decides), (2, false));
    assert_eq!(pserver.work.ports.len(), 1);
    assert_eq!(pserver.timeouts.start, Some(Duration::from_secs(600)));
    assert_eq!(trainer.work.command, ["python", "train.py"]);
    assert_eq!(trainer.work.env, [("LR".to_owned(), "0.1".to_owned())]);
    assert_eq!(
        trainer.work.resources,
        Resources {
            cpu_millis: Some(2000),
            memory_bytes: Some(4 << 30),
            gpus: 1,
            shm_bytes: None,
            storage_bytes: None
        }
    );
    assert_eq!(trainer.completion, Completion { min_failed: 1, min_succeeded: MinSucceeded::All, decides: true });
    assert_eq!(trainer.start_after, [StartAfter { role: 0, when: When::Ready }]);
    assert_eq!(trainer.timeouts.start, None);
}

#[test]
fn good_documents() {
    for path in documents("good") {
        let source = source(&path);
        let document = parse(&source, &Given::new(&[], &Settings::default()))
            .unwrap_or_else(|errors| panic!("{}\n{}", path.display(), plain(&errors)));
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let work = match &document.work {
            Workload::Job(job) => serde_json::to_string_pretty(job),
            Workload::Pipeline(pipeline) => serde_json::to_string_pretty(pipeline),
        };
        let work = work.unwrap();
        assert_snapshot!(format!("good-{name}"), format!("{work}\n{}\n{}", plain(&document.notices), document.masked));
    }
}

#[test]
fn bad_documents() {
    for path in documents("bad") {
        let source = source(&path);
        let errors = parse(&source, &Given::new(&[], &Settings::default())).expect_err(&path.display().to_string());
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert_snapshot!(format!("bad-{name}"), plain(&errors));
    }
}

#[test]
fn masked_text_says_the_same() {
    for path in documents("good") {
        let source = source(&path);
        let document = parse(&source, &Given::new(&[], &Settings::default())).unwrap();
        let masked = Source::new(source.name.clone(), document.masked.clone());
        let again = parse(&masked, &Given::new(&[], &Settings::default()))
            .unwrap_or_else(|errors| panic!("{}", plain(&errors)));
        assert_eq!(again.masked, document.masked);
        let roles = |document: &Document| document.work.jobs().map(|job| job.roles.len()).sum::<usize>();
        assert_eq!(roles(&again), roles(&document));
        for secret in ["hf_abcdef", "li:pw"] {
            assert!(!document.masked.contains(secret), "{}", document.masked);
        }
    }
    let text = "umiak: v1\nparams: {api_key: s3cret, p: s3cret}\nroles:\n  main:\n    command: \"true\"\n    env:\n      A_TOKEN: |\n        s3cret\n        more s3cret\n      B: &x shown\n      C_TOKEN: \"{{ p }}\"\n      PASSWORD: 's3cret' # why\n      OTHER_KEY: >-\n        s3cret\n";
    let masked = given(text, &[]).unwrap().masked;
    assert!(!masked.contains("s3cret"), "{masked}");
    assert_snapshot!(masked);
}

#[test]
fn values_of_secret_parameters_are_known() {
    let text = "umiak: v1\nparams: {token: , pw: inner, lr: 0.125, user: root}\nroles:\n  main:\n    command: train --token {{token}} --lr {{lr}}\n    env: {HEADER: \"Bearer {{ token }}\", DB: \"redis://:{{pw}}@host\", USER: \"{{user}}\"}\n";
    let document = given(text, &[("token", "abc")]).unwrap();
    for (shown, expected) in [
        ("train --token abc --lr 0.125", "train --token ******** --lr 0.125"),
        ("Bearer abc", "Bearer ********"),
        ("the inner one", "the ******** one"),
        ("root", "root"),
    ] {
        assert_eq!(document.secrets.masked("", shown), expected);
    }
}

/// The example of every key in the table parses and changes the job (unless listed), and the key is in the schema.
#[test]
fn every_key_of_the_table() {
    let place = |table: &'static Table, entry: &str| -> String {
        let inner = format!("{{{entry}}}");
        match table.title {
            "The document" => unreachable!("told apart below"),
            "`policy`" => format!("umiak: v1\npolicy: {inner}\nroles: {{main: {{command: \"true\"}}}}\n"),
            "`restarts` of the policy" => {
                format!("umiak: v1\npolicy: {{restarts: {inner}}}\nroles: {{main: {{command: \"true\"}}}}\n")
            }
            "A step" => {
                let command = if entry.starts_with("roles:") { "" } else { "command: x, " };
                format!("umiak: v1\nsteps: {{prepare: {{command: x}}, main: {{{command}{entry}}}}}\n")
            }
            "A role" if entry.starts_with("command:") => {
                format!("umiak: v1\nroles: {{main: {inner}}}\n")
            }
            "A role" => role(entry),
            "`restart` of a role" => role(&format!("restart: {inner}")),
            "`resources`" => role(&format!("resources: {inner}")),
            "`completion`" => role(&format!("replicas: 2, completion: {inner}")),
            "A port" => role(&format!("ports: {{x: {inner}}}")),
            "`start_after` in full" if entry.starts_with("role:") => role(&format!("start_after: {inner}")),
            "`start_after` in full" => role(&format!("start_after: {{role: first, {entry}}}")),
            "A mount" if entry.starts_with("dir:") => role(&format!("mounts: [{{{entry}, path: /other}}]")),
            "A mount" if entry.starts_with("path:") => role(&format!("mounts: [{{dir: other, {entry}}}]")),
            "A mount" => role(&format!("mounts: [{{dir: d, path: /p, {entry}}}]")),
            other => panic!("{other} is new: say where it stands"),
        }
    };
    let schema = schema::schema().to_string();
    for table in TABLES {
        for key in table.keys {
            assert!(!key.help.is_empty() && key.help.ends_with('.'), "{}", key.name);
            assert!(schema.contains(&format!("\"{}\":", key.name)), "{}", key.name);
            let entry = format!("{}: {}", key.name, key.example);
            let text = if std::ptr::eq(*table, &raw const DOCUMENT) {
                let others = [("umiak", "umiak: v1\n"), ("roles", "roles: {main: {command: \"true\"}}\n")];
                let is_other = |name: &str| name != key.name && (name, key.name) != ("roles", "steps");
                let rest: String = others.iter().filter(|(name, _)| is_other(name)).map(|(_, line)| *line).collect();
                format!("{rest}{entry}\n")
            } else {
                place(table, &entry)
            };
            given(&text, &[]).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            // A key that is never read would accept any value.
            let wrong = match key.example {
                example if example.starts_with(['{', '[']) => format!("{}: !!str {{}}-", key.name),
                _ => format!("{}: [[1]]", key.name),
            };
            if !std::ptr::eq(*table, &raw const DOCUMENT) && !matches!(key.kind, keys::KeyKind::Command) {
                let text = place(table, &wrong);
                assert!(given(&text, &[]).is_err(), "{text}");
            }
        }
    }
}

#[test]
fn keys_of_a_role() {
    let main = |keys: &str| job(&role(keys)).roles.remove(1);
    assert_eq!(main("replicas: 3").replicas, 3);
    assert_eq!(
        main("env: {A: 0.10, B: true, C: \"\", D: 1e3}").work.env.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>(),
        ["0.10", "true", "", "1e3"]
    );
    assert_eq!(main("start_after: first").start_after[0].when, When::Ready);
    assert_eq!(main("start_after: {role: first, when: started}").start_after[0].when, When::Started);
    assert_eq!(main("start_after: [{role: first, when: succeeded}]").start_after[0].when, When::Succeeded);
    assert_eq!(main("flavour: flavour3").work.resources.gpus, 2);
    assert_eq!(main("flavour: flavour3, resources: {gpu: 1}").work.resources.gpus, 1);
    assert_eq!(main("restarts: 2").restart.rule.max, 2);
    assert_eq!(main("restarts: 2").restart.rule.max_platform, 10);
    assert_eq!(main("restart: {max: 2, scope: role}").restart.scope, Scope::Role);
    assert_eq!(main("replicas: 1").restart.rule.max_platform, 0);
    assert_eq!(main("contracts: torch").work.contracts, Some(vec![Contract::Torch]));
    assert_eq!(main("contracts: []").work.contracts, Some(vec![]));
    assert_eq!(main("timeout: 1m, grace: 0").grace, Some(Duration::ZERO));
    let port = |keys: &str| main(keys).work.ports.remove(0);
    assert_eq!((port("ports: {x: 2}").count, port("ports: {x: 2}").fixed), (2, None));
    assert_eq!(port("ports: {x: {port: 8080}}").fixed, Some(8080));
}

#[test]
fn what_openpai_jobs_need() {
    let main = |keys: &str| job(&role(keys)).roles.remove(1);
    assert_eq!(main("resources: {shm: 64Mi}").work.resources.shm_bytes, Some(64 << 20));
    assert_eq!(main("resources: {storage: 10Gi}").work.resources.storage_bytes, Some(10 << 30));
    assert_eq!(main("restarts: unlimited").restart.rule.max, Restart::UNLIMITED);
    assert_eq!(main("restarts: {max_platform: unlimited}").restart.rule.max_platform, Restart::UNLIMITED);
    assert_eq!(main("contracts: [pai, torch]").work.contracts, Some(vec![Contract::Pai, Contract::Torch]));
    assert_eq!(job("umiak: v1\nroles: {_a: {command: x}}").roles[0].name.as_str(), "_a");
    let two = |contracts: &str| {
        format!("umiak: v1\ncontracts: {contracts}\nroles: {{a_b: {{command: x}}, ab: {{command: x}}}}")
    };
    job(&two("torch"));
    let errors = refused(&two("[torch, pai]"));
    assert!(errors.starts_with("error[F0015]: roles `a_b` and `ab` would use the same variables"), "{errors}");
}

#[test]
fn secrets_whatever_their_names_are() {
    let text = "umiak: v1\nparams: {lr: 0.125}\nsecrets: {who: hidden, what: }\nroles:\n  secrets: {command: \"a {{ who }} {{ what }} ${{ '{' }}{{ lr }}}\"}\n";
    assert!(refused(text).contains("error[F0034]: parameter `what` has no value"));
    let document = given(text, &[("what", "given-one")]).unwrap();
    assert_eq!(document.job().unwrap().roles[0].work.command[2], "a hidden given-one ${0.125}");
    assert!(!document.masked.contains("hidden") && document.masked.contains("lr: 0.125"), "{}", document.masked);
    assert!(document.masked.contains("{{ who }}"), "a role of that name is no secret: {}", document.masked);
    assert_eq!(document.secrets.masked("", "0.125 hidden given-one"), "0.125 ******** ********");
    let errors = refused("umiak: v1\nparams: {a: 1}\nsecrets: {a: 2}\nroles: {a: {command: x}}");
    assert!(errors.starts_with("error[F0018]: `a` is in both `params` and `secrets`"), "{errors}");
    let errors = refused("umiak: v1\nname: \"{{ a }}\"\nsecrets: {a: 2}\nroles: {a: {command: x}}");
    assert!(errors.starts_with("error[F0014]: the name of a job must not contain a secret"), "{errors}");
}

/// Blanks in a template do not end a word, and a block may begin with a quote.
#[test]
fn secrets_of_templates_with_blanks() {
    let text = "umiak: v1\nparams: {a: Hidden-1, b: Hidden-2, c: shown}\nroles:\n  main:\n    command: |\n      \"x\" --token {{ a }} {{ c }} ¡\n    env: {D: \"MY_KEY={{ b }} {{ c }}\"}\n  other:\n    command: redis://:{{ b }}@h/ {{ c }}\n";
    let document = given(text, &[]).unwrap();
    assert!(!document.masked.contains("Hidden") && document.masked.contains("c: shown"), "{}", document.masked);
    assert!(document.masked.contains("--token ******** {{ c }}"), "{}", document.masked);
    assert_eq!(document.secrets.masked("", "Hidden-1 Hidden-2 shown"), "******** ******** shown");
    job(&document.masked);
}

#[test]
fn scopes_of_the_policy() {
    let scoped = |scope: &str| {
        job(&format!(
            "umiak: v1\npolicy: {{restarts: 3, scope: {scope}}}\nroles: {{a: {{command: x}}, b: {{command: x, restarts: 1}}}}\n"
        ))
    };
    let whole = scoped("job");
    assert_eq!((whole.policy.restart.max, whole.roles[0].restart.rule.max, whole.roles[1].restart.rule.max), (3, 0, 1));
    let role = scoped("role");
    assert_eq!((role.policy.restart.max, role.roles[0].restart.rule.max, role.roles[1].restart.rule.max), (0, 3, 1));
    assert_eq!((role.roles[0].restart.scope, role.roles[1].restart.scope), (Scope::Role, Scope::Replica));
    assert_eq!(scoped("replica").roles[0].restart.scope, Scope::Replica);
}

#[test]
fn parameters() {
    let text = "umiak: v1\nparams: {n: 2, who: }\nroles: {main: {replicas: \"{{ n }}\", command: \"echo {{who}} {{'{{'}} x }}\"}}\n";
    assert!(refused(text).contains("F0034"));
    let job = given(text, &[("who", "{{ n }} \"; rm -rf"), ("n", "7")]).unwrap().job().unwrap().clone();
    assert_eq!(job.roles[0].replicas, 7);
    assert_eq!(job.roles[0].work.command[2], "echo {{ n }} \"; rm -rf {{ x }}");
    let wrong = given(text, &[("who", "x"), ("m", "1"), ("frobnicate", "1"), ("n", "many")]).unwrap_err();
    assert_snapshot!(wrong);
    assert_snapshot!(given("umiak: v1\nroles: {main: {command: x}}", &[("a", "1")]).unwrap_err());
}

#[test]
fn empty_and_strange_documents() {
    for text in ["", "# nothing\n", "5", "[umiak, v1]", "umiak", "- umiak: v1"] {
        assert!(refused(text).starts_with("error[F0003]"), "{text}: {}", refused(text));
    }
    assert!(refused("umiak: v1").contains("F0012"));
    assert!(refused("umiak: v1\nroles:").contains("F0012"));
    assert!(refused("umiak: v1\nroles: {}").contains("F0012"));
    assert!(refused("umiak: v1\nroles: {a: }").contains("F0012"));
    assert!(refused("umiak: v1\nroles: [a]").contains("F0011"));
    assert!(refused("umiak: v1\nname: a/b\nroles: {a: {command: x}}").contains("F0014"));
    assert!(
        refused("umiak: v1\nroles: {a: {command: x, ports: {b_c: 1}}, a-b: {command: x, ports: {c: 1}}}")
            .contains("F0015")
    );
    assert!(refused("umiak: v1\nroles: {a: {command: x, replicas: {min: 1, max: 2}}}").contains("F0004"));
    assert!(
        refused("umiak: v1\npolicy: {backoff: 1s, restarts: {max: 1, backoff: 2s}}\nroles: {a: {command: x}}")
            .contains("F0018")
    );
    assert!(refused(&role("restart: 1, restarts: 2")).contains("F0018"));
}

#[test]
fn formats_are_recognised() {
    let recognise = |text: &str| document::recognise(&Source::new("", text)).0;
    assert_eq!(recognise("umiak: v1"), Some(Format::Native));
    assert_eq!(recognise("{umiak: v1, roles: {"), Some(Format::Native));
    assert_eq!(recognise("umiak: v1\nroles: [\n"), Some(Format::Native));
    assert_eq!(recognise("name: a\nentry_points: {}\n"), Some(Format::PaddleFlow));
    assert_eq!(recognise("protocolVersion: 2\ntaskRoles: {}\n"), Some(Format::OpenPai));
    assert_eq!(recognise("workspace: x\nmode: a\nrunner: []\nphase: []\n"), Some(Format::PaddleRec));
    assert_eq!(recognise("backend: PaddleCloud\ncluster_type: k8s\n"), Some(Format::PaddleRec));
    assert_eq!(recognise("a: 1"), None);
}

#[test]
fn bytes_that_are_no_document() {
    assert_snapshot!(plain(&[
        decode("a.bin", b"\x7fELF\0").unwrap_err(),
        decode("b.yaml", b"a: 1\nb: \xff\n").unwrap_err(),
        decode("c.yaml", b"\xff\xfea\0").unwrap_err(),
        decode("d.yaml", &vec![b'a'; document::MAX_BYTES + 1]).unwrap_err(),
    ]));
}

#[test]
fn json_has_the_places() {
    let errors =
        parse(&Source::new("job.yaml", "umiak: v1\nroles: {a: {comand: x}}\n"), &Given::new(&[], &Settings::default()))
            .unwrap_err();
    assert_snapshot!(serde_json::to_string_pretty(&errors).unwrap());
}

#[test]
fn queues_and_settings_without_effect_are_notices() {
    let text = role("queue: defalt, start_timeout: 1m, env: {UMIAK_RANK: 1, UMIAK_HOME: /tmp}");
    assert_snapshot!(plain(&given(&text, &[]).unwrap().notices));
}

#[test]
fn secrets_in_commands_are_not_kept() {
    let text = "umiak: v1\nparams: {lr: 0.125, secret: hidden}\nroles:\n  list: {command: [a, --token=hidden, --password, hidden, --lr, \"{{ lr }}\", \"--api-key={{ secret }}\"]}\n  line: {command: \"a --token=hidden --lr {{ lr }} --password hidden\"}\n  block:\n    command: |\n      a --token 'hidden hidden' --lr 1\n      curl http://li:hidden@h/ --api-key hidden\n";
    let document = given(text, &[]).unwrap();
    assert!(!document.masked.contains("hidden"), "{}", document.masked);
    for kept in
        ["lr: 0.125", "--lr {{ lr }} --password ********\"", "--token ******** --lr 1", "curl http://li:********@h/"]
    {
        assert!(document.masked.contains(kept), "lacks {kept}:\n{}", document.masked);
    }
    assert_eq!(document.secrets.masked("", "0.125 hidden"), "0.125 ********");
    assert!(job(&document.masked).roles.len() == 3, "it is still a document");
}

#[test]
fn variables_in_env_are_not_expanded() {
    let text = role("env: {OUT: $HOME/out, IN: \"${DATA}\", PRICE: 5$, PATTERN: \"^a$\"}");
    let notices = given(&text, &[]).unwrap().notices;
    let told: Vec<&str> = notices.iter().map(|notice| notice.message.as_str()).collect();
    assert_eq!(
        told,
        [
            "`$HOME` in `env` is not expanded: values are taken literally",
            "`${DATA}` in `env` is not expanded: values are taken literally"
        ]
    );
    assert!(notices.iter().all(|notice| notice.hints[0].contains("`command`")), "{notices:?}");
}

#[test]
fn extensions_hold_anchors() {
    let text = "umiak: v1\nx-env: &env {LR: \"{{ lr }}\", API_KEY: hidden}\nx-note: [any, {thing: \"{{ at all }}\"}]\nparams: {lr: 3}\nroles:\n  main: {command: \"true\", env: *env}\n  more: {command: \"true\", env: {<<: *env, LR: 4}}\n";
    let document = given(text, &[]).unwrap();
    let env = |role: usize| -> Vec<String> {
        document.job().unwrap().roles[role].work.env.iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert_eq!(env(0), ["LR=3", "API_KEY=hidden"]);
    assert!(env(1).contains(&"LR=4".to_owned()) && env(1).contains(&"API_KEY=hidden".to_owned()), "{:?}", env(1));
    assert!(!document.masked.contains("hidden"), "{}", document.masked);
    assert!(refused(&text.replace("x-note", "y-note")).contains("unknown key `y-note` in the document"));
    assert!(
        !given("umiak: v1\nx-env: {API_KEY: hidden}\nroles: {main: {command: x}}\n", &[])
            .unwrap()
            .masked
            .contains("hidden")
    );
}

#[test]
fn parameters_to_be_given_are_no_errors_of_a_check() {
    let text = "umiak: v1\nname: \"run-{{ n }}\"\nparams: {n: , m: }\nroles:\n  main: {command: \"{{ m }}\", replicas: \"{{ n }}\", timeout: \"{{ n }}\", env: {A: \"{{ m }}\"}}\n";
    let check = |text: &str, given: &[(String, String)]| {
        crate::formats::check(&Source::new("job.yaml", text), &Given::new(given, &Settings::default()))
    };
    let checked = check(text, &[]);
    assert_eq!((checked.diagnostics, checked.needed), (vec![], vec!["n".to_owned(), "m".to_owned()]));
    assert!(checked.work.is_none());
    let n = ("n".to_owned(), "x".to_owned());
    let wrong = check(text, std::slice::from_ref(&n));
    assert_eq!(wrong.needed, ["m"]);
    assert!(plain(&wrong.diagnostics).contains("`replicas` must be a whole number"), "{:?}", wrong.diagnostics);
    let whole = check(text, &[("n".to_owned(), "2".to_owned()), ("m".to_owned(), "true".to_owned())]);
    assert_eq!(whole.work.map(|work| work.jobs().next().unwrap().roles[0].replicas), Some(2));
    let errors = refused(text);
    assert_eq!(errors.matches("error[").count(), 2, "nothing follows from them:\n{errors}");
}

#[test]
fn a_name_cannot_hold_a_secret() {
    let text = |name: &str| {
        format!(
            "umiak: v1\nname: \"{name}\"\nparams: {{token: abc, a: x, b: y}}\nroles: {{main: {{command: \"true\", env: {{KEY: \"{{{{ b }}}}\"}}}}}}\n"
        )
    };
    assert_eq!(given(&text("job-{{ a }}"), &[]).unwrap().job().unwrap().clone().name.as_str(), "job-x");
    for name in ["job-{{ token }}", "{{a}}-{{b}}"] {
        let errors = given(&text(name), &[("token", "other")]).unwrap_err();
        assert!(errors.starts_with("error[F0014]: the name of a job must not contain a secret\n"), "{errors}");
    }
}

#[test]
fn thousands_of_roles_in_a_row() {
    let role = |index: u32| format!("  r{index}: {{command: x, start_after: r{}}}\n", (index + 1) % 3000);
    let text = format!("umiak: v1\nroles:\n{}", (0..3000).map(role).collect::<Vec<_>>().concat());
    let errors = parse(&Source::new("job.yaml", text), &Given::new(&[], &Settings::default())).unwrap_err();
    assert_eq!(errors.len(), 1);
}

#[test]
fn every_key_is_in_the_full_examples() {
    let full = documents("good").into_iter().filter(|path| path.ends_with("full.yaml") || path.ends_with("steps.yaml"));
    let text: String = full.map(|path| source(&path).text).collect();
    for key in ROLE.keys.iter().chain(DOCUMENT.keys).chain(STEP.keys) {
        assert!(text.contains(&format!("{}:", key.name)), "{}", key.name);
    }
}

fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> =
        ["good", "bad", "openpai"].iter().flat_map(|kind| documents(kind)).map(|path| source(&path).text).collect();
    let change =
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[a-z{}:,\"'\\[\\]&*|\\-0-9 \\n\\t角]{0,4}");
    (prop::sample::select(texts), prop::collection::vec(change, 1..6)).prop_map(|(text, changes)| {
        let mut characters: Vec<char> = text.chars().collect();
        for (start, length, insert) in changes {
            let start = start.index(characters.len() + 1);
            let end = (start + length.index(6)).min(characters.len());
            characters.splice(start..end, insert.chars());
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn never_panics_on_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(source) = decode("x", &bytes) {
            let _ = parse(&source, &Given::new(&[], &Settings::default()));
        }
    }

    #[test]
    fn never_panics_on_changed_documents(text in mutated()) {
        let source = Source::new("x.yaml", text);
        let params = [("epochs".to_owned(), "7".to_owned())];
        for params in [&params[..], &[]] {
            match parse(&source, &Given::new(params, &Settings::default())) {
                Ok(document) => {
                    let again = parse(&source, &Given::new(params, &Settings::default())).unwrap();
                    prop_assert_eq!(&document, &again);
                    // The lowered job can be serialized and read back.
                    let json = serde_json::to_string(&document.work).unwrap();
                    prop_assert_eq!(&serde_json::from_str::<Workload>(&json).unwrap(), &document.work);
                }
                Err(errors) => {
                    prop_assert!(!errors.is_empty());
                    for error in errors {
                        prop_assert_eq!(error.severity, crate::diag::Severity::Error);
                        let _ = error.to_plain();
                    }
                }
            }
        }
    }
}
