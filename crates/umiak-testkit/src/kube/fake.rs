//! Nodes without machines: their leases are renewed and their pods get a status, so that large jobs, and the loss of
//! nodes, cost little. No process runs and nothing is logged on them.
//!
//! A pod there runs from the moment it is bound. With the annotation [`SECONDS`] it ends after that time, with the exit
//! code in [`EXIT`], or 0.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Api, Kube};

/// Annotations of pods.
pub const SECONDS: &str = "umiak-testkit/seconds";
pub const EXIT: &str = "umiak-testkit/exit";

/// Below half of the shortest silence after which a node is lost.
const HEARTBEAT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Fakes {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// True for those that are renewed.
    nodes: BTreeMap<String, bool>,
    /// Pods that end: when, and what is then patched where.
    ends: BTreeMap<(Instant, String), Value>,
    has_threads: bool,
}

impl Fakes {
    pub(super) fn add(&self, kube: &Kube, count: usize, capacity: &[(&str, &str)]) -> Vec<String> {
        let mut state = self.shared.lock();
        let first = state.nodes.len() + 1;
        let names: Vec<String> = (first..first + count).map(|number| format!("fake{number}")).collect();
        state.nodes.extend(names.iter().map(|name| (name.clone(), true)));
        let is_first = !std::mem::replace(&mut state.has_threads, true);
        drop(state);
        for name in &names {
            create_node(&kube.api, name, capacity);
        }
        if is_first {
            let (shared, api) = (self.shared.clone(), kube.api.clone());
            thread::spawn(move || shared.beat(&api));
            let (shared, api) = (self.shared.clone(), kube.api.clone());
            thread::spawn(move || shared.follow(&api));
        }
        for name in &names {
            kube.wait_for_node(name);
        }
        names
    }

    /// Ends a node as a power failure does.
    pub(super) fn lose(&self, name: &str) {
        *self.shared.lock().nodes.get_mut(name).expect("a fake node") = false;
    }
}

impl Drop for Fakes {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn alive(&self) -> Vec<String> {
        let state = self.lock();
        state.nodes.iter().filter(|(_, is_alive)| **is_alive).map(|(name, _)| name.clone()).collect()
    }

    fn is_alive(&self, node: &str) -> bool {
        self.lock().nodes.get(node) == Some(&true)
    }

