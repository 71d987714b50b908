//! All contestants in turn, round by round, so that changes of the machine's load affect all equally.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::model::{Metric, Sample, Series, title};

/// A slower contestant takes part in fewer rounds.
const SLOW: Duration = Duration::from_secs(2);

/// Numbers of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) fast: usize,
    pub(crate) slow: usize,
}

/// A contestant in a row.
#[derive(Debug)]
pub(crate) struct Contestant<'a, What> {
    pub(crate) name: &'static str,
    pub(crate) is_floor: bool,
    /// Takes part in all rounds, even if slow: values are only comparable within the same rounds.
    pub(crate) is_compared: bool,
    /// The binary of `--against`, under the same name.
    pub(crate) is_old: bool,
    pub(crate) what: &'a What,
}

/// The results of a contestant so far.
#[derive(Debug, Default)]
struct Account {
    samples: Vec<Sample>,
    failures: Vec<String>,
    is_slow: bool,
}

impl Rounds {
    /// Runs all rounds. A failure is printed and recorded; after two failures a contestant is dropped.
    pub(crate) fn run<What>(
        self,
        contestants: &[Contestant<'_, What>],
        metrics: &[Metric],
        ranks: u32,
        mut measure: impl FnMut(&What, usize) -> anyhow::Result<Result<Sample, String>>,
    ) -> anyhow::Result<Vec<Series>> {
        let mut accounts: Vec<Account> = contestants.iter().map(|_| Account::default()).collect();
        for round in 0..self.fast {
            let mut order: Vec<_> = contestants.iter().zip(&mut accounts).collect();
            // Reverse the order in every other round: each run leaves caches and dirty pages for the next.
            if round % 2 == 1 {
                order.reverse();
            }
            for (contestant, account) in order {
                if account.failures.len() >= 2 || (account.is_slow && round >= self.slow) {
                    continue;
                }
                let began = Instant::now();
                let result = measure(contestant.what, round)?;
                account.is_slow |= began.elapsed() > SLOW && !contestant.is_compared;
                let said = match &result {
                    Ok(sample) => said(sample),
                    Err(trouble) => trouble.clone(),
                };
                let name = title(contestant.name, contestant.is_old);
                say(&format!("  {}/{} {name:28} {said}", round + 1, self.fast))?;
                match result {
                    Ok(sample) => account.samples.push(sample),
                    Err(trouble) => account.failures.push(trouble),
                }
            }
        }
        Ok(contestants
            .iter()
            .zip(accounts)
            .flat_map(|(contestant, account)| series(contestant, metrics, ranks, &account))
            .collect())
    }
}

fn said(sample: &Sample) -> String {
    let values = sample.values.iter().map(|(metric, value)| format!("{value:.2} {}", metric.unit()));
    values.chain(sample.remark.clone()).collect::<Vec<_>>().join(", ")
}

fn series<What>(contestant: &Contestant<'_, What>, metrics: &[Metric], ranks: u32, account: &Account) -> Vec<Series> {
    let remarks: Vec<String> = account
        .samples
        .iter()
        .filter_map(|sample| sample.remark.clone())
        .chain(account.failures.iter().cloned())
        .collect();
    metrics
        .iter()
        .map(|&metric| Series {
            metric,
            contestant: contestant.name.to_owned(),
            ranks,
            is_floor: contestant.is_floor,
            is_old: contestant.is_old,
            values: account
                .samples
                .iter()
                .flat_map(|sample| &sample.values)
                .filter(|(other, _)| *other == metric)
                .map(|(_, value)| *value)
                .collect(),
            cpu_ms_per_rank: account
                .samples
                .iter()
                .filter_map(|sample| sample.cpu_ms)
                .map(|millis| millis / f64::from(ranks.max(1)))
                .collect(),
            remarks: remarks.clone(),
        })
        .collect()
}

/// Prints progress on stderr; stdout has the table.
pub(crate) fn say(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stderr(), "{line}")
}
