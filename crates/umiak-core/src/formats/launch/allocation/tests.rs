//! Environments as real programs set them (Slurm 22.05, Open MPI 4.1), and what they mean.

use super::*;
use crate::formats::launch::{LaunchSpec, Parsed, Spelling, parse};

/// A task of `srun -N3 --ntasks-per-node=1`, on the second node.
const STEP_OF_THREE: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "12"),
    ("SLURM_STEP_ID", "1"),
    ("SLURM_JOB_NUM_NODES", "4"),
    ("SLURM_JOB_NODELIST", "n[1-4]"),
    ("SLURM_STEP_NODELIST", "n[2-4]"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_NNODES", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
    ("SLURM_NODEID", "1"),
    ("SLURM_PROCID", "1"),
    ("SLURMD_NODENAME", "n3"),
];

/// The script of `sbatch -N3`.
const BATCH: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "12"),
    ("SLURM_JOB_NUM_NODES", "3"),
    ("SLURM_JOB_NODELIST", "n[1-3]"),
    ("SLURM_NNODES", "3"),
    ("SLURM_TASKS_PER_NODE", "1(x3)"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURMD_NODENAME", "n1"),
];

/// One of two processes of `mpirun` on different hosts.
const MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ("PMIX_NAMESPACE", "1423441921"),
];

fn with(base: &[(&str, &str)], changes: &[(&str, &str)]) -> Environment {
    let mut env: Environment = base.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    for (name, value) in changes {
        env.insert((*name).to_owned(), (*value).to_owned());
    }
    env
}

fn find(env: &Environment) -> Result<Found, Diagnostic> {
    Left { env, nodes: None, port: None, program: "umiak launch", flags: "--master HOST:6768 --nnodes {}" }.find()
}

#[track_caller]
fn found(env: &Environment) -> Allocation {
    match find(env) {
        Ok(Found::Several(allocation)) => *allocation,
        other => panic!("{other:?}"),
    }
}

/// Message and hint.
#[track_caller]
fn refused(env: &Environment) -> String {
    let error = find(env).unwrap_err();
    format!("{} {}: {}", error.code.as_str(), error.message, error.hints.join("; "))
}

fn run(spelling: Spelling, line: &str, env: &Environment) -> Result<LaunchSpec, Vec<Diagnostic>> {
    let argv: Vec<std::ffi::OsString> = line.split_whitespace().map(Into::into).collect();
    match parse(spelling, &argv, env)? {
        Parsed::Launch(spec) => Ok(*spec),
        Parsed::Help(_) => panic!("`{line}` is a job"),
    }
}

#[track_caller]
fn launch(line: &str, env: &Environment) -> LaunchSpec {
    run(Spelling::Launch, line, env).unwrap_or_else(|errors| panic!("{line}: {errors:?}"))
}

#[track_caller]
fn torchrun(line: &str, env: &Environment) -> LaunchSpec {
    let spelling = Spelling::Torchrun { program: "torchrun".into() };
    run(spelling, line, env).unwrap_or_else(|errors| panic!("{line}: {errors:?}"))
}

fn at(host: &str, port: u16, nodes: u32, source: &str) -> Nodes {
    Nodes::Master { host: host.to_owned(), port: Port::new(port).unwrap(), nodes, source: source.to_owned() }
}

#[test]
fn a_step_names_its_nodes() {
    let step = found(&with(STEP_OF_THREE, &[]));
    assert_eq!(step.nodes, at("n2", 7213, 3, "SLURM_STEP_NODELIST"));
    assert_eq!(step.rank, 1);
    assert_eq!(step.placement, Placement { by: "Slurm step 12.1".to_owned(), leads: Some(false) });
    assert_eq!(step.job_id.as_str(), "slurm-12.1");
    let first = found(&with(STEP_OF_THREE, &[("SLURM_NODEID", "0"), ("SLURMD_NODENAME", "n2")]));
    assert_eq!((first.rank, first.placement.leads, first.nodes), (0, Some(true), step.nodes));
    // Slurm of another version, or a list in a container: the least that is needed.
    let least = [("SLURM_JOB_ID", "3"), ("SLURM_STEP_ID", "0"), ("SLURM_JOB_NODELIST", "a,b"), ("SLURM_NODEID", "1")];
    assert_eq!(found(&with(&least, &[])).nodes, at("a", 7195, 2, "SLURM_JOB_NODELIST"));
    // A step over two groups of a heterogeneous job lists the nodes of both.
    let het = [("SLURM_HET_SIZE", "2"), ("SLURM_JOB_NODELIST_HET_GROUP_0", "n1"), ("SLURM_JOB_NODELIST", "n[2-4]")];
    assert_eq!(found(&with(STEP_OF_THREE, &het)).rank, 1);
}

