//! Parameter-server jobs, heterogeneous ones, RPC, and PaddleCloud's pods.

use super::*;
use crate::model::{Crew, HeterStage, Pod, ServerMode};
use crate::model::{Endpoint, Part};

#[track_caller]
fn mode_of(spec: &LaunchSpec) -> &ServerMode {
    match &spec.request.mode {
        Mode::Servers(mode) => mode,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn crews(line: &str) -> (Crew, Crew) {
    let mode = mode_of(&launch(line)).clone();
    (mode.servers, mode.trainers)
}

/// `10.0.0.1:1 10.0.0.2:2`
fn at(endpoints: &str) -> Crew {
    let endpoint = |text: &str| {
        let (address, port) = text.rsplit_once(':').unwrap();
        let address = address.trim_matches(['[', ']']).parse().unwrap();
        Endpoint { address, port: Port::new(port.parse().unwrap()).unwrap() }
    };
    Crew::Listed(endpoints.split_whitespace().map(endpoint).collect())
}

const SERVERS: &str = "--servers=\"192.168.0.16:6170,192.168.0.17:6170\"";
const BOTH: [&str; 2] = ["192.168.0.16", "192.168.0.17"];

#[test]
fn the_guides_lines() {
    let two_servers = at("192.168.0.16:6170 192.168.0.17:6170");
    let workers = "--workers=\"192.168.0.16:6171,192.168.0.16:6172,192.168.0.17:6171,192.168.0.17:6172\"";
    let spec = launch(&format!("{SERVERS} {workers} train.py"));
    assert_eq!((spec.request.generation(), &spec.request.nodes), (Generation::Legacy, &listed(&BOTH, "--servers")));
    let expected = ServerMode {
        servers: two_servers.clone(),
        trainers: at("192.168.0.16:6171 192.168.0.16:6172 192.168.0.17:6171 192.168.0.17:6172"),
        coordinators: Crew::Each(0),
        stages: Vec::new(),
        gloo_port: None,
        with_gloo: "0".to_owned(),
        pod: None,
    };
    assert_eq!(*mode_of(&spec), expected);
    assert_eq!(spec.notices, []);

    // Without ports: after the servers' ports, in the order of the list, on any host.
    let spec = launch(&format!("{SERVERS} --workers=192.168.0.16,192.168.0.17,192.168.0.16 train.py"));
    assert_eq!(mode_of(&spec).trainers, at("192.168.0.16:6172 192.168.0.17:6173 192.168.0.16:6174"));

    let spec = launch("--worker_num=2 --server_num=2 train.py");
    assert_eq!(
        (&spec.request.nodes, spec.request.ip, spec.request.generation()),
        (&Nodes::One, None, Generation::Legacy)
    );
    assert_eq!((&mode_of(&spec).servers, &mode_of(&spec).trainers), (&Crew::Each(2), &Crew::Each(2)));

    let heter = "--heter_workers=\"192.168.0.16:6172,192.168.0.17:6172\"";
    let spec = launch(&format!("{SERVERS} --workers=192.168.0.16:6171,192.168.0.17:6171 {heter} train.py"));
    let stage = HeterStage { crew: at("192.168.0.16:6172 192.168.0.17:6172"), device: "cpu".to_owned() };
    assert_eq!(mode_of(&spec).stages, std::slice::from_ref(&stage));
    assert_eq!(spec.request.nodes, listed(&BOTH, "--servers"));
    assert_eq!(
        plain(&spec.notices),
        "notice[L0023]: `--heter_devices` is not given; heterogeneous workers are assumed to use `cpu`\nhint: set `--heter_devices cpu`, or another kind of device\n"
    );
    // Chosen ports skip those that the guide gives to other processes.
    let spec = launch(&format!("{SERVERS} --workers=192.168.0.16,192.168.0.17 {heter} train.py"));
    assert_eq!(mode_of(&spec).trainers, at("192.168.0.16:6173 192.168.0.17:6174"));
    assert_eq!(mode_of(&spec).stages, [stage]);

    let spec = launch("--server_num 1 --worker_num 2 --heter_worker_num 2 --http_port 8080 train.py");
    assert_eq!(mode_of(&spec).stages, [HeterStage { crew: Crew::Each(2), device: "cpu".to_owned() }]);
    assert_eq!(mode_of(&spec).gloo_port, Port::new(8080));
    let spec = launch("--server_num 1 --worker_num 2 --heter_worker_num 2 --gpus 0,1 train.py");
    assert_eq!(mode_of(&spec).stages[0].device, "gpu");
}

#[test]
fn which_mode_it_is() {
    let role = [("TRAINING_ROLE", "TRAINER")];
    for (line, env, expected) in [
        ("t", &[][..], "collective"),
        ("--run_mode collective t", &[], "collective"),
        ("--run_mode rpc t", &[], "rpc"),
        ("--run_mode ps t", &[], "ps"),
        ("t", &[("PADDLE_RUN_MODE", "ps")], "ps"),
        ("t", &[("PADDLE_RUN_MODE", "rpc")], "rpc"),
        ("--server_num 1 t", &[], "ps"),
        ("--trainer_num 1 t", &[], "ps"),
        ("--servers 127.0.0.1:1 t", &[], "ps"),
        ("--trainers 127.0.0.1:1 t", &[], "ps"),
        ("t", &[("PADDLE_TRAINER_NUM", "2")], "ps"),
        ("--server_num 0 t", &[], "collective"),
        ("--servers= t", &[], "collective"),
        ("t --server_num 2 --worker_num 2", &[], "collective"),
        ("--server_num 1 --worker_num 1 t", &[], "ps"),
        ("--server_num 1 --worker_num 1 --heter_worker_num 1 t", &[], "ps-heter"),
        ("--run_mode ps --server_num 1 --worker_num 1 --heter_worker_num 1 t", &[], "ps"),
        ("--run_mode ps-heter --server_num 1 --worker_num 1 --heter_worker_num 1 t", &[], "ps-heter"),
        // The legacy launcher uses only the mode.
        ("--run_mode collective --worker_num 2 t", &[], "collective"),
        ("--run_mode pss --compat paddle t", &[], "collective"),
        // A role alone has no effect.
        ("t", &role, "collective"),
    ] {
        let spec = launch_in(line, env);
        let seen = match &spec.request.mode {
            Mode::Collective => "collective",
            Mode::Rpc => "rpc",
            Mode::Servers(mode) if mode.stages.is_empty() => "ps",
            Mode::Servers(_) => "ps-heter",
        };
        assert_eq!(seen, expected, "{line} {env:?}");
        if spec.request.generation() == Generation::Current {
            assert_eq!(value(&spec, "run_mode"), expected, "{line}");
        }
    }
    assert_eq!(value(&launch("--server_num 1 --worker_num 1 t"), "run_mode"), "None");
    for (line, expected) in [
        (
            "--run_mode collective --server_num 2 t",
            "error[L0002]: `--run_mode` is `collective`, but `--server_num` asks for servers and trainers\nhint: leave one of them out\n",
        ),
        (
            "--backend nccl --run_mode ps t",
            "error[L0002]: `--backend nccl` works with collective jobs only, but `--run_mode` is `ps`\n",
        ),
        (
            "--backend gloo --server_num 1 --worker_num 1 t",
            "error[L0002]: `--backend gloo` works with collective jobs only, but other flags ask for `ps`\n",
        ),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
    // Inherited from a collective job.
    assert_eq!(
        launch_in("--server_num 1 --worker_num 1 t", &[("PADDLE_DISTRI_BACKEND", "gloo")]).request.backend,
        Backend::Auto
    );
}

#[test]
fn how_many_there_are() {
    for (line, servers, trainers) in [
        ("--run_mode ps t", 1, 1),
        ("--run_mode ps --server_num 2 --trainer_num 3 t", 2, 3),
        ("--server_num 2 t", 2, 1),
        ("--trainer_num 3 t", 1, 3),
        ("--server_num 2 --worker_num 3 t", 2, 3),
        // Each generation accepts the other's flags.
        ("--server_num 2 --trainer_num 3 --legacy true t", 2, 3),
        ("--server_num 2 --worker_num 3 --master h:1 --nnodes 2 t", 2, 3),
        ("--server_num 0 --trainer_num 2 --master h:1 --nnodes 2 t", 0, 2),
        ("--server_num 2 --trainer_num 0 --ips 10.0.0.1,10.0.0.2 t", 2, 0),
    ] {
        assert_eq!(crews(line), (Crew::Each(servers), Crew::Each(trainers)), "{line}");
    }
    assert_eq!(launch("--server_num 2 --worker_num 3 --master h:1 --nnodes 2 t").notices, []);
    let spec = launch("--server_num 1 --worker_num 1 --coordinator_num 1 t");
    assert_eq!(mode_of(&spec).coordinators, Crew::Each(1));
    let spec = launch("--servers 127.0.0.1:1 --workers 127.0.0.1:2 --coordinators localhost:3 t");
    assert_eq!(mode_of(&spec).coordinators, at("127.0.0.1:3"));
    // Numbers with lists: this many on each node of the lists.
    assert_eq!(
        crews("--servers 10.0.0.1:1,10.0.0.2:1 --trainer_num 2 t"),
        (at("10.0.0.1:1 10.0.0.2:1"), Crew::Each(2))
    );
    assert_eq!(crews("--server_num 1 --workers 10.0.0.1 t"), (Crew::Each(1), at("10.0.0.1:6171")));
    assert_eq!(crews("--server_num 2 --servers 10.0.0.1:1,10.0.0.2:1 t").0, at("10.0.0.1:1 10.0.0.2:1"));
    for (line, expected) in [
        (
            "--worker_num 2 t",
            "error[L0001]: a parameter-server job needs servers, but neither `--server_num` nor `--servers` was given\nhint: set their number with `--server_num`, or list them with `--servers`\n",
        ),
        (
            "--server_num 2 --http_port 80 t",
            "error[L0001]: a parameter-server job needs workers, but neither `--worker_num` nor `--workers` was given\nhint: set their number with `--worker_num`, or list them with `--workers`\n",
        ),
        (
            "--server_num 0 --worker_num 2 t",
            "error[L0001]: `--server_num` is 0, but a parameter-server job needs servers\n",
        ),
        (
            "--server_num 0 --trainer_num 2 t",
            "error[L0001]: `--server_num` is 0, but a job on one node needs servers\nhint: use at least 1, or add other nodes\n",
        ),
        (
            "--run_mode ps --server_num 0 --trainer_num 0 --nnodes 2 t",
            "error[L0001]: this node has nothing to run: `--server_num` and `--trainer_num` are 0\nhint: set one of them to at least 1\n",
        ),
        ("--server_num -1 --worker_num 1 t", "error[L0001]: `--server_num` takes a number from 0 to 65535, not `-1`\n"),
        (
            "--server_num 3 --servers 10.0.0.1:1,10.0.0.2:1 t",
            "error[L0002]: `--server_num` is 3, but `--servers` lists 2\nhint: correct one of them; with `--servers` no number is needed\n",
        ),
        (
            "--server_num 1 --worker_num 2 --trainer_num 2 t",
            "error[L0002]: `--worker_num` and `--trainer_num` both set the trainers\nhint: leave one of them out\n",
        ),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
    assert_eq!(
        refused_in("t", &[("PADDLE_SERVER_NUM", "-1"), ("PADDLE_TRAINER_NUM", "1")]),
        "error[L0009]: `PADDLE_SERVER_NUM` takes a number from 0 to 65535, not `-1`\nhint: `PADDLE_SERVER_NUM` sets `--server_num`; correct or unset it\n"
    );
}

#[test]
fn lists_of_endpoints() {
    assert_eq!(
        crews("--servers [fd00::1]:1,[fd00::2]:1 --workers fd00::2,[fd00::1] t"),
        (at("[fd00::1]:1 [fd00::2]:1"), at("[fd00::2]:6172 [fd00::1]:6173"))
    );
    let workers = "--workers 10.0.0.1,10.0.0.1:2";
    for (line, expected) in [
        (
            "--servers 10.0.0.1:1,node2:1 t",
            "error[L0001]: entry 2 of `--servers` is `node2:1`, not `ip:port`\n  list  10.0.0.1:1,node2:1\nhint: separate entries with single commas; host names are not accepted\n",
        ),
        (
            "--servers 10.0.0.1:1,,10.0.0.2:1 t",
            "error[L0001]: entry 2 of `--servers` is empty\n  list  10.0.0.1:1,,10.0.0.2:1\nhint: separate entries with single commas; host names are not accepted\n",
        ),
        (
            "--servers 10.0.0.1 t",
            "error[L0001]: entry 1 of `--servers` has no port: `10.0.0.1`\n  list  10.0.0.1\nhint: write `10.0.0.1:6170`, with a port that is free on that host\n",
        ),
        (
            "--servers 10.0.0.1:1 --trainers fd00::1 t",
            "error[L0001]: entry 1 of `--trainers` has no port: `fd00::1`\n  list  fd00::1\nhint: write `[fd00::1]:6170`, with a port that is free on that host\n",
        ),
        (
            "--server_num 1 --worker_num 1 --coordinators 127.0.0.1 t",
            "error[L0001]: entry 1 of `--coordinators` has no port: `127.0.0.1`\n  list  127.0.0.1\nhint: write `127.0.0.1:6170`, with a port that is free on that host\n",
        ),
        (
            "--servers 10.0.0.1:0 t",
            "error[L0001]: entry 1 of `--servers` has the port `0`, which is not in the range 1-65535\n  list  10.0.0.1:0\n",
        ),
        (
            &format!("--server_num 1 {workers} t"),
            "error[L0001]: some entries of `--workers` have no port\n  list  10.0.0.1,10.0.0.1:2\nhint: give every entry a port, or no entry\n",
        ),
        (
            "--servers 10.0.0.1:1,10.0.0.1:1 t",
            "error[L0001]: `--servers` lists 10.0.0.1:1 twice, the second time as entry 2\nhint: every process needs its own port; correct one of the entries\n",
        ),
        (
            "--servers 10.0.0.1:1 --workers 10.0.0.1:2,10.0.0.1:1 t",
            "error[L0002]: 10.0.0.1:1 is in both `--servers` and `--workers`\n  --servers  entry 1\n  --workers  entry 2\nhint: every process needs its own port; correct one of the entries\n",
        ),
        (
            "--servers localhost:1 --trainers 10.0.0.1:1 t",
            "error[L0002]: `127.0.0.1` cannot be one of several nodes in `--servers`\n  nodes  127.0.0.1, 10.0.0.1\nhint: every node must be able to reach the others at the addresses listed\n",
        ),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
}

#[test]
fn which_nodes_have_servers_and_trainers() {
    let two = ["10.0.0.2", "10.0.0.1"];
    let lists = "--servers 10.0.0.2:1 --trainers 10.0.0.1:1";
    for (line, env, nodes, ip) in [
        ("--server_num 1 --worker_num 1 t", &[][..], Nodes::One, None),
        ("--servers 10.0.0.1:1 --trainers 10.0.0.1:2 t", &[], Nodes::One, Some("10.0.0.1")),
        (&format!("{lists} t"), &[], listed(&two, "--servers"), None),
        ("--server_num 1 --trainers 10.0.0.2:1,10.0.0.1:1 t", &[], listed(&two, "--trainers"), None),
        (
            "t",
            &[("PADDLE_SERVERS_ENDPOINTS", "10.0.0.2:1"), ("PADDLE_TRAINERS_ENDPOINTS", "10.0.0.1:1")],
            listed(&two, "PADDLE_SERVERS_ENDPOINTS"),
            None,
        ),
        (&format!("{lists} --nnodes 2 --master h:1 t"), &[], listed(&two, "--servers"), None),
        (&format!("{lists} --nnodes 1 t"), &[], listed(&two, "--servers"), None),
        (&format!("{lists} --ips 10.0.0.2,10.0.0.1 t"), &[], listed(&two, "--servers"), None),
        ("--server_num 1 --worker_num 1 --ips 10.0.0.2,10.0.0.1 t", &[], listed(&two, "--ips"), None),
        ("--server_num 1 --trainer_num 1 --ips 10.0.0.2,10.0.0.1 t", &[], listed(&two, "--ips"), None),
        ("--server_num 1 --trainer_num 1 --master h:1 --nnodes 2 t", &[], master("h", 1, 2, "--master"), None),
        ("--server_num 1 --trainer_num 1 --nnodes 2 t", &[], auto(2, "--nnodes"), None),
        ("--run_mode rpc --nnodes 2 t", &[], auto(2, "--nnodes"), None),
        // Heterogeneous workers before coordinators.
        (
            "--servers 10.0.0.3:1 --workers 10.0.0.3:2 --coordinators 10.0.0.1:1 --heter_workers 10.0.0.2:1 t",
            &[],
            listed(&["10.0.0.3", "10.0.0.2", "10.0.0.1"], "--servers"),
            None,
        ),
    ] {
        let spec = launch_in(line, env);
        assert_eq!(spec.request.nodes, nodes, "{line}");
        assert_eq!(spec.request.ip, ip.map(|ip| ip.parse().unwrap()), "{line}");
    }
    assert_eq!(
        plain(&launch(&format!("{lists} --ips 10.0.0.1,10.0.0.2 --master h:1 t")).notices),
        "notice[L0023]: `--ips` and `--master` have no effect\n  --ips     `--servers` sets the nodes\n  --master  `--servers` sets the nodes\n"
    );
    // Variables that a trainer inherits are not a contradiction.
    let inherited = [("PADDLE_TRAINER_ENDPOINTS", "10.0.0.5:1,10.0.0.6:1,10.0.0.7:1")];
    assert_eq!(launch_in(&format!("{lists} t"), &inherited).request.nodes, listed(&two, "--servers"));
    assert_eq!(
        refused(&format!("{lists} --nnodes 3 t")),
        "error[L0002]: `--nnodes` asks for 3 nodes, but `--servers` and the other lists have 2\n  nodes  10.0.0.2, 10.0.0.1\nhint: correct one of them; with `--servers` no number is needed\n"
    );
}

#[test]
fn which_of_the_nodes_this_is() {
    let here = "10.0.0.2".parse().ok();
    let legacy = "--servers 10.0.0.1:1 --workers 10.0.0.2:1";
    let current = "--servers 10.0.0.1:1 --trainers 10.0.0.2:1";
    let pod_ip = [("POD_IP", "10.0.0.2")];
    for (line, env, host) in [
        (&format!("{legacy} t")[..], &[][..], None),
        (&format!("{legacy} --host 10.0.0.2 t"), &[], here),
        (&format!("{current} --host 10.0.0.2 t"), &[], here),
        (&format!("{legacy} t"), &pod_ip, here),
        (&format!("{current} t"), &pod_ip, here),
        (&format!("{legacy} --host 10.0.0.2 t"), &[("POD_IP", "10.0.0.1")], here),
        ("--servers 10.0.0.2:1 --workers 10.0.0.2 t", &pod_ip, here),
        ("--servers 10.0.0.2:1 --workers 10.0.0.2 --host 10.0.0.2 t", &[], here),
        // With numbers on one node nothing changes.
        ("--server_num 1 --worker_num 1 t", &pod_ip, None),
        ("--server_num 1 --trainer_num 1 t", &pod_ip, here),
    ] {
        let spec = launch_in(line, env);
        assert_eq!((spec.request.host, plain(&spec.notices)), (host, String::new()), "{line} {env:?}");
    }
}

#[test]
fn heterogeneous_stages() {
    let stage = |crew: Crew, device: &str| HeterStage { crew, device: device.to_owned() };
    let parts = "--server_num 1 --worker_num 1";
    let listed = "--servers 10.0.0.1:1 --workers 10.0.0.1:2";
    for (line, stages) in [
        (
            format!("{parts} --heter_devices gpu;cpu --heter_worker_num 1;2 t"),
            vec![stage(Crew::Each(1), "gpu"), stage(Crew::Each(2), "cpu")],
        ),
        (
            format!("{listed} --heter_devices GPU;cpu --heter_workers 10.0.0.1:3,10.0.0.2:1;10.0.0.2:2 t"),
            vec![stage(at("10.0.0.1:3 10.0.0.2:1"), "gpu"), stage(at("10.0.0.2:2"), "cpu")],
        ),
        (
            format!("{listed} --heter_devices gpu --heter_worker_num 2 --heter_workers 10.0.0.1:3,10.0.0.2:1 t"),
            vec![stage(at("10.0.0.1:3 10.0.0.2:1"), "gpu")],
        ),
        // After servers and trainers.
        (
            format!("{listed} --heter_devices gpu --heter_workers 10.0.0.1,10.0.0.2 t"),
            vec![stage(at("10.0.0.1:6172 10.0.0.2:6173"), "gpu")],
        ),
        (
            "--run_mode ps-heter --master h:1 --nnodes 2 --heter_devices gpu --heter_worker_num 1 t".to_owned(),
            vec![stage(Crew::Each(1), "gpu")],
        ),
    ] {
        let spec = launch(&line);
        assert_eq!(mode_of(&spec).stages, stages, "{line}");
        assert_eq!(plain(&spec.notices), "", "{line}");
    }
    for (line, expected) in [
        (
            "--run_mode ps-heter --server_num 1 --worker_num 1 t",
            "error[L0001]: a heterogeneous job needs heterogeneous workers, but neither `--heter_worker_num` nor `--heter_workers` was given\nhint: set their number with `--heter_worker_num`, or list them with `--heter_workers`; stages are separated by `;`\n",
        ),
        (
            &format!("{parts} --heter_worker_num 1;2 t"),
            "error[L0001]: there are 2 stages of heterogeneous workers, but `--heter_devices` is missing\nhint: name the kind of device of each stage: `--heter_devices gpu;gpu`\n",
        ),
        (
            &format!("{parts} --heter_worker_num 1;x --heter_devices gpu;cpu t"),
            "error[L0001]: `--heter_worker_num` takes a number for each stage, such as `2` or `1;2`, not `1;x`\n",
        ),
        (
            &format!("{parts} --heter_worker_num 1;2 --heter_devices gpu t"),
            "error[L0002]: `--heter_devices` lists 1, but there are 2 stages of workers\n  --heter_devices  gpu\nhint: stages are separated by `;`\n",
        ),
        (
            &format!("{parts} --heter_worker_num 1 --heter_devices gpu,cpu t"),
            "error[L0001]: `--heter_devices` takes a kind of device for each stage, such as `gpu;cpu`, not `gpu,cpu`\nhint: stages are separated by `;`\n",
        ),
        (
            &format!("{listed} --heter_worker_num 1;1 --heter_workers 10.0.0.1:3,10.0.0.1:4 --heter_devices gpu t"),
            "error[L0002]: `--heter_worker_num` is `1;1`, but `--heter_workers` lists `2`\nhint: correct one of them; with `--heter_workers` no number is needed\n",
        ),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
}

#[test]
fn gloo() {
    let lists = "--servers 10.0.0.1:1 --trainers 10.0.0.1:2";
    let legacy = "--server_num 1 --worker_num 1";
    let current = "--server_num 1 --trainer_num 1";
    for (line, env, port, with) in [
        (format!("{legacy} t"), &[][..], None, "0"),
        (format!("{legacy} t"), &[("PADDLE_WITH_GLOO", "1")], None, "1"),
        (format!("{legacy} --http_port 8080 t"), &[], Some(8080), "0"),
        (format!("{current} t"), &[], None, "1"),
        (format!("{current} --with_gloo 0 t"), &[], None, "0"),
        (format!("{current} t"), &[("PADDLE_WITH_GLOO", "2")], None, "2"),
        (format!("{lists} t"), &[], Some(6767), "1"),
        (format!("{lists} --gloo_port 7000 t"), &[], Some(7000), "1"),
        (format!("{lists} t"), &[("PADDLE_GLOO_PORT", "7001")], Some(7001), "1"),
        // The default port is not required.
        ("--servers 10.0.0.1:6767 --trainers 10.0.0.1:2 t".to_owned(), &[], None, "1"),
    ] {
        let spec = launch_in(&line, env);
        let mode = mode_of(&spec);
        assert_eq!((mode.gloo_port.map(Port::get), mode.with_gloo.as_str()), (port, with), "{line}");
        assert_eq!(plain(&spec.notices), "", "{line}");
    }
    assert_eq!(
        refused(&format!("{lists} --gloo_port 2 t")),
        "error[L0002]: `--gloo_port` is 2, but a process on the first server's host uses that port\nhint: the first server listens at `--gloo_port` too; choose another port\n"
    );
    assert!(refused(&format!("{legacy} --http_port 0 t")).contains("takes a port from 1 to 65535, not `0`"));
}

#[test]
fn flags_without_effect_in_a_mode() {
    for (line, expected) in [
        ("--gloo_port 7000 t", "`--gloo_port` has no effect: the job has no servers"),
        ("--with_gloo 1 --run_mode rpc t", "`--with_gloo` has no effect: the job has no servers"),
        ("--run_mode collective --worker_num 2 t", "`--worker_num` has no effect: the job has no servers"),
        (
            "--master h:1 --worker_num 2 t",
            "`--worker_num` has no effect: `--master` selects the current launcher, which does not have it",
        ),
        (
            "--server_num 1 --trainer_num 1 --gloo_port 7000 t",
            "`--gloo_port` has no effect: without lists of servers and trainers, a free port is used",
        ),
        (
            "--run_mode ps --server_num 1 --worker_num 1 --heter_devices gpu t",
            "`--heter_devices` has no effect: the mode is `ps`",
        ),
        (
            "--server_num 1 --worker_num 1 --nproc_per_node 2 t",
            "`--nproc_per_node` has no effect: servers and trainers have their own flags",
        ),
    ] {
        assert_eq!(plain(&launch(line).notices), format!("notice[L0023]: {expected}\n"), "{line}");
    }
}

/// A server's variables, as the platform sets them.
const SERVER: [(&str, &str); 6] = [
    ("TRAINING_ROLE", "PSERVER"),
    ("PADDLE_PSERVERS_IP_PORT_LIST", "ps-0:36000,10.0.0.2:36000"),
    ("PADDLE_TRAINERS_NUM", "3"),
    ("POD_IP", "10.0.0.2"),
    ("PADDLE_PORT", "36000"),
    ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.5:1,10.0.0.6:1"),
];

/// The same with other values; an empty value removes the variable.
fn pod<'a>(changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut env: BTreeMap<&str, &str> = SERVER.into();
    env.extend(changes.iter().copied());
    env.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

const TRAINER: [(&str, &str); 3] = [("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "2"), ("POD_IP", "10.0.0.7")];

#[test]
fn pods_of_paddlecloud() {
    let expected = |part: Part, index: u32, port: Option<u16>| Pod {
        part,
        index,
        servers: vec!["ps-0:36000".to_owned(), "10.0.0.2:36000".to_owned()],
        trainers: 3,
        port: port.and_then(Port::new),
    };
    let meets_at = |spec: &LaunchSpec| match &spec.request.nodes {
        Nodes::Master { host, port, nodes, source } => (host.clone(), port.get(), *nodes, source.clone()),
        other => panic!("{other:?}"),
    };
    let mut ports = Vec::new();
    for (line, env, expected, rank, host) in [
        ("t", pod(&[]), expected(Part::Server, 1, Some(36000)), 1, Some("10.0.0.2")),
        ("--run_mode ps t", pod(&[]), expected(Part::Server, 1, Some(36000)), 1, Some("10.0.0.2")),
        ("t", pod(&[("PADDLE_RUN_MODE", "ps")]), expected(Part::Server, 1, Some(36000)), 1, Some("10.0.0.2")),
        // A name is compared as text and is not an address.
        ("t", pod(&[("POD_IP", "ps-0")]), expected(Part::Server, 0, Some(36000)), 0, None),
        ("t", pod(&TRAINER), expected(Part::Trainer, 2, Some(36000)), 4, Some("10.0.0.7")),
        ("--run_mode ps --gpus 0 t", pod(&TRAINER), expected(Part::Trainer, 2, Some(36000)), 4, Some("10.0.0.7")),
        (
            "t",
            pod(&[("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "0"), ("PADDLE_PORT", ""), ("POD_IP", "")]),
            expected(Part::Trainer, 0, None),
            2,
            None,
        ),
        // A trainer on a server's host: the port belongs to the server.
        (
            "t",
            pod(&[("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "1")]),
            expected(Part::Trainer, 1, None),
            3,
            Some("10.0.0.2"),
        ),
    ] {
        for spelling in [Spelling::Launch, Spelling::FleetModule { interpreter: interpreter() }] {
            let is_fleet = matches!(spelling, Spelling::FleetModule { .. });
            // The legacy module reads no variables for flags.
            if is_fleet && env.iter().any(|(name, _)| *name == "PADDLE_RUN_MODE") {
                continue;
            }
            let spec = run(spelling, line, &env).unwrap_or_else(|errors| panic!("{env:?}:\n{}", plain(&errors)));
            let mode = mode_of(&spec);
            assert_eq!(mode.pod.as_ref(), Some(&expected), "{env:?}");
            assert_eq!((&mode.servers, &mode.trainers, &*mode.with_gloo), (&Crew::Each(0), &Crew::Each(0), "0"));
            assert_eq!(spec.request.node_rank, Some(rank), "{env:?}");
            assert_eq!(spec.request.host, host.and_then(|host| host.parse().ok()), "{env:?}");
            let (at, port, nodes, source) = meets_at(&spec);
            assert_eq!((at.as_str(), nodes, source.as_str()), ("ps-0", 5, "PADDLE_PSERVERS_IP_PORT_LIST"));
            ports.push(port);
        }
    }
    ports.dedup();
    let [port] = ports[..] else { panic!("everybody comes to the same port: {ports:?}") };
    assert!((7168..7232).contains(&port));
    let spec = launch_in("--rdzv-port 9999 --sort_ip true t", &pod(&[]));
    assert_eq!((meets_at(&spec).1, spec.request.sort_ip), (9999, false));
    assert_eq!(
        plain(&spec.notices),
        "notice[L0023]: `--sort_ip` has no effect: the platform sets which node this is\n"
    );
    // Nodes do not meet at a server's port.
    let all = (7168..7231).map(|port| format!("h:{port}")).collect::<Vec<_>>().join(",");
    let spec =
        launch_in("t", &pod(&[("PADDLE_PSERVERS_IP_PORT_LIST", &all), ("POD_IP", "h"), ("PADDLE_PORT", "7168")]));
    assert_eq!(meets_at(&spec).1, 7231);
    assert!(refused_in("--rdzv-port 36000 t", &pod(&[])).contains("the nodes cannot meet at port 36000"));
    for own in ["[fd00::1]", "fd00::1"] {
        let brackets = [("PADDLE_PSERVERS_IP_PORT_LIST", "[fd00::1]:1"), ("POD_IP", own), ("PADDLE_PORT", "1")];
        let spec = launch_in("t", &pod(&brackets));
        assert_eq!((meets_at(&spec).0.as_str(), spec.request.host), ("fd00::1", "fd00::1".parse().ok()), "{own}");
    }
}

#[test]
fn what_is_in_no_pod() {
    // A launcher that a trainer starts inherits its variables and has its own flags. (A list of endpoints would set its
    // number of nodes.)
    let env = pod(&[("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "0"), ("PADDLE_TRAINER_ENDPOINTS", "")]);
    for line in [
        "--nproc_per_node 2 x.py",
        "--gpus 0,1 x.py",
        "--ips 10.0.0.5,10.0.0.6 x.py",
        "--nnodes 2 x.py",
        "--run_mode collective x.py",
    ] {
        assert_eq!(launch_in(line, &env).request.mode, Mode::Collective, "{line}");
    }
    for line in ["--server_num 1 --worker_num 2 x.py", "--server_num 1 --trainer_num 2 x.py"] {
        let spec = launch_in(line, &env);
        assert_eq!((mode_of(&spec).pod.as_ref(), &mode_of(&spec).trainers), (None, &Crew::Each(2)), "{line}");
    }
    let spec = launch_in("--run_mode ps --nnodes 2 x.py", &env);
    assert_eq!((mode_of(&spec).pod.as_ref(), &spec.request.nodes), (None, &auto(2, "--nnodes")));
    for (line, changes, expected) in [
        (
            "--run_mode ps t",
            vec![("PADDLE_PSERVERS_IP_PORT_LIST", ""), ("PADDLE_PORT", "")],
            "error[L0008]: the environment looks like PaddleCloud's, but `PADDLE_PSERVERS_IP_PORT_LIST` and `PADDLE_PORT` are missing\n  TRAINING_ROLE  PSERVER\nhint: set the missing variables, or use `--server_num` and `--trainer_num`\n",
        ),
        (
            "t",
            vec![("TRAINING_ROLE", "TRAINER")],
            "error[L0008]: the environment looks like PaddleCloud's, but `PADDLE_TRAINER_ID` is missing\n  TRAINING_ROLE  TRAINER\nhint: set the missing variables, or use `--server_num` and `--trainer_num`\n",
        ),
        (
            "t",
            vec![("POD_IP", "10.0.0.9")],
            "error[L0008]: `POD_IP` and `PADDLE_PORT` are not in `PADDLE_PSERVERS_IP_PORT_LIST`\n  this server  10.0.0.9:36000\n  listed       ps-0:36000\n               10.0.0.2:36000\nhint: entries are compared as text: a name in the list must equal the name in `POD_IP`\n",
        ),
        (
            "t",
            vec![("TRAINING_ROLE", "TRAINER"), ("PADDLE_TRAINER_ID", "3")],
            "error[L0008]: `PADDLE_TRAINER_ID` is 3, but `PADDLE_TRAINERS_NUM` is 3\nhint: trainers count from 0\n",
        ),
        (
            "t",
            vec![("TRAINING_ROLE", "HETER_TRAINER")],
            "error[L0003]: on PaddleCloud `TRAINING_ROLE` is `HETER_TRAINER`, which is not supported yet\nhint: `PSERVER` and `TRAINER` are supported\n",
        ),
        (
            "t",
            vec![("TRAINING_ROLE", "pserver")],
            "error[L0008]: `TRAINING_ROLE` takes `PSERVER` or `TRAINER`, not `pserver`\n",
        ),
        (
            "t",
            vec![("PADDLE_PSERVERS_IP_PORT_LIST", "a:1,b")],
            "error[L0008]: `PADDLE_PSERVERS_IP_PORT_LIST` takes `host:port` entries, not `b`\n",
        ),
        (
            "t",
            vec![("PADDLE_PSERVERS_IP_PORT_LIST", "a:1,a:1")],
            "error[L0008]: `PADDLE_PSERVERS_IP_PORT_LIST` lists a:1 twice\n",
        ),
        ("t", vec![("PADDLE_PORT", "x")], "error[L0008]: `PADDLE_PORT` takes a port from 1 to 65535, not `x`\n"),
        (
            "t",
            vec![("PADDLE_TRAINERS_NUM", "0")],
            "error[L0008]: `PADDLE_TRAINERS_NUM` is 0, but a job has at least 1 trainer and at most 16384 pods\n",
        ),
    ] {
        assert_eq!(refused_in(line, &pod(&changes)), expected, "{line} {changes:?}");
    }
}

#[test]
fn ports_are_as_ever() {
    let line = "--server_num 1 --worker_num 1 t";
    assert_eq!(launch(line).request.ports, PortRequest::Free);
    assert_eq!(launch_in(line, &[("FLAGS_START_PORT", "8000")]).request.ports, fixed(8000, "FLAGS_START_PORT"));
    // The platform's rules are those of collective jobs.
    let cloud = [
        ("PADDLE_TRAINERS", "10.0.0.1"),
        ("POD_IP", "10.0.0.1"),
        ("PADDLE_TRAINER_ID", "0"),
        ("TRAINER_PORTS_NUM", "2"),
    ];
    assert_eq!(launch_in(line, &cloud).request.ports, PortRequest::Free);
}
