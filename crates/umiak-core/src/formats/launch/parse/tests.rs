//! Command lines in, launches and messages out.

use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::formats::launch::{OwnFlags, Token};
use crate::formats::prefix::{Front, recognise};
use crate::model::{DeviceKind, DeviceRequest, ExitCodes, LogNames, Policy, Rotation};
use crate::model::{Omp, OutputMode};

mod elastic;
mod generations;
mod nodes;
mod servers;

fn interpreter() -> OsString {
    "python".into()
}

/// Splits at spaces and removes quotes, as a shell would for these lines.
fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(|word| word.replace('"', "").into()).collect()
}

fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn run(spelling: Spelling, line: &str, env: &[(&str, &str)]) -> Result<LaunchSpec, Vec<Diagnostic>> {
    match parse(spelling, &words(line), &variables(env))? {
        Parsed::Launch(spec) => Ok(*spec),
        Parsed::Help(_) => panic!("help for `{line}`"),
    }
}

#[track_caller]
fn launch_in(line: &str, env: &[(&str, &str)]) -> LaunchSpec {
    run(Spelling::Launch, line, env).unwrap_or_else(|errors| panic!("`{line}`:\n{}", plain(&errors)))
}

#[track_caller]
fn launch(line: &str) -> LaunchSpec {
    launch_in(line, &[])
}

#[track_caller]
fn fleet(line: &str, env: &[(&str, &str)]) -> LaunchSpec {
    let spelling = Spelling::FleetModule { interpreter: interpreter() };
    run(spelling, line, env).unwrap_or_else(|errors| panic!("`{line}`:\n{}", plain(&errors)))
}

fn plain(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(Diagnostic::to_plain).collect()
}

/// The errors as text.
#[track_caller]
fn refused_in(line: &str, env: &[(&str, &str)]) -> String {
    plain(&run(Spelling::Launch, line, env).expect_err(line))
}

#[track_caller]
fn refused(line: &str) -> String {
    refused_in(line, &[])
}

fn habits(spec: &LaunchSpec) -> PaddleHabits {
    spec.request.paddle.clone().expect("a launch stands in for Paddle's")
}

fn value<'a>(spec: &'a LaunchSpec, name: &str) -> &'a str {
    &spec
        .request
        .paddle
        .as_ref()
        .unwrap()
        .configuration
        .iter()
        .find(|(known, _)| known == name)
        .unwrap_or_else(|| panic!("no `{name}`"))
        .1
}

fn gpus(ids: &[&str]) -> DeviceRequest {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    DeviceRequest { source: "--gpus".to_owned(), kind: Some(DeviceKind::Gpu), ids }
}

fn fixed(start: u16, source: &str) -> PortRequest {
    PortRequest::Fixed { start, source: source.to_owned() }
}

/// The guide's lines, with `umiak` in front.
fn listed(addresses: &[&str], source: &str) -> Nodes {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Nodes::List { addresses, source: source.to_owned() }
}

fn master(host: &str, port: u16, nodes: u32, source: &str) -> Nodes {
    let port = Port::new(port).unwrap();
    Nodes::Master { host: host.to_owned(), port, nodes, source: source.to_owned() }
}

fn auto(nodes: u32, source: &str) -> Nodes {
    Nodes::Auto { nodes, source: source.to_owned() }
}

#[test]
fn the_guides_lines_for_one_node() {
    let eight = ["0", "1", "2", "3", "4", "5", "6", "7"];
    for (line, devices, script, args) in [
        ("--gpus 0,1,2,3,4,5,6,7 train.py --batch_size=64", Some(gpus(&eight)), "train.py", vec!["--batch_size=64"]),
        ("--gpus 0,1,2,3,4,5,6,7 train_script", Some(gpus(&eight)), "train_script", vec![]),
        ("--gpus=\"0,1,2,3,4,5,6,7\" train.py", Some(gpus(&eight)), "train.py", vec![]),
        ("--gpus 2,3 train.py --batch_size=64", Some(gpus(&["2", "3"])), "train.py", vec!["--batch_size=64"]),
        ("--gpus=\"0,1\" train.py", Some(gpus(&["0", "1"])), "train.py", vec![]),
        ("train.py", None, "train.py", vec![]),
        ("--run_mode collective --log_dir=log/ --gpus=\"4,5\" train.py", Some(gpus(&["4", "5"])), "train.py", vec![]),
    ] {
        let whole = words(&format!("umiak python -m paddle.distributed.launch {line}"));
        let Front::Launch(spelling, rest) = recognise(&whole) else { panic!("`{line}` is a launch") };
        let Ok(Parsed::Launch(spec)) = parse(spelling, &rest, &BTreeMap::new()) else { panic!("`{line}` parses") };
        assert_eq!(spec.request.generation(), Generation::Current, "{line}");
        assert_eq!(spec.request.devices, devices, "{line}");
        assert_eq!(spec.request.command.script, script, "{line}");
        assert_eq!(spec.request.command.args, args, "{line}");
        assert_eq!(spec.notices, [], "{line}");
        assert!(habits(&spec).lines.is_empty(), "{line}");
    }
}

