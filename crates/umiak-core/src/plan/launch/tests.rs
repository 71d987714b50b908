//! Command lines and hosts in, plans out.

use std::time::Duration;

use super::*;
use crate::machine::round::messages::{NodeProcess, NodeShare, Start};
use crate::model::request::tests::request;
use crate::model::{DeviceRequest, Endpoint, Generation, Processes, Rank};
use crate::plan::Ports;

fn with_habits(change: impl FnOnce(&mut PaddleHabits)) -> Request {
    let mut request = request();
    change(request.paddle.as_mut().unwrap());
    request
}

fn run() -> Run {
    Run {
        pod_name: "abcdef".into(),
        scratch: "/tmp/umiak-x".into(),
        directory: "/w".into(),
        log_dir: "/w/log".into(),
        command: Resolved { program: "/usr/bin/python3".into(), argv: vec!["python3".into()] },
        attempt: 1,
        last: None,
    }
}

pub(in crate::plan) fn plan(request: &Request, inventory: &Inventory) -> Plan {
    let layout = layout(request, inventory).unwrap();
    let port = |port: u16| Port::new(port).unwrap();
    let ports = Ports {
        endpoints: (0..layout.seats.len() as u16).map(|i| port(6170 + i)).collect(),
        stores: vec![port(7001), port(7002)],
    };
    let share = Share::without_others(request, inventory, &layout, &ports).unwrap();
    finish(request, inventory, layout, share, &run())
}

fn get<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
    variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn four_ranks_on_cpu() {
    let request = Request { processes: Processes::Number(4), ..request() };
    let plan = plan(&request, &Inventory { cpus: 10, ..Inventory::default() });
    assert_eq!(plan.replicas.len(), 4);
    assert_eq!(plan.job.policy.stop.grace, Duration::from_secs(5));
    let last = &plan.replicas[3];
    let env = plan.known_variables(last);
    assert_eq!(plan.log(last, 0), Log::new("/w/log/workerlog.3".into()));
    assert_eq!(get(&env, "PADDLE_MASTER"), Some("127.0.0.1:7001"));
    assert_eq!(get(&env, "MASTER_PORT"), Some("7002"));
    assert_eq!(get(&env, "PADDLE_CURRENT_ENDPOINT"), Some("127.0.0.1:6173"));
    assert_eq!(get(&plan.common, "OMP_NUM_THREADS"), Some("1"));
    assert!(!plan.inherit_stdin);
}

#[test]
fn threads_as_the_user_or_paddle_says() {
    let unset = Inventory { cpus: 10, ..Inventory::default() };
    let mut set = unset.clone();
    set.env.insert("OMP_NUM_THREADS".into(), "3".into());
    for (omp, without, with) in [
        (Omp::OneUnlessSet, Some("1"), None),
        (Omp::Share, Some("2"), Some("2")),
        (Omp::Count(7), Some("7"), Some("7")),
    ] {
        let request = Request { processes: Processes::Number(4), omp, ..request() };
        assert_eq!(get(&plan(&request, &unset).common, "OMP_NUM_THREADS"), without, "{omp:?}");
        assert_eq!(get(&plan(&request, &set).common, "OMP_NUM_THREADS"), with, "{omp:?}");
    }
}

#[test]
fn proxies_are_kept_put_aside_or_removed() {
    let env = [("http_proxy".to_owned(), "http://p:1".to_owned())].into();
    let inventory = Inventory { env, cpus: 1, ..Inventory::default() };
    for (proxies, is_unset, original, no_proxy) in [
        (Proxies::Kept, false, None, Some("127.0.0.1")),
        (Proxies::PutAside, true, Some("http://p:1"), None),
        (Proxies::Removed, true, None, None),
    ] {
        let plan = plan(&with_habits(|paddle| paddle.proxies = proxies), &inventory);
        assert_eq!(plan.unset.contains(&"http_proxy".to_owned()), is_unset, "{proxies:?}");
        assert_eq!(get(&plan.common, "http_proxy_original"), original, "{proxies:?}");
        assert_eq!(get(&plan.common, "no_proxy"), no_proxy, "{proxies:?}");
    }
}

