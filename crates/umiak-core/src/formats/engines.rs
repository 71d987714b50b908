//! Options of engines as users write them: on the command line, in `umiak.toml`, and in `backend.yaml` of PaddleRec.

use std::path::PathBuf;

use super::document::reader::{At, Reader, did_you_mean};
use super::document::tree::shortened;
use super::settings::Settings;
use crate::diag::{Code, Diagnostic};
use crate::model::{ClusterOptions, Connect, EngineChoice, EngineKind, Job, Workload};

/// Options of `sbatch` that umiak sets itself, and what to use instead.
const OWN: &[(&str, &str)] = &[
    ("array", "each run is one job; use `replicas` of a role"),
    ("batch", "use `constraint`"),
    ("chdir", "the working directory of a role is `dir`"),
    ("clusters", "set `SLURM_CLUSTERS` when you submit"),
    ("comment", "umiak finds its job by the comment; use `labels` of the document"),
    ("cpus-per-task", "use `resources.cpu` of the role"),
    ("error", "the output of replicas is in their logs, that of the script in `slurm.log`"),
    ("export", "variables of a role are `env`"),
    ("export-file", "variables of a role are `env`"),
    ("get-user-env", "variables of a role are `env`"),
    ("gpus-per-task", "use `resources.gpu` of the role"),
    ("help", "see `man sbatch`"),
    ("hold", "`scontrol hold JOB` holds a job that waits"),
    ("input", "the script reads nothing"),
    ("job-name", "use `--name`, or the name of the document"),
    ("kill-on-invalid-dep", "umiak stops waiting for a dependency that cannot be satisfied"),
    ("no-kill", "after the loss of a node the job ends, and `max_platform` says how often it starts again"),
    ("no-requeue", "it is the default"),
    ("ntasks", "use `replicas` of the roles"),
    ("ntasks-per-gpu", "use `resources.gpu` of the role"),
    ("open-mode", "logs are appended to"),
    ("output", "the output of replicas is in their logs, that of the script in `slurm.log`"),
    ("parsable", "umiak reads the answer itself"),
    ("quiet", "umiak reads the answer itself"),
    ("requeue", "use `--slurm-requeue`, or `requeue = true` in `umiak.toml`"),
    ("signal", "use `--slurm-warning`, or `warning` in `umiak.toml`"),
    ("test-only", "`umiak plan` prints the script"),
    ("tres-per-task", "use `resources` of the role"),
    ("usage", "see `man sbatch`"),
    ("verbose", "umiak reads the answer itself"),
    ("version", "run `sbatch --version`"),
    ("wait", "umiak waits, except with `--detach`"),
    ("wrap", "the commands are those of the document"),
];

/// Options of `sbatch` whose names other names begin with.
const WHOLE: [&str; 1] = ["gpus"];

/// The longest time between warning and time limit that `sbatch` accepts, in seconds.
pub const MAX_WARNING: u32 = 65535;
/// Slots of a host without a number.
const DEFAULT_SLOTS: u32 = 1;
const MAX_SLOTS: u32 = 65535;

/// A native option of `sbatch`, or why it is not one.
pub fn slurm_native(name: &str, value: Option<&str>) -> Result<(String, Option<String>), String> {
    if name.starts_with('-') {
        return Err(format!("write it without dashes: `{}`", name.trim_start_matches('-')));
    }
    let is_name = name.len() > 1
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_name {
        return Err(format!("`{}` is not a long option of `sbatch`", shortened(name).escape_debug()));
    }
    // `sbatch` takes the beginning of a name for the name.
    let is_short = |own: &str| own.starts_with(name) && !WHOLE.contains(&name);
    if let Some((own, instead)) = OWN.iter().find(|(own, _)| *own == name || is_short(own)) {
        return Err(format!("umiak sets `{own}` itself: {instead}"));
    }
    if value.is_some_and(|value| value.contains(char::is_control)) {
        return Err(format!("the value of `{name}` must be one line"));
    }
    Ok((name.to_owned(), value.map(str::to_owned)))
}

/// `KEY` or `KEY=VALUE` of `--slurm`.
pub fn slurm_option(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some((name, value)) => slurm_native(name, Some(value)),
        None => slurm_native(text, None),
    }
}

