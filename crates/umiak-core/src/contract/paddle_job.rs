//! The variables that the operators of Kubernetes set for the pods of a PaddleJob: those of paddle-operator, those of
//! kubeflow's operator that do not contradict them, and the launcher's, so that scripts of any of these work.

use crate::model::Part;

use super::{Member, Variable, View, paddle, servers, set};

/// The number of ports that a pod may use from `PADDLE_PORT` on, as paddle-operator says. A replica has its own address,
/// and ports of others are on theirs.
const PORTS: u32 = 20;

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let topology = view.group;
    let has_servers = topology.count(Part::Server) > 0;
    let mut variables = if has_servers { servers::variables(view, member) } else { paddle::variables(view, member) };
    let mut set = |name: &str, value: String| set(&mut variables, name, value);
    let role = member.part.training_role();
    set("POD_IP", member.endpoint.address.to_string());
    set("PADDLE_PORT", member.endpoint.port.get().to_string());
    set("TRAINER_PORTS_NUM", PORTS.to_string());
    set("PADDLE_TRAINER_ID", member.index.to_string());
    set("PADDLE_TRAINERS_NUM", topology.count(Part::Trainer).to_string());
    set("PADDLE_TRAINERS", topology.host_list().to_owned());
    set("TRAINING_ROLE", role.to_owned());
    set("PADDLE_TRAINING_ROLE", role.to_owned());
    set("PADDLE_JOB_ID", view.job.name.to_string());
    if has_servers {
        set("PADDLE_WITH_GLOO", view.options.with_gloo.clone().unwrap_or_else(|| "1".to_owned()));
        // A launcher inside a replica meets the others here. The other store is gloo's.
        set("PADDLE_MASTER", topology.torch_store.to_string());
        set(if member.part == Part::Server { "PADDLE_SERVER_NUM" } else { "PADDLE_TRAINER_NUM" }, "1".to_owned());
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Options, paddle::tests};

    fn get<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
        let mut these = variables.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let value = these.next();
        assert_eq!(these.next(), None, "{name} is set once");
        value
    }

    #[test]
    fn collective_jobs_have_the_variables_of_operator_and_launcher() {
        let topology = tests::topology(&[1, 1], None);
        let options = Options::default();
        let variables = variables(&tests::view(&topology, &options), &topology.members[1]);
        for (name, value) in [
            ("POD_IP", "192.168.0.2"),
            ("PADDLE_PORT", "6170"),
            ("TRAINER_PORTS_NUM", "20"),
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_TRAINERS", "192.168.0.1,192.168.0.2"),
            ("PADDLE_TRAINER_ENDPOINTS", "192.168.0.1:6170,192.168.0.2:6170"),
            ("PADDLE_CURRENT_ENDPOINT", "192.168.0.2:6170"),
            ("TRAINING_ROLE", "TRAINER"),
            ("PADDLE_TRAINING_ROLE", "TRAINER"),
            ("PADDLE_MASTER", "192.168.0.1:6168"),
            ("PADDLE_NNODES", "2"),
            ("PADDLE_JOB_ID", "j"),
            ("PADDLE_GLOBAL_RANK", "1"),
        ] {
            assert_eq!(get(&variables, name), Some(value), "{name}");
        }
        for name in ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_SERVER_NUM", "PADDLE_TRAINER_NUM"] {
            assert_eq!(get(&variables, name), None, "{name}");
        }
    }
}