#[test]
fn the_guides_other_lines_are_understood_and_refused() {
    for line in [
        "--auto_tuner_json t.json train.py",
        "--enable_auto_mapping True --cluster_topo_path c.json train.py",
        "ipu train.py",
    ] {
        let errors = run(Spelling::Launch, line, &[]).expect_err(line);
        assert!(errors.iter().all(|error| error.code == Code::L0003 && error.exit_code() == 2), "{line}: {errors:?}");
    }
    assert_eq!(
        refused("--auto_tuner_json t.json train.py"),
        "error[L0003]: `--auto_tuner_json` needs the auto-tuner, which is not supported yet\n"
    );
    assert_eq!(
        refused("--nnodes 1:2 --ips 10.0.0.1,10.0.0.2 train.py"),
        "error[L0002]: `--nnodes 1:2` cannot be used here: no nodes can come and go\nhint: say where the nodes meet with `--master HOST:PORT`\n"
    );
    assert_eq!(
        refused("--nnodes 1:2 --run_mode ps --server_num 1 --trainer_num 1 --master 10.0.0.1:6768 train.py"),
        "error[L0002]: `--nnodes 1:2` cannot be used here: no nodes can come and go\nhint: parameter-server jobs have a fixed number of nodes\n"
    );
}

#[test]
fn a_range_of_nodes() {
    let elastic = |line: &str| {
        let spec = run(Spelling::Launch, line, &[]).expect(line);
        (spec.request.nodes.count(), spec.request.elastic.map(|elastic| (elastic.min, elastic.window.as_secs())))
    };
    assert_eq!(elastic("--nnodes 2:4 --master 10.0.0.1:6768 train.py"), (4, Some((2, 30))));
    assert_eq!(elastic("--nnodes 0:4 --elastic_timeout 5 train.py"), (4, Some((1, 5))));
    assert_eq!(elastic("--nnodes 4:4 --master 10.0.0.1:6768 train.py"), (4, None));
}

#[test]
fn defaults() {
    let spec = launch("train.py");
    assert_eq!(spec.request.job_id.as_str(), "default");
    assert_eq!(
        (spec.request.logs.dir.to_str(), habits(&spec).log_level.as_str(), spec.request.logs.overwrite),
        (Some("log"), "INFO", false)
    );
    assert_eq!(
        (spec.request.processes, spec.request.host, spec.request.ip, spec.request.node_rank),
        (Processes::PerDevice, None, None, None)
    );
    assert_eq!(
        (&spec.request.nodes, spec.request.sort_ip, spec.command_line.as_str()),
        (&Nodes::One, false, "train.py")
    );
    assert_eq!((spec.request.backend, &spec.request.ports), (Backend::Auto, &PortRequest::Free));
    assert_eq!((spec.request.policy, spec.request.exit_codes), (Policy::default(), ExitCodes::Umiak));
    assert_eq!((spec.request.logs.names, spec.request.logs.rotation), (LogNames::Global, None));
    assert_eq!(spec.request.server_timeout, None);
    assert_eq!(
        (habits(&spec).gpu_log, habits(&spec).variables.auto_cluster, habits(&spec).variables.env_limit),
        (false, false, Some(48_000))
    );
    assert_eq!(spec.own, OwnFlags::default());
}

