//! The current and the legacy launcher: how one is selected, and the variables and configuration blocks of both.

use super::*;

#[test]
fn a_legacy_flag_selects_the_legacy_launcher() {
    let compatible = |args: &str| format!("LAUNCH WARNING <ts> Compatible mode enable with args {args}");
    for (line, lines) in [
        ("--backend=gloo t.py", vec![compatible("['--backend=gloo']")]),
        // The current launcher reads `gloo` as the script and stops there.
        ("--backend gloo --scale 0 t.py", vec![compatible("['--backend']")]),
        ("--backend=gloo --scale=0 --np 1 --force= t.py", vec![compatible("['--backend=gloo', '--scale=0', '--np']")]),
        ("--legacy true t.py", vec![]),
        ("--legacy true --backend=gloo t.py", vec![]),
        ("--log_level error --backend=gloo t.py", vec![]),
    ] {
        let spec = launch(line);
        assert_eq!((spec.request.generation(), habits(&spec).lines), (Generation::Legacy, lines), "{line}");
    }
    let spec = launch("--master 127.0.0.1:99 --backend=gloo t.py");
    assert_eq!((spec.request.generation(), spec.request.backend), (Generation::Current, Backend::Auto));
    assert_eq!(
        plain(&spec.notices),
        "notice[L0023]: `--backend` has no effect: `--master` selects the current launcher, which does not have it\n"
    );
    assert_eq!(launch_in("--backend=gloo t.py", &[("PADDLE_MASTER", "h:1")]).request.generation(), Generation::Current);
    assert_eq!(launch("--backend nccl t").request.backend, Backend::Nccl);
    assert_eq!(launch("--ran 0 t").request.generation(), Generation::Current, "`--ran` is `--rank` there");
    assert_eq!(launch("--np 1 t").request.generation(), Generation::Legacy);
}

#[test]
fn the_fleet_module_is_always_legacy_and_reads_no_variables_for_flags() {
    let spec = fleet("--gpus 0 t.py", &[("PADDLE_DEVICES", "3"), ("PADDLE_NPROC_PER_NODE", "bad"), ("POD_IP", "x")]);
    assert_eq!((spec.request.generation(), spec.request.devices.clone()), (Generation::Legacy, Some(gpus(&["0"]))));
    assert_eq!(habits(&spec).lines, [""; 0]);
    assert_eq!(fleet("t.py", &[("PADDLE_DISTRI_BACKEND", "gloo")]).request.backend, Backend::Gloo);
    assert_eq!(
        habits(&fleet("--ran f t.py", &[])).variables.rank_mapping_path.as_deref(),
        Some("f"),
        "its own abbreviations win"
    );
    let spec = fleet("--host 10.0.0.1 t.py", &[]);
    assert_eq!(spec.request.host, None);
    assert!(plain(&spec.notices).contains("`--host` has no effect"));
}

#[test]
fn unknown_flags_with_compat_paddle() {
    // The word after an unknown flag is the script, as in Paddle.
    let spec = launch("--compat paddle --foo bar train.py");
    assert_eq!(
        (spec.request.command.script.to_str(), spec.request.command.args.clone()),
        (Some("bar"), vec!["train.py".into()])
    );
    assert_eq!(spec.request.generation(), Generation::Legacy);
    assert_eq!(habits(&spec).lines, ["LAUNCH WARNING <ts> Compatible mode enable with args ['--foo']"]);
    assert_eq!(plain(&spec.notices), "notice[L0023]: `--foo` has no effect: it is unknown, and ignored as in Paddle\n");
    let spec = launch("--foo=1 --compat paddle --master h:1 train.py");
    assert_eq!(
        (spec.request.command.script.to_str(), spec.request.generation()),
        (Some("train.py"), Generation::Current)
    );
    assert_eq!(launch("--compat paddle --run_mode odd t").notices.len(), 1);
    assert_eq!(launch("--compat paddle --host node1 t").request.host, None);
}