/// Time from the warning to the time limit, in seconds.
pub fn slurm_warning(text: &str) -> Result<u32, String> {
    let time = super::units::duration(text).map_err(|expected| format!("it must be {expected}"))?;
    if time.as_secs() == 0 || time.subsec_nanos() > 0 || time.as_secs() > u64::from(MAX_WARNING) {
        return Err(format!("it must be whole seconds, from 1s to {MAX_WARNING}s"));
    }
    Ok(u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
}

/// `HOST` or `HOST:SLOTS`. Host files of launchers have no IPv6 addresses: their colons separate the slots.
pub fn mpi_host(text: &str) -> Result<(String, u32), String> {
    if text.starts_with('[') || text.parse::<std::net::Ipv6Addr>().is_ok() {
        let why = "is an IPv6 address, which `mpirun` cannot read: use the name of the host";
        return Err(format!("`{}` {why}", shortened(text).escape_debug()));
    }
    let (host, slots) = host_and(text, "SLOTS")?;
    let slots = slots.map_or(Some(DEFAULT_SLOTS), |slots| slots.parse().ok());
    match slots.filter(|slots| (1..=MAX_SLOTS).contains(slots)) {
        Some(slots) => Ok((host.to_owned(), slots)),
        None => Err(format!("the slots of `{host}` must be a number from 1 to {MAX_SLOTS}")),
    }
}

/// `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`.
pub fn connect(text: &str) -> Result<Connect, String> {
    let (host, port) = host_and(text, "PORT")?;
    let number = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
    match number {
        Some(None) => Err(format!("the port of `{host}` must be a number from 1 to 65535")),
        port => Ok(Connect { host: Some(host.to_owned()), port: port.flatten() }),
    }
}

/// A name or address, and what follows after a colon, which is `what`.
fn host_and<'a>(text: &'a str, what: &str) -> Result<(&'a str, Option<&'a str>), String> {
    let wrong = || format!("`{}` is not HOST or HOST:{what}", shortened(text).escape_debug());
    let (host, rest) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("`{}` is not an IPv6 address", shortened(host).escape_debug()));
        }
        match rest {
            "" => (host, None),
            rest => (host, Some(rest.strip_prefix(':').ok_or_else(wrong)?)),
        }
    } else if text.matches(':').count() > 1 {
        return Err(format!("write an IPv6 address in brackets: `[{}]`", shortened(text).escape_debug()));
    } else {
        text.split_once(':').map_or((text, None), |(host, slots)| (host, Some(slots)))
    };
    let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || host.starts_with('-') || !host.chars().all(is_host) {
        return Err(wrong());
    }
    Ok((host, rest))
}

/// Hosts, separated by commas.
pub fn mpi_hosts(text: &str) -> Result<Vec<(String, u32)>, String> {
    text.split(',').map(|host| mpi_host(host.trim())).collect()
}

/// The umiak program on the nodes.
pub fn agent(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("it must be an absolute path, the same on all nodes".to_owned()) }
}

/// The engine that a document names.
pub(super) fn choose(reader: &mut Reader<'_>, name: &At<String>, settings: &Settings) -> Option<EngineChoice> {
    let word = name.value.as_str();
    match settings.engine(word) {
        Some(EngineChoice { kind: EngineKind::Mock, .. }) => {
            reader.error(Code::F0018, name.at, "engine `mock` simulates a whole run, and is not for documents", "");
            reader.hint("`--engine mock` simulates all of the document");
            None
        }
        Some(choice) => Some(choice),
        None if EngineKind::LATER.contains(&word) => {
            reader.error(Code::F0004, name.at, format!("engine `{word}` is not supported yet"), "");
            None
        }
        None => {
            let near = reader.nearest(word, settings.engines.keys().map(String::as_str));
            let label = did_you_mean(near, "");
            reader.error(Code::F0017, name.at, format!("unknown engine `{}`", shortened(word)), label);
            reader.hint(format!("define it in `umiak.toml`: `[engine.{}]`, with `kind`", shortened(word)));
            None
        }
    }
}

/// What a command line and a document say about engines.
#[derive(Debug, Default)]
pub struct Said {
    /// `--engine`: for all jobs, whatever the document says.
    pub named: Option<EngineChoice>,
    /// The document, for all jobs without an engine of their own.
    pub document: Option<EngineChoice>,
    /// Options of the command line, which win.
    pub options: ClusterOptions,
}

