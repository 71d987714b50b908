//! What nodes of pipelines do: conditions, loops, nested DAGs, references, parallelism, failures, values, artifacts.

use umiak_testkit::sandbox::Outcome;
use umiak_testkit::suite::Suite;

use super::{Place, text};
use crate::run::wait_until_free;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::nodes_end_as_their_documents_say", &[], || CASES.iter().for_each(check))
        .test("pipelines::never_more_steps_at_once_than_parallelism", &[], parallelism)
        .test("pipelines::parameters_of_the_command_line", &[], parameters)
        .test("pipelines::artifacts_have_their_paths", &[], artifacts)
        .test("pipelines::members_inherit_from_their_step", &[], inheritance)
        .test("pipelines::results_of_earlier_runs_are_used", &[], cache)
        .test("pipelines::variables_of_the_pipeline_win", &[], variables)
        .test("pipelines::artifacts_are_removed_on_request", &[], removed)
        .test("pipelines::a_retry_keeps_what_ended_well", &[], retry)
        .test("pipelines::secrets_are_nowhere", &[], secrets)
        .test("pipelines::secrets_are_nowhere::in_lists", &[], secret_lists);
}

const SIGKILL: i32 = 9;

/// A document, and what becomes of it.
struct Case {
    name: &'static str,
    document: &'static str,
    flags: &'static [&'static str],
    code: i32,
    /// As for [`Place::expect_ends`].
    ends: &'static str,
    /// What steps print.
    printed: &'static [(&'static str, &'static str)],
}

fn check(case: &Case) {
    let place = Place::default();
    let outcome = place.run(&format!("name: p\n{}", case.document), case.flags).finish();
    assert_eq!(outcome.status.code(), Some(case.code), "{}:\n{}", case.name, outcome.err());
    let seen = place.ends();
    let mut expected: Vec<&str> = case.ends.split(", ").collect();
    expected[1..].sort_unstable();
    let seen: Vec<String> = seen.iter().map(|(name, end)| format!("{name} {end}").trim().to_owned()).collect();
    assert_eq!(seen.join(", "), expected.join(", "), "{}:\n{}", case.name, outcome.err());
    for (step, text) in case.printed {
        assert_eq!(place.log(step), *text, "{} of {}", step, case.name);
    }
}

