//! Submissions of PaddleRec through the real binary.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use umiak_testkit::components::Component::{PaddlePs, Python};
use umiak_testkit::components::ps_environment;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

use crate::frameworks::{assert_only_caches, example, prepared};
use crate::shell::Shell;

mod cloud;
mod clusters;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("paddlerec::the_guides_files_with_the_guides_line", &[Python], guide)
        .test("paddlerec::every_way_to_name_the_files", &[Python], ways)
        .test("paddlerec::a_failing_trainer_ends_the_job", &[Python], failure)
        .test("paddlerec::modes_run_one_after_the_other", &[Python], modes)
        .test("paddlerec::a_model_of_the_package", &[Python], package)
        .test("paddlerec::one_live_job_of_a_name", &[Python], replace)
        .test("paddlerec::other_backends", &[Python], backends)
        .test("paddlerec::errors", &[Python], errors)
        .test("paddlerec::plans_and_native_documents", &[Python], plans)
        .test("paddlerec::retries", &[Python], retries)
        .test("paddlerec::the_example_trains", &[PaddlePs], trains);
    cloud::register(suite);
    clusters::register(suite);
}

/// The files of PaddleRec's guide, as they are printed there.
const CONFIG: &str = r#"train:
  epochs: 10
  # engine: single 
  engine: cluster
  workspace: "paddlerec.models.rank.dnn"

  trainer:
    # for cluster training
    strategy: "async"
    threads: 2
"#;
const BACKEND: &str = r#"engine:
  backend: "k8s"
  job_name: "k8s-ctr-dnn"

  submit:
    server_num: 2
    trainer_num: 2
    docker_image: "hub.baidubce.com/ctr/paddlerec:alpha"
    memory: "4Gi"
    storage: "10Gi"
    log_level: 0
"#;
const LINE: &str = "umiak python -m paddlerec.run -m config.yaml -b backend.yaml";

/// A model that writes its variables to `seen.ROLE.INDEX`. Servers wait to be stopped; trainers wait until every process
/// has written, and then run `code`.
fn model(code: &str) -> String {
    format!(
        r#"import os, signal, sys, time
role = os.environ.get("UMIAK_ROLE", "none")
name = "seen.%s.%s" % (role, os.environ["UMIAK_INDEX"])
with open(name + ".new", "w") as file:
    file.write("\0".join("%s=%s" % item for item in sorted(os.environ.items())))
os.rename(name + ".new", name)
if os.environ.get("TRAINING_ROLE") == "PSERVER":
    signal.pause()
others = ["seen.pserver.%d" % index for index in range(int(os.environ.get("PADDLE_PSERVERS_NUM", "0")))]
others += ["seen.trainer.%d" % index for index in range(int(os.environ.get("PADDLE_TRAINERS_NUM", "1")))]
while not all(map(os.path.exists, others)):
    time.sleep(0.01)
{code}
"#
    )
}

/// A shell with both files and the model.
fn shell(backend: &str, code: &str) -> Shell {
    let shell = Shell::with_python();
    write(&shell.sandbox, "paddlerec/models/rank/dnn/__main__.py", &model(code));
    shell.sandbox.write("config.yaml", CONFIG);
    shell.sandbox.write("backend.yaml", BACKEND.replace("\"k8s\"", &format!("\"{backend}\"")));
    shell
}

fn write(sandbox: &Sandbox, name: &str, text: &str) {
    let folder = Path::new(name).parent().expect("a file has a directory");
    std::fs::create_dir_all(sandbox.path().join(folder)).expect("the sandbox can be written");
    sandbox.write(name, text);
}

