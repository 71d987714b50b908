//! What a person calls a run.

use umiak_core::diag::nearest;

use super::run_dir::ids;
use super::{Error, Home, RunDir, RunId, index};

/// The run that `word` means: an id, a number, the end of a number that only one run has, or a name, which means its
/// newest run. A number that is a run's own is that run, whatever else ends so.
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
    if let Some(entry) = entries.iter().rev().find(|entry| entry.name == word) {
        return Ok(RunDir::at(home, entry.run));
    }
    let ids: Vec<String> = entries.iter().map(|entry| entry.run.to_string()).collect();
    let names = entries.iter().map(|entry| entry.name.as_str()).filter(|name| !name.is_empty());
    // Ids differ by a digit or two from each other anyway: only what looks like one is compared with them.
    let near = if word.starts_with("run") {
        nearest(word, ids.iter().rev().map(String::as_str))
    } else {
        nearest(word, names)
    };
    let near = near.map(str::to_owned);
    Err(Error::NoRun { word: word.to_owned(), near, home: home.path().to_owned() })
}
