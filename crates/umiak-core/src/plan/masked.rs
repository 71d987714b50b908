//! A plan without its secrets, for `plan.json`, `--dry-run` and `umiak plan`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::contract::Variable;
use crate::mask::Known;
use crate::model::Job;

use super::Plan;
use super::command::Resolved;

impl Plan {
    /// The plan with all secrets of the document or the command line masked, so that it may be written.
    #[must_use]
    pub fn masked(&self, known: &Known) -> Self {
        let mut plan = self.clone();
        mask_job(&mut plan.job, known);
        for Resolved { program, argv } in &mut plan.commands {
            *program = masked_path(program, known);
            *argv = known.words(argv);
        }
        for (name, value) in plan.common.iter_mut().chain(&mut plan.options.said).chain(&mut plan.params) {
            *value = known.masked(name, value);
        }
        plan.script = plan.script.map(|script| script.masked(known));
        plan.whole = plan.job == self.job;
        plan
    }

    /// The masked plan as JSON with each replica's variables, as printed by a dry run.
    pub fn json(&self, known: &Known) -> String {
        let mut plan = Self { dry_run: true, ..self.masked(known) };
        for position in 0..plan.replicas.len() {
            let env = by_name(&plan.known_variables(&plan.replicas[position]), known);
            plan.replicas[position].env = env.into_iter().collect();
        }
        serde_json::to_string(&plan).expect("a plan is JSON") + "\n"
    }
}

/// Masked variables by name; the last of several with the same name wins.
pub fn by_name(variables: &[Variable], known: &Known) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| (name.clone(), known.masked(name, value))).collect()
}

pub(super) fn mask_job(job: &mut Job, known: &Known) {
    for (name, value) in &mut job.labels {
        *value = known.masked(name, value);
    }
    for role in &mut job.roles {
        let work = &mut role.work;
        for (name, value) in &mut work.env {
            *value = known.masked(name, value);
        }
        let names = [&mut work.image, &mut work.queue, &mut work.priority].into_iter().flatten();
        let words: Vec<OsString> = work.command.iter().map(OsString::from).collect();
        work.command = known.words(&words).into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        for text in names {
            *text = known.masked("", text);
        }
        work.dir = work.dir.as_deref().map(|dir| masked_path(dir, known));
    }
}

/// A word that is not UTF-8 cannot contain a known secret.
fn masked_word(word: &OsString, known: &Known) -> OsString {
    word.to_str().map_or_else(|| word.clone(), |text| known.masked("", text).into())
}

fn masked_path(path: &Path, known: &Known) -> PathBuf {
    masked_word(&path.as_os_str().to_owned(), known).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;
    use crate::model::{Proxies, Request};
    use crate::plan::Inventory;
    use crate::plan::document::tests as document;
    use crate::plan::launch::tests::plan;

    fn launched() -> Plan {
        let env = [("http_proxy".to_owned(), "http://li:pw@proxy:80".to_owned())].into();
        let mut request = Request { processes: crate::model::Processes::Number(2), ..request() };
        request.paddle.as_mut().unwrap().proxies = Proxies::PutAside;
        plan(&request, &Inventory { env, cpus: 8, ..Inventory::default() })
    }

    #[test]
    fn as_json() {
        let known = Known::default();
        for (name, plan) in [("launched_json", launched()), ("document_json", document::plan())] {
            let json = Plan { umiak: "0".to_owned(), ..plan }.json(&known);
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            insta::assert_snapshot!(name, serde_json::to_string_pretty(&value).unwrap());
            let read: Plan = serde_json::from_str(&json).unwrap();
            let again: serde_json::Value = serde_json::from_str(&read.json(&known)).unwrap();
            assert!(again == value, "what is printed can be read back");
        }
    }

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let mut plan = document::plan();
        plan.job.roles[1].work.env =
            vec![("API_TOKEN".into(), "hidden-1".into()), ("HEADER".into(), "Bearer hidden-2".into())];
        plan.job.roles[1].work.command = vec!["train".into(), "--key=hidden-2".into()];
        plan.commands[1].argv = vec!["train".into(), "--key=hidden-2".into()];
        let mut known = Known::default();
        known.add("hidden-2");
        let printed = plan.json(&known);
        assert!(printed.contains("--key=********") && !printed.contains("hidden"), "{printed}");
    }
}