const CASES: &[Case] = &[
    Case {
        name: "conditions",
        document: "entry_points:\n  a: {command: 'true', parameters: {n: 3}, condition: '{{n}} > 2 && {{n}} < 4'}\n  b: {command: 'false', parameters: {n: 3}, condition: '{{n}} == 4'}\n  c: {command: echo c, deps: b}\n  d: {command: 'true', parameters: {w: abc}, condition: '{{w}} =~ \"^a\"'}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, b skipped: condition, c succeeded, d succeeded",
        printed: &[("c", "c\n")],
    },
    Case {
        name: "the content of an artifact decides",
        document: "entry_points:\n  make: {command: 'printf 0.93 > {{score}}', artifacts: {output: [score]}}\n  good: {deps: make, command: echo good, artifacts: {input: {score: '{{make.score}}'}}, condition: '{{score}} >= 0.9'}\n  bad: {deps: make, command: echo bad, artifacts: {input: {score: '{{make.score}}'}}, condition: '{{score}} < 0.9'}\nfs_options: {main_fs: {name: ppl}}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, make succeeded, good succeeded, bad skipped: condition",
        printed: &[("good", "good\n")],
    },
    Case {
        name: "a condition that is not a boolean",
        document: "entry_points:\n  a: {command: 'true', parameters: {n: 3}, condition: '{{n}} + 1'}\n",
        flags: &[],
        code: 1,
        ends: "failed, a refused",
        printed: &[],
    },
    Case {
        name: "a loop over a list",
        document: "entry_points:\n  a: {command: 'echo {{PF_LOOP_ARGUMENT}} $PF_LOOP_ARGUMENT', loop_argument: [1, x, 2.5, 1000000]}\n  b: {deps: a, command: echo b}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, a.0 succeeded, a.1 succeeded, a.2 succeeded, a.3 succeeded, b succeeded",
        printed: &[
            ("a.0", "1 1\n"),
            ("a.1", "x x\n"),
            ("a.2", "2.5 2.5\n"),
            ("a.3", "1000000 1000000\n"),
            ("b", "b\n"),
        ],
    },
    Case {
        name: "a loop over a parameter",
        document: "entry_points:\n  a: {command: 'echo {{PF_LOOP_ARGUMENT}}', parameters: {all: [3, 4]}, loop_argument: '{{all}}'}\n  b: {command: 'echo {{PF_LOOP_ARGUMENT}}', loop_argument: '[5]'}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, a.0 succeeded, a.1 succeeded, b succeeded, b.0 succeeded",
        printed: &[("a.0", "3\n"), ("a.1", "4\n"), ("b.0", "5\n")],
    },
    Case {
        name: "a loop over the content of an artifact",
        document: "entry_points:\n  make: {command: 'echo \"[7, 8]\" > {{list}}', artifacts: {output: [list]}}\n  use: {deps: make, command: 'echo {{PF_LOOP_ARGUMENT}} > {{out}}', artifacts: {input: {list: '{{make.list}}'}, output: [out]}, loop_argument: '{{list}}'}\n  join: {deps: use, command: 'echo {{all}} | tr , \"\\n\" | xargs cat', artifacts: {input: {all: '{{use.out}}'}}}\nfs_options: {main_fs: {name: ppl}}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, make succeeded, use succeeded, use.0 succeeded, use.1 succeeded, join succeeded",
        printed: &[("join", "7\n8\n")],
    },
    Case {
        name: "an artifact that is not a list",
        document: "entry_points:\n  make: {command: 'echo 7 > {{list}}', artifacts: {output: [list]}}\n  use: {deps: make, command: 'true', artifacts: {input: {list: '{{make.list}}'}}, loop_argument: '{{list}}'}\nfs_options: {main_fs: {name: ppl}}\n",
        flags: &[],
        code: 1,
        ends: "failed, make succeeded, use refused",
        printed: &[],
    },
    Case {
        name: "empty loops",
        document: "entry_points:\n  a: {command: 'false', loop_argument: []}\n  make: {command: 'echo \"[]\" > {{list}}', artifacts: {output: [list]}}\n  dag: {deps: make, artifacts: {input: {list: '{{make.list}}'}}, loop_argument: '{{list}}', entry_points: {x: {command: 'false'}}}\n  after: {deps: 'a, dag', command: echo after}\nfs_options: {main_fs: {name: ppl}}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a skipped: no_items, make succeeded, dag skipped: no_items, after succeeded",
        printed: &[("after", "after\n")],
    },
    Case {
        name: "nested DAGs in loops",
        document: "entry_points:\n  outer:\n    loop_argument: [a, b]\n    parameters: {base: x}\n    entry_points:\n      inner:\n        parameters: {from: '{{PF_PARENT.PF_LOOP_ARGUMENT}}', base: '{{PF_PARENT.base}}'}\n        loop_argument: [1, 2]\n        entry_points:\n          leaf: {parameters: {outer: '{{PF_PARENT.from}}', inner: '{{PF_PARENT.PF_LOOP_ARGUMENT}}', base: '{{PF_PARENT.base}}'}, command: 'echo {{base}}{{outer}}{{inner}}'}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, outer succeeded, outer.0 succeeded, outer.1 succeeded, outer.0.inner succeeded, outer.1.inner succeeded, \
               outer.0.inner.0 succeeded, outer.0.inner.1 succeeded, outer.1.inner.0 succeeded, outer.1.inner.1 succeeded, \
               outer.0.inner.0.leaf succeeded, outer.0.inner.1.leaf succeeded, outer.1.inner.0.leaf succeeded, outer.1.inner.1.leaf succeeded",
        printed: &[("outer.0.inner.1.leaf", "xa2\n"), ("outer.1.inner.0.leaf", "xb1\n")],
    },
    Case {
        name: "references",
        document: "components:\n  say: {command: 'echo {{word}}', parameters: {word: nothing}}\n  twice: {entry_points: {one: {reference: {component: say}, parameters: {word: one}}, two: {deps: one, reference: {component: say}}}}\nentry_points:\n  a: {reference: {component: say}, parameters: {word: hello}}\n  b: {deps: a, reference: {component: twice}}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, b succeeded, b.one succeeded, b.two succeeded",
        printed: &[("a", "hello\n"), ("b.one", "one\n"), ("b.two", "nothing\n")],
    },
    Case {
        name: "disabled steps",
        document: "disabled: a\nentry_points:\n  a: {command: 'false'}\n  dag: {deps: a, entry_points: {x: {command: 'false'}, y: {command: echo y, deps: x}}}\n  whole: {entry_points: {z: {command: 'false'}}}\n",
        flags: &["--disable", "dag.x", "--disable", "whole"],
        code: 0,
        ends: "succeeded, a skipped: disabled, dag succeeded, dag.x skipped: disabled, dag.y succeeded, whole skipped: disabled",
        printed: &[("dag.y", "y\n")],
    },
    Case {
        name: "fail_fast",
        document: "entry_points:\n  bad: {command: 'until [ -e started ]; do sleep 0.01; done; exit 7'}\n  long: {command: 'touch started; exec sleep 100'}\n  after: {deps: bad, command: 'true'}\n  other: {deps: long, command: 'true'}\npost_process: {mail: {command: echo mail}}\n",
        flags: &[],
        code: 1,
        ends: "failed, bad failed, long stopped, after cancelled, other cancelled, mail succeeded",
        printed: &[("mail", "mail\n")],
    },
    Case {
        name: "continue",
        document: "failure_options: {strategy: continue}\nentry_points:\n  bad: {command: exit 7}\n  after: {deps: bad, command: 'true'}\n  later: {deps: after, entry_points: {x: {command: 'true'}}}\n  other: {command: 'until [ -e go ]; do touch go; done; echo other'}\n  next: {deps: other, command: echo next}\npost_process: {mail: {command: echo mail}}\n",
        flags: &[],
        code: 1,
        ends: "failed, bad failed, after cancelled, later cancelled, other succeeded, next succeeded, mail succeeded",
        printed: &[("next", "next\n"), ("mail", "mail\n")],
    },
    Case {
        name: "a post step that fails",
        document: "entry_points: {a: {command: 'true'}}\npost_process: {mail: {command: 'false'}}\n",
        flags: &[],
        code: 1,
        ends: "failed, a succeeded, mail failed",
        printed: &[],
    },
    Case {
        name: "retries",
        document: "entry_points:\n  a: {command: 'echo x >> tries; [ $(wc -l < tries) -ge 3 ]', retries: {max: 2, backoff: 10ms}}\n  b: {deps: a, command: cat tries}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, b succeeded",
        printed: &[("b", "x\nx\nx\n")],
    },
    Case {
        name: "too few retries",
        document: "entry_points:\n  a: {command: 'echo x >> tries; false', retries: {max: 1, backoff: 10ms}}\npost_process: {count: {command: cat tries}}\n",
        flags: &[],
        code: 1,
        ends: "failed, a failed, count succeeded",
        printed: &[("count", "x\nx\n")],
    },
    Case {
        name: "a timeout",
        document: "entry_points:\n  a: {command: sleep 100, timeout: 100ms}\n  b: {deps: a, command: 'true'}\n",
        flags: &[],
        code: 1,
        ends: "failed, a failed, b cancelled",
        printed: &[],
    },
    Case {
        name: "types survive references",
        document: "entry_points:\n  a: {command: 'echo {{n}} {{f}} {{l}}', parameters: {n: 3, f: 0.00001, l: [1, 2]}}\n  b: {deps: a, command: 'echo {{n}} {{t}} {{f}} {{l}}', parameters: {n: '{{a.n}}', t: 'x{{a.n}}', f: '{{a.f}}', l: '{{a.l}}'}, condition: '{{n}} + 1 == 4'}\n  c: {deps: a, parameters: {l: '{{a.l}}'}, loop_argument: '{{l}}', command: 'true'}\n",
        flags: &[],
        code: 0,
        ends: "succeeded, a succeeded, b succeeded, c succeeded, c.0 succeeded, c.1 succeeded",
        printed: &[("a", "3 0.00001 [1 2]\n"), ("b", "3 x3 0.00001 [1 2]\n")],
    },
    Case {
        name: "values are never searched for templates",
        document: "entry_points:\n  a: {command: \"echo '{{v}}' '{{ not a template }}'\", parameters: {v: x}}\n",
        flags: &["-p", "v={{PF_RUN_ID}}"],
        code: 0,
        ends: "succeeded, a succeeded",
        printed: &[("a", "{{PF_RUN_ID}} {{ not a template }}\n")],
    },
];

