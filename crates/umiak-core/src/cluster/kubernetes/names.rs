//! Names in the cluster: objects, pods, and the addresses of replicas.
//!
//! All are made of a *stem*: the name of the job as a DNS label, and letters of the digest of what identifies the run. The
//! stem is the same for every kind of object, and so short that the longest name made of it is a DNS label.

use sha2::{Digest as _, Sha256};

use crate::diag::{Code, Diagnostic};
use crate::model::{Host, Job, KubeKind};

/// Longest DNS label, and with it the longest name of a pod that has an address.
const LONGEST: usize = 63;
/// Letters of the digest in a stem.
const LETTERS: usize = 8;
/// Longest label of a role; a longer name is cut, and has letters of its digest.
const LONGEST_ROLE: usize = 28;
/// The letters that a JobSet and a Job add to the name of a pod.
const RANDOM: &str = "-xxxxx";

/// The names of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    kind: KubeKind,
    stem: String,
    /// The label of each role.
    roles: Vec<String>,
}

impl Names {
    /// The names of a job in an object of this kind. `identity` differs between all jobs that a cluster may ever have, and
    /// is the same for a later supervisor of this one.
    pub fn new(job: &Job, identity: &str, kind: KubeKind) -> Result<Self, Diagnostic> {
        let roles: Vec<String> =
            job.roles.iter().enumerate().map(|(position, role)| role_label(role.name.as_str(), position)).collect();
        for (position, label) in roles.iter().enumerate() {
            if let Some(first) = roles[..position].iter().position(|other| other == label) {
                let message = "two roles have the same name on engine `kubernetes`";
                return Err(Diagnostic::error(Code::J0030, message)
                    .row("roles", format!("{}, {}", job.roles[first].name, job.roles[position].name))
                    .row("name", label.clone())
                    .hint("names of pods have lower-case letters, digits and `-` only: rename one of the roles"));
            }
        }
        let suffix = |(role, label): (&crate::model::Role, &String)| {
            format!("-{label}-0-{}{RANDOM}", role.replicas.saturating_sub(1)).len()
        };
        let suffix = job.roles.iter().zip(&roles).map(suffix).max().unwrap_or(0);
        let room = LONGEST.saturating_sub(suffix + 1 + LETTERS).max(1);
        let base = label(job.name.as_str(), "job");
        let stem = format!("{}-{}", cut(&base, room), letters(identity, LETTERS));
        Ok(Self { kind: if kind.is_auto() { KubeKind::Volcano } else { kind }, stem, roles })
    }

    /// The kind of the object, never `auto`.
    pub fn kind(&self) -> KubeKind {
        self.kind
    }

    /// The name of the object, of the Service, and of what belongs to them.
    pub fn stem(&self) -> &str {
        &self.stem
    }

    /// The label of a role.
    pub fn role(&self, role: usize) -> &str {
        &self.roles[role]
    }

    /// The name of the Job of a role.
    pub fn job(&self, role: usize) -> String {
        format!("{}-{}", self.stem, self.roles[role])
    }

    /// The host name of a replica; with a Volcano Job also the name of its pod.
    pub fn pod(&self, role: usize, index: u32) -> String {
        let job = self.job(role);
        match self.kind {
            KubeKind::Jobset => format!("{job}-0-{index}"),
            KubeKind::Auto | KubeKind::Volcano | KubeKind::Jobs => format!("{job}-{index}"),
        }
    }

    /// The address of each replica, in the order of the roles.
    pub fn hosts(&self, job: &Job) -> Vec<Host> {
        let of_role = |(position, role): (usize, &crate::model::Role)| {
            let host = move |index| Host::Name(format!("{}.{}", self.pod(position, index), self.stem));
            (0..role.replicas).map(host).collect::<Vec<_>>()
        };
        job.roles.iter().enumerate().flat_map(of_role).collect()
    }
}