/// The nodes' addresses are added to the user's list, without duplicates.
#[test]
fn peers_are_reached_without_a_proxy() {
    let (second, mut inventory) = second();
    inventory.env.insert("https_proxy".into(), "p".into());
    let plan_of_three = three_nodes(&second, &inventory);
    assert_eq!(get(&plan_of_three.common, "no_proxy"), Some("10.0.0.1,10.0.0.2,10.0.0.3"));
    for (env, small, large) in [
        (&[][..], None, None),
        (&[("no_proxy", "a")], None, None),
        (&[("HTTPS_PROXY", "p"), ("no_proxy", "a,.b")], Some("a,.b,127.0.0.1"), None),
        (&[("all_proxy", "p"), ("NO_PROXY", "a")], Some("a,127.0.0.1"), Some("a,127.0.0.1")),
        (&[("http_proxy", "p"), ("no_proxy", "127.0.0.1"), ("NO_PROXY", "b")], Some("127.0.0.1"), Some("b,127.0.0.1")),
        (&[("http_proxy", "p"), ("no_proxy", "*")], Some("*"), None),
        (&[("http_proxy", "")], None, None),
    ] {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let plan = plan(&request(), &Inventory { env, cpus: 1, ..Inventory::default() });
        let seen = (get(&plan.common, "no_proxy"), get(&plan.common, "NO_PROXY"));
        assert_eq!(seen, (small, large));
    }
}

#[test]
fn a_subset_is_exported_and_counted_by_position() {
    let request = Request {
        devices: Some(DeviceRequest {
            source: "--gpus".into(),
            kind: Some(DeviceKind::Gpu),
            ids: vec!["2".into(), "3".into()],
        }),
        ..request()
    };
    let gpus = (0..8)
        .map(|index| crate::plan::Gpu {
            index,
            name: String::new(),
            uuid: String::new(),
            numa_node: None,
            minor: index,
        })
        .collect();
    let plan = plan(&request, &Inventory { gpus, cpus: 8, ..Inventory::default() });
    assert_eq!(get(&plan.common, "CUDA_VISIBLE_DEVICES"), Some("2,3"));
    assert_eq!(get(&plan.common, "CUDA_DEVICE_ORDER"), Some("PCI_BUS_ID"));
    assert_eq!(get(&plan.known_variables(&plan.replicas[1]), "FLAGS_selected_gpus"), Some("1"));
    assert_eq!(get(&plan.known_variables(&plan.replicas[1]), "LOCAL_RANK"), Some("1"));
}

#[test]
fn an_address_that_is_not_ours() {
    let foreign = Request { ip: Some("192.168.0.1".parse().unwrap()), ..request() };
    let own = Address { interface: "eth0".into(), ip: "10.0.0.7".parse().unwrap() };
    let inventory = Inventory { addresses: vec![own], ..Inventory::default() };
    let diagnostic = layout(&foreign, &inventory).unwrap_err();
    assert_eq!(diagnostic.code, Code::L0004);
    assert!(diagnostic.to_plain().contains("10.0.0.7 (eth0)"), "{}", diagnostic.to_plain());
    let vouched = Request { host: foreign.ip, ..foreign };
    assert!(layout(&vouched, &inventory).is_ok());
}

#[test]
fn with_a_static_list_the_first_endpoint_is_the_store() {
    let request = Request { ip: Some("127.0.0.1".parse().unwrap()), ..request() };
    let plan = plan(&request, &Inventory::default());
    assert_eq!(get(&plan.known_variables(&plan.replicas[0]), "PADDLE_MASTER"), Some("127.0.0.1:6170"));
}

/// Three nodes with two, three and one process; this is the one in the middle.
fn three_nodes(request: &Request, inventory: &Inventory) -> Plan {
    let start = start();
    let layout = layout(request, inventory).unwrap();
    let share = Share::of(request, &layout, &start).unwrap();
    finish(request, inventory, layout, share, &run())
}

