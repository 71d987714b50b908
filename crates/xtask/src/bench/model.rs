//! Metrics, contestants and comparisons.

use serde::Serialize;

use super::statistics::median;

/// The meaning of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Metric {
    Start,
    Crash,
    Memory,
    WakeUps,
    Log,
    SlowReader,
    FirstLine,
    NodesStart,
    NodesCrash,
    Agents,
    AgentsMemory,
    AgentsTime,
    Replicas,
    Listing,
    LogFirst,
    RunLine,
    Event,
    Lint,
    Steps,
    StepMemory,
    Planning,
    Scheduling,
    StoreAdd,
    StoreAddTime,
    StoreGet,
    StoreGetTime,
    StoreBarrier,
    StoreAddWait,
    StoreGloo,
    Restart,
    ElasticFailure,
    ElasticKilled,
    ElasticVanished,
    ElasticSilent,
    ElasticJoined,
    ElasticAgents,
    ElasticAttempts,
    ElasticMessages,
    SlurmBefore,
    SlurmStart,
    SlurmEnd,
    SlurmWhole,
    SlurmCause,
    SlurmGone,
    SpreadBefore,
    SpreadWhole,
    MpiBefore,
    MpiStart,
    MpiEnd,
    MpiWhole,
    MpiCause,
    MpiGone,
}

/// How a number is compared with the floor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Times,
    Over,
    None,
}

