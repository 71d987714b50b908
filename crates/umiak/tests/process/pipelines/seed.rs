//! PaddleFlow's example of a distributed job, as its manual prints it.

use std::collections::{BTreeMap, BTreeSet};

use umiak_testkit::components::Component;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{Place, user};

pub(crate) fn register(suite: &mut Suite) {
    suite.test("pipelines::seed::the_example_as_printed", &[], as_printed).test(
        "pipelines::seed::its_train_step_on_slurm",
        &[Component::Slurm],
        on_slurm,
    );
}

const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/paddleflow/distributed.yaml"));

/// Processes of members that sleep, by their command lines and variables. Each leads its session: a shell that has forked
/// and not yet executed `sleep` has the same command line.
fn sleeping(place: &Place) -> Vec<(String, BTreeMap<String, String>)> {
    let members = place.sandbox.processes().into_iter().filter(|(_, line)| line.contains("sleep 30; echo"));
    let members = members.filter(|(pid, _)| umiak_sys::descend::session(*pid) == Some(*pid));
    let variables = |pid: u32| -> Option<BTreeMap<String, String>> {
        let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let pairs = text.split('\0').filter_map(|variable| variable.split_once('='));
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    };
    members.filter_map(|(pid, line)| Some((line, variables(pid)?))).collect()
}

/// Nothing is configured: neither `flavour1` nor `ppl`.
fn as_printed() {
    let place = Place::default();
    place.file(
        "distributed_job_example/shells/data.sh",
        "env\necho \"arguments: $@\"\nmkdir -p \"$1\"\necho one line >> \"$1/data\"\n",
    );
    let running = place.run(EXAMPLE, &[]).start();
    let mut members = Vec::new();
    running.wait_until("all four members sleep at the same time", || {
        members = sleeping(&place);
        members.len() == 4
    });

    let mut seen: BTreeMap<(String, String), &BTreeMap<String, String>> = BTreeMap::new();
    for (line, variables) in &members {
        let part = if line.contains("echo ps ") { "PSERVER" } else { "TRAINER" };
        assert_eq!(variables["TRAINING_ROLE"], part, "{line}");
        assert_eq!((&*variables["PS_NUM"], &*variables["WORKER_NUM"]), ("2", "2"));
        assert_eq!((&*variables["PF_RUN_ID"], &*variables["PF_STEP_NAME"]), ("run-000001", "train"));
        assert_eq!(variables["PF_USER_NAME"], user());
        seen.insert((part.to_owned(), variables["PADDLE_TRAINER_ID"].clone()), variables);
    }
    let expected = [("PSERVER", "0"), ("PSERVER", "1"), ("TRAINER", "0"), ("TRAINER", "1")];
    let keys: Vec<(&str, &str)> = seen.keys().map(|(part, index)| (part.as_str(), index.as_str())).collect();
    assert_eq!(keys, expected);
    for ((part, index), variables) in &seen {
        let list = if part == "PSERVER" { "PADDLE_PSERVERS_IP_PORT_LIST" } else { "PADDLE_TRAINER_ENDPOINTS" };
        let own = format!("{}:{}", variables["POD_IP"], variables["PADDLE_PORT"]);
        assert_eq!(variables[list].split(',').nth(index.parse().expect("an index")), Some(own.as_str()), "{part}");
    }
    for list in ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"] {
        let lists: BTreeSet<&str> = seen.values().map(|variables| variables[list].as_str()).collect();
        assert_eq!(lists.len(), 1, "{lists:?}");
        let endpoints: BTreeSet<&str> = lists.iter().flat_map(|list| list.split(',')).collect();
        assert_eq!(endpoints.len(), 2, "{list}: {endpoints:?}");
    }

    running.finish().expect_code(0);
    place.expect_ends("succeeded, preprocess succeeded, train succeeded");
    assert_eq!(place.variables("preprocess", "main-0")["USER_ABC"], format!("123_{}", user()));
    let data = "./distributed_job_example/data/run-000001";
    assert!(place.log("preprocess").contains(&format!("arguments: {data}\n")));
    assert_eq!(place.sandbox.read(&format!("{data}/data")), "one line\n");
    for (replica, who) in [("pserver-0", "ps"), ("pserver-1", "ps"), ("worker-0", "worker"), ("worker-1", "worker")] {
        assert_eq!(place.log_of("train", replica), format!("{who} 15 {data} ./output/run-000001\n"));
    }
}

/// One key more, and its members are on the nodes of a cluster; the step before it is here. Each waits for the others, not
/// for half a minute.
fn on_slurm() {
    let meet = "touch at.$TRAINING_ROLE.$PADDLE_TRAINER_ID; until [ -e at.PSERVER.0 -a -e at.PSERVER.1 -a -e at.TRAINER.0 -a -e at.TRAINER.1 ]; do sleep 0.05; done; echo on $SLURMD_NODENAME";
    let document = EXAMPLE.replace("    deps: preprocess\n", "    deps: preprocess\n    engine: slurm\n");
    let document = document.replace("sleep 30", meet);
    assert_eq!((document.matches("engine: slurm").count(), document.matches(meet).count()), (1, 2), "{document}");
    let place = Place::default();
    let shell = "mkdir -p \"$1\"\necho ${SLURM_JOB_ID-here} >> \"$1/data\"\n";
    place.file("distributed_job_example/shells/data.sh", shell);
    let slurm = Slurm::start(2);
    let run =
        place.run(&document, &["--slurm", "nodes=2", "--slurm", "ntasks-per-node=2"]).env("SLURM_CONF", slurm.conf());
    let outcome = run.finish();
    outcome.expect_code(0).expect_err("engine local, slurm");
    place.expect_ends("succeeded, preprocess succeeded, train succeeded");
    let data = "./distributed_job_example/data/run-000001";
    assert_eq!(place.sandbox.read(&format!("{data}/data")), "here\n");
    let members =
        [("pserver-0", "ps", 1), ("pserver-1", "ps", 1), ("worker-0", "worker", 2), ("worker-1", "worker", 2)];
    for (replica, who, node) in members {
        let log = place.log_of("train", replica);
        assert_eq!(log, format!("on n{node}\n{who} 15 {data} ./output/run-000001\n"), "{replica}");
    }
    slurm.wait_until_idle();
    place.sandbox.assert_nothing_left();
}