/// Each step adds a line when it begins and when it ends.
fn parallelism() {
    for limit in [1, 3] {
        let place = Place::default();
        let step = "command: 'echo + >> ledger; sleep 0.05; echo - >> ledger'";
        let document = format!(
            "name: p\nparallelism: {limit}\nentry_points:\n  a: {{{step}, loop_argument: [1, 2, 3, 4, 5, 6]}}\n  b: {{{step}}}\n  dag: {{loop_argument: [1, 2], entry_points: {{x: {{{step}}}, y: {{{step}, deps: x}}}}}}\n"
        );
        place.run(&document, &[]).finish().expect_code(0);
        let (mut now, mut most, mut all) = (0_i32, 0, 0);
        for line in place.sandbox.read("ledger").lines() {
            now += if line == "+" { 1 } else { -1 };
            most = most.max(now);
            all += 1;
        }
        assert_eq!((now, all), (0, 2 * (6 + 1 + 4)));
        assert!(most <= limit, "{most} steps at once instead of {limit}");
        // Several could run at once from the start.
        assert_eq!(most > 1, limit > 1, "{most} steps at once of {limit}");
    }
}

fn parameters() {
    let document = "name: p\nentry_points:\n  a: {command: 'echo {{n}} {{f}} {{p}}', parameters: {n: {type: int, default: 1}, f: {type: float, default: 0.5}, p: {type: path, default: /x}}}\n  b: {deps: a, command: 'echo {{n}} {{l}}', parameters: {n: 7, l: {type: list, default: [1]}}, condition: '{{n}} > 1'}\n";
    let place = Place::default();
    let flags = ["-p", "n=5", "-p", "a.n=6", "-p", "f=2", "-p", "l=[1, 2]", "-p", "a.p=./data/x-1"];
    place.run(document, &flags).finish().expect_code(0);
    assert_eq!(place.log("a"), "6 2 ./data/x-1\n");
    assert_eq!(place.log("b"), "5 [1 2]\n");
    for (given, wrong) in [
        ("a.n=x", "a.n"),
        ("f=half", "f"),
        ("a.p=a b", "a.p"),
        ("nothing=1", "nothing"),
        ("c.n=1", "c.n"),
        ("l=1", "l"),
    ] {
        let outcome = Place::default().run(document, &["-p", given]).finish();
        outcome.expect_code(2);
        assert!(outcome.err().contains(&format!("`{wrong}")) || outcome.err().contains(wrong), "{}", outcome.err());
    }
}