impl Metric {
    pub(crate) const ALL: [Self; 52] = [
        Self::Start,
        Self::Crash,
        Self::Memory,
        Self::WakeUps,
        Self::Log,
        Self::SlowReader,
        Self::FirstLine,
        Self::NodesStart,
        Self::NodesCrash,
        Self::Agents,
        Self::AgentsMemory,
        Self::AgentsTime,
        Self::Replicas,
        Self::Listing,
        Self::LogFirst,
        Self::RunLine,
        Self::Event,
        Self::Lint,
        Self::Steps,
        Self::StepMemory,
        Self::Planning,
        Self::Scheduling,
        Self::StoreAdd,
        Self::StoreAddTime,
        Self::StoreGet,
        Self::StoreGetTime,
        Self::StoreBarrier,
        Self::StoreAddWait,
        Self::StoreGloo,
        Self::Restart,
        Self::ElasticFailure,
        Self::ElasticKilled,
        Self::ElasticVanished,
        Self::ElasticSilent,
        Self::ElasticJoined,
        Self::ElasticAgents,
        Self::ElasticAttempts,
        Self::ElasticMessages,
        Self::SlurmBefore,
        Self::SlurmStart,
        Self::SlurmEnd,
        Self::SlurmWhole,
        Self::SlurmCause,
        Self::SlurmGone,
        Self::SpreadBefore,
        Self::SpreadWhole,
        Self::MpiBefore,
        Self::MpiStart,
        Self::MpiEnd,
        Self::MpiWhole,
        Self::MpiCause,
        Self::MpiGone,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Start => "Start N × `/bin/true` and end",
            Self::Crash => "From one rank's exit with 7 to everything stopped, launcher included",
            Self::Memory => "Memory of the launcher's own processes beside sleeping ranks (sum of Pss)",
            Self::WakeUps => "Wake-ups of the launcher's own threads in 10 s, beside sleeping ranks",
            Self::Log => "Log of one rank, to a file and through the launcher to a reader that computes its sha256",
            Self::SlowReader => "Writing time of a rank with a 1 MB/s reader, relative to a fast reader",
            Self::FirstLine => "First line of `/bin/echo` through the launcher",
            Self::NodesStart => "Two nodes: first line of a rank, from the start of both launchers",
            Self::NodesCrash => "Two nodes: from one rank's exit with 7 to everything stopped on both",
            Self::Agents => "N agents and one coordinator: from the first connection to the last start message",
            Self::AgentsMemory => "Peak resident memory of the coordinator meanwhile",
            Self::AgentsTime => "CPU time (user and system) of the coordinator meanwhile",
            Self::Replicas => "A job of N × `/bin/true` from a document, journal and logs on, and its end",
            Self::Listing => "`umiak ls` of N runs, warm, to its end",
            Self::LogFirst => "First bytes of a log of N GB",
            Self::RunLine => "First line of `/bin/echo` from a document",
            Self::Event => "One event of the state machine of a job with N replicas",
            Self::Lint => "`umiak lint` of a hostile document of N MB",
            Self::Steps => {
                "N steps that do nothing (`sh -c true`), two at a time, journal and logs on; the floor is ninja"
            }
            Self::StepMemory => {
                "Memory (Pss of all our processes) after N finished steps, over that before them, per step"
            }
            Self::Planning => "`umiak plan` of a pipeline with N steps, without printing it",
            Self::Scheduling => "The scheduler alone: CPU time per step of a pipeline with N steps",
            Self::StoreAdd => "The store: additions per second, N connections",
            Self::StoreAddTime => "CPU time of the server per addition",
            Self::StoreGet => "The store: reads per second (a wait and a get each), N connections",
            Self::StoreGetTime => "CPU time of the server per request of these",
            Self::StoreBarrier => "N clients connect to the store and meet at a barrier of the server",
            Self::StoreAddWait => "N clients connect to the store and meet with add and wait",
            Self::StoreGloo => "N gloo ranks publish their addresses and read those of all others",
            Self::Restart => "One of N ranks fails: until all ranks of the next attempt have begun",
            Self::ElasticFailure => {
                "One of N ranks on two nodes fails: until all ranks of the next attempt have started"
            }
            Self::ElasticKilled => {
                "The launcher of a third node is killed: until the N ranks of the others have started"
            }
            Self::ElasticVanished => {
                "All processes of a third node are killed: until the N ranks of the others have started"
            }
            Self::ElasticSilent => "The host of a third node is cut off: until the N ranks of the others have started",
            Self::ElasticJoined => "A third node is started: until all N ranks of the next attempt have started",
            Self::ElasticAgents => {
                "N agents and one coordinator, N / 10 leave and N / 10 join: until the last start message"
            }
            Self::ElasticAttempts => "Attempts that this takes",
            Self::ElasticMessages => "Messages meanwhile, per node, without handshakes and heartbeats",
            Self::SlurmBefore => "Slurm, N ranks: from the start of the command until `sbatch` is executed",
            Self::SlurmStart => "Slurm: from the start of the batch script until all N ranks have started",
            Self::SlurmEnd => {
                "Slurm: from the last rank's exit until the command has exited; without umiak, until `srun` has"
            }
            Self::SlurmWhole => {
                "Slurm: from the start of the command to the exit of the last of N ranks that live 0.3 s"
            }
            Self::SlurmCause => "Slurm: from one of N ranks' exit with 7 until it is named",
            Self::SlurmGone => "Slurm: from one of N ranks' exit with 7 until nothing is left of the job, in Slurm too",
            Self::SpreadBefore => "Slurm, a node for each of N ranks: until `sbatch` is executed",
            Self::SpreadWhole => "Slurm, a node for each of N ranks: to the exit of the last rank",
            Self::MpiBefore => "MPI, N ranks: from the start of the command until `mpirun` is executed",
            Self::MpiStart => "MPI: from the execution of `mpirun` until all N ranks have started",
            Self::MpiEnd => "MPI: from the last rank's exit until the command has exited",
            Self::MpiWhole => "MPI: from the start of the command to the exit of the last of N ranks that live 0.3 s",
            Self::MpiCause => "MPI: from one of N ranks' exit with 7 until it is named",
            Self::MpiGone => "MPI: from one of N ranks' exit with 7 until nothing is left of the job",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Start
            | Self::Crash
            | Self::FirstLine
            | Self::NodesStart
            | Self::NodesCrash
            | Self::Agents
            | Self::AgentsTime
            | Self::Replicas
            | Self::Listing
            | Self::LogFirst
            | Self::RunLine
            | Self::Lint
            | Self::Steps
            | Self::Planning
            | Self::StoreBarrier
            | Self::StoreAddWait
            | Self::StoreGloo
            | Self::Restart
            | Self::ElasticFailure
            | Self::ElasticKilled
            | Self::ElasticVanished
            | Self::ElasticSilent
            | Self::ElasticJoined
            | Self::ElasticAgents
            | Self::SlurmBefore
            | Self::SlurmStart
            | Self::SlurmEnd
            | Self::SlurmWhole
            | Self::SpreadBefore
            | Self::SpreadWhole
            | Self::SlurmCause
            | Self::SlurmGone
            | Self::MpiBefore
            | Self::MpiStart
            | Self::MpiEnd
            | Self::MpiWhole
            | Self::MpiCause
            | Self::MpiGone => "ms",
            Self::StoreAdd | Self::StoreGet => "/s",
            Self::StepMemory => "bytes",
            Self::Memory | Self::AgentsMemory => "MB",
            Self::Event | Self::Scheduling | Self::StoreAddTime | Self::StoreGetTime => "µs",
            Self::WakeUps | Self::ElasticAttempts | Self::ElasticMessages => "",
            Self::Log => "MB/s",
            Self::SlowReader => "×",
        }
    }

    pub(crate) fn relation(self) -> Relation {
        match self {
            Self::Start | Self::Log | Self::Replicas | Self::Steps | Self::StoreAdd | Self::StoreAddTime => {
                Relation::Times
            }
            Self::Crash
            | Self::FirstLine
            | Self::NodesStart
            | Self::NodesCrash
            | Self::RunLine
            | Self::Restart
            | Self::ElasticFailure
            | Self::SlurmBefore
            | Self::SlurmStart
            | Self::SlurmEnd
            | Self::SlurmWhole
            | Self::SpreadBefore
            | Self::SpreadWhole
            | Self::MpiBefore
            | Self::MpiStart
            | Self::MpiEnd
            | Self::MpiWhole => Relation::Over,
            Self::Memory
            | Self::WakeUps
            | Self::SlowReader
            | Self::Agents
            | Self::AgentsMemory
            | Self::AgentsTime
            | Self::Listing
            | Self::LogFirst
            | Self::Event
            | Self::Lint
            | Self::StepMemory
            | Self::Planning
            | Self::Scheduling
            | Self::StoreGet
            | Self::StoreGetTime
            | Self::StoreBarrier
            | Self::StoreAddWait
            | Self::StoreGloo
            | Self::ElasticKilled
            | Self::ElasticVanished
            | Self::ElasticSilent
            | Self::ElasticJoined
            | Self::ElasticAgents
            | Self::ElasticAttempts
            | Self::ElasticMessages
            | Self::SlurmCause
            | Self::SlurmGone
            | Self::MpiCause
            | Self::MpiGone => Relation::None,
        }
    }

    pub(crate) fn is_better_when_small(self) -> bool {
        !matches!(self, Self::Log | Self::StoreAdd | Self::StoreGet)
    }
}

