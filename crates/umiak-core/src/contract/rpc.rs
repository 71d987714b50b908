//! The variables that Paddle's launcher sets for the workers of rpc jobs: the endpoint of the first worker and the
//! worker's own. The collective variables are not among them.

use super::{Member, Variable, View, paddle};

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let mut variables = vec![
        ("PADDLE_MASTER_ENDPOINT", view.group.paddle_store.to_string()),
        ("PADDLE_WORKER_ENDPOINT", member.endpoint.to_string()),
        ("PADDLE_TRAINER_ID", member.rank.0.to_string()),
        ("PADDLE_TRAINERS_NUM", view.group.world_size().get().to_string()),
        ("PADDLE_LOG_DIR", view.log_dir.to_string_lossy().into_owned()),
        ("POD_NAME", view.pod_name.to_owned()),
    ];
    variables.extend(paddle::backup_file(view, member).map(|file| ("PADDLE_BACKUP_ENV_PATH", file)));
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::paddle::tests::{options, topology, view};
    use crate::model::Generation;

    #[test]
    fn workers_know_the_first_and_themselves() {
        let topology = topology(&[2, 1], None);
        let variables = variables(&view(&topology, &options(Generation::Current)), &topology.members[2]);
        let get = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap();
        assert_eq!(
            (get("PADDLE_MASTER_ENDPOINT"), get("PADDLE_WORKER_ENDPOINT")),
            ("192.168.0.1:6168", "192.168.0.2:6170")
        );
        assert_eq!((get("PADDLE_TRAINER_ID"), get("PADDLE_TRAINERS_NUM")), ("2", "3"));
    }
}