/// The directories of artifacts, also with a `sub_path` and inside DAGs and loops.
fn artifacts() {
    let place = Place::default();
    std::fs::create_dir_all(place.sandbox.path().join("store/sub")).expect("the sandbox can be written");
    let store = format!("ppl={}/store", place.sandbox.path().display());
    let document = "name: p\nentry_points:\n  dag:\n    loop_argument: [x, y]\n    artifacts: {output: {all: '{{leaf.out}}'}}\n    entry_points:\n      leaf: {command: 'echo $PF_OUTPUT_ARTIFACT_OUT > {{out}}; pwd', artifacts: {output: [out]}}\n  last: {deps: dag, command: 'echo $PF_INPUT_ARTIFACT_ALL {{all}}', artifacts: {input: {all: '{{dag.all}}'}}}\nfs_options: {main_fs: {name: ppl, sub_path: sub}}\n";
    place.run(document, &["--fs", &store]).finish().expect_code(0);
    let root = place.sandbox.path().join("store/sub");
    let path = |sum: &str| root.join(format!(".pipeline/run-000001/p/leaf-0-{sum}/out")).display().to_string();
    // MD5 of `p.entry_points.dag.leaf` and `p.entry_points.dag-1.leaf`.
    let (first, second) = (path("3a86fd1add89e0e8e1b90336ae6596a6"), path("7f4dbdcefd8f89ed44e53d5144fc16a5"));
    let both = format!("{first},{second}");
    assert_eq!(place.log("last"), format!("{both} {both}\n"));
    assert_eq!(std::fs::read_to_string(&second).expect("an artifact"), format!("{second}\n"));
    assert_eq!(place.log("dag.0.leaf"), format!("{}\n", root.display()));
}

