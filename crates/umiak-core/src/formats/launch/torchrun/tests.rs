//! What command lines of `torchrun` ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::model::{ElasticLevel, EtcdTls, OutputMode, Port, Scaling, StoreHost};

fn read(line: &str, env: &[(&str, &str)]) -> Result<LaunchSpec, Vec<Diagnostic>> {
    by(Spelling::Torchrun { program: "torchrun".into() }, line, env)
}

fn by(spelling: Spelling, line: &str, env: &[(&str, &str)]) -> Result<LaunchSpec, Vec<Diagnostic>> {
    let words: Vec<OsString> = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
    let env: BTreeMap<String, String> = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    match parse(spelling, &words, &env)? {
        Parsed::Launch(spec) => Ok(*spec),
        Parsed::Help(_) => panic!("help"),
    }
}

fn torchrun(line: &str) -> LaunchSpec {
    read(line, &[]).unwrap_or_else(|errors| panic!("{line}: {errors:#?}"))
}

/// All errors in one line.
fn wrong(line: &str) -> String {
    match read(line, &[]) {
        Ok(_) => "no error".to_owned(),
        Err(errors) => errors.iter().map(|error| error.message.clone()).collect::<Vec<_>>().join("; "),
    }
}

fn agent(host: Option<&str>, port: Option<u16>) -> StoreHost {
    StoreHost::Agent { host: host.map(str::to_owned), port: port.and_then(Port::new) }
}

#[test]
fn defaults() {
    let spec = torchrun("train.py --lr 1");
    let request = &spec.request;
    assert_eq!(
        (request.name.as_str(), &request.nodes, request.processes),
        ("train", &Nodes::One, Processes::Number(1))
    );
    assert_eq!((request.store.clone(), request.omp), (agent(None, None), Omp::OneIfSeveral));
    assert_eq!((request.policy.restart.max, request.policy.restart.backoff), (0, Duration::ZERO));
    assert_eq!(request.policy.stop.grace, Duration::from_secs(30));
    assert_eq!((request.paddle.is_none(), spec.own.output), (true, OutputMode::Human));
    let torch = request.torch.as_ref().unwrap();
    assert_eq!((torch.random_id, &torch.logs), (true, &TorchLogs::InRun));
    assert_eq!((torch.variables.clone(), torch.streams.clone()), (TorchVariables::default(), StreamRules::default()));
    assert_eq!((request.command.kind, request.command.args.len()), (ScriptKind::Python, 2));
    assert!(spec.notices.is_empty());
}

