//! The script for `sbatch`.
//!
//! It has one `srun`, which starts the agents, and waits for it. Before the time limit, and before a pre-emption where
//! the site has it so, Slurm sends SIGUSR1 to the script, and to nothing else: sent to a step, the signal would reach
//! the processes of the ranks too where Slurm tracks processes by their parents, and end them. The script tells the
//! agents by a file.
//!
//! A step that asks for GPUs per task has only those of its own tasks. So where a job has some, `srun` starts all its
//! tasks, all GPUs of a node are bound to the first of them, and the others exit.

use std::fmt::Write as _;
use std::path::Path;

use super::native::{effective, quoted as directive, seconds};
use super::parts::{Need, parts, queue};
use crate::diag::shown;
use crate::formats::engines::MAX_WARNING;
use crate::model::{Job, SlurmOptions};
use crate::plan::Plan;
use crate::quote::shell::quoted;

/// Seconds between the warning and the time limit, unless the options say otherwise or replicas need longer.
const WARNING: u32 = 60;
/// Seconds that agents have to report the end, after the longest grace period.
const LEAVING: u32 = 10;
/// The file in the unit's directory that the script writes when the job has to end soon.
pub const LIMIT_FILE: &str = "limit";
/// The file in the unit's directory with the output of the script and of `srun`.
pub const LOG_FILE: &str = "slurm.log";
/// A copy of umiak in the unit's directory, for nodes that do not have it.
pub const COPY_FILE: &str = "umiak";

/// What `sbatch` is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub text: String,
    /// Arguments before the name of the script. Paths are arguments because `#SBATCH` lines cannot have all of them.
    pub arguments: Vec<std::ffi::OsString>,
}

/// The script that starts the agents of a plan. `umiak` is the program on the nodes, `directory` that of the unit.
pub fn render(plan: &Plan, options: &SlurmOptions, umiak: &Path, directory: &Path) -> Script {
    let job_name = if plan.name.is_empty() { plan.job.name.to_string() } else { plan.name.clone() };
    let name = match &plan.step {
        Some(step) => format!("{job_name}.{step}"),
        None => job_name,
    };
    let name = plain(&shown(&name));
    let run = plan.run.as_deref().unwrap_or("a run");
    let text = Rendered { name: &name, run, job: &plan.job, options, umiak, directory }.text();
    // A log that cannot be opened on the node would fail the job.
    let log = if options.connect.is_some() { "/dev/null".into() } else { directory.join(LOG_FILE) };
    Script { text, arguments: arguments(&log, &plan.directory) }
}

/// `scontrol show job` writes the name of a job unquoted among `Key=value` pairs: a name could look like some of them.
pub(super) fn plain(name: &str) -> String {
    name.chars().map(|letter| if letter.is_whitespace() || letter == '=' { '-' } else { letter }).collect()
}

/// In the name of a log, Slurm replaces `%` and some letters.
pub(super) fn arguments(log: &Path, working: &Path) -> Vec<std::ffi::OsString> {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let with = |flag: &str, value: &OsStr| {
        let mut word = OsString::from(flag);
        word.push(value);
        word
    };
    let escaped = log.as_os_str().as_bytes().iter().flat_map(|byte| vec![*byte; if *byte == b'%' { 2 } else { 1 }]);
    vec![
        "--parsable".into(),
        "--export=ALL".into(),
        with("--output=", &OsString::from_vec(escaped.collect())),
        with("--chdir=", working.as_os_str()),
    ]
}

pub(super) struct Rendered<'a> {
    pub(super) name: &'a str,
    pub(super) run: &'a str,
    pub(super) job: &'a Job,
    pub(super) options: &'a SlurmOptions,
    pub(super) umiak: &'a Path,
    pub(super) directory: &'a Path,
}

/// A part of the allocation.
struct Part<'a> {
    need: Need,
    queue: Option<&'a str>,
    tasks: u32,
    /// In a heterogeneous job.
    group: Option<usize>,
}

impl Part<'_> {
    /// The end of the variables that Slurm sets for a part.
    fn suffix(&self) -> String {
        self.group.map(|group| format!("_HET_GROUP_{group}")).unwrap_or_default()
    }

    /// The options of `srun` for a task on each node.
    fn each_node(&self) -> String {
        let nodes = format!("\"$SLURM_JOB_NUM_NODES{}\"", self.suffix());
        format!("--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1")
    }
}

