//! `umiak python -m paddle.distributed.elastic` and real etcd.

use std::net::TcpListener;

use umiak_testkit::components::Component::Etcd;
use umiak_testkit::etcd::{Certificates, Cluster, Setup};
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("etcd::scale_changes_the_number_of_nodes", &[Etcd], scale)
        .test("etcd::scale_without_a_job_changes_nothing", &[Etcd], scale_without_a_job)
        .test("etcd::clean_deletes_the_keys_of_one_job", &[Etcd], clean)
        .test("etcd::the_environment_replaces_flags", &[Etcd], environment)
        .test("etcd::a_member_that_is_down_is_no_error", &[Etcd], a_member_is_down)
        .test("etcd::no_leader_is_named", &[Etcd], no_leader)
        .test("etcd::users_and_permissions", &[Etcd], users)
        .test("etcd::certificates", &[Etcd], certificates)
        .test("etcd::exit_codes_of_paddle", &[Etcd], exit_codes)
        .test("etcd::the_password_reaches_a_detached_launch_and_no_rank", &[Etcd], password)
        .test("etcd::help_and_usage", &[], usage)
        .test("etcd::nothing_listens", &[], nothing_listens);
}

/// The command with these arguments, split at spaces.
fn elastic(sandbox: &Sandbox, arguments: &str) -> Outcome {
    elastic_with(sandbox, arguments, &[])
}

fn elastic_with(sandbox: &Sandbox, arguments: &str, variables: &[(&str, &str)]) -> Outcome {
    let words = "python -m paddle.distributed.elastic".split(' ').chain(arguments.split_whitespace());
    let run = sandbox.umiak(words);
    variables.iter().fold(run, |run, (name, value)| run.env(name, value)).finish()
}

/// `/paddle/job1/np`, `/paddle/job1` and so on, in base64.
const NP: &str = "L3BhZGRsZS9qb2IxL25w";
const KEYS: [&str; 4] = ["L3BhZGRsZS9qb2Ix", NP, "L3BhZGRsZS9qb2IxL25vZGVzL2E=", "L3BhZGRsZS9qb2IxMC9ucA=="];

fn put(cluster: &Cluster, key: &str) {
    // `4`
    cluster.post(0, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"NA=="}}"#), None);
}

fn get(cluster: &Cluster, key: &str) -> Option<String> {
    let answer = cluster.post(0, "/v3/kv/range", &format!(r#"{{"key":"{key}"}}"#), None);
    answer["kvs"][0]["value"].as_str().map(str::to_owned)
}

fn scale() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    put(&cluster, NP);
    let server = cluster.address(0);
    let outcome = elastic(&sandbox, &format!("--elastic_server {server} --job_id job1 --np 2 scale"));
    outcome.expect_code(0);
    assert_eq!((outcome.out().as_str(), outcome.err().as_str()), ("action scale done\n", ""));
    assert_eq!(get(&cluster, NP).as_deref(), Some("Mg=="));
    // As in Paddle, the first number of a range.
    elastic(&sandbox, &format!("scale --np=3:5 --job_id=job1 --elastic_server=http://{server}")).expect_code(0);
    assert_eq!(get(&cluster, NP).as_deref(), Some("Mw=="));
}

fn scale_without_a_job() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    let outcome = elastic(&sandbox, &format!("--elastic_server {} --job_id job1 --np 2 scale", cluster.address(0)));
    outcome.expect_code(2);
    assert_eq!(outcome.out(), "");
    assert_eq!(
        outcome.err(),
        "error[R0039]: there is no job `job1` in etcd; nothing was changed\n  key  /paddle/job1/np\nhint: check `--job_id`, and that the job runs\n"
    );
    assert_eq!(get(&cluster, NP), None);
}

fn clean() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    for key in KEYS {
        put(&cluster, key);
    }
    let arguments = format!("--elastic_server {} --job_id job1 clean", cluster.address(0));
    let outcome = elastic(&sandbox, &arguments);
    outcome.expect_code(0);
    assert_eq!((outcome.out().as_str(), outcome.err().as_str()), ("action clean done\n", ""));
    let left: Vec<bool> = KEYS.iter().map(|key| get(&cluster, key).is_some()).collect();
    assert_eq!(left, [false, false, false, true], "`job10` is another job");
    // Nothing is left to delete.
    elastic(&sandbox, &arguments).expect_code(0).expect_out("action clean done\n");
}

