//! What Paddle's launcher gives the workers of rpc jobs: where the first of them waits for the others, and where each is
//! found. The collective variables are not among it.

use super::{Member, Topology, Variable, paddle};

pub fn variables(topology: &Topology, member: &Member, options: &paddle::Options) -> Vec<Variable> {
    [
        ("PADDLE_MASTER_ENDPOINT", topology.paddle_store.to_string()),
        ("PADDLE_WORKER_ENDPOINT", member.endpoint.to_string()),
        ("PADDLE_TRAINER_ID", member.rank.0.to_string()),
        ("PADDLE_TRAINERS_NUM", topology.world_size().get().to_string()),
        ("PADDLE_LOG_DIR", options.log_dir.clone()),
        ("PADDLE_BACKUP_ENV_PATH", options.backup_env_path.clone()),
        ("POD_NAME", options.pod_name.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::paddle::tests::{options, topology};
    use crate::model::Generation;

    #[test]
    fn workers_know_the_first_and_themselves() {
        let topology = topology(&[2, 1], None);
        let variables = variables(&topology, &topology.members[2], &options(Generation::Current));
        let get = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap();
        assert_eq!(
            (get("PADDLE_MASTER_ENDPOINT"), get("PADDLE_WORKER_ENDPOINT")),
            ("192.168.0.1:6168", "192.168.0.2:6170")
        );
        assert_eq!((get("PADDLE_TRAINER_ID"), get("PADDLE_TRAINERS_NUM")), ("2", "3"));
    }
}