#[test]
fn usage_errors_say_what_to_do() {
    assert_eq!(
        refused("--log_dirs x train.py"),
        "error[L0001]: unknown flag `--log_dirs`\nhint: did you mean `--log_dir`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n"
    );
    assert_eq!(
        refused("--frobnicate=1 train.py"),
        "error[L0001]: unknown flag `--frobnicate`\nhint: `-h` lists all flags; the script's own flags come after the script\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n"
    );
    assert_eq!(
        refused("--log x train.py"),
        "error[L0001]: `--log` is ambiguous: it could be `--log_level`, `--log_overwrite` or `--log_dir`\nhint: write the whole flag\n"
    );
    assert_eq!(
        refused("--gpus"),
        "error[L0001]: `--gpus` needs a value\nhint: a value that begins with a dash is written `--gpus=VALUE`\n"
    );
    assert_eq!(
        refused("--gpus train.py"),
        "error[L0001]: the training script is missing\nhint: `train.py` was read as the value of `--gpus`; the script comes after it\n"
    );
    assert_eq!(
        refused("--nproc_per_node two --log_overwrite perhaps train.py"),
        "error[L0001]: `--nproc_per_node` takes a whole number, not `two`\nerror[L0001]: `--log_overwrite` takes `true` or `false` (also yes/no, on/off, 1/0), not `perhaps`\n"
    );
    assert_eq!(refused("--dry-run=yes t.py"), "error[L0001]: `--dry-run` takes no value, but was given `yes`\n");
    for (line, meant) in [
        ("--dry_rn t.py", "--dry-run"),
        ("--outp json t.py", "--output"),
        ("--log-name local t.py", "--log-names"),
        ("--nproc_per_nodes=2 t.py", "--nproc_per_node"),
        ("--start-prt=2 t.py", "--start_port"),
    ] {
        assert!(refused(line).contains(&format!("did you mean `{meant}`?")), "{line}: {}", refused(line));
    }
    let disguised = parse(Spelling::Launch, &["--foo=a b".into(), "t.py".into()], &BTreeMap::new());
    assert!(plain(&disguised.expect_err("unknown")).contains("unknown flag `--foo`"));
}

#[test]
fn own_flags_have_underscores_or_dashes() {
    let policy = |line: &str| launch(line).request.policy;
    let expected = policy("--hang-timeout 10m --restart-backoff 3s t.py");
    assert_eq!(expected.hang, Some(Duration::from_secs(600)));
    assert_eq!(policy("--hang_timeout 10m --restart_backoff=3s t.py"), expected);
}

#[test]
fn values_that_cannot_be() {
    for (line, code, part) in [
        ("--nproc_per_node -2 t", Code::L0001, "a number from 1 to 65535, not `-2`"),
        ("--max_restart 99999999999999 t", Code::L0001, "a number from 0 to 4294967295, not `99999999999999`"),
        ("--log_level loud t", Code::L0001, "not `loud`"),
        ("--log_dir= t", Code::L0001, "name a directory"),
        ("--job_id a/b t", Code::L0001, "`--job_id` cannot be `a/b`: it would be a path"),
        ("--gpus 0,,1 t", Code::L0001, "an empty entry in its list: `0,,1`"),
        ("--host node1 t", Code::L0001, "takes the address of this node, not `node1`"),
        ("--host node1.example.org t", Code::L0001, "not `node1.example.org`"),
        ("--ips node1 t", Code::L0001, "takes IP addresses, not `node1`"),
        ("--ips 127.0.0.1,10.0.0.2 t", Code::L0002, "`127.0.0.1` cannot be one of several nodes"),
        ("--start_port 70000 t", Code::L0001, "asks for port 70000"),
        ("--run_mode pss t", Code::L0001, "takes `collective`, `ps`, `ps-heter` or `rpc`, not `pss`"),
        ("--nnodes none t", Code::L0001, "not `none`"),
        ("--nnodes 0 t", Code::L0001, "not `0`"),
        ("--np x t", Code::L0001, "`--np` takes a number of nodes such as `1` or `2:4`, not `x`"),
        ("--backend mpi t", Code::L0007, "not `mpi`"),
        ("--backend nccl --run_mode ps t", Code::L0002, "works with collective jobs only"),
        ("--output loud t", Code::L0001, "`--output` takes `human`, `json` or `quiet`, not `loud`"),
        ("--grace 5x t", Code::L0001, "takes a duration such as `10s`, `5m`, `6h`, `1d` or `500ms`, not `5x`"),
        ("--grace=-5s t", Code::L0001, "takes a duration that is not negative, not `-5s`"),
    ] {
        let errors = run(Spelling::Launch, line, &[]).expect_err(line);
        assert_eq!(errors[0].code, code, "{line}");
        assert!(plain(&errors).contains(part), "{line}: {}", plain(&errors));
    }
    assert!(
        refused("--backend nccl --run_mode ps t")
            .contains("error[L0002]: `--backend nccl` works with collective jobs only, but `--run_mode` is `ps`")
    );
}

