//! The files that umiak itself writes to the log directory, as Paddle's launchers do.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::rc::Rc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Topology, Variable};
use crate::mask::{self, Known};
use crate::model::Part;

use super::{Inventory, Plan};

/// A file to write. Its content is composed only when it is written, because composing all of them would delay the start
/// of many ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilePlan {
    pub path: PathBuf,
    pub content: Content,
    pub append: bool,
    /// Mode 0600.
    pub private: bool,
    /// True if it is not needed at the start and may be written while ranks are already starting.
    pub late: bool,
}

/// The content of a file; a number is the replica's position in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Endpoints,
    Environment(usize),
    Backup(usize),
}

/// How many ranks of a node have files with their environment. Each file has a list of all endpoints, so the files of
/// 2 000 ranks would have 160 MB, and creating them takes longer than starting the ranks.
const MOST: usize = 256;

/// All files that umiak writes.
pub(super) fn all(overwrite: bool, plan: &Plan) -> Vec<FilePlan> {
    let file = |name: String, content: Content, late: bool| {
        let path = plan.logs.dir().join(name);
        FilePlan { path, content, append: false, private: false, late }
    };
    let mut files = vec![file("endpoints.log".to_owned(), Content::Endpoints, false)];
    // The framework reads the backup only for variables that are missing in the environment.
    let needs_backup = plan.unset.iter().any(|name| name == "PADDLE_TRAINER_ENDPOINTS");
    for (position, replica) in plan.replicas.iter().enumerate() {
        let is_written = position < MOST;
        if is_written {
            let name = format!("envlog.{}", replica.rank.0);
            files.push(FilePlan { append: !overwrite, ..file(name, Content::Environment(position), true) });
        }
        // The file is named by the trainer's number, which other parts do not have.
        let is_trainer = plan.member(replica).is_some_and(|(_, member)| member.part == Part::Trainer);
        if is_trainer && (is_written || needs_backup) {
            let name = format!("backup_env.{}.json", replica.index);
            files.push(FilePlan { private: true, ..file(name, Content::Backup(position), !needs_backup) });
        }
    }
    files
}

/// Composes the texts, and computes what all ranks share only once.
#[derive(Debug)]
pub struct Author<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    shared: OnceCell<BTreeMap<&'a str, String>>,
    /// The variables of the last replica: its two files are written one after the other.
    own: RefCell<Option<(usize, Rc<Vec<Variable>>)>>,
}

impl<'a> Author<'a> {
    pub fn new(inventory: &'a Inventory, plan: &'a Plan) -> Self {
        Self { plan, inventory, shared: OnceCell::new(), own: RefCell::new(None) }
    }

    pub fn text(&self, content: Content) -> String {
        match content {
            Content::Endpoints => endpoints_log(self.plan.topology()),
            Content::Environment(position) => {
                let shared = self.shared.get_or_init(|| shared_environment(self.inventory, self.plan));
                env_log(shared, &self.own(position))
            }
            Content::Backup(position) => backup_env(self.plan, &self.own(position)),
        }
    }

    fn own(&self, position: usize) -> Rc<Vec<Variable>> {
        if let Some((of, own)) = &*self.own.borrow()
            && *of == position
        {
            return Rc::clone(own);
        }
        let own = Rc::new(self.plan.known_variables(&self.plan.replicas[position]));
        *self.own.borrow_mut() = Some((position, Rc::clone(&own)));
        own
    }
}

/// The bytes that Paddle's legacy launcher writes: a space after the colon, no line feed at the end.
fn endpoints_log(topology: &Topology) -> String {
    format!("PADDLE_TRAINER_ENDPOINTS: \n{}", topology.endpoint_list().replace(',', "\n"))
}

/// The masked part of the environment that all ranks share: masked once, not once for each rank.
fn shared_environment<'a>(inventory: &'a Inventory, plan: &'a Plan) -> BTreeMap<&'a str, String> {
    let inherited = inventory.env.iter().filter(|(name, _)| !plan.unset.contains(name));
    let common = plan.common.iter().map(|(name, value)| (name, value));
    let mut known = Known::default();
    for (name, value) in &inventory.env {
        known.learn(name, value);
    }
    inherited.chain(common).map(|(name, value)| (name.as_str(), known.masked(name, value))).collect()
}

fn env_log(shared: &BTreeMap<&str, String>, own: &[Variable]) -> String {
    let mut lines: BTreeMap<&str, &str> = shared.iter().map(|(name, value)| (*name, value.as_str())).collect();
    // The launcher's own variables contain no secrets.
    lines.extend(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    lines.remove("PADDLE_BACKUP_ENV_PATH");
    let mut text = String::with_capacity(lines.iter().map(|(name, value)| name.len() + value.len() + 2).sum());
    for (name, value) in lines {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

/// The launcher's own variables only, so that the framework finds lists that were too long for the environment.
fn backup_env(plan: &Plan, own: &[Variable]) -> String {
    let own = plan.common.iter().chain(own).filter(|(name, _)| name != "PADDLE_BACKUP_ENV_PATH");
    let mut variables: BTreeMap<&str, Cow<'_, str>> = BTreeMap::new();
    for (name, value) in own.filter(|(name, _)| !mask::is_secret(name)) {
        // Lists of all endpoints are long, so they are not copied.
        let shown = if value.contains("://") { mask::masked(name, value).into() } else { value.as_str().into() };
        variables.insert(name, shown);
    }
    // Omitted from the environment if too long; the framework then reads it from this file.
    if plan.unset.iter().any(|name| name == "PADDLE_TRAINER_ENDPOINTS") {
        variables.insert("PADDLE_TRAINER_ENDPOINTS", plan.topology().endpoint_list().into());
    }
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    variables.serialize(&mut serializer).expect("strings serialize");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}
