//! Several nodes: where they meet, and what contradicts.

use super::*;

#[test]
fn which_nodes_take_part() {
    let two = ["192.168.0.1", "192.168.0.2"];
    let no_env: &[(&str, &str)] = &[];
    for (line, env, expected) in [
        ("t", no_env, Nodes::One),
        ("--nnodes 1 t", &[], Nodes::One),
        ("--ips 10.0.0.1 t", &[], Nodes::One),
        // With one node, the master is not parsed.
        ("--master h:1 t", &[], Nodes::One),
        ("--master nonsense --nnodes 1 t", &[], Nodes::One),
        ("--ips=\"192.168.0.1,192.168.0.2\" train.py", &[], listed(&two, "--ips")),
        ("--gpus=0,1 --ips=192.168.0.1,192.168.0.2 train.py --batch_size=64", &[], listed(&two, "--ips")),
        ("--ips 192.168.0.1,192.168.0.2 --nnodes 2 t", &[], listed(&two, "--ips")),
        ("--ips 192.168.0.1,192.168.0.2 --backend=nccl t", &[], listed(&two, "--ips")),
        ("--ips 192.168.0.1,192.168.0.2 --np 2 t", &[], listed(&two, "--ips")),
        ("--ips [fd00::2],fd00::1 t", &[], listed(&["fd00::2", "fd00::1"], "--ips")),
        ("--ips 127.0.0.2,127.0.0.3 t", &[], listed(&["127.0.0.2", "127.0.0.3"], "--ips")),
        ("--ips 10.0.0.9 t", &[("PADDLE_IPS", "192.168.0.1,192.168.0.2")], listed(&two, "PADDLE_IPS")),
        ("--master 10.0.0.1:6768 --nnodes 2 t", &[], master("10.0.0.1", 6768, 2, "--master")),
        ("--master node-1:6768 --nnodes 4 t", &[], master("node-1", 6768, 4, "--master")),
        ("--master http://10.0.0.1:6768/ --nnodes 2 t", &[], master("10.0.0.1", 6768, 2, "--master")),
        ("--master [fd00::1]:6768 --nnodes 2 t", &[], master("fd00::1", 6768, 2, "--master")),
        ("--master http://[fd00::1]:6768 --nnodes 2 t", &[], master("fd00::1", 6768, 2, "--master")),
        (
            "--master h:1 --nnodes 2 t",
            &[("PADDLE_MASTER", "g:2"), ("PADDLE_NNODES", "3")],
            master("g", 2, 3, "PADDLE_MASTER"),
        ),
        ("--nnodes 2 t", &[], auto(2, "--nnodes")),
        ("t", &[("PADDLE_NNODES", "16384")], auto(16_384, "PADDLE_NNODES")),
        // As in Paddle, the master is used and the list is ignored.
        ("--master h:1 --nnodes 2 --ips 192.168.0.1,192.168.0.2 t", &[], master("h", 1, 2, "--master")),
    ] {
        let spec = launch_in(line, env);
        assert_eq!(spec.request.nodes, expected, "{line} {env:?}");
        assert_eq!(spec.request.ip.is_some(), line.starts_with("--ips 10.0.0.1 "), "{line}");
    }
    assert_eq!(
        plain(&launch("--master h:1 --nnodes 2 --ips 192.168.0.1,192.168.0.2 t").notices),
        "notice[L0023]: `--ips` has no effect: the nodes meet at `--master`\n"
    );
    assert_eq!(listed(&two, "").count() + auto(5, "").count() + Nodes::One.count(), 8);
}

