//! A plan without its secrets, as it may be written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::mask::Known;
use crate::model::Job;

use super::Plan;
use super::command::Resolved;

impl Plan {
    /// The plan as it may be written: secrets masked, wherever a document or a command line can put one.
    #[must_use]
    pub fn masked(&self, known: &Known) -> Self {
        let mut plan = self.clone();
        mask_job(&mut plan.job, known);
        for Resolved { program, argv } in &mut plan.commands {
            *program = masked_path(program, known);
            for word in argv {
                *word = masked_word(word, known);
            }
        }
        for (name, value) in plan.common.iter_mut().chain(&mut plan.options.said) {
            *value = known.masked(name, value);
        }
        plan.whole = plan.job == self.job;
        plan
    }
}

fn mask_job(job: &mut Job, known: &Known) {
    for (name, value) in &mut job.labels {
        *value = known.masked(name, value);
    }
    for role in &mut job.roles {
        let work = &mut role.work;
        for (name, value) in &mut work.env {
            *value = known.masked(name, value);
        }
        let names = [&mut work.image, &mut work.queue, &mut work.priority].into_iter().flatten();
        for text in work.command.iter_mut().chain(names) {
            *text = known.masked("", text);
        }
        work.dir = work.dir.as_deref().map(|dir| masked_path(dir, known));
    }
}

/// What is no text has no secret that could be known.
fn masked_word(word: &OsString, known: &Known) -> OsString {
    word.to_str().map_or_else(|| word.clone(), |text| known.masked("", text).into())
}

fn masked_path(path: &Path, known: &Known) -> PathBuf {
    masked_word(&path.as_os_str().to_owned(), known).into()
}