#[test]
fn flags_reach_their_fields() {
    let spec = launch(
        "--log-dir out --log_level debug --log_overwrite 1 --job_id j --nproc_per_node=2 --host 10.0.0.5 --ips 10.0.0.5 --start-port 7000 --enable_gpu_log yes --auto_cluster_config 1 --master 10.0.0.5:99 t.py",
    );
    assert_eq!(
        (spec.request.logs.dir.to_str(), habits(&spec).log_level.as_str(), spec.request.logs.overwrite),
        (Some("out"), "DEBUG", true)
    );
    assert_eq!((spec.request.job_id.as_str(), spec.request.processes), ("j", Processes::Number(2)));
    assert_eq!((spec.request.host, spec.request.ip), ("10.0.0.5".parse().ok(), "10.0.0.5".parse().ok()));
    assert_eq!(
        (spec.request.ports.clone(), habits(&spec).gpu_log, habits(&spec).variables.auto_cluster),
        (fixed(7000, "--start_port"), true, true)
    );
    assert_eq!(habits(&spec).lines, ["LAUNCH WARNING <ts> Host ip reset to 10.0.0.5"]);
    assert_eq!(launch("--host fe80::1 t").request.host, "fe80::1".parse().ok());
    assert_eq!(launch("--ips localhost t").request.ip, "127.0.0.1".parse().ok());
    for (line, source, kind) in [
        ("--devices 0", "--devices", None),
        ("--xpus 0", "--xpus", Some(DeviceKind::Xpu)),
        ("--npus 0", "--npus", Some(DeviceKind::Npu)),
        ("--selected_gpus 0", "--selected_gpus", Some(DeviceKind::Gpu)),
        ("--gpus 1 --xpus 0", "--xpus", Some(DeviceKind::Xpu)),
    ] {
        let expected = DeviceRequest { source: source.to_owned(), kind, ids: vec!["0".to_owned()] };
        assert_eq!(launch(&format!("{line} t")).request.devices, Some(expected), "{line}");
    }
    assert_eq!(launch("--gpus= t").request.devices, None);
    assert_eq!(launch("--compat paddle --nproc_per_node 0 t").request.processes, Processes::PerDevice);
    assert_eq!(
        refused("--nproc_per_node 0 t"),
        "error[L0001]: `--nproc_per_node` takes a number from 1 to 65535, not `0`\n"
    );
    let omp = |line: &str| launch(line).request.omp;
    assert_eq!((omp("t"), omp("--omp auto t"), omp("--omp 4 t")), (Omp::OneUnlessSet, Omp::Share, Omp::Count(4)));
    assert!(refused("--omp 0 t").contains("`--omp` takes `auto` or a number from 1 up, not `0`"));
}

/// Unknown flags: ignored with Paddle's own spelling, with one notice that names them.
#[test]
fn paddle_ignores_unknown_flags() {
    for spelling in
        [Spelling::Fleetrun { program: "fleetrun".into() }, Spelling::PaddleModule { interpreter: interpreter() }]
    {
        let spec = run(spelling.clone(), "--gpsu=0,1 --frobnicate --log_dir d t.py", &[]).expect("Paddle takes it");
        assert_eq!(
            plain(&spec.notices),
            "notice[L0023]: `--gpsu` and `--frobnicate` have no effect\n  --gpsu        it is unknown, and ignored as in Paddle; did you mean `--gpus`?\n  --frobnicate  it is unknown, and ignored as in Paddle\n"
        );
        assert_eq!(
            (spec.request.generation(), spec.request.command.script.to_str()),
            (Generation::Legacy, Some("t.py"))
        );
        assert_eq!(
            habits(&spec).lines,
            ["LAUNCH WARNING <ts> Compatible mode enable with args ['--gpsu=0,1', '--frobnicate']"]
        );
        // An unknown flag takes no value: the word after it is the script, and the message explains that.
        let command = run(spelling.clone(), "--gpsu 0,1 t.py", &[]).expect("Paddle takes it").request.command;
        assert_eq!(command.script, "0,1");
        assert_eq!(
            command.misread.as_deref(),
            Some("`--gpsu` is unknown, so `0,1` was read as the script, as Paddle does; did you mean `--gpus`?")
        );
        let spec = run(spelling, "--master h:1 --what=x t.py", &[]).expect("Paddle takes it");
        assert_eq!(spec.request.generation(), Generation::Current, "with a master nothing is handed over");
    }
    let fleetrun = Spelling::Fleetrun { program: "fleetrun".into() };
    assert_eq!(
        plain(&run(fleetrun, "--gpsu=0,1", &[]).expect_err("no script")),
        "error[L0001]: the training script is missing\nhint: the script comes after the flags: `umiak launch --gpus 0,1 train.py`\nhint: `--gpsu` is unknown; did you mean `--gpus`?\n"
    );
    assert!(refused("--gpsu=0,1").starts_with("error[L0001]: unknown flag `--gpsu`\n"));
    assert!(refused("--gpsu=0,1").contains("error[L0001]: the training script is missing\n"));
}

