//! Every document of the corpus: it runs with scripts of our own, or is refused for the reason that its README names.

use std::path::PathBuf;

use umiak_testkit::components::Component::{Corpus, Namespaces, Python};
use umiak_testkit::components::corpus;
use umiak_testkit::suite::Suite;

use super::{Place, user};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::corpus::base", &[Corpus], || three_steps("base_pipeline"))
        .test("pipelines::corpus::queue", &[Corpus], || three_steps("queue_example"))
        .test("pipelines::corpus::artifact", &[Corpus], artifact)
        .test("pipelines::corpus::condition", &[Corpus], condition)
        .test("pipelines::corpus::failure_options", &[Corpus], failure_options)
        .test("pipelines::corpus::dag", &[Corpus, Python, Namespaces], dag)
        .test("pipelines::corpus::loop", &[Corpus, Python, Namespaces], looping)
        .test("pipelines::corpus::typed_parameters", &[Corpus, Python, Namespaces], typed_parameters)
        .test("pipelines::corpus::hoursing_price", &[Corpus, Python], hoursing_price)
        .test("pipelines::corpus::ray", &[Corpus], ray)
        .test("pipelines::corpus::nested", &[Corpus, Python], nested)
        .test("pipelines::corpus::distributed", &[Corpus], distributed)
        .test("pipelines::corpus::refused", &[Corpus], refused)
        .test("pipelines::corpus::lint", &[Corpus], lint);
}

fn root() -> PathBuf {
    corpus().expect("the suite has checked that it is here").join("paddleflow")
}