#[test]
fn one_node_and_processes_of_a_launcher_are_left_alone() {
    for env in [
        with(&[], &[]),
        with(&[("SLURM_JOB_ID", "")], &[]),
        // `srun -N1` in an allocation of several nodes.
        with(
            STEP_OF_THREE,
            &[
                ("SLURM_STEP_NODELIST", "n4"),
                ("SLURM_NNODES", "1"),
                ("SLURM_STEP_TASKS_PER_NODE", "1"),
                ("SLURM_NODEID", "0"),
                ("SLURMD_NODENAME", "n4"),
            ],
        ),
        with(BATCH, &[("SLURM_JOB_NUM_NODES", "1"), ("SLURM_JOB_NODELIST", "n1")]),
        with(STEP_OF_THREE, &[("TORCHELASTIC_RUN_ID", "none")]),
        with(STEP_OF_THREE, &[("UMIAK_RUN", "run-000001")]),
        with(STEP_OF_THREE, &[("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6070")]),
        with(MPI, &[("OMPI_COMM_WORLD_SIZE", "1")]),
    ] {
        assert_eq!(find(&env), Ok(Found::Nothing), "{env:?}");
    }
}

#[test]
fn scripts_and_shells_use_this_node_alone() {
    let shells: &[&[(&str, &str)]] = &[
        &[],
        // `salloc` on a login node, and with a step for its shell.
        &[("SLURM_NODEID", "")],
        &[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NODELIST", "n1")],
        // `srun --pty bash`.
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NODELIST", "n[1-3]"), ("SLURM_PTY_PORT", "40000")],
        // `sbatch` inside a step: the script has the variables of that step.
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NODELIST", "n[1-2]"), ("SLURM_STEP_TASKS_PER_NODE", "1(x2)")],
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NODELIST", "m[1-3]")],
    ];
    for changes in shells {
        let Ok(Found::Alone(notice)) = find(&with(BATCH, changes)) else { panic!("{changes:?}") };
        assert_eq!(notice.message, "Slurm job 12 has 3 nodes, and only this one is used");
        let hint = "use all of them with `srun --ntasks-per-node=1 umiak launch …`; `--nnodes 1` means this node alone";
        assert_eq!(notice.hints, [hint]);
    }
}

#[test]
fn several_tasks_on_a_node_are_refused() {
    let env = with(STEP_OF_THREE, &[("SLURM_STEP_TASKS_PER_NODE", "2,1(x2)")]);
    assert_eq!(
        refused(&env),
        "L0036 Slurm started 2 tasks on one node, and each would start all ranks of that node: start one on each node \
         with `srun --ntasks-per-node=1 umiak launch --nproc_per_node 2 …`; with `--nnodes 1` each task is a job of its own"
    );
    assert_eq!(launch("--nnodes 1 train.py", &env).request.nodes, Nodes::One);
    let env = with(MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    assert_eq!(
        refused(&env),
        "L0036 `mpirun` started 2 processes on this host, and each would start all ranks of it: start one on each host \
         with `mpirun --map-by ppr:1:node umiak launch --nproc_per_node 2 …`; with `--nnodes 1` each process is a job of \
         its own"
    );
    assert_eq!(torchrun("--nnodes 1 train.py", &env).request.nodes, Nodes::One);
}

#[test]
fn variables_that_cannot_be_read_are_named() {
    for (name, value, message) in [
        (
            "SLURM_STEP_NODELIST",
            "n[2-",
            "`SLURM_STEP_NODELIST` is not a list of nodes: a bracket is not closed in `n[2-`",
        ),
        (
            "SLURM_STEP_NODELIST",
            "n[1-99999999]",
            "`SLURM_STEP_NODELIST` is not a list of nodes: it has more than 16384 entries",
        ),
        ("SLURM_JOB_ID", "x", "`SLURM_JOB_ID` must be a whole number, not `x`"),
        ("SLURM_NODEID", "3", "`SLURM_NODEID` is 3, and `SLURM_STEP_NODELIST` has 3 nodes"),
        ("SLURM_NODEID", "", "`SLURM_NODEID` is missing, and `SLURM_STEP_NODELIST` has 3 nodes"),
        (
            "SLURM_STEP_TASKS_PER_NODE",
            "1(x",
            "`SLURM_STEP_TASKS_PER_NODE` is not a list of counts: `1(x` is not a count such as `2` or `2(x3)`",
        ),
    ] {
        let env = with(STEP_OF_THREE, &[(name, value)]);
        let error = find(&env).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (Code::L0008, message));
        // Whoever names the nodes does not need them.
        assert_eq!(launch("--nnodes 1 train.py", &env).request.nodes, Nodes::One);
        launch("--master n2:7000 --nnodes 3 train.py", &env);
    }
}

#[test]
fn mpirun_names_no_hosts_but_inside_slurm() {
    assert_eq!(
        refused(&with(MPI, &[])),
        "L0037 `mpirun` started 2 processes, and its variables do not say on which hosts: name the host of one of them with \
         `--master HOST:6768 --nnodes 2`, on all of them; with `--nnodes 1` each is a job of its own"
    );
    let hydra = [("PMI_SIZE", "2"), ("PMI_RANK", "1"), ("MPI_LOCALNRANKS", "1"), ("MPI_LOCALRANKID", "0")];
    assert!(refused(&with(&hydra, &[])).starts_with("L0037"));
    // `srun --mpi=pmi2` sets these too.
    let pmi2 = with(STEP_OF_THREE, &[("PMI_SIZE", "3"), ("PMI_RANK", "1")]);
    assert_eq!(found(&pmi2).job_id.as_str(), "slurm-12.1");
    // The process beside `mpirun` has the variables of the batch script, others those of the step that `mpirun` started.
    let slurm = [("SLURM_JOB_ID", "12"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    let other = [("SLURM_STEP_ID", "4"), ("SLURM_STEP_NODELIST", "n2"), ("SLURM_NODEID", "0")];
    let beside = found(&with(MPI, &slurm));
    assert_eq!(found(&with(MPI, &[&slurm[..], &other[..]].concat())), beside);
    let Nodes::Master { host, nodes, source, .. } = &beside.nodes else { panic!("{beside:?}") };
    assert_eq!((host.as_str(), *nodes, source.as_str(), beside.rank), ("n1", 2, "SLURM_JOB_NODELIST", 1));
    assert_eq!(beside.placement, Placement { by: "mpirun in Slurm job 12".to_owned(), leads: None });
    // On some of the nodes: it is not known on which.
    let some = with(MPI, &[&slurm[..], &[("SLURM_JOB_NODELIST", "n[1-3]")][..]].concat());
    assert!(refused(&some).starts_with("L0037"));
}

#[test]
fn launch_takes_the_nodes_of_the_step() {
    let env = with(STEP_OF_THREE, &[]);
    let request = launch("--nproc_per_node 2 train.py", &env).request;
    assert_eq!(request.nodes, at("n2", 7213, 3, "SLURM_STEP_NODELIST"));
    assert_eq!((request.node_rank, request.job_id.as_str(), request.name.as_str()), (Some(1), "slurm-12.1", "train"));
    assert_eq!(launch("--nnodes 3 train.py", &env).request.nodes, request.nodes);
    assert_eq!(launch("--server_num 1 --trainer_num 1 train.py", &env).request.nodes, request.nodes);
    assert_eq!(launch("--job_id mine train.py", &env).request.job_id.as_str(), "mine");
    let ported = launch("--rdzv-port 7000 train.py", &env);
    assert_eq!(ported.request.nodes, at("n2", 7000, 3, "SLURM_STEP_NODELIST"));
    assert!(ported.notices.is_empty(), "{:?}", ported.notices);
    let ranked = launch("--rank 0 --sort_ip true train.py", &env);
    assert_eq!((ranked.request.node_rank, ranked.request.sort_ip, ranked.notices.len()), (Some(1), false, 1));
    for spelling in [Spelling::Launch, Spelling::Torchrun { program: "torchrun".into() }] {
        let errors = run(spelling, "--nnodes 2 train.py", &env).unwrap_err();
        let found = (errors.len(), errors[0].code, errors[0].message.as_str());
        assert_eq!(found, (1, Code::L0008, "`--nnodes` is 2, and Slurm step 12.1 has 3 nodes"));
    }
    // Flags and Paddle's variables win.
    for (line, variables, nodes) in [
        ("--nnodes 1 train.py", &[][..], Nodes::One),
        ("train.py", &[("PADDLE_NNODES", "1")], Nodes::One),
        ("--ips 10.0.0.1 train.py", &[], Nodes::One),
        ("--master a:6000 --nnodes 2 train.py", &[], at("a", 6000, 2, "--master")),
        ("--master a:6000 train.py", &[], Nodes::One),
    ] {
        let request = launch(line, &with(STEP_OF_THREE, variables)).request;
        assert_eq!((request.nodes, request.placement, request.job_id.as_str()), (nodes, None, "default"), "{line}");
    }
}

#[test]
fn torchrun_takes_the_nodes_of_the_step() {
    let env = with(STEP_OF_THREE, &[]);
    for line in ["train.py", "--nnodes 3 train.py", "--rdzv-backend c10d train.py"] {
        let request = torchrun(line, &env).request;
        assert_eq!(request.nodes, at("n2", 7213, 3, "SLURM_STEP_NODELIST"), "{line}");
        assert_eq!((request.node_rank, request.job_id.as_str()), (Some(1), "slurm-12.1"), "{line}");
    }
    assert_eq!(torchrun("--rdzv-id mine train.py", &env).request.job_id.as_str(), "mine");
    for (line, nodes) in [
        ("--nnodes 1 train.py", Nodes::One),
        ("--standalone train.py", Nodes::One),
        ("--master-port 29501 train.py", Nodes::One),
        ("--nnodes 2 --rdzv-endpoint a:6000 train.py", at("a", 6000, 2, "--nnodes")),
    ] {
        let request = torchrun(line, &env).request;
        assert_eq!((request.nodes, request.placement), (nodes, None), "{line}");
    }
    let spec = torchrun("train.py", &with(BATCH, &[]));
    assert_eq!((spec.request.nodes, spec.notices.len()), (Nodes::One, 1));
}
