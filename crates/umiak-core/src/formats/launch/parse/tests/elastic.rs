//! Nodes that meet in etcd, and nodes that come and go.

use super::*;
use crate::model::{ElasticLevel, EtcdPlace, Scaling};

fn place(spec: &LaunchSpec) -> &EtcdPlace {
    match &spec.request.nodes {
        Nodes::Etcd { at, .. } => at,
        nodes => panic!("{nodes:?}"),
    }
}

/// Members, parent of the keys, range of nodes, window, and the source of the members.
#[track_caller]
fn shown(spec: &LaunchSpec) -> String {
    let members: Vec<String> = place(spec).etcd.endpoints.iter().map(ToString::to_string).collect();
    let elastic = spec.request.elastic.as_ref().expect("elastic with etcd");
    let Nodes::Etcd { nodes, source, .. } = &spec.request.nodes else { panic!("checked above") };
    let (root, window) = (&place(spec).root, elastic.window.as_secs());
    format!("{} {root} {}:{nodes} {window}s {source}", members.join(","), elastic.min)
}

const THREE: [(&str, &str); 3] =
    [("PADDLE_ELASTIC_SERVER", "h:1"), ("PADDLE_ELASTIC_JOB_ID", "j"), ("PADDLE_ELASTIC_NP", "2")];

#[test]
fn the_legacy_launcher() {
    for (line, expected) in [
        (
            "--elastic_server=127.0.0.1:2379 --job_id=job1 --np=2 --host 192.168.0.1 train.py",
            "127.0.0.1:2379 /paddle/job1 2:2 120s --elastic_server",
        ),
        (
            "--elastic_server=127.0.0.1:2379 --np=2 --job_id=job1 --gpus=0,1,2,3 train.py",
            "127.0.0.1:2379 /paddle/job1 2:2 120s --elastic_server",
        ),
        ("--elastic_server a,b:1 --job_id j --np 2:4 t", "a:2379,b:1 /paddle/j 2:4 120s --elastic_server"),
        ("--elastic_server http://a:1/ --job_id j --np 1 t", "a:1 /paddle/j 1:1 120s --elastic_server"),
        (
            "--elastic_server https://[::1]:1 --job_id j --np 0:3 t",
            "https://[::1]:1 /paddle/j 1:3 120s --elastic_server",
        ),
        ("--elastic_server a --job_id j --nnodes 2:3 t", "a:2379 /paddle/j 2:3 120s --elastic_server"),
        ("--elastic_server a --job_id j --np 2 --elastic_timeout 7 t", "a:2379 /paddle/j 2:2 7s --elastic_server"),
    ] {
        for spelling in [Spelling::Launch, Spelling::Fleetrun { program: "fleetrun".into() }] {
            let spec = run(spelling, line, &[]).unwrap_or_else(|errors| panic!("{line}: {}", plain(&errors)));
            assert_eq!(shown(&spec), expected, "{line}");
            assert_eq!(spec.request.generation(), Generation::Legacy, "{line}");
            assert_eq!(spec.request.elastic.as_ref().unwrap().level, ElasticLevel::Ranks);
            assert_eq!(spec.notices, [], "{line}");
        }
    }
    let spec = launch("--elastic_server=h:1 --job_id=job1 --np=2 --host 192.168.0.1 train.py");
    assert_eq!((spec.request.job_id.as_str(), spec.request.name.as_str()), ("job1", "job1"));
    assert_eq!((spec.request.host, spec.request.ip), ("192.168.0.1".parse().ok(), None));
    assert_eq!((place(&spec).lease, place(&spec).scaling), (None, Scaling::Same));
    let line = ["--elastic_server", "h", "--job_id", "j", "--np", "2", "--elastic_pre_hook", "sh a.sh", "t"];
    let Ok(Parsed::Launch(spec)) = parse(Spelling::Launch, &line.map(OsString::from), &BTreeMap::new()) else {
        panic!("parses")
    };
    assert_eq!(spec.request.elastic.unwrap().pre_hook.as_deref(), Some("sh a.sh"));
}

