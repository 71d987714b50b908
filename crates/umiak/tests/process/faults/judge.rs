//! Compares a verdict with the truth.

use serde_json::Value;

/// The result of one repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The first cause is the culprit.
    Right,
    /// The culprit is among the causes, but not the first.
    Behind { named: Vec<String> },
    /// No culprit is among the causes.
    Misled { named: Vec<String> },
    /// No rank is named.
    Silent,
    /// The trial did not get as far as a verdict.
    Broken(String),
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Right => write!(formatter, "right"),
            Self::Behind { named } => write!(formatter, "{} (not first)", named.join(" ")),
            Self::Misled { named } => write!(formatter, "{}", named.join(" ")),
            Self::Silent => write!(formatter, "none"),
            Self::Broken(why) => write!(formatter, "broken: {}", why.lines().next().unwrap_or_default()),
        }
    }
}

impl Judgement {
    /// Judges the output of `umiak explain --output json`.
    pub(super) fn of(explanation: &str, culprits: &[String]) -> Self {
        let named = match causes(explanation) {
            Ok(named) => named,
            Err(error) => return Self::Broken(error),
        };
        match named.iter().position(|replica| culprits.contains(replica)) {
            Some(0) => Self::Right,
            Some(_) => Self::Behind { named },
            None if named.is_empty() => Self::Silent,
            None => Self::Misled { named },
        }
    }

    /// Of the judgements of several nodes, the worst.
    pub(super) fn worse(self, other: Self) -> Self {
        let badness = |judgement: &Self| match judgement {
            Self::Right => 0,
            Self::Behind { .. } => 1,
            Self::Silent => 2,
            Self::Misled { .. } => 3,
            Self::Broken(_) => 4,
        };
        if badness(&other) > badness(&self) { other } else { self }
    }
}

/// The causes in the last verdict, as names of replicas.
pub(super) fn causes(explanation: &str) -> Result<Vec<String>, String> {
    let explained: Value =
        serde_json::from_str(explanation).map_err(|error| format!("`umiak explain`: {error}: {explanation}"))?;
    let verdicts = explained["verdicts"].as_array();
    let verdicts = verdicts.ok_or_else(|| format!("`umiak explain` has no verdicts: {explanation}"))?;
    let causes = verdicts.last().and_then(|verdict| verdict["causes"].as_array());
    let names = causes.into_iter().flatten().filter_map(|cause| cause["subject"]["replica"].as_str());
    Ok(names.map(str::to_owned).collect())
}