fn document(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn example(name: &str) -> String {
    document(&format!("example/pipeline/{name}/run.yaml"))
}

fn three_steps(name: &str) {
    let place = Place::default();
    let shells = format!("{name}/shells");
    place.file(&format!("{shells}/data.sh"), "env; mkdir -p $1; echo data >> $1/data\n");
    place.file(&format!("{shells}/train.sh"), "cat $2/data; mkdir -p $3; echo model of epoch $1 >> $3/model\n");
    place.file(&format!("{shells}/validate.sh"), "cat $1/model\n");
    place.run(&example(name), &[]).finish().expect_code(0);
    place.expect_ends("succeeded, preprocess succeeded, train succeeded, validate succeeded");
    assert_eq!(place.variables("preprocess", "main-0")["USER_ABC"], format!("123_{}", user()));
    assert_eq!(place.log("train"), "data\n");
    assert_eq!(place.log("validate"), "model of epoch 5\n");
    assert_eq!(place.sandbox.read(&format!("{name}/data/run-000001/data")), "data\n");
}

fn artifact() {
    let place = Place::default();
    let shells = "artifact_example/shells";
    place.file(
        &format!("{shells}/data_artifact.sh"),
        "mkdir -p $1 $2 $3; for to in $1 $2 $3; do echo data > $to/data; done\n\
         echo $PF_OUTPUT_ARTIFACT_TRAIN_DATA > $2/data; echo $PF_OUTPUT_ARTIFACT_VALIDATE_DATA > $3/data\n",
    );
    place.file(
        &format!("{shells}/train.sh"),
        "cat $2/data; mkdir -p $3; echo $PF_INPUT_ARTIFACT_TRAIN_DATA > $3/model; echo $PF_OUTPUT_ARTIFACT_TRAIN_MODEL >> $3/model\n",
    );
    place.file(
        &format!("{shells}/validate.sh"),
        "cat $1/model; echo $PF_INPUT_ARTIFACT_DATA; echo $PF_INPUT_ARTIFACT_MODEL\n",
    );
    place.run(&example("artifact_example"), &[]).finish().expect_code(0);
    place.expect_ends("succeeded, preprocess succeeded, train succeeded, validate succeeded");
    // The vectors of the specification.
    let of = |directory: &str| {
        place.sandbox.path().join(".pipeline/run-000001/artifact_example").join(directory).display().to_string()
    };
    let preprocess = of("preprocess-0-037175363b6ef656300d85b2821919a1");
    let model = of("train-0-2b2bc734db42989f06b47d4a59b3d6d4/train_model");
    assert_eq!(place.log("train"), format!("{preprocess}/train_data\n"));
    assert_eq!(
        place.log("validate"),
        format!("{preprocess}/train_data\n{model}\n{preprocess}/validate_data\n{model}\n")
    );
}

fn condition() {
    let place = Place::default();
    place.run(&example("condition_example"), &[]).finish().expect_code(0);
    place.expect_ends("succeeded, step1 succeeded, step2 skipped: condition");
    assert_eq!(place.log("step1"), "10\n");
}

fn failure_options() {
    let place = Place::default();
    place.run(&example("failure_options_and_post_process_example"), &[]).finish().expect_code(1);
    place.expect_ends(
        "failed, step1 succeeded, step2 succeeded, step3 succeeded, step4 failed, step5 cancelled, step6 succeeded",
    );
}

const RANDINT: &str = "import json, os, random, sys\n\
    number, low, high = map(int, sys.argv[1:])\n\
    json.dump([random.randint(low, high) for _ in range(number)], open(os.environ['PF_OUTPUT_ARTIFACT_RANDOM_NUM'], 'w'))\n";

fn dag() {
    let place = Place::default();
    let list = |name: &str| format!("json.load(open(os.environ['PF_INPUT_ARTIFACT_{name}']))");
    let write =
        |name: &str, what: &str| format!("json.dump({what}, open(os.environ['PF_OUTPUT_ARTIFACT_{name}'], 'w'))");
    let script = |name: &str, lines: &[String]| {
        place.file(&format!("dag_example/{name}"), &format!("import json, os, sys\n{}\n", lines.join("\n")));
    };
    place.file("dag_example/randint/randint.py", RANDINT);
    script(
        "split/split.py",
        &[
            format!("numbers, at = {}, int(sys.argv[1])", list("NUMS")),
            write("NEGETIVE", "[n for n in numbers if n < at]"),
            write("POSITIVE", "[n for n in numbers if n > at]"),
        ],
    );
    let negated = format!("[-n for n in {}]", list("NEGETIVE"));
    script("process_negetive/process_negetive.py", &[write("RESULT", &negated)]);
    let squared = format!("[n * n for n in {}]", list("POSITIVE"));
    script("process_positive/process_positive.py", &[write("RESULT", &squared)]);
    let both = format!("{} + {}", list("NEGETIVE"), list("POSITIVE"));
    script("collector/collect.py", &[write("COLLECTION", &both)]);
    script("sum/sum.py", &[write("RESULT", &format!("sum({})", list("NUMS")))]);
    place.run(&example("dag_example"), &[]).finish().expect_code(0);
    place.expect_ends(
        "succeeded, randint succeeded, process succeeded, process.split succeeded, process.process-negetive succeeded, \
         process.process-positive succeeded, process.collector succeeded, sum succeeded",
    );
    let numbers: Vec<i64> = numbers(&artifact_of(&place, "randint-0", "random_num"));
    let sum: i64 = numbers.iter().map(|number| if *number < 0 { -number } else { number * number }).sum();
    assert_eq!(numbers.len(), 10);
    assert_eq!(artifact_of(&place, "sum-0", "result"), sum.to_string());
}

fn looping() {
    let place = Place::default();
    place.file("loop_example/randint/randint.py", RANDINT);
    place.file(
        "loop_example/process/process.py",
        "import os, sys\nx = int(sys.argv[1])\nopen(os.environ['PF_OUTPUT_ARTIFACT_RESULT'], 'w').write(str(x * x if x >= 0 else -x))\n",
    );
    place.file(
        "loop_example/sum/sum.py",
        "import os\nfiles = os.environ['PF_INPUT_ARTIFACT_NUMS'].split(',')\nopen(os.environ['PF_OUTPUT_ARTIFACT_RESULT'], 'w').write(str(sum(int(open(f).read()) for f in files)))\n",
    );
    place.run(&example("loop_example"), &[]).finish().expect_code(0);
    place.expect_ends(
        "succeeded, randint succeeded, process succeeded, process.0 succeeded, process.1 succeeded, process.2 succeeded, \
         process.3 succeeded, process.4 succeeded, sum succeeded",
    );
    let directories = place.sandbox.list(".pipeline/run-000001/loop_example");
    for expected in ["process-0-244d8cc3b7f925461e4520c24a2640cc", "process-1-5737bb0763051eb2940da7442cd7fb00"] {
        assert!(directories.iter().any(|name| name == expected), "{directories:?}");
    }
    let numbers = numbers(&artifact_of(&place, "randint-0", "random_num"));
    let sum: i64 = numbers.iter().map(|number| if *number < 0 { -number } else { number * number }).sum();
    assert_eq!(artifact_of(&place, "sum-0", "result"), sum.to_string());
}

/// The content of an artifact of a step of the first run.
fn artifact_of(place: &Place, step: &str, name: &str) -> String {
    let runs = place.sandbox.path().join(".pipeline/run-000001");
    let below = |path: PathBuf| std::fs::read_dir(path).expect("a directory").flatten().map(|entry| entry.path());
    let steps = below(runs).flat_map(below);
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(step));
    let directory = steps.into_iter().find(is_it).unwrap_or_else(|| panic!("no artifacts of {step}"));
    std::fs::read_to_string(directory.join(name)).expect("an artifact")
}