fn inheritance() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  train:\n    command: 'env; touch served'\n    env: {A: step, B: step, PF_JOB_QUEUE_NAME: big}\n    distributed_job:\n      framework: paddle\n      members:\n        - {role: pserver, replicas: 1, env: {B: member, PF_RUN_ID: mine}, queue: big}\n        - {role: worker, replicas: 1, command: 'until [ -e served ]; do sleep 0.01; done; env; echo own=command', priority: high}\n";
    place.run(document, &[]).finish().expect_code(0);
    let server = place.variables("train", "pserver-0");
    assert_eq!((&*server["A"], &*server["B"], &*server["PF_RUN_ID"]), ("step", "member", "mine"));
    let worker = place.variables("train", "worker-0");
    assert_eq!((&*worker["A"], &*worker["B"], &*worker["PF_RUN_ID"]), ("step", "step", "run-000001"));
    assert_eq!((worker["own"].as_str(), server.contains_key("own")), ("command", false));
    let other = document.replace("queue: big", "queue: small");
    Place::default().run(&other, &[]).finish().expect_code(2).expect_err("queue");
}

/// What PaddleFlow sets wins over the step's `env`, where it sets it.
fn variables() {
    let set =
        "{PF_RUN_ID: x, PF_STEP_NAME: x, PF_JOB_NAMESPACE: x, PF_WORK_DIR: x, PF_JOB_MODE: '{{mode}}', PF_OTHER: x}";
    let document = |more: &str| {
        format!("name: p\nentry_points:\n  a: {{command: env, parameters: {{mode: Pod}}, env: {set}}}\n{more}")
    };
    let seen = |more: &str| {
        let place = Place::default();
        place.run(&document(more), &[]).finish().expect_code(0);
        let names = ["PF_RUN_ID", "PF_STEP_NAME", "PF_JOB_NAMESPACE", "PF_JOB_MODE", "PF_OTHER"];
        let variables = place.variables("a", "main-0");
        let here = place.sandbox.path().canonicalize().expect("the sandbox is there");
        let work_dir =
            if variables["PF_WORK_DIR"] == here.to_string_lossy() { "here" } else { &variables["PF_WORK_DIR"] };
        (names.map(|name| variables[name].clone()).join(" "), work_dir.to_owned())
    };
    let ours = "run-000001 a default  x".to_owned();
    assert_eq!(seen("fs_options: {main_fs: {name: ppl}}\n"), (ours.clone(), "here".to_owned()));
    // Without a file system there is none to set.
    assert_eq!(seen(""), (ours, "x".to_owned()));
}