fn seen(sandbox: &Sandbox, name: &str) -> BTreeMap<String, String> {
    let text = sandbox.read(&format!("seen.{name}"));
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Checks the variables that PaddleRec's own local engine sets, and what the files say.
fn guide() {
    let shell = shell("local", "print('trained', os.environ['PADDLE_TRAINER_ID'])");
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(0).expect_out("trainer-0 | trained 0\n").expect_out("trainer-1 | trained 1\n");
    outcome
        .expect_err("notice[J0023]: `resources.storage` is not enforced on engine `local`\n")
        .expect_err("notice[J0023]: `image` is not used on engine `local`")
        .expect_err("planned job k8s-ctr-dnn, 2 pserver, 2 trainer, engine local, run-000001\n");
    let sandbox = &shell.sandbox;
    let servers: Vec<_> = (0..2).map(|index| seen(sandbox, &format!("pserver.{index}"))).collect();
    let endpoints: Vec<String> =
        servers.iter().map(|server| format!("{}:{}", server["POD_IP"], server["PADDLE_PORT"])).collect();
    let config = sandbox.path().join("config.yaml");
    for (role, index) in [("pserver", 0), ("pserver", 1), ("trainer", 0), ("trainer", 1)] {
        let seen = seen(sandbox, &format!("{role}.{index}"));
        let (list, index) = (endpoints.join(","), index.to_string());
        let training = if role == "pserver" { "PSERVER" } else { "TRAINER" };
        for (name, value) in [
            ("PADDLE_PSERVERS_IP_PORT_LIST", list.as_str()),
            ("TRAINING_ROLE", training),
            ("PADDLE_TRAINING_ROLE", training),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_PSERVERS_NUM", "2"),
            ("PADDLE_TRAINER_ID", index.as_str()),
            ("CLUSTER_INSTANCE", "1"),
            ("CPU_NUM", "2"),
            ("GLOG_v", "0"),
            ("train.trainer.threads", "2"),
            ("train.trainer.strategy", "async"),
            ("train.epochs", "10"),
            ("UMIAK_JOB", "k8s-ctr-dnn"),
            ("engine_run_config", config.to_str().expect("UTF-8")),
        ] {
            assert_eq!(seen.get(name).map(String::as_str), Some(value), "{name} of {role} {index}");
        }
    }
    // The run has the job's name, and both files.
    shell.line("umiak logs k8s-ctr-dnn trainer-1").finish().expect_code(0).expect_out("trained 1\n");
    let state = shell.line("cat $UMIAK_HOME/runs/run-000001/document.yaml").finish().out();
    assert!(state.contains("train:\n") && state.contains("---\n# backend.yaml\nengine:\n"), "{state}");
}

fn ways() {
    let shell = shell("local", "");
    let away = |from: &str, to: &str| std::fs::rename(shell.sandbox.path().join(from), shell.sandbox.path().join(to));
    for line in [
        "umiak submit -m config.yaml -b backend.yaml",
        "umiak submit --model=config.yaml --backend_yaml backend.yaml -r MASTER --output quiet",
        "umiak run backend.yaml",
        "umiak run ./config.yaml",
        "umiak run $PWD/backend.yaml --name other",
        "cd bin && umiak run ../backend.yaml --dry-run",
    ] {
        shell.line(line).finish().expect_code(0);
    }
    away("backend.yaml", "there.yaml").expect("the sandbox can be written");
    shell.line("umiak submit -m config.yaml -b there.yaml").finish().expect_code(0);
    shell.line("umiak run config.yaml").finish().expect_code(2).expect_err("error[F0060]: a cluster engine needs");
    shell.sandbox.write("config.yaml", CONFIG.replace("engine: cluster", "engine: local_cluster"));
    shell.line("umiak run config.yaml").finish().expect_code(0).expect_err("planned job dnn, 1 pserver, 1 trainer,");
    shell.sandbox.write("config.yaml", CONFIG.replace("engine: cluster", "engine: single"));
    shell.line("umiak run config.yaml").finish().expect_code(0).expect_err("planned job dnn, 1 trainer,");
    // So is a large one.
    let comment = format!("# {}\n", "x".repeat(1022)).repeat(1100);
    shell.sandbox.write("config.yaml", comment + &CONFIG.replace("engine: cluster", "engine: single"));
    shell.line("umiak run config.yaml").finish().expect_code(0).expect_err("planned job dnn, 1 trainer,");
    // A directory is a program, too.
    shell.sandbox.write("config.yaml", "train: {engine: single, workspace: ./paddlerec/models/rank/dnn}");
    shell.line("umiak submit -m config.yaml").finish().expect_code(0);
    shell.sandbox.write("umiak.toml", "");
    shell
        .line("umiak submit -m umiak.toml -b there.yaml")
        .finish()
        .expect_code(2)
        .expect_err("error[F0003]: `umiak.toml`");
}

/// The failed trainer is named, and the servers are stopped.
fn failure() {
    let shell = shell("local", "sys.exit(int(os.environ['PADDLE_TRAINER_ID']) * 7)");
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(1).expect_err("trainer-1 (").expect_err("exited with 7");
}

fn modes() {
    let shell = Shell::with_python();
    let code = "open('order', 'a').write('%s %s\\n' % (os.environ['mode'], os.environ['train.trainer.engine']))";
    write(&shell.sandbox, "model/__main__.py", &model(code));
    shell.sandbox.write(
        "config.yaml",
        "workspace: model\nmode: [one, two]\nrunner:\n- {name: one, class: local_cluster_train, worker_num: 1}\n- {name: two, class: infer}\nphase: [{name: p, thread_num: 1}]\n",
    );
    shell.line("umiak submit -m config.yaml").finish().expect_code(0);
    assert_eq!(shell.sandbox.read("order"), "one local_cluster\ntwo single\n");
}

/// `-m` may name a model of the package.
fn package() {
    let shell = shell("local", "print('of the package')");
    write(&shell.sandbox, "paddlerec/models/rank/dnn/config.yaml", CONFIG);
    std::fs::remove_file(shell.sandbox.path().join("config.yaml")).expect("it is there");
    let line = "umiak python3 -m paddlerec.run -m paddlerec.models.rank.dnn -b backend.yaml";
    shell.line(line).finish().expect_code(0).expect_out("of the package");
    let outcome = shell.line("umiak submit -m paddlerec.models.rank.mmoe -b backend.yaml").finish();
    outcome.expect_code(2).expect_err("error[F0001]: the model `paddlerec.models.rank.mmoe` was not found\n");
    // An interpreter that cannot be asked is the reason.
    let path = shell.sandbox.write("bin/python9", "#!/bin/sh\necho 'no standard library' >&2\nexit 3\n");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    for (python, reason) in [
        ("bin/python9", "`bin/python9` failed (exit status: 3): no standard library\n"),
        ("nowhere/python3", "`nowhere/python3` cannot be run: No such file or directory"),
    ] {
        let line = line.replace("python3", python);
        shell.line(&line).finish().expect_code(2).expect_err("error[F0001]: the model").expect_err(reason);
    }
}

fn replace() {
    let shell = shell("local", "while True: time.sleep(1)");
    // Runs go on after these.
    let live = |line: &str| shell.line(line).start().finish_unchecked();
    live("umiak submit -m config.yaml -b backend.yaml -d").expect_code(0).expect_out("run-000001\n");
    for line in ["umiak submit -m config.yaml -b backend.yaml", "umiak run backend.yaml -d"] {
        let outcome = live(line);
        outcome.expect_code(2).expect_err("error[J0035]: a job `k8s-ctr-dnn` is running\n  run  run-000001\n");
    }
    let outcome = live("umiak submit -m config.yaml -b backend.yaml --dry-run");
    outcome.expect_code(0).expect_out("job k8s-ctr-dnn\n");
    let outcome = live("umiak submit -m config.yaml -b backend.yaml -d --replace");
    outcome.expect_code(0).expect_err("stopped run-000001, which had the same name\n").expect_out("run-000002\n");
    live("umiak wait run-000001").expect_code(3);
    live("umiak run backend.yaml --name other -d").expect_code(0).expect_out("run-000003\n");
    // A name that no file gives identifies nothing.
    shell.sandbox.write("config.yaml", CONFIG.replace("engine: cluster", "engine: single"));
    live("umiak submit -m config.yaml -d").expect_code(0).expect_out("run-000004\n");
    live("umiak submit -m config.yaml -d").expect_code(0).expect_out("run-000005\n");
    // A launch of the same name is another job.
    shell.sandbox.write("config.yaml", CONFIG);
    shell.sandbox.write("wait.py", "import time\nwhile True: time.sleep(1)\n");
    live("umiak launch -d --nproc_per_node 1 --job_id launched wait.py").expect_code(0).expect_out("run-000006\n");
    live("umiak run backend.yaml --name launched -d").expect_code(0).expect_out("run-000007\n");
    let outcome = live("umiak run backend.yaml --name launched -d --replace");
    outcome.expect_code(0).expect_err("stopped run-000007, which").expect_out("run-000008\n");
    assert!(!outcome.err().contains("run-000006"), "{}", outcome.err());
    shell.line("umiak stop --all").finish().expect_code(0);
}

/// Documents are checked first; then engines that are not here are refused, and `--engine` overrides the file.
fn backends() {
    for backend in ["k8s", "KUBERNETES", "Volcano"] {
        let error = "error[L0003]: jobs on the engine `kubernetes` are not supported yet\n";
        let shell = shell(backend, "");
        for line in [LINE, "umiak run backend.yaml", "umiak run -d config.yaml"] {
            shell.line(line).finish().expect_code(2).expect_err(error).expect_err("prints the manifests");
        }
        for line in [&format!("{LINE} --dry-run"), "umiak plan config.yaml", "umiak run backend.yaml --dry-run"] {
            manifest(&shell.line(line).finish());
        }
        shell
            .line("umiak lint backend.yaml")
            .finish()
            .expect_code(0)
            .expect_out("backend.yaml: ok, 2 roles, 4 replicas\n");
        shell.line(&format!("{LINE} --engine local")).finish().expect_code(0);
        let broken = BACKEND.replace("\"k8s\"", backend).replace("server_num: 2", "server_num: two");
        shell.sandbox.write("backend.yaml", broken);
        let outcome = shell.line(LINE).finish();
        outcome.expect_code(2).expect_err("error[F0011]: `engine.submit.server_num` must be a whole number\n");
        assert!(!outcome.err().contains(error), "{}", outcome.err());
    }
}

/// The job of the guide as a Volcano Job, with what PaddleRec's own manifest lacks.
fn manifest(outcome: &Outcome) {
    outcome.expect_code(0);
    for line in [
        "manifests, a Volcano Job; ",
        "\nkind: ConfigMap\n",
        "\ndata:\n  file-0: |\n    train:\n      epochs: 10\n",
        "\napiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n",
        "\n  minAvailable: 4\n",
        "\n    - event: TaskCompleted\n      action: CompleteJob\n",
        "\n          image: hub.baidubce.com/ctr/paddlerec:alpha\n",
        "\n          args:\n          - python\n          - -m\n          - paddlerec.models.rank.dnn\n",
        "engine_run_config\n            value: /umiak/work/config.yaml\n",
        "set -- env train.trainer.threads=2 \"$@\"\n",
        "\n        restartPolicy: Never\n",
        "\n            requests:\n              cpu: \"2\"\n              memory: 4Gi\n              ephemeral-storage: 10Gi\n",
    ] {
        outcome.expect_out(line);
    }
}

/// What users see, as one text.
fn errors() {
    let shell = Shell::with_decoy();
    shell.sandbox.write("config.yaml", CONFIG.replace("\"async\"", "fast").replace("workspace", "workspce"));
    shell.sandbox.write(
        "backend.yaml",
        "engine:\n  backend: AWS\n  job_name: a/b\n  submit:\n    server_num: 2\n    worker_num: 3\n    trainer_num: 2\n    mermory: 4Gi\n    memory: plenty\n",
    );
    shell.sandbox.write("good.yaml", BACKEND);
    let mut text = String::new();
    for line in [
        "umiak submit -m config.yaml -b backend.yaml",
        "umiak lint config.yaml backend.yaml",
        "umiak submit -m config.yaml",
        "umiak submit -m none.yaml -b none.yaml",
        "umiak submit -m good.yaml -b config.yaml",
        "umiak submit -b good.yaml",
        "umiak submit -m config.yaml -b good.yaml --outpt json",
        "umiak submit -m config.yaml -b good.yaml --output xml",
        "umiak submit -m config.yaml -r SLAVE",
        "umiak submit -m config.yaml good.yaml",
        "umiak run good.yaml -p a=1",
    ] {
        let outcome = shell.line(line).finish();
        outcome.expect_code(2);
        text.extend(["$ ", line, "\n", &outcome.out(), &outcome.err(), "\n"]);
    }
    assert!(!shell.sandbox.path().join("started").exists());
    insta::with_settings!({ prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("paddlerec_errors", text);
    });
}

fn plans() {
    let shell = shell("local", "print('trained')");
    let plan = shell.line("umiak plan backend.yaml").finish();
    plan.expect_code(0).expect_out("role pserver, 2 replicas\n").expect_out("  GLOG_v=0\n");
    plan.expect_out("starts after pserver, when it has started\n");
    let json = shell.line("umiak submit -m config.yaml -b backend.yaml --dry-run --output json").finish();
    json.expect_code(0).expect_out("\"storage_bytes\":10737418240");
    shell.line("umiak convert config.yaml > native.yaml").finish().expect_code(0);
    let outcome = shell.line("umiak run native.yaml").finish();
    outcome
        .expect_code(0)
        .expect_out("trainer-1 | trained\n")
        .expect_err("planned job k8s-ctr-dnn, 2 pserver, 2 trainer,");
}

/// A failed run is repeated from its record, without its files.
fn retries() {
    let shell = shell("local", "sys.exit(0 if os.path.exists('repaired') else 1)");
    shell.line(LINE).finish().expect_code(1);
    shell.sandbox.write("repaired", "");
    std::fs::remove_file(shell.sandbox.path().join("backend.yaml")).expect("it is there");
    let outcome = shell.line("umiak retry -p a=1").finish();
    outcome.expect_code(2).expect_err("error[F0033]: a submission of PaddleRec has no parameters\n");
    shell.line("umiak retry").finish().expect_code(0);
}

/// Two servers and two trainers with the real Paddle.
fn trains() {
    let sandbox = Sandbox::new();
    write_example(&sandbox, "backend: \"local\"");
    let environment = ps_environment().expect("the suite has checked that it is here");
    let words = ["submit", "-m", "config.yaml", "-b", "backend.yaml"];
    let outcome = prepared(&sandbox, &environment, &words).finish();
    assert_only_caches(&sandbox);
    has_trained(&outcome, "local");
}

/// The files of the example, with this backend.
fn write_example(sandbox: &Sandbox, backend: &str) {
    for name in ["config.yaml", "backend.yaml", "ctr/__init__.py", "ctr/__main__.py", "ctr/model.py", "ctr/reader.py"] {
        let text = std::fs::read_to_string(example(&format!("paddlerec/{name}"))).expect("the example is there");
        write(sandbox, name, &text.replace("backend: \"local\"", backend));
    }
}

/// Checks the output of the example.
fn has_trained(outcome: &Outcome, engine: &str) {
    outcome.expect_code(0).expect_err(&format!("planned job ctr, 2 pserver, 2 trainer, engine {engine},"));
    let text = outcome.out();
    for trainer in 0..2 {
        let prefix = format!("trainer-{trainer} | done: loss 0.6931 -> ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.parse::<f64>().is_ok_and(|loss| loss < 0.66), "{line}");
    }
    for server in 0..2 {
        assert!(text.contains(&format!("pserver-{server} | serving, async")), "{text}");
    }
}