#[test]
fn flags_of_torchrun_lead_to_ours() {
    for (line, expected) in [
        (
            "-m pkg.train",
            "error[L0001]: `-m` is a flag of `torchrun`\nhint: start a module with `umiak launch python -m MODULE`\n",
        ),
        (
            "--standalone t.py",
            "error[L0001]: `--standalone` is a flag of `torchrun`\nhint: one node is the default: leave it out\n",
        ),
        (
            "--rdzv_endpoint=h:1 t.py",
            "error[L0001]: `--rdzv_endpoint` is a flag of `torchrun`\nhint: use `--master HOST:PORT --nnodes N`\n",
        ),
        ("--node-rank=1 t.py", "error[L0001]: `--node-rank` is a flag of `torchrun`\nhint: use `--rank`\n"),
    ] {
        assert_eq!(refused(line), expected, "{line}");
    }
}

#[test]
fn flags_behind_the_script_get_a_notice() {
    for (line, expected) in [
        (
            "x.py --nproc_per_node 2",
            "notice[L0023]: `--nproc_per_node` follows the script and is passed to it\nhint: flags for umiak come before the script: `umiak launch --nproc_per_node … x.py`\n",
        ),
        (
            "x.py --gpus=0,1 --dry-run a --gpus 2",
            "notice[L0023]: `--gpus` and `--dry-run` follow the script and are passed to it\nhint: flags for umiak come before the script: `umiak launch --gpus … x.py`\n",
        ),
        // The script's own flags, and flags that are also given before the script.
        ("x.py --log_dir out --devices 0 --output o --lr 0.1 nproc_per_node", ""),
        ("--nproc_per_node 2 --gpus 0,1 x.py --nproc_per_node 3 --gpus 4", ""),
        // A launcher inside a rank.
        ("python -m paddle.distributed.launch --nproc_per_node 2 x.py", ""),
        ("torchrun --nproc_per_node 2 x.py", ""),
    ] {
        assert_eq!(plain(&launch(line).notices), expected, "{line}");
    }
}

/// Launchers before 2.0.
#[test]
fn old_flags_keep_their_meaning() {
    let spec = launch("--selected_gpus=0,1 --started_port 9999 --log_level 10 train.py");
    assert_eq!(
        (spec.request.ports.clone(), spec.request.generation()),
        (fixed(9999, "--started_port"), Generation::Legacy)
    );
    assert_eq!(habits(&spec).log_level, "DEBUG");
    let two = ["192.168.0.16", "192.168.0.17"];
    for (line, name) in [
        ("--cluster_node_ips=192.168.0.16,192.168.0.17 --node_ip=192.168.0.17 t.py", "--cluster_node_ips"),
        ("--hosts 192.168.0.16,192.168.0.17 --host 192.168.0.17 t.py", "--hosts"),
        ("--ips=192.168.0.16,192.168.0.17 --hosts=192.168.0.17 t.py", "--ips"),
        (
            "--endpoints=192.168.0.16:8585,192.168.0.17:9696,192.168.0.17:9697 --node_ip 192.168.0.17 t.py",
            "--endpoints",
        ),
    ] {
        let spec = launch(line);
        assert_eq!(spec.request.nodes, listed(&two, name), "{line}");
        assert_eq!(spec.request.host, "192.168.0.17".parse().ok(), "{line}");
        assert_eq!(spec.notices, [], "{line}");
    }
    let spec = launch("--use_paddlecloud --print_config True --use_env=1 t.py a");
    assert_eq!((spec.request.command.script.to_str(), spec.request.command.args), (Some("t.py"), vec!["a".into()]));
    assert_eq!(spec.notices.len(), 1, "{}", plain(&spec.notices));
    let spec = launch("--worker_num 2 --server_num 2 --endpoints 127.0.0.1:6100,127.0.0.1:6101 t.py");
    let Mode::Servers(mode) = spec.request.mode else { panic!("a job with servers") };
    assert!(matches!(mode.servers, Crew::Listed(list) if list.len() == 2));
    assert!(refused("--hosts 10.0.0.1,10.0.0.2 --ips 10.0.0.1 t").contains("`--hosts` and `--ips` set the same value"));
    let mlus = launch("--mlus 0,1,2 t.py").request.devices.expect("a list");
    assert_eq!((mlus.kind, mlus.ids.len()), (Some(DeviceKind::Mlu), 3));
}