impl Rendered<'_> {
    pub(super) fn text(&self) -> String {
        let parts = self.parts();
        let each = if self.options.direct { "for each replica" } else { "on each node" };
        let mut text = format!("#!/bin/bash\n# {} of {}: starts an agent of umiak {each}.\n", self.name, self.run);
        for part in &parts {
            if part.group.is_some_and(|group| group > 0) {
                text += "#SBATCH hetjob\n";
            }
            self.directives(part, &mut text);
        }
        let _ = write!(
            text,
            "\n{unit}umiak={umiak}\n\n\
             # Slurm warns before the time limit; agents look for the file.\n\
             limit=\n\
             trap 'limit=yes; echo \"${{SLURM_RESTART_COUNT:-0}}\" >\"$unit/{LIMIT_FILE}\"' USR1\n\n",
            unit = self.unit(),
            umiak = quoted(self.umiak.as_os_str()),
        );
        tasks(&parts, &mut text);
        if self.options.connect.is_none() {
            copying(&parts, &mut text);
        }
        self.starting(&parts, &mut text);
        if self.options.connect.is_some() {
            text += "rm -rf -- \"$unit\"\n";
        }
        if self.options.requeue {
            text += "if [ \"$limit\" ] && [ $code -ne 0 ]; then\n  scontrol requeue \"$SLURM_JOB_ID\"\nfi\n";
        }
        text + "exit $code\n"
    }

    /// Sets `unit`, where agents and this script find each other's files.
    fn unit(&self) -> String {
        if self.options.connect.is_none() {
            return format!("unit={}\n", quoted(self.directory.as_os_str()));
        }
        format!(
            "# The nodes do not see {}: agents connect to the host that has it.\n\
             unit=${{TMPDIR:-/tmp}}/umiak-$SLURM_JOB_ID\n\
             mkdir -p -m 700 \"$unit\" && [ -O \"$unit\" ] && [ ! -L \"$unit\" ] || exit 1\n\
             exec >>\"$unit/{LOG_FILE}\" 2>&1\n",
            self.run
        )
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let parts = parts(self.job, self.options);
        let is_several = parts.len() > 1;
        let part = |(group, roles): (usize, Vec<u16>)| {
            let roles: Vec<_> = roles.iter().map(|role| &self.job.roles[usize::from(*role)]).collect();
            Part {
                need: self.need(Need::of(&roles[0].work.resources)),
                queue: queue(roles[0], self.options),
                tasks: roles.iter().map(|role| role.replicas).sum(),
                group: is_several.then_some(group),
            }
        };
        parts.into_iter().enumerate().map(part).collect()
    }

    /// A native option for memory or GPUs replaces the request of the roles.
    fn need(&self, need: Need) -> Need {
        let native = effective(self.options);
        let has = |names: &[&str]| native.iter().any(|(name, _)| names.contains(name));
        let gres = self.options.value("gres").is_some_and(|gres| gres.contains("gpu"));
        Need {
            memory: need.memory.filter(|_| !has(&["mem", "mem-per-cpu", "mem-per-gpu"])),
            gpus: if gres || has(&["gpus", "gpus-per-node", "gpus-per-socket"]) { 0 } else { need.gpus },
            ..need
        }
    }

    fn directives(&self, part: &Part<'_>, text: &mut String) {
        let mut lines = vec![("job-name", Some(self.name.to_owned())), ("ntasks", Some(part.tasks.to_string()))];
        lines.extend(resources(&part.need).into_iter().map(|(name, value)| (name, Some(value))));
        lines.push(("open-mode", Some("append".to_owned())));
        lines.push(("signal", Some(format!("B:USR1@{}", self.warning()))));
        lines.push((if self.options.requeue { "requeue" } else { "no-requeue" }, None));
        let native = effective(self.options);
        lines.extend(part.queue.map(|queue| ("partition", Some(shown(queue).into_owned()))));
        lines.extend(native.into_iter().map(|(name, value)| (name, value.map(str::to_owned))));
        for (name, value) in lines {
            let value = value.map(|value| format!("={}", directive(&value))).unwrap_or_default();
            let _ = writeln!(text, "#SBATCH --{name}{value}");
        }
    }

    /// Long enough for replicas to stop, and at most half of the time limit.
    fn warning(&self) -> u32 {
        let limit = ["time", "time-min"].iter().filter_map(|name| seconds(self.options.value(name)?)).min();
        let half = limit.map_or(MAX_WARNING, |limit| u32::try_from(limit / 2).unwrap_or(MAX_WARNING));
        let grace = u32::try_from(self.job.longest_grace().as_secs_f64().ceil() as u64).unwrap_or(MAX_WARNING);
        let usual = WARNING.max(grace.saturating_add(LEAVING));
        self.options.warning.unwrap_or(usual).min(half).clamp(1, MAX_WARNING)
    }

    fn starting(&self, parts: &[Part<'_>], text: &mut String) {
        let own = if self.options.direct { "" } else { " --mpi=none --cpu-bind=none --distribution=block" };
        let sruns: Vec<String> = parts.iter().map(|part| self.srun(part)).collect();
        let _ = write!(
            text,
            "flags=(--export=ALL --overlap --mem=0 --kill-on-bad-exit=1 --wait=0{own})\n\
             srun {sruns} &\n\
             while kill -0 $! 2>/dev/null; do wait $!; done\n\
             wait $!\ncode=$?\n",
            sruns = sruns.join(" \\\n  : "),
        );
    }

    /// The words of a part for `srun`.
    fn srun(&self, part: &Part<'_>) -> String {
        let mut words: Vec<String> = part.group.map(|group| format!("--het-group={group}")).into_iter().collect();
        words.push("\"${flags[@]}\"".to_owned());
        let agent = "\"$umiak\" agent \"$unit\"";
        if self.options.direct || part.need.gpus > 0 {
            words.push(format!("--ntasks={}", part.tasks));
            // `srun` refuses two ways to ask for memory, even in different parts.
            let need = Need { memory: None, ..part.need };
            words.extend(resources(&need).into_iter().map(|(name, value)| format!("--{name}={value}")));
        } else {
            words.push(part.each_node());
        }
        if !self.options.direct && part.need.gpus > 0 {
            words.push(format!("--gpu-bind=per_task:{}", part.need.gpus.saturating_mul(part.tasks)));
            words.push("\\\n  bash -c '[ \"$SLURM_LOCALID\" -gt 0 ] || exec \"$@\"' bash".to_owned());
        }
        words.push(agent.to_owned());
        words.join(" ")
    }
}

