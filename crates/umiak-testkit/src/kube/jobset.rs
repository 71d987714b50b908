//! JobSet: its type, its controller and its webhooks.

use serde_json::json;

use super::daemon::Daemon;
use super::{Kube, words};

const HEALTH: u16 = 8081;
const WEBHOOK: u16 = 9443;

/// How the manifests name their server.
const SERVICE: &str = "    service:\n      name: webhook-service\n      namespace: system\n      path: ";

impl Kube {
    /// The type must exist.
    pub(super) fn start_jobset(&self) {
        let certificates = self.path("jobset");
        std::fs::create_dir(&certificates).expect("our own directory");
        for (from, to) in [("webhook.pem", "tls.crt"), ("webhook.key", "tls.key")] {
            std::fs::copy(self.path(from), certificates.join(to)).expect("our own directory");
        }
        let configuration = json!({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "clientConnection": { "qps": 500, "burst": 1000 },
            "health": { "healthProbeBindAddress": format!("127.0.0.1:{HEALTH}") },
            "internalCertManagement": { "enable": false },
            "leaderElection": { "leaderElect": false },
            "metrics": { "bindAddress": "0" },
            "webhook": { "port": WEBHOOK, "host": "127.0.0.1", "certDir": certificates },
        });
        let file = self.path("jobset.json");
        std::fs::write(&file, configuration.to_string()).expect("our own directory");
        let account = self.path("admin.kubeconfig");
        let arguments = format!("--config={} --kubeconfig={}", file.display(), account.display());
        self.start_program(Daemon::JobSet, "jobset", words(&arguments));
    }

    pub(super) fn wait_for_jobset(&self) {
        self.wait("JobSet's controller answers", || self.answers(HEALTH, "/readyz"));
        let manifests = std::fs::read_to_string(self.cache.file("jobset-webhooks.yaml")).expect("a file of the cache");
        let client = format!("    caBundle: {}\n    url: https://127.0.0.1:{WEBHOOK}", self.authority());
        let mut text = manifests.replace(SERVICE, &client);
        // Else every pod of the cluster depends on this controller.
        let own = "{matchExpressions: [{key: jobset.sigs.k8s.io/jobset-name, operator: Exists}]}";
        for name in ["mpod.kb.io", "vpod.kb.io"] {
            let line = format!("  name: {name}\n");
            assert!(text.contains(&line), "JobSet's webhooks have other names: {text}");
            text = text.replace(&line, &format!("{line}  objectSelector: {own}\n"));
        }
        for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
            self.create(document);
        }
    }
}