#[test]
fn paddles_own_check() {
    let spec = launch("run_check");
    assert_eq!((spec.request.nodes, spec.request.command.is_check), (auto(2, "run_check"), true));
    assert_eq!(launch("--nnodes 1 run_check").request.nodes, Nodes::One);
    assert_eq!(launch("--master h:1 --nnodes 4 run_check").request.nodes, master("h", 1, 4, "--master"));
    assert!(!launch("--backend gloo run_check").request.command.is_check, "the legacy launcher has none");
}

#[test]
fn our_own_flags() {
    let spec = launch(
        "--output json --mirror --dry-run --compat paddle --exit-codes torch --share-devices --log-names local --no-progress --ascii --isolate --numa --log-max-size 1M --log-keep 3 --grace 500ms t --mirror",
    );
    let expected = OwnFlags {
        output: OutputMode::Json,
        mirror: true,
        dry_run: true,
        compat: Compat::Paddle,
        no_progress: true,
        ascii: true,
        isolate: true,
        ..OwnFlags::default()
    };
    assert_eq!(spec.own, expected);
    let request = &spec.request;
    assert_eq!((request.exit_codes, request.share_devices, request.numa), (ExitCodes::Torch, true, true));
    let rotation = Some(Rotation { max_bytes: 1 << 20, keep: 3 });
    assert_eq!((request.logs.names, request.logs.rotation), (LogNames::Local, rotation));
    assert_eq!((request.policy.stop.grace, habits(&spec).proxies), (Duration::from_millis(500), Proxies::PutAside));
    assert_eq!(
        launch("--dry-run t.py").request.generation(),
        Generation::Current,
        "ours are taken out before the dispatch"
    );
}

#[test]
fn help_is_asked_for() {
    for line in ["-h", "--help", "--gpus 0 -h", "--unknown -h"] {
        let parsed = parse(Spelling::Launch, &words(line), &BTreeMap::new());
        assert!(matches!(parsed, Ok(Parsed::Help(_))), "{line}");
    }
    assert_eq!(launch("t -h").request.command.args, ["-h"]);
}

#[test]
fn paths_and_script_arguments_need_not_be_utf8() {
    let odd = || OsString::from_vec(vec![0xff]);
    let argv = ["--log_dir".into(), odd(), odd(), odd()];
    let Ok(Parsed::Launch(spec)) = parse(Spelling::Launch, &argv, &BTreeMap::new()) else { panic!("parses") };
    assert_eq!((spec.request.logs.dir.as_os_str(), &spec.request.command.script), (odd().as_os_str(), &odd()));
    assert_eq!(value(&spec, "training_script_args"), "['\\udcff']");
    let errors = parse(Spelling::Launch, &["--job_id".into(), odd(), "t".into()], &BTreeMap::new()).expect_err("text");
    assert!(errors[0].message.contains("UTF-8 text"));
}

/// A random word that is likely to be meaningful.
fn word() -> impl Strategy<Value = OsString> {
    let names: Vec<&'static str> = FLAGS.iter().flat_map(flags::Flag::names).collect();
    prop_oneof![
        3 => proptest::sample::select(names.clone()).prop_map(OsString::from),
        2 => (proptest::sample::select(names), "[0-9a-z:.,-]{0,8}").prop_map(|(name, value)| format!("{name}={value}").into()),
        3 => "[0-9:,;.-]{0,8}".prop_map(OsString::from),
        1 => proptest::sample::select(vec!["", "-", "--", "-h", "t.py", "true", "etcd://", "etcd://h:1", "ipu", "::1", "10.0.0.1", "10.0.0.1:1", "10.0.0.1:2,10.0.0.2:1", "1;2", "ps", "ps-heter"]).prop_map(OsString::from),
        1 => proptest::collection::vec(any::<u8>(), 0..6).prop_map(OsString::from_vec),
    ]
}