/// Gives each job to an engine: the first of `--engine`, its own, the document's, that of its queue, this host. Returns
/// the engine of the run; steps keep theirs where it differs.
pub fn assign(work: &mut Workload, said: Said, settings: &Settings) -> Result<EngineChoice, Diagnostic> {
    let Said { named, document, options } = said;
    let has_queue = named.is_none() && document.is_none();
    let of_queue = |job: &Job| if has_queue { of_queue(job, settings) } else { Ok(None) };
    let is_named = named.is_some();
    let mut usual = named.or(document).unwrap_or(EngineKind::Local.into());
    match work {
        Workload::Job(job) => usual = of_queue(job)?.unwrap_or(usual),
        Workload::Pipeline(pipeline) => {
            for step in pipeline.iter_steps_mut() {
                let own = match step.engine.take() {
                    _ if is_named => None,
                    Some(own) => Some(own),
                    None => of_queue(&step.job)?,
                };
                step.engine = own.map(|mut own| {
                    own.add(&options);
                    own
                });
            }
        }
    }
    usual.add(&options);
    if let Workload::Pipeline(pipeline) = work {
        // An engine that no step has is not started.
        if pipeline.iter_steps().all(|step| step.engine.is_some()) {
            usual = pipeline.iter_steps().find_map(|step| step.engine.clone()).unwrap_or(usual);
        }
        for step in pipeline.iter_steps_mut() {
            step.engine.take_if(|own| *own == usual);
        }
    }
    Ok(usual)
}