fn environment() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    put(&cluster, NP);
    let server = cluster.address(0);
    let job =
        [("PADDLE_ELASTIC_JOB_ID", "job1"), ("PADDLE_ELASTIC_NP", "2"), ("PADDLE_ELASTIC_SERVER", server.as_str())];
    elastic_with(&sandbox, "scale", &job).expect_code(0);
    assert_eq!(get(&cluster, NP).as_deref(), Some("Mg=="));
    let port = cluster.port(0).to_string();
    let service = [
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "127.0.0.1"),
        ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", port.as_str()),
        // A proxy for the web is not for etcd.
        ("http_proxy", "http://127.0.0.1:1"),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
    ];
    elastic_with(&sandbox, "--job_id job1 --np 3 scale", &service).expect_code(0);
    assert_eq!(get(&cluster, NP).as_deref(), Some("Mw=="));
}

fn a_member_is_down() {
    let (sandbox, mut cluster) = (Sandbox::new(), Cluster::start(3));
    put(&cluster, NP);
    let servers = cluster.addresses();
    cluster.kill(cluster.leader());
    let outcome = elastic(&sandbox, &format!("--elastic_server {servers} --job_id job1 clean"));
    outcome.expect_code(0);
    assert_eq!(outcome.err(), "");
}

fn no_leader() {
    let (sandbox, mut cluster) = (Sandbox::new(), Cluster::start(3));
    cluster.kill(0);
    cluster.kill(1);
    let outcome = elastic(&sandbox, &format!("--elastic_server {} --job_id job1 clean", cluster.addresses()));
    outcome.expect_code(123).expect_err("error[R0034]: etcd has no leader, and accepts no requests\n");
    outcome.expect_err(&format!("{}  connection refused", cluster.address(0)));
    assert_eq!(outcome.out(), "");
}

fn users() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    put(&cluster, NP);
    cluster.authenticate();
    let line = format!("--elastic_server {} --job_id job1 --np 2 scale", cluster.address(0));
    let run = |line: &str, user: &str, password: &str| {
        let outcome = elastic_with(&sandbox, line, &[("UMIAK_ETCD_USER", user), ("UMIAK_ETCD_PASSWORD", password)]);
        assert!(!outcome.err().contains("hunter2"), "{}", outcome.err());
        outcome
    };
    run(&line, "ann", "hunter2-ann").expect_code(0);
    run(&line, "ann", "hunter2-bob").expect_code(123).expect_err("error[R0032]: etcd refused the user or the password");
    elastic(&sandbox, &line).expect_code(123).expect_err("hint: set `UMIAK_ETCD_USER` and `UMIAK_ETCD_PASSWORD`");
    let token = cluster.post(0, "/v3/auth/authenticate", r#"{"name":"root","password":"hunter2-root"}"#, None);
    let token = token["token"].as_str();
    let role = r#"{"role":"jobs","key":"L3BhZGRsZS8=","range_end":"L3BhZGRsZTA="}"#;
    cluster.post(0, "/v3/auth/role/revoke", role, token);
    let denied = run(&line, "ann", "hunter2-ann");
    denied.expect_code(123).expect_err("error[R0033]: no permission for `/paddle/job1/np` in etcd\n  user    ann\n");
    // `ann` and her password in the address are not repeated.
    let line = format!("--elastic_server http://ann:hunter2-ann@{} --job_id job1 clean", cluster.address(0));
    run(&line, "ann", "x").expect_code(2).expect_err("error[R0038]");
}