#[test]
fn where_nodes_meet() {
    let master = |host: &str, port, nodes| Nodes::Master {
        host: host.to_owned(),
        port: Port::new(port).unwrap(),
        nodes,
        source: "--nnodes".to_owned(),
    };
    for (line, nodes, store, id, rank) in [
        ("--standalone --rdzv-id x t.py", Nodes::One, agent(None, None), "none", None),
        ("--master-port 29555 t.py", Nodes::One, agent(Some("127.0.0.1"), Some(29555)), "none", None),
        ("--local-addr node-a t.py", Nodes::One, agent(Some("node-a"), None), "none", None),
        ("--rdzv-backend c10d --rdzv-endpoint a:1 --rdzv-id j t.py", Nodes::One, agent(None, None), "j", None),
        ("--rdzv-endpoint a:29513 --rdzv-id j t.py", Nodes::One, agent(Some("a"), Some(29513)), "j", None),
        ("--nnodes 2 --node-rank 1 --master-addr a t.py", master("a", 29500, 2), agent(None, None), "none", Some(1)),
        (
            "--nnodes=3:3 --rdzv_backend=c10d --rdzv_endpoint=[::1] --rdzv_id=9 t.py",
            master("::1", 29400, 3),
            agent(None, None),
            "9",
            None,
        ),
    ] {
        let request = torchrun(line).request;
        let found = (&request.nodes, &request.store, request.job_id.as_str(), request.node_rank);
        assert_eq!(found, (&nodes, &store, id, rank), "{line}");
    }
    let off = read("t.py", &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")]).unwrap();
    assert_eq!(off.request.store, StoreHost::Rank0);
    let conf = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a --rdzv-conf join_timeout=7,read_timeout=60 t.py";
    assert_eq!(torchrun(conf).own.rdzv_timeout, Duration::from_secs(7));
}

#[test]
fn flags_win_over_variables() {
    let env = [("PET_NPROC_PER_NODE", "2"), ("PET_MODULE", "1"), ("PET_STANDALONE", "0"), ("PET_TEE", "")];
    let request = read("pkg.train", &env).unwrap().request;
    assert_eq!((request.processes, request.command.kind), (Processes::Number(2), ScriptKind::Module));
    assert_eq!(request.name, "train");
    assert_eq!(read("--nproc-per-node 3 t", &env).unwrap().request.processes, Processes::Number(3));
    for (name, value, expected) in [
        ("PET_STANDALONE", "yes", "`PET_STANDALONE` takes a whole number, not `yes`"),
        ("PET_MAX_RESTARTS", "x", "`PET_MAX_RESTARTS` takes a whole number, not `x`"),
        (
            "PET_NPROC_PER_NODE",
            "x",
            "`PET_NPROC_PER_NODE` takes a number from 1 to 65535, `gpu`, `xpu`, `cpu` or `auto`, not `x`",
        ),
    ] {
        let errors = read("t.py", &[(name, value)]).unwrap_err();
        assert_eq!((errors[0].message.as_str(), errors[0].code), (expected, Code::L0009));
    }
}

#[test]
fn programs_and_arguments() {
    for (line, kind) in [
        ("-m a.b", ScriptKind::Module),
        ("--no-python ./run.sh", ScriptKind::Program),
        ("--no_python --run-path /x", ScriptKind::Python),
    ] {
        assert_eq!(torchrun(line).request.command.kind, kind, "{line}");
    }
    let old = || Spelling::TorchLaunch { interpreter: "python".into() };
    let args = |line: &str| by(old(), line, &[]).unwrap().request.command.args;
    assert_eq!(args("--nproc_per_node 2 t.py --lr 1"), ["--local-rank=${local_rank}", "--lr", "1"]);
    assert_eq!(args("--use_env t.py --lr 1"), ["--lr", "1"]);
    assert!(by(old(), "--no-python t.py", &[]).is_err());
    let python = read("t.py", &[("PYTHON_EXEC", "python3.9")]).unwrap().request.command.interpreter;
    assert_eq!(python, Some(crate::model::Interpreter::Named("python3.9".into())));
}

#[test]
fn logs_and_streams() {
    let torch = torchrun("--log-dir L -r3 -t 0:1 --local-ranks-filter 0,2 --role r t.py").request.torch.unwrap();
    assert_eq!((torch.logs, torch.variables.role.as_str()), (TorchLogs::Dir("L".into()), "r"));
    assert_eq!(torch.streams.redirects, StreamMap::parse("3").unwrap());
    assert_eq!(torch.streams.tee, StreamMap::parse("0:1").unwrap());
    assert_eq!(torch.streams.filter, Some(BTreeSet::from([0, 2])));
    let none = torchrun("--log_dir=/dev/null t.py").request.torch.unwrap();
    assert_eq!((none.logs, none.variables.no_error_file), (TorchLogs::Dropped, true));
}

#[test]
fn restarts_and_time() {
    let policy = torchrun("--max-restarts 3 --shutdown-timeout 7 t.py").request.policy;
    assert_eq!((policy.restart.max, policy.stop.grace), (3, Duration::from_secs(7)));
    let policy = read("--max-restarts 1 --restart-backoff 2s t", &[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")]).unwrap();
    assert_eq!(policy.request.policy.stop.grace, Duration::from_secs(3));
    assert_eq!(policy.request.policy.restart.backoff, Duration::from_secs(2));
    assert_eq!(torchrun("--grace 500ms t.py").request.policy.stop.grace, Duration::from_millis(500));
}

#[test]
fn what_is_refused() {
    for (line, expected) in [
        ("", "the training script is missing"),
        ("--bogus t.py", "unknown flag `--bogus`"),
        ("--nnodes 2:4 t.py", "`--nnodes 2:4` cannot be used with the backend `static`"),
        ("--nnodes 2:1 t.py", "`--nnodes` takes a number from 1 up, or a range as in `2:4`, not `2:1`"),
        (
            "--nproc-per-node 0 t.py",
            "`--nproc-per-node` takes a number from 1 to 65535, `gpu`, `xpu`, `cpu` or `auto`, not `0`",
        ),
        ("--rdzv-backend etcd t.py", "`--rdzv-endpoint` is missing"),
        ("--rdzv-backend etcd --rdzv-endpoint a:x t.py", "`--rdzv-endpoint` has an invalid address of etcd"),
        ("--rdzv-backend etcd --rdzv-endpoint a --rdzv-conf key=k t.py", "`--rdzv-conf` has `key` without `cert`"),
        (
            "--rdzv-backend etcd --rdzv-endpoint a --rdzv-conf protocol=grpc t.py",
            "`--rdzv-conf` takes `http` or `https` for `protocol`, not `grpc`",
        ),
        (
            "--rdzv-conf keep_alive_max_attempt=0 t.py",
            "`--rdzv-conf` takes a number from 1 up for `keep_alive_max_attempt`, not `0`",
        ),
        ("--rdzv-conf keep_alive_interval=x t.py", "`--rdzv-conf` takes seconds for `keep_alive_interval`, not `x`"),
        ("--rdzv-backend nope t.py", "`--rdzv-backend` takes `static`, `c10d`, `etcd` or `etcd-v2`, not `nope`"),
        ("--nnodes 2 --rdzv-backend c10d t.py", "`--rdzv-endpoint` is missing"),
        ("--nnodes 2 --node-rank 2 t.py", "`--node-rank` takes a number from 0 to 1, not `2`"),
        ("--standalone --nnodes 2 t.py", "`--standalone` starts one node, but `--nnodes` asks for more"),
        ("--rdzv-endpoint a:x t.py", "`--rdzv-endpoint` takes a host and a port, as in `node-a:29400`, not `a:x`"),
        ("--max-restarts -1 t.py", "`--max-restarts` takes a number from 0 to 4294967295, not `-1`"),
        ("-r 9 t.py", "`-r` takes 0, 1, 2 or 3, or a list as in `0:3,1:2`, not `9`"),
        (
            "--local-ranks-filter a t.py",
            "`--local-ranks-filter` takes local ranks separated by commas, as in `0,1`, not `a`",
        ),
        ("-m --no-python t", "`-m` cannot be combined with `--no-python`"),
        ("--use-env t.py", "`--use-env` is a flag of `torch.distributed.launch`"),
        (
            "--duplicate-stdout-filters a t.py",
            "`--duplicate-stdout-filters` needs filtered copies of output, which are not supported",
        ),
        ("--logs-specs x t.py", "`--logs-specs` needs plug-ins for logs, which are not supported"),
        (
            "--signals-to-handle SIGTERM,SIGUSR1 t.py",
            "`--signals-to-handle` takes `SIGTERM`, `SIGINT`, `SIGHUP` or `SIGQUIT`; `SIGUSR1` is not supported yet",
        ),
        ("--numa-binding exclusive t.py", "`--numa-binding exclusive` is not supported yet; `node` is"),
        (
            "--rdzv-conf a t.py",
            "`--rdzv-conf` takes keys and values, as in `join_timeout=600,read_timeout=60`, not `a`",
        ),
        ("--rdzv-id a/b --master-port 1 t.py", "`--rdzv-id` cannot be `a/b`: it would be a path"),
    ] {
        assert_eq!(wrong(line), expected, "{line}");
    }
}

#[test]
fn flags_without_effect_are_told() {
    let notices = |line: &str| torchrun(line).notices.iter().map(|it| it.message.clone()).collect::<Vec<_>>();
    assert!(notices("--monitor-interval 5 --start-method fork t.py").is_empty(), "in many scripts");
    assert_eq!(notices("--token abc t.py"), ["`--token` has no effect: the job has one node"]);
    assert_eq!(notices("--event-log-handler console t.py").len(), 1);
}

#[test]
fn a_range_of_nodes() {
    let line =
        "--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint a:1 --rdzv-conf last_call_timeout=7,join_timeout=9 t.py";
    let spec = read(line, &[]).expect(line);
    assert_eq!(spec.request.nodes.count(), 4);
    let elastic = spec.request.elastic.expect("a range");
    assert_eq!((elastic.min, elastic.window, spec.own.rdzv_timeout.as_secs()), (2, Duration::from_secs(7), 9));
}

#[test]
fn nodes_that_meet_in_etcd() {
    for (line, members, root, range) in [
        ("--rdzv-backend etcd --rdzv-endpoint e:1 --rdzv-id j t.py", "e:1", "/torchelastic/p2p/j", (1, 1)),
        (
            "--rdzv-backend etcd-v2 --rdzv-endpoint e --rdzv-id j --nnodes 2 t.py",
            "e:2379",
            "/torchelastic/p2p/j",
            (2, 2),
        ),
        (
            "--rdzv_backend=etcd --rdzv_endpoint=a:1,[::1]:2 --rdzv_id=j --nnodes=2:4 --rdzv-conf=etcd_prefix=x/y/ t.py",
            "a:1,[::1]:2",
            "/x/y/j",
            (2, 4),
        ),
        (
            "--rdzv-backend etcd --rdzv-endpoint e,http://f --rdzv-id j --rdzv-conf protocol=HTTPS,etcd_prefix=/ t.py",
            "https://e:2379,f:2379",
            "/j",
            (1, 1),
        ),
    ] {
        let spec = torchrun(line);
        let Nodes::Etcd { at, nodes, source } = &spec.request.nodes else { panic!("{line}: {:?}", spec.request.nodes) };
        let seen: Vec<String> = at.etcd.endpoints.iter().map(ToString::to_string).collect();
        let elastic = spec.request.elastic.as_ref().expect(line);
        assert_eq!(
            (seen.join(",").as_str(), at.root.as_str(), (elastic.min, *nodes)),
            (members, root, range),
            "{line}"
        );
        assert_eq!((source.as_str(), elastic.window.as_secs(), at.lease), ("--rdzv-endpoint", 30, None), "{line}");
        assert_eq!(
            (elastic.level, at.scaling, spec.request.policy.restart.max),
            (ElasticLevel::Ranks, Scaling::Same, 0)
        );
        assert_eq!((&spec.request.store, spec.request.name.as_str()), (&agent(None, None), "j"), "{line}");
        assert!(spec.notices.is_empty(), "{line}: {:?}", spec.notices);
    }
    let spec = torchrun("--rdzv-backend etcd --rdzv-endpoint e t.py");
    assert_eq!(spec.notices[0].message, "the job has the id `none` in etcd, as every job without `--rdzv-id`");
}

#[test]
fn options_of_etcd() {
    let conf = |conf: &str, env: &[(&str, &str)]| {
        let line = format!("--rdzv-backend etcd --rdzv-endpoint e --rdzv-id j --rdzv-conf {conf} t.py");
        let spec = read(&line, env).unwrap_or_else(|errors| panic!("{line}: {errors:#?}"));
        let Nodes::Etcd { at, .. } = spec.request.nodes else { panic!("{line}") };
        (*at, spec.request.elastic.unwrap().window, spec.own)
    };
    let (at, window, own) = conf("timeout=9,last_call_timeout=7,keep_alive_interval=2,keep_alive_max_attempt=4", &[]);
    assert_eq!((at.lease, window, at.etcd.tls), (Some(Duration::from_secs(8)), Duration::from_secs(7), None));
    assert_eq!((own.rdzv_timeout.as_secs(), own.node_timeout.as_secs()), (9, 30));
    let identity = |certificate: &str, key: &str| Some((certificate.into(), key.into()));
    let env = [("UMIAK_ETCD_CA_FILE", "/ca"), ("UMIAK_ETCD_CERT_FILE", "/cert"), ("UMIAK_ETCD_KEY_FILE", "/key")];
    for (text, env, ca, identity) in [
        ("cacert=a,cert=c,key=k", &[][..], Some("a"), identity("c", "k")),
        ("ca_cert=a,ssl_cert=c,ssl_cert_key=k", &env, Some("a"), identity("c", "k")),
        ("cert=both", &env, Some("/ca"), identity("both", "both")),
        ("cacert=a", &env, Some("a"), identity("/cert", "/key")),
        ("cacert=a", &[], Some("a"), None),
    ] {
        let tls = EtcdTls { ca: ca.map(Into::into), identity };
        assert_eq!(conf(text, env).0.etcd.tls, Some(tls), "{text}");
    }
}

#[test]
fn silence_of_nodes() {
    let line = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1";
    for (flags, seconds) in [
        ("", 30),
        ("--rdzv-conf keep_alive_interval=2", 6),
        ("--rdzv-conf keep_alive_max_attempt=4", 20),
        ("--rdzv-conf keep_alive_interval=2,keep_alive_max_attempt=4", 8),
        ("--rdzv-conf keep_alive_interval=2 --node-timeout 9s", 9),
    ] {
        assert_eq!(torchrun(&format!("{line} {flags} t.py")).own.node_timeout.as_secs(), seconds, "{flags}");
    }
    let notices = torchrun("--rdzv-backend c10d --rdzv-conf etcd_prefix=/x t.py").notices;
    assert_eq!(notices[0].message, "`--rdzv-conf etcd_prefix` has no effect: it is not an option of this backend");
}
