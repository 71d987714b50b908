//! Names of pods with a headless service.

use super::daemon::Daemon;
use super::{Kube, words};

const READY: u16 = 8181;

impl Kube {
    pub(super) fn start_dns(&self) {
        let (file, account) = (self.path("Corefile"), self.path("admin.kubeconfig"));
        let text = format!(
            ".:53 {{\n    bind 10.244.0.1\n    errors\n    ready 127.0.0.1:{READY}\n    kubernetes cluster.local {{\n        \
             kubeconfig {}\n        ttl 0\n    }}\n}}\n",
            account.display()
        );
        std::fs::write(&file, text).expect("our own directory");
        self.start_program(Daemon::Dns, "coredns", words(&format!("-conf {}", file.display())));
    }

    pub(super) fn wait_for_dns(&self) {
        self.wait("names can be resolved", || self.answers(READY, "/ready"));
    }
}
