//! Why a job waits, in words.

/// Reasons that end by themselves, or when the site or the user does something.
const WAITS: &[(&str, &str)] = &[
    ("None", "not scheduled yet"),
    ("Priority", "waits behind jobs with a higher priority"),
    ("Resources", "the nodes that it needs are in use"),
    ("Dependency", "it waits for the job of its dependency"),
    ("BeginTime", "its start time has not come, or Slurm waits before it starts the job again"),
    ("JobHeldUser", "it is held by its user; `scontrol release` releases it"),
    ("JobHeldAdmin", "it is held by an administrator"),
    ("Licenses", "the licenses that it needs are in use"),
    ("Reservation", "its reservation has not begun"),
    ("ReqNodeNotAvail", "a node that it needs is down, drained or reserved"),
    ("NodeDown", "a node that it needs is down"),
    ("PartitionDown", "its partition is down"),
    ("PartitionInactive", "its partition accepts no jobs at present"),
    ("Cleaning", "its previous attempt is still being cleaned up"),
    ("Prolog", "the prolog of its nodes is running"),
    ("JobArrayTaskLimit", "its array has as many tasks running as allowed"),
    ("QOSResourceLimit", "its QOS has reached a limit"),
    ("QOSUsageThreshold", "its QOS has reached a threshold of usage"),
    ("QOSJobLimit", "its QOS has as many jobs as allowed"),
    ("AssociationJobLimit", "its account has as many jobs as allowed"),
    ("AssociationResourceLimit", "its account has reached a limit"),
    ("AssociationTimeLimit", "the account's time limit is used up"),
    ("MaxRequeueExceeded", "held: restart limit reached"),
    ("FrontEndDown", "no front-end node is up"),
    ("BurstBufferResources", "the burst buffer has no space for it"),
    ("BurstBufferStageIn", "its files are being copied to the burst buffer"),
    ("SchedDefer", "Slurm starts no jobs at submission; it waits for the next round"),
    ("NodeNotAvail", "a node that it needs is not available"),
    ("FedJobLock", "it waits for the other clusters of the federation"),
    ("PowerNotAvail", "there is not enough power at present"),
];

/// Reasons that do not end.
const HOPELESS: &[(&str, &str)] = &[
    ("PartitionNodeLimit", "its partition has fewer nodes than it needs"),
    ("PartitionTimeLimit", "its time limit is longer than that of the partition"),
    ("PartitionConfig", "its partition does not allow what it asks for"),
    ("BadConstraints", "no node satisfies its constraints"),
    ("InvalidAccount", "its account is not valid"),
    ("AccountNotAllowed", "its account may not use the partition"),
    ("InvalidQOS", "its QOS is not valid"),
    ("QOSNotAllowed", "its QOS may not be used here"),
    ("DependencyNeverSatisfied", "the job of its dependency did not end as required"),
    ("ReservationDeleted", "its reservation was deleted"),
    ("DeadLine", "it cannot end before its deadline"),
];

/// A reason in words, and whether it may end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub words: String,
    pub is_hopeless: bool,
}

/// Explains a reason as `squeue` prints it, such as `ReqNodeNotAvail, UnavailableNodes:n[2-3]`.
pub fn explain(reason: &str) -> Wait {
    let reason = reason.trim().trim_start_matches('(').trim_end_matches(')');
    let (word, details) = reason.split_once(',').unwrap_or((reason, ""));
    let word = if word.is_empty() { "None" } else { word };
    let find = |table: &'static [(&'static str, &'static str)]| {
        table.iter().find(|(known, _)| *known == word).map(|(_, words)| *words)
    };
    let hopeless = find(HOPELESS);
    let words = hopeless.or_else(|| find(WAITS)).map(str::to_owned).or_else(|| limits(word));
    let details = details.trim().trim_start_matches("Reserved for maintenance").trim();
    let given = if details.is_empty() { word.to_owned() } else { format!("{word}, {details}") };
    let shown = match words {
        Some(words) if word == "None" => words,
        Some(words) => format!("{words} ({given})"),
        None => given,
    };
    Wait { words: shown, is_hopeless: hopeless.is_some() }
}

/// The limits of accounts and QOS have names from three lists of words: `AssocGrpCpuLimit`, `QOSMaxJobsPerUserLimit`.
fn limits(word: &str) -> Option<String> {
    let owner = match word {
        _ if word.starts_with("Assoc") => "its account or user",
        _ if word.starts_with("QOS") => "its QOS",
        _ if word.starts_with("MaxSubmit") || word.starts_with("Max") => "its partition",
        _ => return None,
    };
    let group = if word.contains("Grp") { " together" } else { "" };
    let what = [
        ("CPU", "CPUs"),
        ("Cpu", "CPUs"),
        ("GRES", "GPUs or other devices"),
        ("Mem", "memory"),
        ("Node", "nodes"),
        ("Wall", "time"),
        ("Minutes", "time"),
        ("Submit", "submitted jobs"),
        ("Job", "jobs"),
        ("Billing", "billing"),
    ];
    let what = what.iter().find(|(mark, _)| word.contains(mark)).map_or("resources", |(_, what)| what);
    Some(format!("{owner} has reached a limit of {what}{group}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_in_words() {
        let reasons = [
            "None",
            "Priority",
            "(Resources)",
            "JobHeldUser",
            "BeginTime",
            "Dependency",
            "ReqNodeNotAvail, UnavailableNodes:n[2-3]",
            "AssocGrpCpuLimit",
            "QOSMaxJobsPerUserLimit",
            "QOSGrpGRES",
            "AssocMaxWallDurationPerJobLimit",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "BadConstraints",
            "InvalidAccount",
            "DependencyNeverSatisfied",
            "SomethingNew",
        ];
        let line = |reason: &&str| {
            let Wait { words, is_hopeless } = explain(reason);
            format!("{reason}: {words}{}\n", if is_hopeless { " [hopeless]" } else { "" })
        };
        insta::assert_snapshot!(reasons.iter().map(line).collect::<String>());
    }
}
