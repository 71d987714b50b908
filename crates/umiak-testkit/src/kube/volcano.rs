//! Volcano: its types, scheduler, controllers and admission.

use serde_json::{Value, json};

use super::daemon::Daemon;
use super::{Kube, words};

/// Ports of the three programs' health checks, and of admission itself.
const SCHEDULER: u16 = 11251;
const CONTROLLERS: u16 = 11252;
const ADMISSION: u16 = 11253;
const WEBHOOK: u16 = 8443;

impl Kube {
    /// The types must exist.
    pub(super) fn start_volcano(&self) {
        let at = self.directory.path().display();
        let common = |port: u16| {
            format!(
                "--kubeconfig={at}/admin.kubeconfig --leader-elect=false --enable-healthz \
                 --healthz-address=127.0.0.1:{port} --listen-address=127.0.0.1:{}",
                port + 10
            )
        };
        let arguments = format!(
            "{} --scheduler-conf={} --schedule-period=200ms --cache-dumper=false",
            common(SCHEDULER),
            self.cache.file("volcano-scheduler.conf").display()
        );
        self.start_program(Daemon::VolcanoScheduler, "vc-scheduler", words(&arguments));
        let arguments = format!("{} --kube-api-qps=500 --kube-api-burst=1000", common(CONTROLLERS));
        self.start_program(Daemon::VolcanoControllers, "vc-controller-manager", words(&arguments));

        // The program does not make these, and waits for them.
        for (kind, verb, operations) in [
            ("MutatingWebhookConfiguration", "mutate", json!(["CREATE"])),
            ("ValidatingWebhookConfiguration", "validate", json!(["CREATE", "UPDATE"])),
        ] {
            self.create_webhook(kind, verb, &operations);
        }
        let arguments = format!(
            "--kubeconfig={at}/admin.kubeconfig --enable-healthz --healthz-address=127.0.0.1:{ADMISSION} \
             --listen-address=127.0.0.1 --port={WEBHOOK} --webhook-url=https://127.0.0.1:{WEBHOOK} \
             --enabled-admission=/jobs/mutate,/jobs/validate --tls-cert-file={at}/webhook.pem \
             --tls-private-key-file={at}/webhook.key --ca-cert-file={at}/ca.pem"
        );
        self.start_program(Daemon::VolcanoAdmission, "vc-webhook-manager", words(&arguments));
    }

    fn create_webhook(&self, kind: &str, verb: &str, operations: &Value) {
        let webhook = json!({
            "name": format!("{verb}job.volcano.sh"),
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": format!("https://127.0.0.1:{WEBHOOK}/jobs/{verb}"), "caBundle": self.authority() },
            "failurePolicy": "Fail",
            "rules": [{
                "apiGroups": ["batch.volcano.sh"],
                "apiVersions": ["v1alpha1"],
                "operations": operations,
                "resources": ["jobs"],
            }],
            "sideEffects": "NoneOnDryRun",
        });
        let value = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": format!("volcano-admission-service-jobs-{verb}") },
            "webhooks": [webhook],
        });
        let path = format!("/apis/admissionregistration.k8s.io/v1/{}s", kind.to_lowercase());
        let answer = self.api.post(&path, &value);
        assert!(matches!(answer, Ok((201, _))), "{answer:?}");
    }

    /// The health of the controllers proves nothing, but they act on jobs that are older than they.
    pub(super) fn wait_for_volcano(&self) {
        let queue = "/apis/scheduling.volcano.sh/v1beta1/queues/default";
        self.wait("Volcano's queue is open", || {
            self.api.get(queue).is_some_and(|queue| queue["status"]["state"] == "Open")
        });
        self.wait("Volcano's controllers answer", || self.answers(CONTROLLERS, "/healthz"));
        self.wait("Volcano's admission answers", || self.listens(WEBHOOK) && self.listens(ADMISSION));
    }
}
