//! `mpirun`: which one it is, and its command line.
//!
//! `mpirun` starts `umiak agent DIRECTORY` once for each replica. Each role is an application context, in the order of the
//! document, so the rank of MPI is the number of the replica over all roles. Commands and variables of replicas are in
//! the unit's file: neither a shell nor `mpirun` reads them.
//!
//! | launcher | known by | hosts | rank of an agent |
//! |---|---|---|---|
//! | Open MPI 4 | `mpirun (Open MPI) 4.1.4` | `host slots=N` | `OMPI_COMM_WORLD_RANK` |
//! | Open MPI 5 | `mpirun (Open MPI) 5.0.11` | `host slots=N` | `OMPI_COMM_WORLD_RANK` |
//! | Hydra of MPICH and Intel MPI | `HYDRA build details:` | `host:N` | `PMI_RANK` |

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use crate::diag::{Code, Diagnostic};
use crate::model::{Job, MPI_VARIABLES, MpiOptions};
use crate::quote::shell::quoted;

/// Names of files in the unit's directory: the hosts, the command line as a script, the output of `mpirun` itself.
pub const HOSTS: &str = "hosts";
pub const SCRIPT: &str = "mpirun.sh";
pub const LOG: &str = "mpirun.log";

/// Has the rank of a process, by launcher; the first one that is set counts.
pub const RANK_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherKind {
    OpenMpi4,
    OpenMpi5,
    Hydra,
}

/// A program that starts processes of MPI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    pub kind: LauncherKind,
    pub version: String,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.kind {
            LauncherKind::OpenMpi4 | LauncherKind::OpenMpi5 => "Open MPI",
            LauncherKind::Hydra => "Hydra",
        };
        write!(formatter, "{name} {}", self.version)
    }
}

/// Recognises a launcher by what `--version` prints.
pub fn identify(program: &Path, text: &str) -> Result<Launcher, Diagnostic> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let found = open_mpi(first).or_else(|| hydra(first, lines.next().unwrap_or_default()));
    found.ok_or_else(|| {
        let said = if first.is_empty() { "nothing" } else { first };
        Diagnostic::error(Code::E0202, format!("`{}` is not an MPI launcher that umiak knows", program.display()))
            .row("version", said)
            .hint("use `mpirun` of Open MPI 4 or later, or `mpiexec` of MPICH or Intel MPI")
    })
}

/// `mpirun (Open MPI) 4.1.4`; `mpiexec` of Open MPI 4 calls itself OpenRTE.
fn open_mpi(line: &str) -> Option<Launcher> {
    let (_, rest) = line.split_once(" (Open MPI) ").or_else(|| line.split_once(" (OpenRTE) "))?;
    let version = rest.split_whitespace().next()?;
    let kind = match major(version)? {
        0..4 => return None,
        4 => LauncherKind::OpenMpi4,
        _ => LauncherKind::OpenMpi5,
    };
    Some(Launcher { kind, version: version.to_owned() })
}

/// `HYDRA build details:`, then the version; `Intel(R) MPI Library for Linux* OS, Version 2021.9 Build …`.
fn hydra(first: &str, second: &str) -> Option<Launcher> {
    let rest = if first.starts_with("HYDRA build details") {
        second.strip_prefix("Version:")?
    } else {
        first.strip_prefix("Intel(R) MPI Library")?.split_once("Version ")?.1
    };
    let version = rest.split_whitespace().next()?;
    major(version)?;
    Some(Launcher { kind: LauncherKind::Hydra, version: version.to_owned() })
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Names of variables that `mpirun` must not inherit. If umiak itself was started by a launcher, those of that one: Open
/// MPI would take itself for one of its processes, and Hydra would pass the wrong rank on.
pub fn inherited<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let is_inside = names.clone().any(|name| RANK_VARIABLES.contains(&name));
    let is_of_launcher = |name: &&str| is_inside && MPI_VARIABLES.iter().any(|family| name.starts_with(family));
    let mut unset: Vec<String> = names.filter(is_of_launcher).map(str::to_owned).collect();
    unset.sort();
    unset
}

/// Where a launcher is called.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub launcher: &'a Launcher,
    pub program: &'a Path,
    /// The umiak program on this host.
    pub umiak: &'a Path,
    /// The directory of the unit, on all hosts.
    pub directory: &'a Path,
    pub is_root: bool,
    /// Inside an allocation whose hosts the launcher finds by itself.
    pub in_allocation: bool,
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub argv: Vec<OsString>,
    /// The contents of [`HOSTS`].
    pub host_file: Option<String>,
    /// Variables that `mpirun` gets.
    pub env: Vec<(&'static str, &'static str)>,
    /// The positions of [`argv`](Self::argv) at which a line begins when it is shown.
    breaks: Vec<usize>,
}