fn numbers(list: &str) -> Vec<i64> {
    serde_json::from_str(list).expect("a list")
}

fn hoursing_price() {
    let place = Place::default();
    place.file("hoursing_price_train.py", "print('trained')\n");
    place.file("bin/python3.7", "#!/bin/sh\nexec python3 \"$@\"\n");
    place.sandbox.program("chmod".as_ref(), ["+x", "bin/python3.7"]).finish().expect_code(0);
    let path = format!("{}/bin:{}", place.sandbox.path().display(), std::env::var("PATH").unwrap_or_default());
    let text = document("example/hoursing_price/run.yaml");
    // An unknown flavour has no resources to reserve.
    place.run(&text, &["--flavour", "flavour-cpu=cpu=1,mem=1Gi"]).env("PATH", path).finish().expect_code(0);
    place.expect_ends("succeeded, main succeeded");
    assert_eq!(place.log("main"), "trained\n");
}

/// As in the pull request, variables do not describe a Ray cluster: the step is one process, of an empty command.
fn ray() {
    let place = Place::default();
    let outcome = place.run(&example("ray_job_example"), &["--dry-run"]).finish();
    outcome.expect_code(0).expect_err("variables do not describe a distributed job `ray`");
}

const PYTHON_STEPS: &[(&str, &str)] = &[
    (
        "data_preprocess.py",
        "import os, sys\nprint(sys.argv[1:])\nfor name in ('TRAIN', 'VALIDATE'):\n    open(os.environ[f'PF_OUTPUT_ARTIFACT_{name}_DATA'], 'w').write(name)\n",
    ),
    (
        "train.py",
        "import os, sys\nprint(sys.argv[1:], open(os.environ['PF_INPUT_ARTIFACT_TRAIN_DATA']).read())\nopen(os.environ['PF_OUTPUT_ARTIFACT_TRAIN_MODEL'], 'w').write('model')\n",
    ),
    (
        "validate.py",
        "import os, sys\nprint(sys.argv[1:], *(open(os.environ[f'PF_INPUT_ARTIFACT_{name}']).read() for name in ('DATA', 'MODEL')), os.environ['test_env_2'])\n",
    ),
];

fn typed_parameters() {
    let place = Place::default();
    for (name, text) in PYTHON_STEPS {
        place.file(name, text);
    }
    place.file("bin/python", "#!/bin/sh\nexec python3 \"$@\"\n");
    place.sandbox.program("chmod".as_ref(), ["+x", "bin/python"]).finish().expect_code(0);
    let path = format!("{}/bin:{}", place.sandbox.path().display(), std::env::var("PATH").unwrap_or_default());
    let text = document("pkg/pipeline/testcase/run.yaml");
    let outcome = place.run(&text, &["--flavour", "v100-10=cpu=1,mem=1Gi", "-p", "main.regularization=0.5"]);
    outcome.env("PATH", path).finish().expect_code(0);
    place.expect_ends("succeeded, data-preprocess succeeded, main succeeded, validate succeeded, mail succeeded");
    let below = "/testcase/.pipeline/run-000001/myproject";
    let printed = place.log("data-preprocess");
    assert!(printed.contains(&format!("'--validate', '{below}/data-preprocess-0-")), "{printed}");
    assert!(printed.contains("'--stepname', 'data-preprocess'"), "{printed}");
    assert_eq!(place.log("main"), "['-r', '0.5', '-d', './data/pre', '--output', './data/model'] TRAIN\n");
    assert_eq!(
        place.log("validate"),
        "['--model', './data/model', '--report', './data/report'] VALIDATE model ./data/pre_validate\n"
    );
    assert_eq!(place.log("mail"), "hahaha\n");
}