#[test]
fn variables_of_the_legacy_launcher() {
    let spec = fleet("t", &THREE);
    assert_eq!(shown(&spec), "h:1 /paddle/j 2:2 120s PADDLE_ELASTIC_SERVER");
    assert_eq!((spec.request.job_id.as_str(), spec.request.name.as_str()), ("j", "j"));
    assert_eq!((value(&spec, "np"), value(&spec, "job_id")), ("None", "None"), "as Paddle prints them");
    let flags = "--elastic_server g --job_id k --np 2:3 t";
    assert_eq!(shown(&fleet(flags, &THREE)), "g:2379 /paddle/k 2:3 120s --elastic_server", "flags win");
    // The current launcher does not read them, and the legacy one needs all of them.
    assert_eq!(launch_in("t", &THREE).request.nodes, Nodes::One);
    for missing in 0..3 {
        let mut some = THREE.to_vec();
        some.remove(missing);
        assert_eq!(fleet("t", &some).request.nodes, Nodes::One, "{some:?}");
        assert_eq!(fleet("t", &some).request.job_id.as_str(), "default");
    }
    assert_eq!(shown(&launch_in("--np=3 t", &THREE)), "h:1 /paddle/j 3:3 120s PADDLE_ELASTIC_SERVER");

    let service = [("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "fd00::1"), ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "80")];
    let spec = fleet("--job_id j --np 2 t", &service);
    assert_eq!(shown(&spec), "[fd00::1]:80 /paddle/j 2:2 120s PADDLE_ELASTIC_ETCD_SERVICE_HOST");
    let list = fleet("--job_id j --np 2 --ips 10.0.0.1,10.0.0.2 t", &service);
    assert_eq!(list.request.nodes, listed(&["10.0.0.1", "10.0.0.2"], "--ips"), "a service is in every pod");

    let with = |more: &[(&'static str, &'static str)]| fleet("t", &[&THREE[..], more].concat());
    let spec = with(&[
        ("PADDLE_ELASTIC_TIMEOUT", "9"),
        ("PADDLE_ELASTIC_TTL", "20"),
        ("PADDLE_ELASTIC_SCALE", "1"),
        ("PADDLE_ELASTIC_FAULT_TOLERANC_LEVEL", "2"),
        ("POD_IP", "10.0.0.7"),
    ]);
    assert_eq!(shown(&spec), "h:1 /paddle/j 2:2 9s PADDLE_ELASTIC_SERVER");
    assert_eq!((place(&spec).lease, place(&spec).scaling), (Some(Duration::from_secs(20)), Scaling::By(1)));
    assert_eq!((spec.request.host, spec.notices.len()), ("10.0.0.7".parse().ok(), 0));
    assert_eq!(place(&with(&[("PADDLE_ELASTIC_FORCE", "1")])).scaling, Scaling::Replace);
    assert_eq!(place(&with(&[("PADDLE_ELASTIC_FORCE", "")])).scaling, Scaling::Same);
}

#[test]
fn the_number_in_etcd() {
    let scaling = |line: &str| place(&launch(&format!("--elastic_server h --job_id j --np 2 {line} t"))).scaling;
    assert_eq!(scaling("--scale 0 --force="), Scaling::Same);
    assert_eq!(scaling("--scale=-1"), Scaling::By(-1));
    assert_eq!(scaling("--force True"), Scaling::Replace);
    let current = launch("--master etcd://h --job_id j --nnodes 2 --scale 1 t");
    assert_eq!((place(&current).scaling, &*current.notices), (Scaling::By(1), &[][..]));
    assert_eq!(place(&launch("--master etcd://h --job_id j --nnodes 2 --force 1 t")).scaling, Scaling::Replace);
    assert_eq!(
        plain(&launch("--elastic_server h --job_id j --np 2 --force 1 --scale 2 t").notices),
        "notice[L0023]: `--scale` has no effect: `--force` replaces the number of nodes\n"
    );
    assert_eq!(
        refused("--elastic_server h --job_id j --np 2 --scale=-2 t"),
        "error[L0001]: `--scale` is -2, which makes 0 nodes of 2 in `--np`\nhint: a job has from 1 to 16384 nodes\n"
    );
}

#[test]
fn the_current_launcher() {
    for (line, expected) in [
        ("--master etcd://127.0.0.1:2379 train.py", "127.0.0.1:2379 /paddle/default 1:1 30s --master"),
        ("--master etcd://h:1 --nnodes 2 t", "h:1 /paddle/default 2:2 30s --master"),
        ("--master etcd://h:1 --nnodes 2:4 --job_id j t", "h:1 /paddle/j 2:4 30s --master"),
        ("--master etcd://a:1,b --nnodes 3:3 --job_id j t", "a:1,b:2379 /paddle/j 3:3 30s --master"),
        ("--master etcd://a:1,etcd://b:2 --nnodes= --job_id j t", "a:1,b:2 /paddle/j 1:1 30s --master"),
        ("--master etcd://[::1]:2379 --elastic_timeout 5 --job_id j t", "[::1]:2379 /paddle/j 1:1 5s --master"),
        ("--master etcd://https://h --job_id j t", "https://h:2379 /paddle/j 1:1 30s --master"),
    ] {
        let spec = launch(line);
        assert_eq!(shown(&spec), expected, "{line}");
        assert_eq!(spec.request.generation(), Generation::Current, "{line}");
        let notice = "notice[R0043]: the job has the id `default` in etcd, as every job without `--job_id`\nhint: give each job its own `--job_id`, so that nodes do not join another job\n";
        let expected = if line.contains("--job_id") { "" } else { notice };
        assert_eq!(plain(&spec.notices), expected, "{line}");
        assert_eq!((place(&spec).lease, place(&spec).scaling), (None, Scaling::Same));
    }
    let env = [
        ("PADDLE_MASTER", "etcd://h:1"),
        ("PADDLE_NNODES", "1:2"),
        ("PADDLE_JOB_ID", "j"),
        ("PADDLE_ELASTIC_TIMEOUT", "3"),
        ("PADDLE_ELASTIC_LEVEL", "0"),
        // Of the legacy launcher.
        ("PADDLE_ELASTIC_TTL", "9"),
        ("PADDLE_ELASTIC_NP", "7"),
        ("PADDLE_ELASTIC_FORCE", "1"),
    ];
    let spec = launch_in("t", &env);
    assert_eq!(shown(&spec), "h:1 /paddle/j 1:2 3s PADDLE_MASTER");
    assert_eq!((place(&spec).lease, place(&spec).scaling), (None, Scaling::Same));
    assert_eq!(spec.request.elastic.unwrap().level, ElasticLevel::Nodes);
    let env = [("UMIAK_ETCD_CA_FILE", "/ca"), ("UMIAK_ETCD_USER", "ann"), ("UMIAK_ETCD_PASSWORD", "hunter2")];
    let spec = launch_in("--master etcd://h t", &env);
    assert_eq!(place(&spec).etcd.tls.as_ref().unwrap().ca, Some("/ca".into()));
    assert_eq!(place(&spec).etcd.user.as_ref().unwrap().name, "ann");
    assert!(!format!("{spec:?}").contains("hunter2"));
}

#[test]
fn levels() {
    let level = |flags: &str| launch(&format!("{flags} t")).request.elastic.map(|elastic| elastic.level);
    for (flag, expected) in [
        ("", ElasticLevel::Ranks),
        ("--elastic_level -1", ElasticLevel::Off),
        ("--elastic_level 0", ElasticLevel::Nodes),
        ("--elastic_level 1", ElasticLevel::Ranks),
    ] {
        for nodes in ["--master etcd://h", "--nnodes 2:4 --master h:1"] {
            assert_eq!(level(&format!("{nodes} {flag}")), Some(expected), "{nodes} {flag}");
        }
        assert_eq!(level(&format!("--nnodes 2 {flag}")), None);
    }
}

#[test]
fn flags_without_effect() {
    let not_elastic = "the job has neither etcd nor a range of nodes";
    for (line, expected) in [
        ("--master etcd://h --job_id j --ips 10.0.0.1,10.0.0.2 t", "`--ips` has no effect: the nodes meet in etcd"),
        ("--elastic_server h --job_id j --np 2 --ips x t", "`--ips` has no effect: the nodes meet in etcd"),
        (
            "--master etcd://h --job_id j --rank 0 t",
            "`--rank` has no effect: nodes that meet in etcd get their ranks when they join",
        ),
        (
            "--master etcd://h --job_id j --sort_ip 1 t",
            "`--sort_ip` has no effect: nodes that meet in etcd get their ranks when they join",
        ),
        ("--elastic_level 1 --nnodes 2 t", &format!("`--elastic_level` has no effect: {not_elastic}")),
        ("--elastic_pre_hook=x t", &format!("`--elastic_pre_hook` has no effect: {not_elastic}")),
        ("--elastic_pre_hook x --master h:1 t", &format!("`--elastic_pre_hook` has no effect: {not_elastic}")),
        (
            "--elastic_server h --job_id j --np 2 --elastic_level 0 t",
            "`--elastic_level` has no effect: the legacy launcher does not have it",
        ),
        ("--scale 1 t", "`--scale` has no effect: the nodes do not meet in etcd"),
        ("--force 1 t", "`--force` has no effect: the nodes do not meet in etcd"),
        (
            "--master etcd://h --job_id j --np 2 t",
            "`--np` has no effect: `--master` selects the current launcher, which does not have it",
        ),
    ] {
        let spec = launch(line);
        assert_eq!(plain(&spec.notices), format!("notice[L0023]: {expected}\n"), "{line}");
        assert_eq!((spec.request.sort_ip, line.contains("etcd") && spec.request.node_rank.is_some()), (false, false));
    }
    // The command applies to elastic jobs of both launchers.
    for line in ["--master etcd://h --job_id j", "--master h:1 --nnodes 2:4"] {
        let spec = launch(&format!("{line} --elastic_pre_hook x t"));
        assert_eq!((spec.request.elastic.unwrap().pre_hook.as_deref(), spec.notices), (Some("x"), vec![]), "{line}");
    }
    assert_eq!(launch("--elastic_level -1 --max_restart 1 t").notices, []);
}

#[test]
fn what_is_refused() {
    let fixed = |what: &str, flag: &str| {
        format!(
            "error[L0002]: {what} have a fixed number of nodes, and cannot use etcd\nhint: leave `{flag}` out, and say where the nodes meet with `--master HOST:PORT --nnodes N`\n"
        )
    };
    let needs = |missing: &str| {
        format!(
            "error[L0001]: `--elastic_server` needs {missing}\nhint: `--job_id` names the job in etcd, and `--np` is its number of nodes: `--job_id job1 --np 2`\n"
        )
    };
    let address = |flag: &str, address: &str, why: &str| {
        format!(
            "error[R0038]: `{flag}` has an invalid address of etcd\n  address  {address}\n  reason   {why}\nhint: write `HOST:PORT`; several are separated by commas\n"
        )
    };
    for (line, expected) in [
        ("--elastic_server h t", needs("`--job_id` and `--np`")),
        ("--elastic_server h --np 2 t", needs("`--job_id`")),
        ("--elastic_server h --job_id j t", needs("`--np`")),
        ("--elastic_server h:x --job_id j --np 2 t", address("--elastic_server", "h:x", "the port must be a number from 1 to 65535")),
        ("--master etcd://h:0 --job_id j t", address("--master", "h:0", "the port must be a number from 1 to 65535")),
        (
            "--master etcd://h --nnodes 4:2 t",
            "error[L0001]: the range `4:2` of `--nnodes` is reversed\nhint: did you mean `2:4`?\n".to_owned(),
        ),
        (
            "--master etcd://h --elastic_level 7 t",
            "error[L0001]: `--elastic_level` is 7, and must be -1, 0 or 1\nhint: -1: nothing starts again; 0: a node whose rank fails ends, and the others start again; 1: all ranks start again\n".to_owned(),
        ),
        (
            "--elastic_server h --job_id j --np 1:99999 t",
            "error[L0001]: `--np` asks for 99999 nodes; the maximum is 16384\n".to_owned(),
        ),
        ("--master etcd://h --run_mode ps t", fixed("parameter-server jobs", "--master")),
        ("--master etcd://h --server_num 1 --trainer_num 1 t", fixed("parameter-server jobs", "--master")),
        (
            "--elastic_server h --job_id j --np 2 --servers 10.0.0.1:1 --workers 10.0.0.1:2 t",
            fixed("parameter-server jobs", "--elastic_server"),
        ),
        ("--master etcd://h --run_mode rpc --nnodes 2:4 t", fixed("rpc jobs", "--master")),
        (
            "--np 2:4 t",
            "error[L0002]: `--np 2:4` is a range of nodes, which needs etcd or `--master`\nhint: use `--elastic_server HOST:PORT --job_id ID --np 2:4`, or `--master HOST:PORT --nnodes 2:4`\n".to_owned(),
        ),
        (
            "--np 1:2 --ips 10.0.0.1,10.0.0.2 t",
            "error[L0002]: `--np 1:2` is a range of nodes, which needs etcd or `--master`\nhint: use `--elastic_server HOST:PORT --job_id ID --np 1:2`, or `--master HOST:PORT --nnodes 1:2`\n".to_owned(),
        ),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
    let by_variables = |more: (&'static str, &'static str)| {
        let env = [&THREE[..], &[more]].concat();
        let spelling = Spelling::FleetModule { interpreter: interpreter() };
        let fleet = plain(&run(spelling, "t", &env).expect_err(more.0));
        assert_eq!(refused_in("--backend=gloo t", &env), fleet);
        fleet
    };
    for (variable, value, expected) in [
        (
            "PADDLE_ELASTIC_TTL",
            "0",
            "`PADDLE_ELASTIC_TTL` must be greater than zero, and is 0\nhint: correct `PADDLE_ELASTIC_TTL`, or unset it\n",
        ),
        (
            "PADDLE_ELASTIC_TTL",
            "x",
            "`PADDLE_ELASTIC_TTL` takes a whole number, not `x`\nhint: correct `PADDLE_ELASTIC_TTL`, or unset it\n",
        ),
        (
            "PADDLE_ELASTIC_SCALE",
            "x",
            "`PADDLE_ELASTIC_SCALE` takes a whole number, not `x`\nhint: `PADDLE_ELASTIC_SCALE` sets `--scale`; correct or unset it\n",
        ),
        (
            "PADDLE_ELASTIC_NP",
            "x",
            "`PADDLE_ELASTIC_NP` takes a number of nodes such as `1` or `2:4`, not `x`\nhint: `PADDLE_ELASTIC_NP` sets `--np`; correct or unset it\n",
        ),
        (
            "PADDLE_ELASTIC_JOB_ID",
            "a/b",
            "`PADDLE_ELASTIC_JOB_ID` cannot be `a/b`: it would be a path\nhint: `PADDLE_ELASTIC_JOB_ID` sets `--job_id`; correct or unset it\n",
        ),
    ] {
        assert_eq!(by_variables((variable, value)), format!("error[L0009]: {expected}"));
    }
    let env = [&THREE[..], &[("PADDLE_ELASTIC_TIMEOUT", "x")]].concat();
    let seen = refused_in("--backend=gloo t", &env);
    assert_eq!(seen.matches("error").count(), 1, "{seen}");
    let seen = refused("--master etcd://root:hunter2@h --job_id j t");
    assert!(seen.contains("`UMIAK_ETCD_PASSWORD`") && !seen.contains("hunter2"), "{seen}");
}