/// `umiak rm` keeps artifacts unless it is asked to remove them, and no run that stays uses them.
fn removed() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  make: {command: 'echo 1 > {{out}}', artifacts: {output: [out]}}\n  use: {deps: make, command: 'test -e fixed', artifacts: {input: {in: '{{make.out}}'}}}\nfs_options: {main_fs: {name: ppl, sub_path: sub}}\n";
    std::fs::create_dir(place.sandbox.path().join("sub")).expect("the sandbox can be written");
    let rm =
        |words: &[&str], code: i32| place.sandbox.umiak([&["rm"], words].concat()).finish().expect_code(code).err();
    place.run(document, &[]).finish().expect_code(1);
    place.file("sub/fixed", "");
    place.sandbox.umiak(["retry", "run-000001"]).finish().expect_code(0);
    place.run(document, &[]).finish().expect_code(0);
    let error = rm(&["--artifacts", "run-000001", "run-000003"], 2);
    assert!(error.contains("`run-000002` uses artifacts of `run-000001`"), "{error}");
    assert_eq!(place.sandbox.list("sub/.pipeline"), ["run-000001", "run-000003"]);
    rm(&["run-000003"], 0);
    assert_eq!(place.sandbox.list("sub/.pipeline"), ["run-000001", "run-000003"]);
    rm(&["--artifacts", "run-000001", "run-000002"], 0);
    assert_eq!(place.sandbox.list("sub/.pipeline"), ["run-000003"]);
}

/// Secrets in parameters reach the step, and nothing that umiak writes or prints contains them.
fn secrets() {
    let place = Place::default();
    let secret = "s3cr3t-hunter2-value";
    let document = "name: p\nentry_points:\n  a: {command: 'test \"$API_TOKEN\" = s3cr3t-hunter2-\"value\"; curl_password={{password}}; test -n \"$curl_password\"', env: {API_TOKEN: '{{token}}'}, parameters: {token: '', password: '{{PF_STEP_NAME}}'}}\n  b: {deps: a, command: 'test {{token}} = s3cr3t-hunter2-\"value\"', parameters: {token: '{{a.token}}'}}\n";
    let outcome =
        place.run(document, &["-p", &format!("a.token={secret}"), "-p", &format!("password={secret}")]).finish();
    outcome.expect_code(0);
    place.expect_ends("succeeded, a succeeded, b succeeded");
    expect_nowhere(&place, &outcome, &[secret]);
}

/// Each item of a list of secrets is one, also alone, as a loop uses it.
fn secret_lists() {
    let place = Place::default();
    let secrets = ["LEAKjson", "LEAKinner", "LEAKlist", "LEAKtyped", "LEAKgiven", "98765432101", "0x16FEE0E525"];
    let step = |name: &str, tokens: &str| {
        format!(
            "  {name}: {{command: 'test \"{{{{PF_LOOP_ARGUMENT}}}}\" = \"$PF_LOOP_ARGUMENT\" || exit 1; case $PF_LOOP_ARGUMENT in *\"**\"*) exit 1; esac; touch here; until test -e go; do sleep 0.02; done', loop_argument: '{{{{tokens}}}}', parameters: {{tokens: {tokens}}}}}\n"
        )
    };
    let document = [
        "name: p\nparallelism: 1\nentry_points:\n".to_owned(),
        step("given", "[]"),
        step("json", "'[\"LEAKjson\",[\"LEAKinner\"],98765432101]'"),
        step("list", "[LEAKlist, 98765432101, 0x16FEE0E525]"),
        step("typed", "{type: list, default: [LEAKtyped]}"),
        "  alone: {command: 'test -n \"{{pin}}\"', parameters: {password: [LEAKlist], pin: 1}, env: {PIN_KEY: '{{pin}}'}}\n"
            .to_owned(),
    ]
    .concat();
    let flags = ["-p", "given.tokens=[\"LEAKgiven\", \"LEAKgiven\"]", "-p", "pin=98765432101"];
    let running = place.run(&document, &flags).start();
    running.wait_for_file("here");
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    place.file("go", "");
    let outcome = place.sandbox.umiak(["resume", "run-000001"]).finish();
    outcome.expect_code(0);
    place.file("run.yaml", "");
    expect_nowhere(&place, &outcome, &secrets);
}

