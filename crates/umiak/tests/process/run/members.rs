//! Groups of ranks that span several roles: the members of a distributed job.

use std::collections::BTreeMap;

use umiak_testkit::suite::Suite;

use super::Stage;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("run: members: servers and workers of a PaddleJob", &[], paddle);
}

/// The variables that a replica printed.
fn variables(stage: &Stage, replica: &str) -> BTreeMap<String, String> {
    let log = stage.log(replica, 1);
    log.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// All replicas have the same lists, in which each finds itself by its role and its number.
fn paddle() {
    let stage = Stage::new("local");
    // Servers are stopped when the workers end, and not before they have printed.
    stage
        .run("umiak: v1\ncontracts: paddle-job\nroles:\n  worker: {part: trainer, replicas: 2, command: 'env; until [ -e up-0 -a -e up-1 ]; do sleep 0.01; done'}\n  pserver: {part: server, replicas: 2, completes: false, command: 'env; touch up-$PADDLE_TRAINER_ID; sleep 60'}\n")
        .finish()
        .expect_code(0);
    let first = variables(&stage, "pserver-0");
    for (role, name) in [("PSERVER", "pserver"), ("TRAINER", "worker")] {
        let list = if name == "worker" { "PADDLE_TRAINER_ENDPOINTS" } else { "PADDLE_PSERVERS_IP_PORT_LIST" };
        for index in 0..2 {
            let seen = variables(&stage, &format!("{name}-{index}"));
            assert_eq!((&*seen["TRAINING_ROLE"], &*seen["PADDLE_TRAINING_ROLE"]), (role, role));
            assert_eq!(seen["PADDLE_TRAINER_ID"], index.to_string());
            let own = format!("{}:{}", seen["POD_IP"], seen["PADDLE_PORT"]);
            assert_eq!(seen[list].split(',').nth(index), Some(own.as_str()), "{name}-{index}");
            for same in ["PADDLE_TRAINER_ENDPOINTS", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS", "PADDLE_MASTER"]
            {
                assert_eq!(seen[same], first[same], "{same} of {name}-{index}");
            }
        }
    }
    stage.assert_nothing_left();
}