    /// Renews leases, and ends pods.
    fn beat(&self, api: &Api) {
        let mut next = Instant::now();
        while !self.is_over() {
            if next <= Instant::now() {
                next = Instant::now() + HEARTBEAT;
                self.alive().iter().for_each(|name| renew(api, name));
            }
            for ((_, path), mut patch) in self.take_due() {
                let containers = &mut patch["status"]["containerStatuses"];
                for container in containers.as_array_mut().into_iter().flatten() {
                    container["state"]["terminated"]["finishedAt"] = time(false).into();
                }
                let _ = api.merge(&path, &patch);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Removes the ends of pods whose time has come.
    fn take_due(&self) -> BTreeMap<(Instant, String), Value> {
        let mut state = self.lock();
        let later = state.ends.split_off(&(Instant::now(), String::new()));
        std::mem::replace(&mut state.ends, later)
    }

    /// Does what the kubelets of these nodes would do. A watch begins with all pods that exist.
    fn follow(&self, api: &Api) {
        while !self.is_over() {
            let _ = api.watch("/api/v1/pods?watch=1&resourceVersion=0", |event| {
                let pod = &event["object"];
                if event["type"] != "DELETED"
                    && pod["spec"]["nodeName"].as_str().is_some_and(|node| self.is_alive(node))
                {
                    self.tend(api, pod);
                }
                !self.is_over()
            });
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn tend(&self, api: &Api, pod: &Value) {
        let meta = &pod["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let path = format!("/api/v1/namespaces/{}/pods/{}", text(&meta["namespace"]), text(&meta["name"]));
        if meta["deletionTimestamp"].is_string() {
            let options = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": meta["uid"] } });
            let _ = api.delete(&path, &options);
            return;
        }
        if pod["status"]["phase"] != "Pending" {
            return;
        }
        let (path, now) = (format!("{path}/status"), time(false));
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
            .map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": now }));
        let running = json!({ "running": { "startedAt": now } });
        let patch = json!({ "status": {
            "phase": "Running",
            "startTime": now,
            "podIP": "10.244.1.1",
            "podIPs": [{ "ip": "10.244.1.1" }],
            "conditions": conditions,
            "containerStatuses": containers(pod, true, &running),
        }});
        let _ = api.merge(&path, &patch);
        let annotation = |name: &str| meta["annotations"][name].as_str();
        let Some(seconds) = annotation(SECONDS).and_then(|text| text.parse().ok()) else { return };
        let code = annotation(EXIT).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
        let ended = json!({ "terminated": { "exitCode": code, "reason": reason, "startedAt": now } });
        let patch = json!({ "status": { "phase": phase, "containerStatuses": containers(pod, false, &ended) } });
        self.lock().ends.insert((Instant::now() + Duration::from_secs_f64(seconds), path), patch);
    }
}

/// A node that was late has to say itself that it is ready again.
fn renew(api: &Api, name: &str) {
    let _ = api.merge(&lease(name), &json!({ "spec": { "renewTime": time(true) } }));
    let path = format!("/api/v1/nodes/{name}");
    let conditions = api.get(&path).map(|mut node| node["status"]["conditions"].take()).unwrap_or_default();
    let mut ready = conditions.as_array().into_iter().flatten().filter(|condition| condition["type"] == "Ready");
    if ready.any(|condition| condition["status"] != "True") {
        let _ = api.merge(&format!("{path}/status"), &json!({ "status": { "conditions": [ready_condition()] } }));
    }
}

fn ready_condition() -> Value {
    json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "no kubelet",
        "lastHeartbeatTime": time(false), "lastTransitionTime": time(false),
    })
}

fn containers(pod: &Value, is_ready: bool, state: &Value) -> Vec<Value> {
    let status = |container: &Value| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "containerID": "fake://1",
            "ready": is_ready,
            "started": is_ready,
            "restartCount": 0,
            "state": state,
        })
    };
    pod["spec"]["containers"].as_array().into_iter().flatten().map(status).collect()
}

fn lease(name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
}

fn create_node(api: &Api, name: &str, capacity: &[(&str, &str)]) {
    let mut amounts = json!({ "cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "100Gi" });
    for (resource, amount) in capacity {
        amounts[*resource] = (*amount).into();
    }
    let labels = json!({ "kubernetes.io/hostname": name, "kubernetes.io/os": "linux" });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } });
    let status =
        json!({ "status": { "capacity": amounts, "allocatable": amounts, "conditions": [ready_condition()] } });
    let spec = json!({ "holderIdentity": name, "leaseDurationSeconds": 4, "renewTime": time(true) });
    let leased =
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name }, "spec": spec });
    let leases = lease(name);
    let leases = leases.trim_end_matches(name).trim_end_matches('/');
    for answer in [
        api.post("/api/v1/nodes", &node),
        api.merge(&format!("/api/v1/nodes/{name}/status"), &status),
        api.post(leases, &leased),
    ] {
        assert!(matches!(answer, Ok((200 | 201, _))), "{answer:?}");
    }
}

/// Now, as the API writes it; leases have microseconds.
fn time(has_micros: bool) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let micros = if has_micros { format!(".{:06}", since.subsec_micros()) } else { String::new() };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{micros}Z")
}

/// The date of a day after 1970-01-01. Years begin in March here, so that a leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_right() {
        let cases = [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_776, (2026, 11, 19)),
            (24_836, (2037, 12, 31)),
        ];
        for (days, expected) in cases {
            assert_eq!(date(days), expected);
        }
    }
}