/// Expects that no file of a place, nor what was printed, has one of these texts.
fn expect_nowhere(place: &Place, outcome: &Outcome, secrets: &[&str]) {
    for secret in secrets {
        assert!(!outcome.err().contains(secret) && !outcome.out().contains(secret), "{secret}");
    }
    let mut paths = vec![place.sandbox.path().to_owned()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} in {}", path.display());
        }
    }
}

/// The steps of a run whose results come from another run, and that run.
fn cached(outcome: &Outcome) -> Vec<(String, String)> {
    let facts = outcome.facts();
    let cached = facts.iter().filter(|fact| fact["type"] == "cached");
    cached.map(|fact| (text(&fact["step"]).to_owned(), text(&fact["from_run"]).to_owned())).collect()
}

fn cache() {
    let place = Place::default();
    let document = "name: p\ncache: {enable: true}\nentry_points:\n  make: {command: 'echo {{n}} >> calls; echo {{n}} > {{out}}', parameters: {n: 1}, artifacts: {output: [out]}}\n  use: {deps: make, command: 'echo used >> calls; cat {{in}}', artifacts: {input: {in: '{{make.out}}'}}}\n  always: {cache: {enable: false}, command: echo always >> calls}\nparallelism: 1\nfs_options: {main_fs: {name: ppl}}\n";
    let run = |flags: &[&str]| {
        let _ = std::fs::remove_file(place.sandbox.path().join("calls"));
        let outcome = place.run(document, &[&["--output", "json"], flags].concat()).finish();
        outcome.expect_code(0);
        let mut calls: Vec<String> = place.sandbox.read("calls").lines().map(str::to_owned).collect();
        calls.sort();
        (calls.join(" "), cached(&outcome))
    };
    let hit = |step: &str, run: &str| (step.to_owned(), run.to_owned());
    assert_eq!(run(&[]), ("1 always used".to_owned(), vec![]));
    assert_eq!(run(&[]), ("always".to_owned(), vec![hit("make", "run-000001"), hit("use", "run-000001")]));
    assert_eq!(run(&["--no-cache"]), ("1 always used".to_owned(), vec![]));
    assert_eq!(run(&["-p", "n=2"]), ("2 always used".to_owned(), vec![]));
}

fn retry() {
    let place = Place::default();
    let document = "name: p\nfailure_options: {strategy: continue}\nentry_points:\n  good: {command: 'echo good >> calls'}\n  items: {command: 'echo $PF_LOOP_ARGUMENT >> calls; [ $PF_LOOP_ARGUMENT = a ] || [ -e fixed ]', loop_argument: [a, b]}\n  last: {deps: items, command: echo last >> calls}\n";
    place.run(document, &[]).finish().expect_code(1);
    place.file("fixed", "");
    std::fs::remove_file(place.sandbox.path().join("calls")).expect("steps have written it");
    let outcome = place.sandbox.umiak(["retry", "run-000001", "--output", "json"]).finish();
    outcome.expect_code(0);
    assert_eq!(place.sandbox.read("calls"), "b\nlast\n");
    let mut kept = cached(&outcome);
    kept.sort();
    let from = |step: &str| (step.to_owned(), "run-000001".to_owned());
    assert_eq!(kept, [from("good"), from("items.0")]);
}