/// Keeps what agents need of Slurm's variables, and removes those that `srun` would take for options.
fn tasks(parts: &[Part<'_>], text: &mut String) {
    let tasks: Vec<String> = parts.iter().map(|part| format!("$SLURM_TASKS_PER_NODE{}", part.suffix())).collect();
    let _ = write!(
        text,
        "export UMIAK_TASKS=\"{}\"\n\
         unset ${{!SLURM_CPUS_PER_TASK*}} ${{!SLURM_MEM_PER_*}} ${{!SLURM_NTASKS*}} ${{!SLURM_NPROCS*}} \
         ${{!SLURM_GPUS*}} ${{!SLURM_TRES_PER_TASK*}}\n\n",
        tasks.join(";"),
    );
}

/// Copies umiak to the nodes, if the first one does not have it.
fn copying(parts: &[Part<'_>], text: &mut String) {
    let jobs = parts.iter().map(|part| format!("\"$SLURM_JOB_ID{}\"", part.suffix()));
    let jobs = jobs.collect::<Vec<_>>().join(" ");
    let making = parts.iter().map(|part| {
        let group = part.group.map(|group| format!("--het-group={group} ")).unwrap_or_default();
        let nodes = part.each_node();
        format!("srun {group}{nodes} --overlap --mem=0 --mpi=none bash -c \"$make\" bash \"$copy\" || exit 1")
    });
    let making = making.collect::<Vec<_>>().join("\n  ");
    let _ = write!(
        text,
        "if [ ! -x \"$umiak\" ]; then\n  \
           if [ ! -x \"$unit/{COPY_FILE}\" ]; then\n    \
             echo \"umiak: $umiak is not a program on $SLURMD_NODENAME, and there is no copy of it in $unit\" >&2\n    \
             exit 1\n  \
           fi\n  \
           # A directory that only this user can change; several nodes may be one host.\n  \
           copy=$(mktemp -u \"/tmp/umiak-$SLURM_JOB_ID.XXXXXXXX\")\n  \
           make='mkdir -m 700 \"$1\" 2>/dev/null; [ -d \"$1\" ] && [ -O \"$1\" ] && [ ! -L \"$1\" ]'\n  \
           {making}\n  \
           umiak=$copy/umiak\n  \
           export UMIAK_COPY=$umiak\n  \
           for job in {jobs}; do\n    \
             sbcast --force --jobid=\"$job\" \"$unit/{COPY_FILE}\" \"$umiak\" || exit 1\n  \
           done\nfi\n\n",
    );
}

/// Options that `sbatch` and `srun` have both.
fn resources(need: &Need) -> Vec<(&'static str, String)> {
    let mut options = Vec::new();
    if need.cpus > 0 {
        options.push(("cpus-per-task", need.cpus.to_string()));
    }
    options.extend(need.memory.map(|mib| ("mem-per-cpu", format!("{mib}M"))));
    if need.gpus > 0 {
        options.push(("gpus-per-task", need.gpus.to_string()));
    }
    options
}