#[test]
fn the_environment_wins() {
    let env = [
        ("PADDLE_NPROC_PER_NODE", "4"),
        ("POD_IP", "10.0.0.7"),
        ("PADDLE_DEVICES", "5"),
        ("PADDLE_LOG_DIR", "log"),
        ("PADDLE_LOG_LEVEL", "info"),
    ];
    let spec = launch_in("--gpus 0,1 --nproc_per_node 4 t", &env);
    assert_eq!(
        habits(&spec).lines,
        [
            "LAUNCH WARNING args host will be overridden by env: POD_IP value: 10.0.0.7",
            "LAUNCH WARNING args devices will be overridden by env: PADDLE_DEVICES value: 5",
            "LAUNCH WARNING args log_level will be overridden by env: PADDLE_LOG_LEVEL value: info",
            "LAUNCH WARNING args nproc_per_node will be overridden by env: PADDLE_NPROC_PER_NODE value: 4",
            "LAUNCH WARNING args log_dir will be overridden by env: PADDLE_LOG_DIR value: log",
            "LAUNCH WARNING <ts> Host ip reset to 10.0.0.7",
        ]
    );
    let devices = DeviceRequest { source: "PADDLE_DEVICES".to_owned(), kind: None, ids: vec!["5".to_owned()] };
    assert_eq!((spec.request.devices, spec.request.processes), (Some(devices), Processes::Number(4)));
    assert_eq!(spec.request.host, "10.0.0.7".parse().ok());
    assert_eq!(
        plain(&spec.notices),
        "notice[L0024]: `PADDLE_DEVICES` overrides `--gpus`\n  --gpus          0,1\n  PADDLE_DEVICES  5\n"
    );
}

#[test]
fn in_compatible_mode_variables_are_announced_and_not_used() {
    let spec = launch_in("--backend=gloo --nproc_per_node 2 t", &[("PADDLE_NPROC_PER_NODE", "4")]);
    assert_eq!(spec.request.processes, Processes::Number(2));
    assert_eq!(
        habits(&spec).lines,
        [
            "LAUNCH WARNING args nproc_per_node will be overridden by env: PADDLE_NPROC_PER_NODE value: 4",
            "LAUNCH WARNING <ts> Compatible mode enable with args ['--backend=gloo']",
        ]
    );
    assert_eq!(spec.notices, []);
}

#[test]
fn bad_variables() {
    for (name, value) in [
        ("PADDLE_NPROC_PER_NODE", "two"),
        ("PADDLE_LOG_OVERWRITE", "perhaps"),
        ("PADDLE_TRAINER_ID", "first"),
        ("PADDLE_LAUNCH_WITH_ARGS", "yes"),
        ("PADDLE_ENV_LIMIT_LEN", "long"),
        ("PADDLE_LOG_LEVEL", "loud"),
        ("PADDLE_LOG_DIR", ""),
        ("PADDLE_RUN_MODE", "pss"),
        ("PADDLE_JOB_ID", "a/b"),
        ("PADDLE_NNODES", "x"),
        ("PADDLE_IPS", "node1"),
        ("POD_IP", "node1"),
        ("PORT_RANGE", "9:8"),
        ("PORT_RANGE", "80"),
        ("FLAGS_START_PORT", "x"),
        ("FLAGS_FIXED_PORT", "0"),
        ("PADDLE_START_PORT", "70000"),
    ] {
        let errors = run(Spelling::Launch, "t", &[(name, value)]).expect_err(name);
        assert_eq!(errors.iter().map(|error| error.code).collect::<Vec<_>>(), [Code::L0009], "{name}");
        assert!(errors[0].message.contains(&format!("`{name}`")), "{}", errors[0].message);
    }
    assert_eq!(
        refused_in("t", &[("PADDLE_RANK", "x")]),
        "error[L0009]: `PADDLE_RANK` takes a whole number, not `x`\nhint: `PADDLE_RANK` sets `--rank`; correct or unset it\n"
    );
}

#[test]
fn node_rank() {
    assert_eq!(launch("--rank -1 t").request.node_rank, None);
    assert_eq!(launch_in("--rank 2 t", &[("PADDLE_TRAINER_ID", "0")]).request.node_rank, Some(0));
    assert_eq!(launch_in("--rank 0 t", &[("PADDLE_TRAINER_ID", "-1")]).request.node_rank, Some(0));
    assert_eq!(launch_in("t", &[("PADDLE_TRAINER_ID", "1"), ("PADDLE_RANK", "2")]).request.node_rank, Some(2));
}