/// One metric of one contestant at one number of ranks, over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Series {
    pub(crate) metric: Metric,
    pub(crate) contestant: String,
    pub(crate) ranks: u32,
    pub(crate) is_floor: bool,
    /// True for the binary of `--against`.
    pub(crate) is_old: bool,
    pub(crate) values: Vec<f64>,
    /// User and system time of all started processes, per rank; empty if it is meaningless.
    pub(crate) cpu_ms_per_rank: Vec<f64>,
    /// Failures, one entry each.
    pub(crate) remarks: Vec<String>,
}

/// One run of one contestant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) values: Vec<(Metric, f64)>,
    pub(crate) cpu_ms: Option<f64>,
    pub(crate) remark: Option<String>,
}

impl Sample {
    pub(crate) fn new(metric: Metric, value: f64, cpu_ms: f64) -> Self {
        Self { values: vec![(metric, value)], cpu_ms: Some(cpu_ms), remark: None }
    }
}

/// A contestant's name in tables.
pub(crate) fn title(name: &str, is_old: bool) -> String {
    if is_old { format!("{name} (old)") } else { name.to_owned() }
}

/// The median of a contestant; never that of the old binary.
pub(crate) fn median_of(series: &[Series], metric: Metric, ranks: u32, contestant: &str) -> Option<f64> {
    let is_it = |series: &&Series| {
        series.metric == metric && series.ranks == ranks && series.contestant == contestant && !series.is_old
    };
    series.iter().find(is_it).and_then(|series| median(&series.values))
}

/// The best of the floors.
pub(crate) fn floor(series: &[Series], metric: Metric, ranks: u32) -> Option<f64> {
    let floors = series.iter().filter(|series| series.metric == metric && series.ranks == ranks && series.is_floor);
    let medians = floors.filter_map(|series| median(&series.values));
    if metric.is_better_when_small() { medians.min_by(f64::total_cmp) } else { medians.max_by(f64::total_cmp) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn series(metric: Metric, contestant: &str, ranks: u32, is_floor: bool, values: &[f64]) -> Series {
        Series {
            metric,
            contestant: contestant.to_owned(),
            ranks,
            is_floor,
            is_old: false,
            values: values.to_vec(),
            cpu_ms_per_rank: Vec::new(),
            remarks: Vec::new(),
        }
    }

    #[test]
    fn the_floor_is_the_better_one() {
        let all = [
            series(Metric::Start, "a", 4, true, &[3.0, 5.0]),
            series(Metric::Start, "b", 4, true, &[3.0]),
            series(Metric::Start, "c", 4, false, &[1.0]),
            series(Metric::Log, "a", 1, true, &[100.0]),
            series(Metric::Log, "b", 1, true, &[200.0]),
        ];
        assert_eq!(floor(&all, Metric::Start, 4), Some(3.0));
        assert_eq!(floor(&all, Metric::Log, 1), Some(200.0));
        assert_eq!(floor(&all, Metric::Start, 64), None);
    }
}
