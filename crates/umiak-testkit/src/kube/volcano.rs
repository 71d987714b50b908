//! Volcano: its types, scheduler, controllers and admission.

use serde_json::{Value, json};

use super::daemon::Daemon;
use super::{IMAGE, Kube, words};

/// Ports of the three programs' health checks, and of admission itself.
const SCHEDULER: u16 = 11251;
const CONTROLLERS: u16 = 11252;
const ADMISSION: u16 = 11253;
const WEBHOOK: u16 = 8443;

const JOBS: &str = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs";
const GROUPS: &str = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups";
const PROBE: &str = "umiak-testkit-probe";

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

    /// The three programs report that they are healthy before they know the queue, so a job for a node that does not exist
    /// is tried. It is refused until admission knows the queue, the controllers make its group of pods, and the
    /// scheduler lets the group into the queue.
    pub(super) fn wait_for_volcano(&self) {
        let container = json!({ "name": "main", "image": IMAGE });
        let spec = json!({ "restartPolicy": "Never", "containers": [container], "nodeSelector": { PROBE: "" } });
        let pod = json!({ "spec": spec });
        let job = json!({
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": { "name": PROBE },
            "spec": { "minAvailable": 1, "tasks": [{ "name": "main", "replicas": 1, "template": pod }] },
        });
        self.wait("Volcano's admission accepts a job", || matches!(self.api.post(JOBS, &job), Ok((201, _))));
        let group = || self.api.get(GROUPS).map(|list| list["items"][0].clone()).unwrap_or_default();
        self.wait("Volcano looks at a job", || group()["status"]["phase"] == "Inqueue");
        let answer = self.api.delete(&format!("{JOBS}/{PROBE}"), &json!({ "propagationPolicy": "Foreground" }));
        assert!(matches!(answer, Ok((200 | 202, _))), "{answer:?}");
        self.wait("Volcano forgets a job", || {
            group().is_null() && self.api.status(&format!("{JOBS}/{PROBE}")) == Some(404)
        });
    }
}