#[test]
fn endpoints_of_the_platform_reset_the_flags() {
    let list = "10.0.0.1:6170,10.0.0.1:6171";
    let spec = launch_in("--nnodes 2 t", &[("PADDLE_TRAINER_ENDPOINTS", list)]);
    assert_eq!((value(&spec, "master"), value(&spec, "nnodes")), ("10.0.0.1:6170", "1"));
    assert_eq!(
        habits(&spec).lines,
        ["LAUNCH INFO <ts> args reset by env PADDLE_TRAINER_ENDPOINTS\n['10.0.0.1:6170', '10.0.0.1:6171']"]
    );
    let spec = launch_in("t", &[("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1")]);
    assert_eq!(value(&spec, "master"), "10.0.0.1:6768");
    let spec =
        launch_in("--master h:1 t", &[("DISTRIBUTED_TRAINER_ENDPOINTS", list), ("PADDLE_LAUNCH_WITH_ARGS", "1")]);
    assert_eq!(value(&spec, "master"), "None");
    // Several hosts meet at the first endpoint.
    let variable = "PADDLE_TRAINER_ENDPOINTS";
    for (list, port) in [("10.0.0.1:6170,10.0.0.2:6170", 6170), ("10.0.0.1,10.0.0.2", 6768)] {
        assert_eq!(launch_in("t", &[(variable, list)]).request.nodes, master("10.0.0.1", port, 2, variable));
    }
    let list = ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1,10.0.0.2");
    assert_eq!(
        refused_in("t", &[list]),
        "error[L0009]: `DISTRIBUTED_TRAINER_ENDPOINTS` has no port: `10.0.0.1`\nhint: `DISTRIBUTED_TRAINER_ENDPOINTS` sets `--master`; correct or unset it\nhint: write `10.0.0.1:6768`, with a port that is free on that host\n"
    );
    let with_args = [("PADDLE_LAUNCH_WITH_ARGS", "1"), list];
    assert_eq!(launch_in("t", &with_args).request.nodes, auto(2, "DISTRIBUTED_TRAINER_ENDPOINTS"));
}

#[test]
fn ports_by_the_documented_order() {
    let range = PortRequest::Range { low: 35100, high: 64000, source: "PORT_RANGE".to_owned() };
    let all = [("FLAGS_START_PORT", "1000"), ("FLAGS_FIXED_PORT", "2000"), ("PORT_RANGE", "35100:64000")];
    assert_eq!(launch_in("--start_port 3000 t", &all).request.ports, fixed(3000, "--start_port"));
    assert_eq!(launch_in("--start_port 0 t", &all).request.ports, fixed(2000, "FLAGS_FIXED_PORT"));
    assert_eq!(launch_in("--rank 3 t", &all).request.ports, fixed(2003, "FLAGS_FIXED_PORT"));
    assert_eq!(launch_in("t", &all[..1]).request.ports, fixed(1000, "FLAGS_START_PORT"));
    assert_eq!(launch_in("t", &all[2..]).request.ports, range);
    assert_eq!(
        launch_in("--start_port 1 t", &[("PADDLE_START_PORT", "4000")]).request.ports,
        fixed(4000, "PADDLE_START_PORT")
    );
    assert_eq!(
        launch("--ips 127.0.0.1 t").request.ports,
        PortRequest::Free,
        "the default of --start_port fixes nothing"
    );
    assert_eq!(fleet("--start_port 3000 t", &all).request.ports, fixed(1000, "FLAGS_START_PORT"));
    assert_eq!(fleet("t", &all[2..]).request.ports, range);
}

