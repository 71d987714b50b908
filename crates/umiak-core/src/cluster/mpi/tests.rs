use std::collections::BTreeMap;

use super::*;
use crate::model::{JobId, Policy, Role, RoleName};

fn job(roles: &[(&str, u32)]) -> Job {
    let role = |(name, replicas): &(&str, u32)| Role::new(RoleName::new(*name).unwrap(), *replicas);
    Job {
        name: JobId::new("ctr").unwrap(),
        labels: BTreeMap::default(),
        agent_store: false,
        contracts: Vec::new(),
        roles: roles.iter().map(role).collect(),
        policy: Policy::default(),
    }
}

const LAUNCHERS: [(&str, &str); 3] = [
    ("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"),
    (
        "/opt/openmpi/bin/mpirun",
        "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
    ),
    (
        "/opt/mpich/bin/mpiexec",
        "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: today\n",
    ),
];

fn hosts(hosts: &[(&str, u32)]) -> MpiOptions {
    let hosts = hosts.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect();
    MpiOptions { hosts, ..MpiOptions::default() }
}

#[test]
fn launchers_by_their_versions() {
    for (text, expected) in [
        (LAUNCHERS[0].1, Some("OpenMpi4 4.1.4")),
        ("mpiexec (OpenRTE) 4.1.4", Some("OpenMpi4 4.1.4")),
        (LAUNCHERS[1].1, Some("OpenMpi5 5.0.11")),
        ("mpirun (Open MPI) 6.1.0a1", Some("OpenMpi5 6.1.0a1")),
        ("mpirun (Open MPI) 3.1.6", None),
        (LAUNCHERS[2].1, Some("Hydra 5.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n", Some("Hydra 2021.9")),
        ("HYDRA build details:", None),
        ("srun 22.05.8", None),
        ("", None),
    ] {
        let seen = identify(Path::new("mpirun"), text).ok().map(|it| format!("{:?} {}", it.kind, it.version));
        assert_eq!(seen.as_deref(), expected, "{text}");
    }
    let error = identify(Path::new("/usr/bin/mpirun"), "mpirun (Open MPI) 3.1.6\n").unwrap_err();
    insta::assert_snapshot!(error.to_plain());
}

#[test]
fn command_lines() {
    let odd = MpiOptions { umiak: Some("/shared/umiak's bin/umiak".into()), ..MpiOptions::default() };
    let given = MpiOptions {
        arguments: ["--mca", "btl_tcp_if_include", "eth0", "--bind-to", "core"].map(str::to_owned).to_vec(),
        ..hosts(&[("node-1", 2), ("node-2", 3), ("node-3", 0)])
    };
    let one = job(&[("trainer", 4)]);
    let two = job(&[("server", 2), ("trainer", 3)]);
    let cases = [
        ("one role", &one, &MpiOptions::default(), "/home/li/.umiak/runs/run-000001/units/0", false, false),
        ("servers and trainers, as root", &two, &MpiOptions::default(), "/runs/1", true, false),
        ("hosts and arguments", &two, &given, "/runs/1", false, false),
        ("in an allocation", &two, &MpiOptions::default(), "/runs/1", false, true),
        ("odd paths", &two, &odd, "/runs/a 'b' \"c\" $HOME\n启动 \\", false, false),
    ];
    let mut text = String::new();
    for (name, job, options, directory, is_root, in_allocation) in cases {
        for (program, version) in LAUNCHERS {
            let launcher = identify(Path::new(program), version).unwrap();
            let call = Call {
                launcher: &launcher,
                program: Path::new(program),
                umiak: Path::new("/usr/bin/umiak"),
                directory: Path::new(directory),
                is_root,
                in_allocation,
            };
            let rendered = render(job, options, &call).unwrap();
            let _ = writeln!(text, "## {name}: {launcher}\n{}", rendered.script(&[]));
            if let Some(hosts) = &rendered.host_file {
                let _ = writeln!(text, "# {HOSTS}\n{hosts}");
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn jobs_that_cannot_be_run() {
    let two = job(&[("server", 2), ("trainer", 3)]);
    let colon = MpiOptions { arguments: vec!["-x".into(), ":".into()], ..MpiOptions::default() };
    let cases = [hosts(&[("a", 2), ("b", 2)]), hosts(&[("a b", 9)]), hosts(&[("-x", 9)]), colon];
    let text: String = cases.iter().map(|options| check(&two, options).unwrap_err().to_plain()).collect();
    insta::assert_snapshot!(text);
    assert_eq!(check(&two, &hosts(&[("a", 2), ("b", 3)])), Ok(()));
}

#[test]
fn variables_of_an_outer_launcher() {
    let outer = ["HOME", "OMPI_MCA_btl", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID"];
    let unset = inherited(outer.into_iter());
    assert_eq!(unset, ["OMPI_COMM_WORLD_RANK", "OMPI_MCA_btl", "PMIX_NAMESPACE"]);
    assert_eq!(inherited(["HOME", "OMPI_MCA_btl"].into_iter()), Vec::<String>::new());
}

#[test]
fn what_a_launcher_said() {
    let rule = "-".repeat(74);
    assert_eq!(
        said(&format!("{rule}\nThere are not enough slots\n\n  /usr/bin/umiak\n{rule}\n")),
        "There are not enough slots\n/usr/bin/umiak"
    );
    let many: Vec<String> = (0..20).map(|line| format!("line {line}")).collect();
    let expected = "line 0\nline 1\nline 2\nline 3\n…\nline 14\nline 15\nline 16\nline 17\nline 18\nline 19";
    assert_eq!(said(&many.join("\n")), expected);
}