/// The command line for a job, or why `mpirun` cannot run it.
pub fn render(job: &Job, options: &MpiOptions, call: &Call<'_>) -> Result<Rendered, Diagnostic> {
    check(job, options)?;
    let is_hydra = call.launcher.kind == LauncherKind::Hydra;
    let hosts = hosts(job, options, call);
    let mut argv: Vec<OsString> = vec![call.program.into()];
    let mut breaks = Vec::new();
    if !is_hydra && call.is_root {
        argv.push("--allow-run-as-root".into());
    }
    if hosts.is_some() {
        argv.push(if is_hydra { "-f".into() } else { "--hostfile".into() });
        argv.push(call.directory.join(HOSTS).into());
    }
    if !is_hydra {
        // By default Open MPI binds each process to a core, and a replica would run on that alone. Host after host is
        // the order of Hydra, too. Open MPI 5 refuses an option that is given twice.
        let is_given = |option: &str| options.arguments.iter().any(|word| word.trim_start_matches('-') == option);
        let own = [("map-by", "slot"), ("bind-to", "none")].into_iter().filter(|(option, _)| !is_given(option));
        argv.extend(own.flat_map(|(option, value)| [format!("--{option}").into(), value.into()]));
    }
    argv.extend(options.arguments.iter().map(OsString::from));
    let umiak = options.umiak.as_deref().unwrap_or(call.umiak);
    for role in job.roles.iter().filter(|role| role.replicas > 0) {
        let is_first = breaks.is_empty();
        breaks.push(argv.len());
        if !is_first {
            argv.push(":".into());
        }
        argv.extend(["-n".into(), role.replicas.to_string().into()]);
        argv.extend([umiak.into(), "agent".into(), call.directory.into()]);
    }
    let host_file = hosts.map(|hosts| host_file(call.launcher.kind, &hosts));
    // Intel MPI binds processes to cores, too, and has no option for it.
    let env = if is_hydra { vec![("I_MPI_PIN", "off")] } else { Vec::new() };
    Ok(Rendered { argv, host_file, env, breaks })
}

/// Checks what does not depend on the launcher.
pub fn check(job: &Job, options: &MpiOptions) -> Result<(), Diagnostic> {
    let cannot = |message: String| Diagnostic::error(Code::J0030, message);
    if options.arguments.iter().any(|word| word == ":") {
        return Err(cannot("`arguments` of `mpirun` cannot contain `:`".into())
            .row("reason", "it separates the roles on the command line")
            .hint("give options only; they apply to all roles"));
    }
    let is_plain = |name: &str| {
        !name.is_empty()
            && !name.starts_with('-')
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    if let Some((name, _)) = options.hosts.iter().find(|(name, _)| !is_plain(name)) {
        return Err(cannot(format!("`{name}` is not a name of a host for `mpirun`"))
            .hint("names of hosts have letters, digits, `-`, `_` and `.`; slots are given beside the name"));
    }
    let slots: u64 = options.hosts.iter().map(|(_, slots)| u64::from(*slots)).sum();
    let replicas = replicas(job);
    if !options.hosts.is_empty() && slots < u64::from(replicas) {
        let named: Vec<String> = options.hosts.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
        return Err(cannot(format!("the job has {replicas} replicas, and the hosts have {slots} slots"))
            .row("hosts", named.join(", "))
            .hint("a slot is room for one replica: give the hosts more of them, or add hosts"));
    }
    Ok(())
}

fn replicas(job: &Job) -> u32 {
    job.roles.iter().map(|role| role.replicas).sum()
}

/// Hosts with slots for all replicas; `None` if the launcher finds them.
fn hosts(job: &Job, options: &MpiOptions, call: &Call<'_>) -> Option<Vec<(String, u32)>> {
    if options.hosts.is_empty() {
        return (!call.in_allocation).then(|| vec![("localhost".to_owned(), replicas(job))]);
    }
    Some(options.hosts.iter().filter(|(_, slots)| *slots > 0).cloned().collect())
}

fn host_file(kind: LauncherKind, hosts: &[(String, u32)]) -> String {
    hosts.iter().fold(String::new(), |mut text, (name, slots)| {
        let _ = match kind {
            LauncherKind::OpenMpi4 | LauncherKind::OpenMpi5 => writeln!(text, "{name} slots={slots}"),
            LauncherKind::Hydra => writeln!(text, "{name}:{slots}"),
        };
        text
    })
}

impl Rendered {
    /// The command line for readers, and for `bash`.
    pub fn script(&self, unset: &[String]) -> String {
        let mut text =
            "#!/usr/bin/env bash\n# Starts the agents of this unit. They run the replicas of this unit.\n".to_owned();
        if !unset.is_empty() {
            let _ = writeln!(text, "unset {}", unset.join(" "));
        }
        for (name, value) in &self.env {
            let _ = writeln!(text, "export {name}={value}");
        }
        text += "exec";
        for (position, word) in self.argv.iter().enumerate() {
            text += if self.breaks.contains(&position) { " \\\n    " } else { " " };
            text += &quoted(word);
        }
        text + "\n"
    }
}

/// What `mpirun` said, from its log: the beginning and the end, without rules and empty lines. It is only shown; causes
/// come from the agents.
pub fn said(log: &str) -> String {
    const FIRST: usize = 4;
    const LAST: usize = 6;
    const LENGTH: usize = 400;
    let is_rule = |line: &str| line.len() > 3 && line.chars().all(|letter| "-=*".contains(letter));
    let shortened = |line: &str| line.chars().take(LENGTH).collect::<String>();
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty() && !is_rule(line));
    let lines: Vec<String> = lines.map(shortened).collect();
    if lines.len() <= FIRST + LAST + 1 {
        return lines.join("\n");
    }
    [&lines[..FIRST], &["…".to_owned()], &lines[lines.len() - LAST..]].concat().join("\n")
}

#[cfg(test)]
mod tests;