#[test]
fn paddlecloud_in_the_legacy_launcher() {
    let mut env = vec![
        ("PADDLE_TRAINERS", "10.0.0.1"),
        ("POD_IP", "10.0.0.1"),
        ("PADDLE_TRAINER_ID", "0"),
        ("TRAINER_PORTS_NUM", "2"),
        ("PADDLE_TRAINERS_NUM", "2"),
    ];
    let spec = fleet("--ips 10.0.0.9 t", &env);
    assert_eq!(
        (spec.request.ip, spec.request.ports),
        ("10.0.0.1".parse().ok(), fixed(6170, "PaddleCloud's variables"))
    );
    assert_eq!(spec.notices[0].code, Code::L0024);
    env.push(("FLAGS_START_PORT", "9000"));
    assert_eq!(fleet("t", &env).request.ports, fixed(9000, "FLAGS_START_PORT"));
    env[0].1 = "10.0.0.1,10.0.0.2";
    let spec = fleet("--ips 10.0.0.1,10.0.0.2 t", &env);
    assert_eq!(spec.request.nodes, listed(&["10.0.0.1", "10.0.0.2"], "PADDLE_TRAINERS"));
    assert_eq!((spec.request.host, spec.request.ip, spec.notices.len()), ("10.0.0.1".parse().ok(), None, 0));
    assert_eq!(fleet("--ips 10.0.0.8,10.0.0.9 t", &env).notices[0].code, Code::L0024);
    env[5] = ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:7,10.0.0.1:8,10.0.0.2:9,10.0.0.2:10");
    assert_eq!(fleet("t", &env).request.ports, fixed(7, "DISTRIBUTED_TRAINER_ENDPOINTS"));
}

#[test]
fn flags_without_effect_are_named_once() {
    assert_eq!(
        plain(&launch("--elastic_level 0 --sort_ip true --rank 1 t").notices),
        "notice[L0023]: `--elastic_level`, `--sort_ip` and `--rank` have no effect\n  --elastic_level  the job has neither etcd nor a range of nodes\n  --sort_ip        the job has one node\n  --rank           the job has one node\n"
    );
    for line in ["--max_restart 3 t", "--elastic_level -1 t", "--sort_ip false t", "--rank 0 t", "--nnodes 1 t"] {
        assert_eq!(launch(line).notices, [], "{line}");
    }
    assert_eq!(launch_in("t", &[("PADDLE_MAX_RESTART", "5")]).notices, []);
    assert_eq!(launch("--auto_parallel_config f.json t").notices.len(), 1);
}

/// The output of the published package for these lines.
#[test]
fn configuration_of_the_current_launcher() {
    let argv = ["--nproc_per_node", "1", "train.py", "it's", "--x", "a\nb"].map(OsString::from);
    let env = variables(&[("PADDLE_LOG_LEVEL", "info")]);
    let Ok(Parsed::Launch(spec)) = parse(Spelling::Launch, &argv, &env) else { panic!("parses") };
    let block: Vec<String> =
        habits(&spec).configuration.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        block,
        [
            "auto_cluster_config: 0",
            "auto_parallel_config: None",
            "auto_tuner_json: None",
            "devices: None",
            "elastic_level: -1",
            "elastic_timeout: 30",
            "enable_gpu_log: True",
            "gloo_port: 6767",
            "host: None",
            "ips: None",
            "job_id: default",
            "legacy: False",
            "log_dir: log",
            "log_level: info",
            "log_overwrite: False",
            "master: None",
            "max_restart: 3",
            "nnodes: 1",
            "nproc_per_node: 1",
            "rank: -1",
            "run_mode: collective",
            "server_num: None",
            "servers: ",
            "sort_ip: False",
            "start_port: 6070",
            "trainer_num: None",
            "trainers: ",
            "training_script: train.py",
            "training_script_args: [\"it's\", '--x', 'a\\nb']",
            "with_gloo: 1",
        ]
    );
}

#[test]
fn configuration_of_the_legacy_launcher() {
    let spec = launch("--backend=gloo --nproc_per_node 1 train.py a");
    let block: Vec<String> =
        habits(&spec).configuration.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        block,
        [
            "backend: gloo",
            "cluster_topo_path: None",
            "coordinator_num: None",
            "coordinators: ",
            "elastic_pre_hook: None",
            "elastic_server: None",
            "enable_auto_mapping: False",
            "force: False",
            "gpus: None",
            "heter_devices: ",
            "heter_worker_num: None",
            "heter_workers: ",
            "host: None",
            "http_port: None",
            "ips: 127.0.0.1",
            "job_id: None",
            "log_dir: log",
            "np: None",
            "nproc_per_node: 1",
            "rank_mapping_path: None",
            "run_mode: None",
            "scale: 0",
            "server_num: None",
            "servers: ",
            "training_script: train.py",
            "training_script_args: ['a']",
            "worker_num: None",
            "workers: ",
        ]
    );
}
