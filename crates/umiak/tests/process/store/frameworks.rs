//! Torch's own clients, of the newest and of the oldest version that the store serves.

use std::path::PathBuf;

use umiak_testkit::components::Component::{Torch, Torch22};
use umiak_testkit::components::{environment, torch22_environment};
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::Server;
use crate::frameworks::support;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("store::torch_uses_every_operation", &[Torch], || {
            every_operation(environment(), &["queues", "list", "barrier", "done"]);
        })
        .test("store::torch_2_2_uses_every_operation", &[Torch22], || every_operation(torch22_environment(), &["done"]))
        .test("store::two_ranks_of_torch_meet", &[Torch], || two_ranks(environment()))
        .test("store::two_ranks_of_torch_2_2_meet", &[Torch22], || two_ranks(torch22_environment()));
}

fn every_operation(environment: Option<PathBuf>, said: &[&str]) {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let python = environment.expect("the suite has checked that it is here").join("bin/python");
    let words = [support("store_client.py"), server.port.to_string()];
    let outcome = sandbox.program(&python, words).start().finish_unchecked();
    outcome.expect_code(0);
    assert_eq!(outcome.out().lines().collect::<Vec<_>>(), said, "{}", outcome.err());
    server.end();
}

fn two_ranks(environment: Option<PathBuf>) {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let python = environment.expect("the suite has checked that it is here").join("bin/python");
    let words = [support("store_ranks.py"), server.port.to_string()];
    sandbox.program(&python, words).start().finish_unchecked().expect_code(0);
    server.end();
}