fn start() -> Start {
    let endpoint = |port: u16| Endpoint { address: "10.0.0.1".parse().unwrap(), port: Port::new(port).unwrap() };
    let process = |port: u16| NodeProcess::trainer(Port::new(port).unwrap(), vec![]);
    let node = |last: u16, count: u16| NodeShare {
        launch: u64::from(last),
        address: format!("10.0.0.{last}").parse().unwrap(),
        host: format!("node-{last}"),
        processes: (0..count).map(|local| process(6170 + 10 * last + local)).collect(),
        device_kind: None,
    };
    Start {
        attempt: 1,
        nodes: vec![node(1, 2), node(2, 3), node(3, 1)],
        paddle_store: endpoint(7001),
        torch_store: endpoint(7002),
        restarts: None,
        last: None,
        commands: Vec::new(),
        you: 1,
    }
}

fn second() -> (Request, Inventory) {
    let master =
        Nodes::Master { host: "10.0.0.1".into(), port: Port::new(6768).unwrap(), nodes: 3, source: "--master".into() };
    let own = Address { interface: "eth0".into(), ip: "10.0.0.2".parse().unwrap() };
    let inventory = Inventory { cpus: 6, addresses: vec![own], hostname: "node-2".into(), ..Inventory::default() };
    (Request { nodes: master, processes: Processes::Number(3), ..request() }, inventory)
}

#[test]
fn one_of_three_nodes() {
    let (request, inventory) = second();
    let plan = three_nodes(&request, &inventory);
    let all = "10.0.0.1:6180,10.0.0.1:6181,10.0.0.2:6190,10.0.0.2:6191,10.0.0.2:6192,10.0.0.3:6200";
    assert_eq!(plan.topology().endpoint_list(), all);
    assert_eq!(plan.job.roles[0].replicas, 3);
    assert_eq!(plan.first_rank(), Rank(2));
    assert_eq!((plan.replica(Rank(1)), plan.replica(Rank(5))), (None, None));
    for (local, replica) in plan.replicas.iter().enumerate() {
        let rank = 2 + local as u32;
        assert_eq!(replica.slot, Slot { role: 0, index: local as u32 });
        assert_eq!((replica.rank, plan.replica(Rank(rank))), (Rank(rank), Some(replica)));
        assert_eq!(plan.log(replica, 0).path, PathBuf::from(format!("/w/log/workerlog.{rank}")));
        assert!(!plan.inherit_stdin);
        for (name, value) in [
            ("PADDLE_TRAINER_ID", rank.to_string()),
            ("PADDLE_LOCAL_RANK", local.to_string()),
            ("PADDLE_LOCAL_SIZE", "3".to_owned()),
            ("PADDLE_TRAINERS_NUM", "6".to_owned()),
            ("PADDLE_NNODES", "3".to_owned()),
            ("PADDLE_CURRENT_ENDPOINT", format!("10.0.0.2:{}", 6190 + local)),
            ("PADDLE_TRAINER_ENDPOINTS", all.to_owned()),
            ("PADDLE_MASTER", "10.0.0.1:7001".to_owned()),
            ("RANK", rank.to_string()),
            ("GROUP_RANK", "1".to_owned()),
            ("GROUP_WORLD_SIZE", "3".to_owned()),
            ("LOCAL_WORLD_SIZE", "3".to_owned()),
            ("MASTER_ADDR", "10.0.0.1".to_owned()),
            ("MASTER_PORT", "7002".to_owned()),
        ] {
            assert_eq!(get(&plan.known_variables(replica), name), Some(value.as_str()), "{name}");
        }
    }
    let files: Vec<String> = plan.files.iter().map(|file| file.path.display().to_string()).collect();
    for rank in 2..5 {
        assert!(files.contains(&format!("/w/log/envlog.{rank}")), "{files:?}");
        assert!(files.contains(&format!("/w/log/backup_env.{rank}.json")), "{files:?}");
    }
    assert_eq!(files.len(), 7);
    let endpoints = files::Author::new(&inventory, &plan).text(files::Content::Endpoints);
    assert_eq!(endpoints, format!("PADDLE_TRAINER_ENDPOINTS: \n{}", all.replace(',', "\n")));
}