fn environment() -> impl Strategy<Value = BTreeMap<String, String>> {
    let mut names: Vec<String> = FLAGS.iter().filter_map(|flag| flag.variable).map(|it| it.name.to_owned()).collect();
    names.extend(
        [
            "PADDLE_TRAINERS",
            "PADDLE_TRAINER_ID",
            "TRAINER_PORTS_NUM",
            "PADDLE_TRAINERS_NUM",
            "PADDLE_PORT",
            "UMIAK_PORT",
            "PADDLE_TRAINER_ENDPOINTS",
            "DISTRIBUTED_TRAINER_ENDPOINTS",
            "PADDLE_DISTRI_BACKEND",
            "PORT_RANGE",
            "FLAGS_START_PORT",
            "FLAGS_FIXED_PORT",
            "PADDLE_ENV_LIMIT_LEN",
            "PADDLE_PSERVERS_IP_PORT_LIST",
            "TRAINING_ROLE",
        ]
        .map(str::to_owned),
    );
    names.extend(super::super::elastic::variables().map(str::to_owned));
    proptest::collection::btree_map(
        proptest::sample::select(names),
        prop_oneof!["[0-9:,.-]{0,12}", "PSERVER|TRAINER|ps|a:1(,b:2)?", any::<String>()],
        0..6,
    )
}

proptest! {
    #[test]
    fn never_panics(argv in proptest::collection::vec(word(), 0..12), env in environment(), fleet in any::<bool>()) {
        let spelling = if fleet { Spelling::FleetModule { interpreter: interpreter() } } else { Spelling::Launch };
        match parse(spelling, &argv, &env) {
            Ok(Parsed::Launch(spec)) => {
                prop_assert!(!spec.request.command.script.is_empty());
                prop_assert!(argv.ends_with(&spec.request.command.args));
            }
            Ok(Parsed::Help(text)) => prop_assert!(text.starts_with("usage: ")),
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                prop_assert!(errors.iter().all(|error| error.exit_code() == 2));
            }
        }
        let _ = recognise(&argv);
    }
}

#[test]
fn restarts_are_asked_for() {
    for (line, env, expected) in [
        ("t", vec![], 0),
        ("--max_restart 2 t", vec![], 2),
        ("--max_restart 0 t", vec![], 0),
        ("--max_restart=-1 t", vec![], 0),
        ("t", vec![("PADDLE_MAX_RESTART", "5")], 5),
        ("--max_restart 2 t", vec![("PADDLE_MAX_RESTART", "5")], 5),
        ("--master etcd://h t", vec![], 3),
        ("--master etcd://h --max_restart 1 t", vec![], 1),
        ("--master etcd://h --max_restart 0 t", vec![], 0),
        ("--elastic_server h --job_id j --np 2 t", vec![], 3),
        ("--elastic_server h --job_id j --np 2 --max_restart 1 t", vec![], 1),
    ] {
        assert_eq!(launch_in(line, &env).request.policy.restart.max, expected, "{line} {env:?}");
    }
    let idle = "notice[L0023]: `--restart-window` has no effect: nothing is restarted without `--max_restart`\n";
    assert_eq!(plain(&launch("--restart-window 10m t").notices), idle);
    assert_eq!(launch("--restart-window 10m --max_restart 1 t").notices, []);
    assert_eq!(launch("--restart-window 10m --master etcd://h --job_id j t").notices, []);
    assert_eq!(plain(&launch("--restart-window 10m --max_restart 0 --master etcd://h --job_id j t").notices), idle);
    let restart = launch("--restart-backoff 200ms --restart-window 10m t").request.policy.restart;
    assert_eq!((restart.backoff.as_millis(), restart.window.map(|it| it.as_secs())), (200, Some(600)));
    let restart = launch("--restart-window 0s t").request.policy.restart;
    assert_eq!((restart.backoff.as_millis(), restart.window), (1000, None));
    let restart = launch("--restart-backoff 2m t").request.policy.restart;
    assert_eq!((restart.backoff.as_secs(), restart.max_backoff.as_secs()), (120, 120));
}