#[test]
fn nodes_that_cannot_be() {
    let many = (0..16_385).map(|n| format!("10.{}.{}.1", n / 256, n % 256)).collect::<Vec<_>>().join(",");
    for (line, expected) in [
        (
            "--ips 10.0.0.1,node2 t",
            "error[L0001]: `--ips` takes IP addresses, and entry 2 is `node2`\n  nodes  10.0.0.1, node2\nhint: separate addresses with single commas; host names are not accepted\n",
        ),
        (
            "--ips 10.0.0.1,,10.0.0.2 t",
            "error[L0001]: `--ips` takes IP addresses, and entry 2 is empty\n  nodes  10.0.0.1, , 10.0.0.2\nhint: separate addresses with single commas; host names are not accepted\n",
        ),
        (
            "--ips 10.0.0.1,10.0.0.2,10.0.0.1 t",
            "error[L0001]: `--ips` lists 10.0.0.1 twice, the second time as entry 3\n  nodes  10.0.0.1, 10.0.0.2, 10.0.0.1\nhint: name each node once; `--nproc_per_node` sets the number of processes on it\n",
        ),
        (
            "--ips localhost,10.0.0.1 t",
            "error[L0002]: `localhost` cannot be one of several nodes in `--ips`\n  nodes  localhost, 10.0.0.1\nhint: every node must be able to reach the others at the addresses listed\n",
        ),
        (&format!("--ips {many} t"), "error[L0001]: `--ips` lists 16385 nodes; the maximum is 16384\n"),
        ("--nnodes 16385 t", "error[L0001]: `--nnodes` asks for 16385 nodes; the maximum is 16384\n"),
        ("--nnodes 99999999999 t", "error[L0001]: `--nnodes` asks for 99999999999 nodes; the maximum is 16384\n"),
        (
            "--nnodes 2 --ips 10.0.0.1,10.0.0.2,10.0.0.3 t",
            "error[L0002]: `--nnodes` asks for 2 nodes, and `--ips` lists 3\n  nodes  10.0.0.1, 10.0.0.2, 10.0.0.3\nhint: correct one of them; with `--ips` no number is needed\n",
        ),
        (
            "--nnodes 2 --ips 10.0.0.1 t",
            "error[L0002]: `--nnodes` asks for 2 nodes, and `--ips` lists 1\n  nodes  10.0.0.1\nhint: correct one of them; with `--ips` no number is needed\n",
        ),
        (
            "--master h:1 --ips 10.0.0.1,10.0.0.2 t",
            "error[L0002]: `--master` needs the number of nodes; `--ips` lists 2\n  nodes  10.0.0.1, 10.0.0.2\nhint: add `--nnodes 2`, or leave one of `--master` and `--ips` out\n",
        ),
        (
            "--np 2 t",
            "error[L0002]: `--np` asks for several nodes, but no addresses are given\nhint: list their addresses with `--ips`, or let them meet with `--master HOST:PORT --nnodes N`, or in etcd with `--elastic_server HOST:PORT --job_id ID --np N`\n",
        ),
        (
            "--master 10.0.0.1 --nnodes 2 t",
            "error[L0001]: `--master` has no port: `10.0.0.1`\nhint: write `10.0.0.1:6768`, with a port that is free on that host\n",
        ),
        (
            "--master [fd00::1] --nnodes 2 t",
            "error[L0001]: `--master` has no port: `[fd00::1]`\nhint: write `[fd00::1]:6768`, with a port that is free on that host\n",
        ),
        (
            "--master fd00::1 --nnodes 2 t",
            "error[L0001]: `--master` is an IPv6 address without a port: `fd00::1`\nhint: write `[fd00::1]:6768`, with a port that is free on that host\n",
        ),
        (
            "--master h:x --nnodes 2 t",
            "error[L0001]: `--master` has the port `x`, which is not in the range 1-65535: `h:x`\n",
        ),
        (
            "--master h:0 --nnodes 2 t",
            "error[L0001]: `--master` has the port `0`, which is not in the range 1-65535: `h:0`\n",
        ),
        ("--rank 2 --nnodes 2 t", "error[L0001]: `--rank` is 2, but 2 nodes have ranks from 0 to 1\n"),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
    for text in [":1", "https://h:1", "ftp://h", "[fd00::1", "[h]:1", "[fd00::1]x", "a:b:1", "http://h:1/path", "u@h:1"]
    {
        let seen = refused(&format!("--master {text} --nnodes 2 t"));
        assert!(seen.starts_with(&format!("error[L0001]: `--master` takes `host:port`, not `{text}`\n")), "{seen}");
    }
    assert!(refused_in("--nnodes 2 t", &[("PADDLE_TRAINER_ID", "7")]).contains("`PADDLE_TRAINER_ID` is 7"));
}

#[test]
fn who_this_node_is() {
    let spec = launch("--master h:1 --nnodes 3 --rank 2 --sort_ip true --host 10.0.0.3 t");
    assert_eq!(
        (spec.request.node_rank, spec.request.sort_ip, spec.request.host),
        (Some(2), true, "10.0.0.3".parse().ok())
    );
    assert_eq!(spec.notices, []);
    assert!(launch_in("--nnodes 2 t", &[("PADDLE_SORT_IP", "1")]).request.sort_ip);
    // The legacy launcher has `--host` for several nodes.
    let spec = launch("--backend=nccl --ips 10.0.0.1,10.0.0.2 --host 10.0.0.2 t");
    assert_eq!(
        (spec.request.generation(), spec.request.host, spec.notices),
        (Generation::Legacy, "10.0.0.2".parse().ok(), vec![])
    );
    assert_eq!(
        plain(&launch("--ips 10.0.0.1,10.0.0.2 --rank 1 --sort_ip true t").notices),
        "notice[L0023]: `--sort_ip` and `--rank` have no effect\n  --sort_ip  nodes keep the order of the list\n  --rank     nodes keep the order of the list\n"
    );
    let spec = launch("--nnodes 2 --rank 1 t");
    assert_eq!(habits(&spec).lines, ["LAUNCH WARNING <ts> --rank set in the command may not compatible in auto mode"]);
}

#[test]
fn flags_for_several_nodes() {
    let spec = launch(
        "--nnodes 2 --token sesame --rdzv-port 7777 --rdzv-timeout 5m --node-timeout 10s --reconnect-window 0s --uneven --gather-logs t",
    );
    let expected = OwnFlags {
        token: Token::new("sesame"),
        rdzv_port: Port::new(7777),
        rdzv_timeout: Duration::from_secs(300),
        node_timeout: Duration::from_secs(10),
        reconnect_window: Duration::ZERO,
        gather_logs: true,
        ..OwnFlags::default()
    };
    assert_eq!((spec.own, spec.request.uneven), (expected, true));
    // Umiak's variables never override flags; Paddle's do.
    let env = [("UMIAK_TOKEN", "lamp"), ("UMIAK_PORT", "8888")];
    let own = launch_in("--nnodes 2 t", &env).own;
    assert_eq!((own.token, own.rdzv_port), (Token::new("lamp"), Port::new(8888)));
    let own = launch_in("--nnodes 2 --token sesame --rdzv-port 7777 t", &env).own;
    assert_eq!((own.token, own.rdzv_port), (Token::new("sesame"), Port::new(7777)));
    let own = launch_in("--nnodes 2 --token-file a/b t", &env).own;
    assert_eq!((own.token, own.token_file), (None, Some("a/b".into())));
    assert_eq!(launch_in("t", &[("UMIAK_TOKEN", ""), ("UMIAK_PORT", "")]).own, OwnFlags::default());
    for (line, part) in [
        ("--token= t", "`--token` is empty"),
        ("--token a --token-file b t", "error[L0002]: `--token` cannot be combined with `--token-file`"),
        ("--rdzv-port 0 t", "`--rdzv-port` takes a port from 1 to 65535, not `0`"),
        ("--rdzv-port 70000 t", "not `70000`"),
        ("--rdzv-timeout 0s t", "`--rdzv-timeout` must be greater than zero"),
        ("--node-timeout 0ms t", "`--node-timeout` must be greater than zero"),
        ("--hang_timeout 0s t", "`--hang-timeout` must be greater than zero"),
        ("--node-timeout 30x t", "a duration such as"),
        ("--gather-logs --log-max-size 1M t", "error[L0002]: `--gather-logs` cannot be combined with `--log-max-size`"),
        (
            "--gather-logs --log-names local t",
            "error[L0002]: `--gather-logs` cannot be combined with `--log-names local`",
        ),
    ] {
        assert!(refused(line).contains(part), "{line}: {}", refused(line));
    }
    assert!(refused_in("t", &[("UMIAK_PORT", "x")]).starts_with("error[L0009]: `UMIAK_PORT` takes a port"));
    assert_eq!(
        plain(&launch("--uneven --token x t").notices),
        "notice[L0023]: `--token` and `--uneven` have no effect\n  --token   the job has one node\n  --uneven  the job has one node\n"
    );
    assert_eq!(
        plain(&launch("--master h:1 --nnodes 2 --rdzv-port 7 t").notices),
        "notice[L0023]: `--rdzv-port` has no effect: the port is that of `--master`\n"
    );
}

#[test]
fn the_token_is_shown_nowhere() {
    for line in ["--nnodes 2 --token s3same t", "--nnodes 2 --token=s3same t", "--token s3same --legacy true t"] {
        let spec = launch(line);
        assert_eq!(spec.own.token.as_ref().map(Token::expose), Some("s3same"));
        assert!(!format!("{spec:?}").contains("s3same"), "{spec:?}");
    }
    assert_eq!(launch("--nnodes 2 --token s3same t").command_line, "--nnodes 2 --token \"$UMIAK_TOKEN\" t");
    assert_eq!(launch("--token=s3same t --token x").command_line, "--token=\"$UMIAK_TOKEN\" t --token x");
    for line in ["--token s3same", "--token s3same --nnodes", "--token s3same --rank x t", "--tokens=s3same t"] {
        assert!(!refused(line).contains("s3same"), "{}", refused(line));
    }
    let odd = OsString::from_vec(b"s3same\xff".to_vec());
    let errors = parse(Spelling::Launch, &["--token".into(), odd, "t".into()], &BTreeMap::new()).expect_err("text");
    assert_eq!(plain(&errors), "error[L0001]: `--token` takes UTF-8 text\n");
}