/// The engine of the queues of a job.
fn of_queue(job: &Job, settings: &Settings) -> Result<Option<EngineChoice>, Diagnostic> {
    let mut found: Option<(&str, &str)> = None;
    for queue in job.roles.iter().filter_map(|role| role.work.queue.as_deref()) {
        let Some(engine) = settings.queues.get(queue).and_then(|queue| queue.engine.as_deref()) else { continue };
        match found {
            Some((first, other)) if other != engine => {
                let message = format!("queues of `{}` are on different engines", job.name);
                return Err(Diagnostic::error(Code::F0018, message)
                    .row(first, format!("engine {other}"))
                    .row(queue, format!("engine {engine}"))
                    .hint("a job runs on one engine: use one queue, or write `engine` in the document"));
            }
            _ => found = Some((queue, engine)),
        }
    }
    Ok(found.and_then(|(_, engine)| settings.engine(engine)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Source;
    use crate::formats::{Given, parse, settings};

    const SETTINGS: &str = "[engine.gpus]\nkind = \"slurm\"\npartition = \"gpu\"\n[queue.q]\nengine = \"gpus\"\n[queue.m]\nengine = \"mpi\"\n";

    /// The engine of the run, and those of steps that have another.
    fn assigned(text: &str, named: Option<&str>) -> Result<String, String> {
        let settings = settings::parse(&Source::new("umiak.toml", SETTINGS)).unwrap();
        let all = |errors: Vec<Diagnostic>| errors.iter().map(Diagnostic::to_plain).collect::<String>();
        let mut document =
            parse(&Source::new("job.yaml", format!("umiak: v1\n{text}")), &Given::new(&[], &settings)).map_err(all)?;
        let options = ClusterOptions {
            slurm: crate::model::SlurmOptions { native: vec![("qos".into(), None)], ..Default::default() },
            ..ClusterOptions::default()
        };
        let named = named.map(|name| settings.engine(name).unwrap());
        let said = Said { named, document: document.engine.take(), options };
        let usual = assign(&mut document.work, said, &settings).map_err(|error| error.to_plain())?;
        let shown = |choice: &EngineChoice| format!("{}+{}", choice.name, choice.cluster.slurm.native.len());
        let steps: Vec<String> = match &document.work {
            Workload::Job(_) => Vec::new(),
            Workload::Pipeline(pipeline) => {
                pipeline.iter_steps().map(|step| step.engine.as_ref().map_or("-".to_owned(), shown)).collect()
            }
        };
        Ok([vec![shown(&usual)], steps].concat().join(" "))
    }

    #[test]
    fn engines_of_jobs_and_steps() {
        let job = |rest: &str| format!("{rest}roles: {{w: {{command: a}}}}");
        let queue = "roles: {w: {command: a, queue: q}}";
        for (text, named, expected) in [
            (job(""), None, "local+0"),
            (job(""), Some("gpus"), "gpus+2"),
            (job("engine: slurm\n"), None, "slurm+1"),
            (job("engine: slurm\n"), Some("local"), "local+0"),
            (queue.to_owned(), None, "gpus+2"),
            (format!("engine: local\n{queue}"), None, "local+0"),
            ("steps: {a: {command: x}, b: {command: x, engine: gpus}}".to_owned(), None, "local+0 - gpus+2"),
            ("steps: {a: {command: x}, b: {command: x, engine: gpus}}".to_owned(), Some("mpi"), "mpi+0 - -"),
            ("steps: {a: {command: x, engine: mpi}, b: {command: x, queue: q}}".to_owned(), None, "mpi+0 - gpus+2"),
            (
                "engine: gpus\nsteps: {a: {command: x}, b: {command: x, engine: local}}".to_owned(),
                None,
                "gpus+2 - local+0",
            ),
        ] {
            assert_eq!(assigned(&text, named).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn wrong_engines_have_places() {
        let all = [
            "steps: {a: {command: x, engine: slrum}, b: {command: x, engine: mock}, c: {command: x, engine: container}}",
            "roles: {a: {command: x, queue: q}, b: {command: x, queue: m}}",
        ];
        let text = all.map(|text| assigned(text, None).unwrap_err());
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn options_of_sbatch() {
        let given = |text| slurm_option(text).map(|(name, value)| (name, value.unwrap_or("-".to_owned())));
        let is = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(given("partition=gpu"), is("partition", "gpu"));
        assert_eq!(given("exclusive"), is("exclusive", "-"));
        assert_eq!(given("constraint=a=b c"), is("constraint", "a=b c"));
        assert_eq!(given("wckey="), is("wckey", ""));
        for (wrong, why) in [
            ("--partition=gpu", "write it without dashes: `partition`"),
            ("", "`` is not a long option of `sbatch`"),
            ("Partition=gpu", "`Partition` is not a long option of `sbatch`"),
            ("arr=0-1", "umiak sets `array` itself: each run is one job; use `replicas` of a role"),
            ("requeue", "umiak sets `requeue` itself: use `--slurm-requeue`, or `requeue = true` in `umiak.toml`"),
            (
                "comment=a",
                "umiak sets `comment` itself: umiak finds its job by the comment; use `labels` of the document",
            ),
            ("wckey=a\nb", "the value of `wckey` must be one line"),
        ] {
            assert_eq!(given(wrong), Err(why.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn hosts_of_mpi() {
        let is = |hosts: &[(&str, u32)]| Ok(hosts.iter().map(|(host, slots)| ((*host).to_owned(), *slots)).collect());
        assert_eq!(mpi_hosts("a:4, b"), is(&[("a", 4), ("b", 1)]));
        assert_eq!(mpi_hosts("10.0.0.1:2,10.0.0.2"), is(&[("10.0.0.1", 2), ("10.0.0.2", 1)]));
        for (wrong, why) in [
            ("a:", "the slots of `a` must be a number from 1 to 65535"),
            ("a:0", "the slots of `a` must be a number from 1 to 65535"),
            ("a,,b", "`` is not HOST or HOST:SLOTS"),
            ("fe80::1", "`fe80::1` is an IPv6 address, which `mpirun` cannot read: use the name of the host"),
            ("[fe80::1]:2", "`[fe80::1]:2` is an IPv6 address, which `mpirun` cannot read: use the name of the host"),
            ("a b", "`a b` is not HOST or HOST:SLOTS"),
            ("-x", "`-x` is not HOST or HOST:SLOTS"),
        ] {
            assert_eq!(mpi_hosts(wrong), Err(why.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn warnings() {
        assert_eq!(slurm_warning("2m"), Ok(120));
        for wrong in ["0s", "500ms", "1d", "x"] {
            assert!(slurm_warning(wrong).is_err(), "{wrong}");
        }
        assert!(agent("umiak").is_err());
    }

    #[test]
    fn where_agents_connect() {
        let is = |host: &str, port| Ok(Connect { host: Some(host.to_owned()), port });
        assert_eq!(connect("login1"), is("login1", None));
        assert_eq!(connect("[fd00::2]:7000"), is("fd00::2", Some(7000)));
        assert_eq!(connect("a:0"), Err("the port of `a` must be a number from 1 to 65535".to_owned()));
        assert_eq!(connect("a b"), Err("`a b` is not HOST or HOST:PORT".to_owned()));
    }
}