/// A name as a DNS label that begins with a letter: `param-server` for `Param_Server`.
fn label(name: &str, otherwise: &str) -> String {
    let mut label = String::new();
    for c in name.chars() {
        match c {
            'a'..='z' | '0'..='9' => label.push(c),
            'A'..='Z' => label.push(c.to_ascii_lowercase()),
            _ if label.is_empty() || label.ends_with('-') => {}
            _ => label.push('-'),
        }
    }
    let label = label.trim_end_matches('-');
    match label.bytes().next() {
        None => otherwise.to_owned(),
        Some(b'0'..=b'9') => format!("{otherwise}-{label}"),
        Some(_) => label.to_owned(),
    }
}

fn role_label(name: &str, position: usize) -> String {
    let whole = label(name, "role");
    // A name in another script has nothing to tell it from the next one.
    let whole = if whole == "role" && !name.eq_ignore_ascii_case("role") { format!("role-{position}") } else { whole };
    if whole.len() <= LONGEST_ROLE {
        return whole;
    }
    format!("{}-{}", cut(&whole, LONGEST_ROLE - 1 - LETTERS), letters(name, LETTERS))
}

fn cut(label: &str, length: usize) -> &str {
    label[..label.len().min(length)].trim_end_matches('-')
}

/// Letters and digits of a digest; the first is a letter.
fn letters(text: &str, count: usize) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(count).map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{JobId, Policy, Role, RoleName};

    fn job(name: &str, roles: &[(&str, u32)]) -> Job {
        let role = |(name, replicas): &(&str, u32)| Role::new(RoleName::new(*name).unwrap(), *replicas);
        Job {
            name: JobId::new(name).unwrap(),
            labels: std::collections::BTreeMap::new(),
            agent_store: false,
            contracts: Vec::new(),
            roles: roles.iter().map(role).collect(),
            policy: Policy::default(),
        }
    }

    #[test]
    fn pods_and_addresses() {
        let job = job("CTR_训练 v2!", &[("param_server", 2), ("启动", 1), ("9lives", 1)]);
        for (kind, expected) in [
            (KubeKind::Auto, "ctr-v2-fcswqbck-param-server-1.ctr-v2-fcswqbck"),
            (KubeKind::Jobset, "ctr-v2-fcswqbck-param-server-0-1.ctr-v2-fcswqbck"),
            (KubeKind::Jobs, "ctr-v2-fcswqbck-param-server-1.ctr-v2-fcswqbck"),
        ] {
            let names = Names::new(&job, "run-000001", kind).unwrap();
            assert_eq!(names.hosts(&job)[1].to_string(), expected);
            assert_eq!((names.role(1), names.role(2)), ("role-1", "role-9lives"));
        }
        let other = Names::new(&job, "run-000002", KubeKind::Auto).unwrap();
        assert_ne!(other.stem(), Names::new(&job, "run-000001", KubeKind::Auto).unwrap().stem());
    }

    #[test]
    fn roles_with_equal_labels_are_refused() {
        let error = Names::new(&job("ctr", &[("a_b", 1), ("A-b", 1)]), "x", KubeKind::Auto).unwrap_err();
        insta::assert_snapshot!(error.to_plain(), @r"
        error[J0030]: two roles have the same name on engine `kubernetes`
          roles  a_b, A-b
          name   a-b
        hint: names of pods have lower-case letters, digits and `-` only: rename one of the roles
        ");
    }

    fn is_label(text: &str) -> bool {
        text.len() <= 63
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    }

    proptest! {
        #[test]
        fn all_names_are_labels(
            name in "\\PC{1,60}", first in "\\PC{1,60}", second in "[a-z-]{1,200}", replicas in 1u32..=100_000,
        ) {
            let names = [&name, &first, &second];
            prop_assume!(names.iter().all(|name| JobId::new(name.as_str()).is_ok()));
            let job = job(&name, &[(&first, replicas), (&second, 1)]);
            let Ok(names) = Names::new(&job, "run", KubeKind::Jobset) else { return Ok(()) };
            for role in 0..2 {
                prop_assert!(is_label(names.role(role)), "{names:?}");
                let longest = format!("{}{RANDOM}", names.pod(role, job.roles[role].replicas - 1));
                prop_assert!(is_label(&longest), "{longest}");
            }
            prop_assert!(is_label(names.stem()));
        }
    }
}