#[test]
fn interfaces_are_named_with_several_nodes_only() {
    let (request, inventory) = second();
    let several = three_nodes(&request, &inventory);
    let alone = plan(&Request { nodes: Nodes::One, ..request.clone() }, &inventory);
    for name in nodes::INTERFACE_VARIABLES {
        assert_eq!((get(&several.common, name), get(&alone.common, name)), (Some("eth0"), None));
    }
    let elsewhere = three_nodes(&request, &Inventory { addresses: vec![], ..inventory });
    assert_eq!(get(&elsewhere.common, "NCCL_SOCKET_IFNAME"), None);
    assert_eq!(elsewhere.notices.iter().map(|notice| notice.code).collect::<Vec<_>>(), [Code::L0029]);
}

#[test]
fn with_a_list_of_nodes_the_first_endpoint_is_the_store() {
    let (request, inventory) = second();
    let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| it.parse().unwrap()).to_vec();
    let request = Request { nodes: Nodes::List { addresses: addresses.clone(), source: "--ips".into() }, ..request };
    assert_eq!(layout(&request, &inventory).unwrap().address, Some(addresses[1]));
    for (generation, store) in [(Generation::Current, "10.0.0.1:6180"), (Generation::Legacy, "10.0.0.1:7001")] {
        let paddle = with_habits(|paddle| paddle.variables.generation = generation).paddle;
        let plan = three_nodes(&Request { paddle, ..request.clone() }, &inventory);
        assert_eq!(get(&plan.known_variables(&plan.replicas[0]), "PADDLE_MASTER"), Some(store));
    }
    let elsewhere = Inventory { addresses: vec![], ..inventory };
    assert_eq!(layout(&request, &elsewhere).unwrap_err().code, Code::L0004);
}

/// The relay is at the port that was offered for the store, and only the first node knows what is behind it.
#[test]
fn with_a_relay_rank_0_hosts_the_store_elsewhere() {
    let (request, inventory) = second();
    let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| it.parse().unwrap()).to_vec();
    let listed = Nodes::List { addresses, source: "--ips".into() };
    let own = Port::new(7003).unwrap();
    for nodes in [request.nodes.clone(), listed] {
        let request = Request { nodes, store_relay: true, ..request.clone() };
        let layout = layout(&request, &inventory).unwrap();
        let mut start = start();
        // All nodes have as many ranks as this one.
        start.nodes.iter_mut().for_each(|node| node.processes.resize(3, node.processes[0].clone()));
        for you in 0..3 {
            start.you = you;
            let share = Share::of(&request, &layout, &start).unwrap().relaying(Some(&own));
            let plan = finish(&request, &inventory, layout.clone(), share, &run());
            let masters: Vec<String> = plan.replicas.iter().map(|rank| master(&plan, rank)).collect();
            let first = if you == 0 { "10.0.0.1:7003" } else { "10.0.0.1:7001" };
            assert_eq!(masters, [first, "10.0.0.1:7001", "10.0.0.1:7001"], "node {you}");
        }
    }
}

fn master(plan: &Plan, rank: &Replica) -> String {
    get(&plan.known_variables(rank), "PADDLE_MASTER").unwrap().to_owned()
}

#[test]
fn with_a_master_the_address_may_be_open() {
    let (request, inventory) = second();
    assert_eq!(layout(&request, &inventory).unwrap().address, None);
    let host = "10.9.9.9".parse().ok();
    assert_eq!(layout(&Request { host, ..request }, &inventory).unwrap().address, host);
}