fn certificates() {
    let (sandbox, pem) = (Sandbox::new(), Certificates::new());
    let ca = pem.path("ca.pem").display().to_string();
    let arguments = vec!["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), ca.clone()];
    let cluster = Cluster::with(1, &Setup { certificates: Some(&pem), arguments, ..Setup::default() });
    let line = format!("--elastic_server {} --job_id job1 clean", cluster.address(0));
    let (certificate, key) =
        (pem.path("client.pem").display().to_string(), pem.path("client.key").display().to_string());
    let all = [
        ("UMIAK_ETCD_CA_FILE", ca.as_str()),
        ("UMIAK_ETCD_CERT_FILE", certificate.as_str()),
        ("UMIAK_ETCD_KEY_FILE", key.as_str()),
    ];
    elastic_with(&sandbox, &line, &all).expect_code(0).expect_out("action clean done\n");
    let outcome = elastic_with(&sandbox, &line, &all[..1]);
    outcome.expect_code(123).expect_err("error[R0031]: no secure connection to etcd\n");
    outcome.expect_err("the server requires a client certificate\nhint: name a certificate that etcd accepts");
    elastic_with(&sandbox, &line, &all[..2]).expect_code(2).expect_err("is set without `UMIAK_ETCD_KEY_FILE`");
    let missing = [("UMIAK_ETCD_CA_FILE", "/missing.pem")];
    let outcome = elastic_with(&sandbox, &line, &missing);
    outcome
        .expect_code(2)
        .expect_err("error[R0038]: the file of `UMIAK_ETCD_CA_FILE` cannot be used\n  file    /missing.pem\n");
}

/// A failed rank, and a signal.
fn exit_codes() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    let server = cluster.address(0);
    let legacy = format!("--elastic_server {server} --job_id job1");
    let current = format!("--master etcd://{server} --job_id job1");
    for (flags, codes, expected) in [
        (format!("{legacy} --np 1"), "paddle", 101),
        (format!("{legacy} --np 1:2"), "paddle", 3),
        (format!("{legacy} --np 1:2"), "umiak", 7),
        (format!("{current} --nnodes 1:2 --elastic_timeout 1"), "paddle", 7),
    ] {
        let flags = format!("{flags} --nproc_per_node 1 --max_restart 0 --exit-codes {codes}");
        let run = sandbox.launch_toy(&flags, &["*:exit 7"]).env("PADDLE_ELASTIC_TIMEOUT", "1");
        assert_eq!(run.finish().code(), expected, "{flags}");
    }
    for (flags, expected) in [(format!("{legacy} --np 1"), 143), (current, 15)] {
        let run =
            sandbox.launch_toy(&format!("{flags} --nproc_per_node 1 --exit-codes paddle"), &["*:touch up;sleep 60"]);
        let run = run.start();
        run.wait_for_file("up");
        run.signal(15);
        run.finish().expect_code(expected);
        std::fs::remove_file(sandbox.path().join("up")).expect("it was there");
    }
}

fn password() {
    let (sandbox, cluster) = (Sandbox::new(), Cluster::start(1));
    cluster.authenticate();
    let flags = format!("-d --elastic_server {} --job_id job1 --np 1 --nproc_per_node 1", cluster.address(0));
    let run = sandbox.launch_toy(&flags, &["*:env UMIAK_ETCD_PASSWORD;touch up;await go"]);
    let run = run.env("UMIAK_ETCD_USER", "ann").env("UMIAK_ETCD_PASSWORD", "hunter2-ann").start();
    run.wait_for_file("up");
    run.finish_unchecked().expect_code(0);
    for (pid, name) in sandbox.processes() {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains("hunter2"), "{name}");
    }
    sandbox.write("go", "");
    sandbox.umiak(["wait", "job1"]).finish().expect_code(0);
    assert!(!sandbox.read("log/workerlog.0").contains("hunter2"));
}

fn usage() {
    let sandbox = Sandbox::new();
    elastic(&sandbox, "--help").expect_code(0).expect_out("Usage: umiak python -m paddle.distributed.elastic");
    let outcome = elastic(&sandbox, "--job_id job1 grow");
    outcome.expect_code(2).expect_err("error[L0001]: `--elastic_server` is missing: the address of etcd\n");
    outcome.expect_err("error[L0001]: unknown action `grow`\n");
    assert_eq!(outcome.out(), "");
}

fn nothing_listens() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let outcome = elastic(&sandbox, &format!("--elastic_server {address} --job_id job1 clean"));
    outcome.expect_code(123);
    assert_eq!(
        outcome.err(),
        format!(
            "error[R0030]: etcd cannot be reached\n  {address}  connection refused\nhint: check that etcd runs, and its addresses and ports\n"
        )
    );
}