/// Loops over DAGs, conditions in them, and chains of references.
fn nested() {
    let place = Place::default();
    place.file("bin/randint", "#!/bin/sh\necho '[-20, -3, 4, 12]' > $3\n");
    place.sandbox.program("chmod".as_ref(), ["+x", "bin/randint"]).finish().expect_code(0);
    place.file(
        "split.py",
        "import json, os, sys\nat, numbers = int(sys.argv[1]), json.load(open(sys.argv[2]))\nfor name, keep in dict(LESS=lambda n: n < at, GREATER=lambda n: n > at, ALL=lambda n: True).items():\n    json.dump([n for n in numbers if keep(n)], open(os.environ['PF_OUTPUT_ARTIFACT_' + name], 'w'))\n",
    );
    place.file("sum.py", "import sys\nprint(len(sys.argv[1].split(',')))\n");
    place.file("abs.py", "import sys\nprint(abs(int(sys.argv[1])))\n");
    let path = format!("{}/bin:{}", place.sandbox.path().display(), std::env::var("PATH").unwrap_or_default());
    for text in [
        "pkg/pipeline/testcase/run_dag.yaml",
        "variants/pr1164-early/pkg/apiserver/controller/pipeline/testcase/run_dag.yaml",
    ] {
        let _ = std::fs::remove_dir_all(place.sandbox.path().join("state"));
        place.run(&document(text), &[]).env("PATH", &path).finish().expect_code(0);
        let ends = place.ends();
        let end = |name: &str| ends.get(name).map_or("none", String::as_str);
        assert_eq!(end(""), "succeeded");
        for (name, expected) in [
            ("disStep", "skipped: disabled"),
            ("square-loop.3.square", "succeeded"),
            ("process-positive.0.condition1", "succeeded"),
            ("process-positive.0.condition1.show", "succeeded"),
            ("process-positive.1.condition1", "skipped: condition"),
            ("process-negetive.0.condition2", "skipped: condition"),
            ("process-negetive.1.condition2.abs", "succeeded"),
        ] {
            assert_eq!(end(name), expected, "{name} of {text}");
        }
        assert_eq!(place.log("square-loop.3.square"), "144\n");
        assert_eq!(place.log("process-negetive.1.condition2.abs"), "3\n");
        assert_eq!(place.log("sum"), "4\n");
    }
}

/// A distributed step without a flavour, beside others.
fn distributed() {
    let place = Place::default();
    let text = document("variants/pr1164/pkg/apiserver/controller/pipeline/testcase/run.yaml");
    place.run(&text, &[]).finish().expect_code(0);
    place.expect_ends("succeeded, main succeeded, nomain succeeded, distStep succeeded, post succeeded");
    for (replica, who) in [("pserver-0", "ps"), ("pserver-1", "ps"), ("worker-0", "worker"), ("worker-1", "worker")] {
        assert_eq!(place.log_of("distStep", replica), format!("{who} 15\n"));
    }
    let text = document("variants/pr1164/pkg/pipeline/testcase/run.yaml");
    place.run(&text, &["--dry-run", "--flavour", "v100-10=cpu=1"]).finish().expect_code(0);
}

fn refused() {
    let place = Place::default();
    for (path, reasons) in [
        ("pkg/pipeline/testcase/runCircle.yaml", &["depend on each other"][..]),
        ("pkg/pipeline/testcase/runWrongParam.yaml", &["xxxinvalid"]),
        ("variants/pr1164-first/example/pipeline/paddle_job_example/run.yaml", &["preprocess", "deps"]),
        ("variants/v0.14.1/example/pipeline/run.yaml", &["preprocess.data_path"]),
        ("variants/2022-04/pkg/pipeline/testcase/runTwoPost.yaml", &["fs_scope", "post_process", "main.model"]),
    ] {
        let outcome = place.run(&document(path), &[]).finish();
        outcome.expect_code(2);
        for reason in reasons {
            assert!(outcome.err().contains(reason), "{path} is not refused because of {reason}:\n{}", outcome.err());
        }
    }
    assert!(place.journal().is_empty(), "a refused document has made a run");
}

/// `lint` accepts the others, and says which of them PaddleFlow's develop branch rejects.
fn lint() {
    let place = Place::default();
    let mut paths = Vec::new();
    crate::pai::find(&root(), &mut paths);
    let refused = ["runCircle", "runWrongParam", "pr1164-first", "v0.14.1", "runTwoPost"];
    for path in &paths {
        let name = path.display().to_string();
        let code = if refused.iter().any(|refused| name.contains(refused)) { 2 } else { 0 };
        let outcome = place.sandbox.umiak(["lint".as_ref(), path.as_os_str()]).finish();
        outcome.expect_code(code);
        let text = std::fs::read_to_string(path).expect("it can be read");
        let printed = outcome.out() + &outcome.err();
        assert_eq!(printed.contains("#1164"), code == 0 && text.contains("distributed_job"), "{name}:\n{printed}");
    }
    assert_eq!(paths.len(), 20, "{paths:?}");
}
