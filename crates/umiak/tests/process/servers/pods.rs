//! One process in each pod, as PaddleCloud places them, with the job described by variables.

use std::collections::BTreeMap;

use umiak_testkit::components::Component::Netns;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::{SERVERS, TRAINERS, WAIT, environment, expect_cause, expect_well, logs};
use crate::nodes::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::pods::on_one_host", &[Netns], on_one_host)
        .test("servers::pods::each_on_its_host", &[Netns], each_on_its_host)
        .test("servers::pods::hosts_by_name", &[Netns], by_name)
        .test("servers::pods::a_platform_that_says_more", &[Netns], says_more)
        .test("servers::pods::a_platform_that_says_less", &[Netns], says_less)
        .test("servers::pods::gloos_rendezvous_of_the_platform", &[Netns], gloo)
        .test("servers::pods::restart_is_of_everybody", &[Netns], restart)
        .test("servers::pods::the_last_one_is_waited_for", &[Netns], late_pod)
        .test("servers::pods::rehearsed", &[], rehearsed)
        .test("servers::pods::a_trainer_fails", &[Netns], trainer_fails)
        .test("servers::pods::a_server_fails", &[Netns], server_fails)
        .test("servers::pods::a_pod_is_killed", &[Netns], pod_is_killed);
}

/// Two servers and two trainers with their variables.
struct Pods {
    cluster: Cluster,
    sandboxes: Vec<Sandbox>,
    /// Host of each pod.
    hosts: [usize; 4],
    variables: Vec<BTreeMap<&'static str, String>>,
}

impl Pods {
    /// All on one host, or each on its own.
    fn new(addresses: [&str; 4]) -> Self {
        let is_one_host = addresses[0] == addresses[3];
        let servers = format!("{}:6170,{}:{}", addresses[0], addresses[1], if is_one_host { "6171" } else { "6170" });
        let variables = (0..4).map(|pod| {
            let mut variables = BTreeMap::from([
                ("PADDLE_PSERVERS_IP_PORT_LIST", servers.clone()),
                ("PADDLE_TRAINERS_NUM", "2".to_owned()),
                ("POD_IP", addresses[pod].to_owned()),
            ]);
            if pod < 2 {
                let endpoint = servers.split(',').nth(pod).expect("two servers");
                let port = endpoint.rsplit_once(':').expect("a port").1;
                variables.extend([("TRAINING_ROLE", "PSERVER".to_owned()), ("PADDLE_PORT", port.to_owned())]);
            } else {
                let id = (pod - 2).to_string();
                variables.extend([("TRAINING_ROLE", "TRAINER".to_owned()), ("PADDLE_TRAINER_ID", id)]);
            }
            variables
        });
        Self {
            cluster: Cluster::new(if is_one_host { 1 } else { 4 }),
            sandboxes: (0..4).map(|_| Sandbox::new()).collect(),
            hosts: if is_one_host { [0; 4] } else { [0, 1, 2, 3] },
            variables: variables.collect(),
        }
    }

    fn on_one_host() -> Self {
        Self::new(["127.0.0.1"; 4])
    }

    fn each_on_its_host() -> Self {
        Self::new(["192.168.0.1", "192.168.0.2", "192.168.0.3", "192.168.0.4"])
    }

    fn launch(&self, pod: usize, flags: &str, actions: &[&str]) -> Running<'_> {
        let run = self.sandboxes[pod].launch_toy(flags, actions);
        let run = self.variables[pod].iter().fold(run, |run, (name, value)| run.env(name, value));
        run.on(self.cluster.network.host(self.hosts[pod])).start()
    }

    fn launch_all(&self, flags: &str, actions: &[&str]) -> Vec<Running<'_>> {
        (0..4).map(|pod| self.launch(pod, flags, actions)).collect()
    }

    /// Runs all pods to the end; nothing may be left on any host.
    fn run(&self, flags: &str, actions: &[&str]) -> Vec<Outcome> {
        let snapshot = self.cluster.snapshot();
        let outcomes = finish(self.launch_all(flags, actions));
        snapshot.assert_as_before();
        outcomes
    }
}

const PS: &str = "--run_mode ps --grace 1s";

/// Each process must have the variables that the platform set.
fn all_end_well(pods: &Pods, flags: &str) {
    let outcomes = pods.run(flags, &["*:env env", SERVERS, TRAINERS]);
    for outcome in &outcomes {
        expect_well(outcome);
    }
    let files = ["env.pserver-0", "env.pserver-1", "env.0", "env.1"];
    let names = ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"];
    for pod in 0..4 {
        let seen = environment(&pods.sandboxes[pod], files[pod]);
        for (name, value) in &pods.variables[pod] {
            assert_eq!(seen[*name], *value, "{name} of {}", files[pod]);
        }
        assert_eq!(logs(&pods.sandboxes[pod]), [names[pod]]);
        let said = outcomes[pod].out();
        if pod < 2 {
            assert_eq!(said, "", "no server is on a console");
        } else {
            assert!(said.starts_with(&format!("I am trainer-{}\nreached ", pod - 2)), "{said}");
        }
    }
}

fn on_one_host() {
    let pods = Pods::on_one_host();
    all_end_well(&pods, PS);
    // The mode also follows from the variables alone.
    let pods = Pods::on_one_host();
    all_end_well(&pods, "--grace 1s");
}

fn each_on_its_host() {
    all_end_well(&Pods::each_on_its_host(), PS);
}