#[test]
fn orders_that_make_no_sense() {
    let (request, inventory) = second();
    let layout = layout(&request, &inventory).unwrap();
    let changes: [fn(&mut Start); 4] = [
        |start| start.you = 3,
        |start| start.you = 0,
        |start| start.nodes.clear(),
        |start| start.nodes[2].processes.clear(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut start = start();
        change(&mut start);
        let error = Share::of(&request, &layout, &start).map(|_| ()).unwrap_err();
        assert_eq!(error.code, Code::L0016, "{index}");
    }
}

#[test]
fn what_a_node_offers() {
    let (request, inventory) = second();
    let layout = layout(&request, &inventory).unwrap();
    let port = |port: u16| Port::new(port).unwrap();
    let ports = Ports { endpoints: vec![port(1), port(2), port(3)], stores: vec![port(8), port(9)] };
    let offer = crate::plan::offer(&layout, &ports);
    assert_eq!(offer.processes.iter().map(|process| process.port.get()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((offer.stores.map(Port::get), offer.device_kind), ([8, 9], None));
}

#[test]
fn secrets_of_umiak_are_kept_from_the_ranks() {
    for name in ["UMIAK_TOKEN", "UMIAK_ETCD_PASSWORD"] {
        let env = [(name.to_owned(), "open sesame".to_owned())].into();
        let plan = plan(&request(), &Inventory { env, cpus: 1, ..Inventory::default() });
        assert_eq!(plan.unset, [name]);
    }
}

#[test]
fn paddles_lines_for_several_nodes() {
    use crate::plan::paddle_lines;
    let (request, inventory) = second();
    let lines_of = |nodes: &str| {
        let paddle = with_habits(|paddle| paddle.configuration = vec![("nnodes".into(), nodes.into())]).paddle;
        let request = Request { paddle, ..request.clone() };
        paddle_lines::at_start(&request, &inventory, &three_nodes(&request, &inventory))
    };
    let lines = lines_of("3");
    assert_eq!(
        lines[1],
        "[{'name': 'node-1', 'rank': 0, 'replicas': 2, 'dtype': 'cpu', 'candidate': '10.0.0.1:7001', 'endpoints': '10.0.0.1:6180,10.0.0.1:6181'}, {'name': 'abcdef', 'rank': 1, 'replicas': 3, 'dtype': 'cpu', 'candidate': '10.0.0.2:6190', 'endpoints': '10.0.0.2:6190,10.0.0.2:6191,10.0.0.2:6192'}, {'name': 'node-3', 'rank': 2, 'replicas': 1, 'dtype': 'cpu', 'candidate': '10.0.0.3:6200', 'endpoints': '10.0.0.3:6200'}]"
    );
    for (nodes, shown) in [("3", "3[3:3], elastic False"), ("2:4", "4[2:4], elastic True")] {
        let (lines, job) =
            (lines_of(nodes), format!("LAUNCH INFO <ts> Job: default, mode collective, replicas {shown}"));
        assert!(lines.contains(&job), "{lines:#?}");
    }
    let dashes = "-".repeat(80);
    assert_eq!(
        paddle_lines::copy_to_others("umiak launch --master 10.0.0.2:4321 train.py"),
        format!(
            "Copy the following command to other nodes to run.\n{dashes}\numiak launch --master 10.0.0.2:4321 train.py\n{dashes}"
        )
    );
}

/// A request from another launcher's front end.
#[test]
fn without_paddles_habits_there_is_nothing_of_paddles() {
    let env = [("http_proxy".to_owned(), "http://p:1".to_owned())].into();
    let inventory = Inventory { env, cpus: 4, ..Inventory::default() };
    let request = Request { paddle: None, processes: Processes::Number(2), ..request() };
    let plan = plan(&request, &inventory);
    assert_eq!((plan.files.len(), plan.unset.len()), (0, 0));
    let variables = plan.known_variables(&plan.replicas[1]);
    assert_eq!((get(&variables, "RANK"), get(&variables, "MASTER_PORT")), (Some("1"), Some("7002")));
    let is_paddles = |name: &str| name.starts_with("PADDLE_") || name.ends_with("_original") || name == "POD_NAME";
    let names = || plan.common.iter().chain(&variables).map(|(name, _)| name.as_str());
    assert!(!names().any(is_paddles), "{:?}", names().collect::<Vec<_>>());
    assert_eq!(get(&plan.common, "no_proxy"), Some("127.0.0.1"));
    assert_eq!(crate::plan::paddle_lines::at_start(&request, &inventory, &plan), [""; 0]);
}

#[test]
fn contracts_see_all_roles_on_all_nodes() {
    let (request, inventory) = second();
    let plan = three_nodes(&request, &inventory);
    let [trainers] = plan.places() else { panic!("{:?}", plan.places()) };
    let hosts: Vec<String> = trainers.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(trainers.ports[0].of(5), [Port::new(6200).unwrap()]);
}
