//! The cluster of the tests itself: what runs on it, its faults, and what is left of it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use umiak_testkit::components::Component::Kube as Needed;
use umiak_testkit::kube::{Daemon, FAKE_EXIT, FAKE_SECONDS, IMAGE, Kube, Options};
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("kube::cluster::jobs_of_every_kind_run_and_nothing_is_left", &[Needed], jobs)
        .test("kube::cluster::daemons_come_back_and_nodes_are_lost", &[Needed], faults)
        .test("kube::cluster::a_node_comes_back_after_a_dead_kubelet_and_a_power_failure", &[Needed], kubelet);
}

/// Pods, a gang of Volcano, a JobSet and an Indexed Job, at the same time.
fn jobs() {
    let sandbox = Sandbox::new();
    sandbox.write("given", "something\n");
    let kube = Kube::start(Options::ALL);
    let directory = kube.directory().to_owned();
    let pods = include_str!("jobs/pods.yaml").replace("HOST", &sandbox.path().display().to_string());
    let others =
        [include_str!("jobs/volcano.yaml"), include_str!("jobs/jobset.yaml"), include_str!("jobs/indexed.yaml")];
    kube.apply(&[pods.as_str()].into_iter().chain(others).collect::<Vec<_>>().join("---\n"));

    let pod = "/api/v1/namespaces/default/pods";
    kube.wait("the pod fails", || phase(&kube, &format!("{pod}/fails")) == "Failed");
    let status = kube.api().get(&format!("{pod}/fails")).expect("the pod");
    let ended = &status["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&json!(3), &json!("Error")));
    assert_eq!(kube.ask(&["logs", "fails"]), "from fails");

    kube.wait("the pod with mounts ends", || phase(&kube, &format!("{pod}/mounts")) == "Succeeded");
    assert!(sandbox.read("made").ends_with("  /host/given\n"), "{}", sandbox.read("made"));

    let gang = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs/gang";
    let state = || kube.api().get(gang).map_or(Value::Null, |gang| gang["status"]["state"]["phase"].clone());
    kube.wait("Volcano's job completes", || state() == "Completed");
    let set = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/set";
    kube.wait("the JobSet completes", || kube.condition(set, "Completed").as_deref() == Some("True"));
    let train = "/apis/batch/v1/namespaces/default/jobs/train";
    kube.wait("the job completes", || kube.condition(train, "Complete").as_deref() == Some("True"));

    // Volcano's admission refuses what can never run.
    let impossible = include_str!("jobs/volcano.yaml").replace("minAvailable: 3", "minAvailable: 4");
    let value = impossible.replace("name: gang", "name: large");
    let answer = kube.api().post_yaml(gang.trim_end_matches("/gang"), &value).expect("an answer");
    assert!(answer.1["message"].as_str().is_some_and(|text| text.contains("minAvailable")), "{answer:?}");

    kube.ask(&["run", "stays", "--image", IMAGE, "--command", "--", "sleep", "1000"]);
    kube.wait("a pod runs", || phase(&kube, &format!("{pod}/stays")) == "Running");
    assert!(!left_of(&directory).is_empty());
    drop(kube);
    assert_eq!(left_of(&directory), [""; 0]);
}

/// A control plane with fake nodes is enough for this.
fn faults() {
    let kube = Kube::start(Options { silence: 5, ..Options::CONTROL_PLANE });
    let nodes = kube.add_fake_nodes(2, &[("nvidia.com/gpu", "8")]);
    assert_eq!(nodes, ["fake1", "fake2"]);
    let job = |name: &str, seconds: &str, code: &str| {
        let container = json!({ "name": "main", "image": IMAGE, "resources": { "limits": { "nvidia.com/gpu": 1 } } });
        let annotations = json!({ FAKE_SECONDS: seconds, FAKE_EXIT: code });
        let template = json!({
            "metadata": { "annotations": annotations },
            "spec": { "restartPolicy": "Never", "containers": [container] },
        });
        let spec = json!({ "completions": 12, "parallelism": 12, "backoffLimit": 0, "template": template });
        json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": spec }).to_string()
    };
    let is = |name: &str, kind: &str| {
        let path = format!("/apis/batch/v1/namespaces/default/jobs/{name}");
        kube.condition(&path, kind).as_deref() == Some("True")
    };
    kube.apply(&job("good", "0.5", "0"));
    kube.wait("the job completes", || is("good", "Complete"));
    kube.apply(&job("bad", "0", "9"));
    kube.wait("the job fails", || is("bad", "Failed"));

    kube.lose_fake_node("fake2");
    let ready = |name: &str| kube.condition(&format!("/api/v1/nodes/{name}"), "Ready").unwrap_or_default();
    kube.wait("the node is lost", || ready("fake2") == "Unknown");
    assert_eq!(ready("fake1"), "True");

    kube.kill(Daemon::ApiServer);
    assert_eq!(kube.api().status("/readyz"), None);
    kube.restart(Daemon::ApiServer);
    // The relay's address is still that of the kubeconfig.
    assert_eq!(kube.ask(&["get", "nodes", "--output", "name"]), "node/fake1\nnode/fake2");
    kube.wait("the other node is ready", || ready("fake1") == "True");
}

/// A container ends while its node has no kubelet; then the node loses power.
fn kubelet() {
    let sandbox = Sandbox::new();
    let kube = Kube::start(Options::NODE);
    let at = sandbox.path().display();
    let pod = |name: &str, script: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "main",
                    "image": IMAGE,
                    "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "host", "mountPath": "/host" }],
                }],
                "volumes": [{ "name": "host", "hostPath": { "path": at.to_string() } }],
            },
        })
    };
    let ends = "touch /host/begun; until [ -e /host/go ]; do sleep 0.1; done; touch /host/over; exit 7";
    kube.apply(&pod("ends", ends).to_string());
    let has = |name: &str| sandbox.path().join(name).exists();
    kube.wait("the container begins", || has("begun"));
    kube.kill(Daemon::Kubelet(0));
    sandbox.write("go", "");
    kube.wait("the container ends", || has("over"));
    kube.restart(Daemon::Kubelet(0));
    let path = "/api/v1/namespaces/default/pods/ends";
    kube.wait("the pod fails", || phase(&kube, path) == "Failed");
    let status = kube.api().get(path).expect("the pod");
    assert_eq!(status["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 7);

    let stays = format!("touch /host/stays; while :; do sleep 1; done; : {at}");
    kube.apply(&pod("stays", &stays).to_string());
    kube.wait("the container stays", || has("stays"));
    let runs = || !processes(&stays).is_empty();
    assert!(runs());
    kube.lose_node(0);
    kube.wait("its processes are gone", || !runs());
    kube.restart(Daemon::Containerd(0));
    kube.restart(Daemon::Kubelet(0));
    let path = "/api/v1/namespaces/default/pods/stays";
    kube.wait("the pod fails", || phase(&kube, path) == "Failed");
}

/// Processes whose command line ends with this text.
fn processes(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("the kernel").flatten();
    let found = entries.filter(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).trim_end_matches('\0').ends_with(text)
    });
    found.map(|entry| entry.path().display().to_string()).collect()
}

fn phase(kube: &Kube, path: &str) -> String {
    let pod = kube.api().get(path).unwrap_or_default();
    pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

/// Processes, mounts, cgroups and files that belong to a cluster.
fn left_of(directory: &Path) -> Vec<String> {
    let name = directory.file_name().expect("a directory below another").to_string_lossy().into_owned();
    let mut left = Vec::new();
    let read = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    for entry in fs::read_dir("/proc").expect("the kernel").flatten() {
        for file in ["cmdline", "mountinfo", "cgroup"] {
            let path = entry.path().join(file);
            if read(&path).is_ok_and(|text| text.contains(&name)) {
                left.push(path.display().to_string());
            }
        }
    }
    let cgroups = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path().join(&name));
    let files = cgroups.chain([directory.to_owned(), Path::new("/sys/fs/cgroup").join(&name)]);
    left.extend(files.filter(|path| path.exists()).map(|path| path.display().to_string()));
    left
}