/// Pods with names instead of addresses, like services of a cluster.
fn by_name() {
    all_end_well(&Pods::new(["localhost"; 4]), PS);
}

/// Servers also have the variables of trainers, and vice versa.
fn says_more() {
    let mut pods = Pods::each_on_its_host();
    for (pod, variables) in pods.variables.iter_mut().enumerate() {
        variables.entry("PADDLE_PORT").or_insert_with(|| "6170".to_owned());
        variables.entry("PADDLE_TRAINER_ID").or_insert_with(|| pod.to_string());
        variables.insert("PADDLE_TRAINER_ENDPOINTS", "192.168.0.3:6170,192.168.0.4:6170".to_owned());
        variables.insert("PADDLE_TRAINING_ROLE", "anything".to_owned());
    }
    all_end_well(&pods, PS);
}

/// Trainers without an address.
fn says_less() {
    let mut pods = Pods::each_on_its_host();
    for variables in &mut pods.variables[2..] {
        variables.remove("POD_IP");
    }
    all_end_well(&pods, PS);
}

/// With gloo, the first server blocks until the trainers have met.
fn gloo() {
    let mut pods = Pods::each_on_its_host();
    for variables in &mut pods.variables {
        variables.insert("PADDLE_WITH_GLOO", "1".to_owned());
        variables.insert("PADDLE_GLOO_RENDEZVOUS", "3".to_owned());
        variables.insert("PADDLE_GLOO_HTTP_ENDPOINT", "192.168.0.1:8990".to_owned());
    }
    let snapshot = pods.cluster.snapshot();
    let actions = ["*:env env", "pserver-0:listen-gloo;await go;listen", "pserver-1:listen"];
    let rest = ["pserver:sleep 60000", "trainer:pid;seek"];
    let runs = pods.launch_all(PS, &[actions[0], actions[1], actions[2], rest[0], rest[1]]);
    runs[2].wait_for_file("pid.trainer-0");
    pods.sandboxes[0].write("go", "");
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    for (pod, file) in ["env.pserver-0", "env.pserver-1", "env.0", "env.1"].iter().enumerate() {
        let seen = environment(&pods.sandboxes[pod], file);
        for (name, value) in &pods.variables[pod] {
            assert_eq!(seen[*name], *value, "{name} of {file}");
        }
    }
    snapshot.assert_as_before();
}

fn restart() {
    let pods = Pods::each_on_its_host();
    let flags = format!("{PS} --max_restart 1 --restart-backoff 1ms");
    for outcome in pods.run(&flags, &["trainer-1:reach;fail-once 7", SERVERS, TRAINERS]) {
        outcome.expect_code(0).expect_err("exited with 7 after");
        assert_eq!(outcome.err().matches("ABORT!!!").count(), 1, "{}", outcome.err());
    }
}

fn late_pod() {
    let pods = Pods::each_on_its_host();
    let snapshot = pods.cluster.snapshot();
    let actions = ["pserver:sleep 500", SERVERS, TRAINERS];
    let mut runs: Vec<Running<'_>> = (1..4).map(|pod| pods.launch(pod, PS, &actions)).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    runs.push(pods.launch(0, PS, &actions));
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    snapshot.assert_as_before();
}

fn trainer_fails() {
    for pods in [Pods::on_one_host(), Pods::each_on_its_host()] {
        for outcome in pods.run(PS, &[SERVERS, "1:reach;err ValueError: bad batch;exit 7", &format!("0:{WAIT}")]) {
            outcome.expect_code(7).expect_err("ValueError: bad batch");
            expect_cause(&outcome, "trainer-1", 2, "exited with 7 after");
        }
    }
}

fn server_fails() {
    let pods = Pods::each_on_its_host();
    for outcome in pods.run(PS, &["pserver-1:exit 3", SERVERS, &format!("trainer:{WAIT}")]) {
        outcome.expect_code(3);
        expect_cause(&outcome, "pserver-1", 2, "exited with 3 after");
    }
}

fn pod_is_killed() {
    for killed in [1, 3] {
        let pods = Pods::each_on_its_host();
        let snapshot = pods.cluster.snapshot();
        let runs = pods.launch_all(PS, &["*:pid", SERVERS, &format!("trainer:{WAIT}")]);
        for (run, name) in runs.iter().zip(["pserver-0", "pserver-1", "trainer-0", "trainer-1"]) {
            run.wait_for_file(&format!("pid.{name}"));
        }
        runs[killed].signal(super::kill::SIGKILL);
        for (pod, outcome) in finish(runs).iter().enumerate() {
            if pod == killed {
                super::kill::expect_killed(outcome);
            } else {
                outcome.expect_code(123).expect_err("its umiak was killed");
            }
        }
        snapshot.assert_as_before();
    }
}

/// `--dry-run` tells servers and trainers of other pods apart.
fn rehearsed() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--dry-run", &[TRAINERS]);
    let variables = [
        ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:6170,10.0.0.2:6170"),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("POD_IP", "127.0.0.1"),
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINER_ID", "1"),
    ];
    let outcome = variables.into_iter().fold(run, |run, (name, value)| run.env(name, value)).finish();
    outcome.expect_code(0);
    for words in
        ["\ntrainer-1  3 ", "  PADDLE_TRAINERS_NUM=2\n", "  PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6170,10.0.0.2:6170\n"]
    {
        assert!(outcome.out().contains(words), "{words}:\n{}", outcome.out());
    }
}
