//! Finds the run that a user names.

use umiak_core::diag::nearest;

use super::index::IndexEntry;
use super::run_dir::ids;
use super::{Error, Home, Life, RunDir, RunId, index, life_of};

/// Returns the run that `word` names: an id, a number, the end of a number that only one run has, or a name. An exact
/// number has priority over endings. A name means its running run, else its newest one; several running ones are an
/// error that lists them.
pub fn find(home: &Home, word: &str) -> Result<RunDir, Error> {
    if let Ok(id) = word.parse::<RunId>()
        && let found @ Ok(_) = RunDir::open(home, id)
    {
        return found;
    }
    let mut runs = ids(home)?;
    if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) {
        let is_whole = |id: &&RunId| word.parse() == Ok(id.number());
        if let Some(id) = runs.iter().find(is_whole) {
            return Ok(RunDir::at(home, *id));
        }
        runs.retain(|id| id.to_string().ends_with(word));
        runs.sort_unstable();
        match runs.as_slice() {
            [] => {}
            [id] => return Ok(RunDir::at(home, *id)),
            _ => return Err(Error::Ambiguous { word: word.to_owned(), candidates: runs }),
        }
    }
    let entries = index::entries(home)?;
    let named: Vec<&IndexEntry> = entries.iter().filter(|entry| entry.name == word).collect();
    let live: Vec<&IndexEntry> = named.iter().copied().filter(|entry| is_live(home, entry)).collect();
    match (live.as_slice(), named.last()) {
        ([], Some(newest)) => return Ok(RunDir::at(home, newest.run)),
        ([one], _) => return Ok(RunDir::at(home, one.run)),
        ([], None) => {}
        (several, _) => {
            return Err(Error::SeveralLive {
                word: Some(word.to_owned()),
                candidates: several.iter().map(|entry| (entry.run, described(entry))).collect(),
            });
        }
    }
    let ids: Vec<String> = entries.iter().map(|entry| entry.run.to_string()).collect();
    let names = entries.iter().map(|entry| entry.name.as_str()).filter(|name| !name.is_empty());
    // Ids differ from each other by a digit or two anyway, so only a word that looks like an id is compared with them.
    let near = if word.starts_with("run") {
        nearest(word, ids.iter().rev().map(String::as_str))
    } else {
        nearest(word, names)
    };
    let near = near.map(str::to_owned);
    Err(Error::NoRun { word: word.to_owned(), near, home: home.path().to_owned() })
}

/// Like [`find`], for commands that remove or stop runs: accepts only ids, whole numbers and names. A word that can be an id is never taken for a
/// name or an ending: the run that it names may have been removed a moment ago.
pub fn find_whole(home: &Home, word: &str) -> Result<RunDir, Error> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let id = word.parse().or_else(|_| format!("run-{word:0>6}").parse()).ok();
    let Some(id) = id.filter(|_| is_number || word.starts_with("run-")) else { return find(home, word) };
    RunDir::open(home, id).map_err(|error| match error {
        Error::NoRun { home: path, .. } => {
            let near = find(home, word).ok().map(|run| run.id().to_string());
            Error::NoRun { word: word.to_owned(), near, home: path }
        }
        other => other,
    })
}

/// Returns the newest run.
pub fn newest(home: &Home) -> Result<RunDir, Error> {
    match index::entries(home)?.last() {
        Some(entry) => Ok(RunDir::at(home, entry.run)),
        None => Err(Error::NoRuns { home: home.path().to_owned() }),
    }
}

/// Returns the runs that are running now, oldest first.
pub fn live(home: &Home) -> Result<Vec<IndexEntry>, Error> {
    Ok(index::entries(home)?.into_iter().filter(|entry| is_live(home, entry)).collect())
}

/// Returns the only run that is running now, if there is one.
pub fn only_live(home: &Home) -> Result<Option<RunDir>, Error> {
    match live(home)?.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(RunDir::at(home, one.run))),
        several => {
            let candidates = several.iter().map(|entry| (entry.run, described(entry))).collect();
            Err(Error::SeveralLive { word: None, candidates })
        }
    }
}

/// True if the run is running now.
pub fn is_live(home: &Home, entry: &IndexEntry) -> bool {
    let life = life_of(&RunDir::at(home, entry.run), entry.is_final());
    matches!(life, Ok(Life::Live { .. }))
}

/// Distinguishes runs of the same name.
fn described(entry: &IndexEntry) -> String {
    if entry.command.is_empty() { entry.name.clone() } else { entry.command.clone() }
}
