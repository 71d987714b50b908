use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollTimeout;

use super::service::Service;
use crate::descend::{self, WaitStatus, decode};
use crate::ports::{LeaseError, LeaseRequest, Leased, PortRange};
use crate::protocol::{self, Batch, Command, Inbox, Notice, ProcessKey, ProcessLimits, ProcessSpec, SpawnAction};

fn process(index: u32, attempt: u32, line: &str) -> ProcessSpec {
    ProcessSpec {
        key: ProcessKey { job: 0, role: 0, index, attempt },
        program: b"/bin/sh".to_vec(),
        argv: ["sh", "-c", line].iter().map(|word| word.as_bytes().to_vec()).collect(),
        script: Vec::new(),
        env: Vec::new(),
        dir: Vec::new(),
        log: b"/dev/null".to_vec(),
        stderr: Vec::new(),
        cpus: Vec::new(),
        inherit_stdin: false,
        mounts: Vec::new(),
    }
}

/// Runs a check in a guardian that a test forked. Its exit code is the result of the check.
fn in_a_guardian(check: impl FnOnce(&mut Service, &mut UnixStream) -> bool) {
    let (mut front, guardian) = UnixStream::pair().unwrap();
    // SAFETY: tests run in threads, so another thread could hold the allocator at the fork; glibc handles that.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            // Closes inherited leases of other tests.
            let own = [front.as_raw_fd(), guardian.as_raw_fd()];
            for fd in (3..256).filter(|fd| !own.contains(fd)) {
                // SAFETY: copies that nothing in this process uses.
                unsafe { libc::close(fd) };
            }
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&mut Service::new(guardian, None, None).unwrap(), &mut front)
            }));
            // SAFETY: leaves without the test's destructors.
            unsafe { libc::_exit(i32::from(!matches!(checked, Ok(true)))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(decode(status), WaitStatus::Code(0));
        }
    }
}

fn until_all_ended(service: &mut Service) {
    while !service.by_pid.is_empty() {
        let ready = service.wait(EpollTimeout::NONE).unwrap();
        service.handle_exits(&ready).unwrap();
    }
}

#[test]
fn attempts_without_end_leave_nothing() {
    in_a_guardian(|service, _| {
        service.spawn(&Batch { processes: vec![process(1, 1, "exec sleep 60")], ..Batch::default() });
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("/dev/zero").count();
        let before = mappings();
        for attempt in 1..=20 {
            service.spawn(&Batch { processes: vec![process(0, attempt, "exit 3")], ..Batch::default() });
            while service.by_pid.len() > 1 {
                let ready = service.wait(EpollTimeout::NONE).unwrap();
                service.handle_exits(&ready).unwrap();
            }
        }
        let kept = service.ranks.len();
        service.signal(libc::SIGKILL, &[ProcessKey { job: 0, role: 0, index: 1, attempt: 1 }]);
        until_all_ended(service);
        kept == 2 && before == 1 && mappings() == 0
    });
}

#[test]
fn what_cannot_be_started_is_told_and_others_go_on() {
    in_a_guardian(|service, front| {
        service.spawn(&Batch { processes: vec![process(0, 1, "exec sleep 60")], ..Batch::default() });
        service.flush();
        let more = Batch { processes: vec![process(1, 1, "exit 0"), process(2, 1, "exit 0")], ..Batch::default() };
        let limit_memory = |most| {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: concerns our own process.
            unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }
        };
        limit_memory(0);
        service.spawn(&more);
        limit_memory(libc::RLIM_INFINITY);
        service.flush();
        let live = service.ranks.values().filter(|rank| rank.is_alive()).count();
        service.signal(libc::SIGKILL, &[ProcessKey { job: 0, role: 0, index: 0, attempt: 1 }]);
        until_all_ended(service);
        let notices: Vec<Notice> = Inbox::default().receive(front).unwrap().unwrap();
        let refused = |notice: &&Notice| matches!(notice, Notice::SpawnFailed { errno: libc::ENOMEM, .. });
        live == 1 && notices.iter().filter(refused).count() == 2
    });
}

#[test]
fn a_process_that_cannot_be_limited_is_not_started() {
    in_a_guardian(|service, front| {
        let key = |index| ProcessKey { job: 0, role: 0, index, attempt: 1 };
        let bound = |index, cpus: &[u32]| ProcessLimits { key: key(index), cpus: cpus.to_vec(), memory: None };
        let own = crate::host::allowed_cpus()[0];
        // No machine has the highest CPU number.
        service.obey(Command::Limit(vec![bound(0, &[own]), bound(1, &[1023])]), false);
        let look = format!("grep -qx 'Cpus_allowed_list:.{own}' /proc/self/status");
        service.spawn(&Batch { processes: vec![process(0, 1, &look), process(1, 1, "exit 0")], ..Batch::default() });
        until_all_ended(service);
        service.flush();
        let notices: Vec<Notice> = Inbox::default().receive(front).unwrap().unwrap();
        let bound = |notice: &Notice| matches!(notice, Notice::Exited { key: k, status: 0, .. } if *k == key(0));
        let refused = |notice: &Notice| matches!(notice, Notice::SpawnFailed { key: k, doing: SpawnAction::BindCpus, .. } if *k == key(1));
        notices.iter().any(bound) && notices.iter().any(refused) && service.limits.is_empty()
    });
}

#[test]
fn the_last_sweep_can_be_hurried() {
    in_a_guardian(|service, front| {
        service.grace = Duration::from_secs(60);
        // It leaves a process behind that ignores SIGTERM.
        let stubborn = "(trap '' TERM; while :; do sleep 60; done) & exit 0";
        service.spawn(&Batch { processes: vec![process(0, 1, stubborn)], ..Batch::default() });
        until_all_ended(service);
        let begun = Instant::now();
        let mut other = front.try_clone().unwrap();
        let urge = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            protocol::send(&mut other, &Command::Finish { patient: false }).unwrap();
        });
        let is_over = service.obey(Command::Finish { patient: true }, false);
        urge.join().unwrap();
        is_over && begun.elapsed() < Duration::from_secs(30) && descend::children(service.me as u32).is_empty()
    });
}

#[test]
fn a_front_that_goes_does_not_hurry_the_last_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let done = directory.path().join("done");
    let polite =
        format!("(trap 'sleep 0.3; touch {}; exit' TERM; while :; do sleep 0.02; done) & exit 0", done.display());
    in_a_guardian(|service, front| {
        service.grace = Duration::from_secs(60);
        service.spawn(&Batch { processes: vec![process(0, 1, &polite)], ..Batch::default() });
        until_all_ended(service);
        // Wait until its trap is set.
        std::thread::sleep(Duration::from_millis(100));
        front.shutdown(std::net::Shutdown::Both).unwrap();
        service.obey(Command::Finish { patient: true }, false) && done.exists()
    });
}

/// The answer to one command.
fn ask(service: &mut Service, front: &mut UnixStream, command: Command) -> Notice {
    service.obey(command, false);
    service.flush();
    Inbox::default().receive(front).unwrap().unwrap().remove(0)
}

fn lease_ports(
    service: &mut Service,
    front: &mut UnixStream,
    job: u32,
    range: PortRange,
) -> Result<Leased, LeaseError> {
    let count = if range == PortRange::Anywhere { 2 } else { 1 };
    let request = LeaseRequest { count, range, address: None, seed: u64::from(std::process::id()) * 257 };
    match ask(service, front, Command::Lease { job, request }) {
        Notice::Leased(leased) => leased,
        other => panic!("{other:?}"),
    }
}

fn lease_addresses(service: &mut Service, front: &mut UnixStream, job: u32) -> Vec<Ipv4Addr> {
    let seed = u64::from(std::process::id());
    match ask(service, front, Command::LeaseAddresses { job, count: 3, seed }) {
        Notice::Addresses(addresses) => addresses,
        other => panic!("{other:?}"),
    }
}

fn lease_gpus(service: &mut Service, front: &mut UnixStream, job: u32, candidates: &[u32]) -> Vec<u32> {
    let command = Command::LeaseGpus { job, candidates: candidates.to_vec(), count: candidates.len() as u32 };
    match ask(service, front, command) {
        Notice::Gpus(gpus) => gpus,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_gives_back_what_it_holds_and_others_keep_theirs() {
    in_a_guardian(|service, front| {
        // Numbers without a device node, so that the lease is a name.
        let minors = [0, 1, 2].map(|number| 1_000_000 + std::process::id() * 4 + number);
        let anywhere = |service: &mut Service, front: &mut UnixStream, job| {
            lease_ports(service, front, job, PortRange::Anywhere).unwrap().ports
        };
        let own = [anywhere(service, front, 0), anywhere(service, front, 0)].concat();
        let others = anywhere(service, front, 1);
        let own_addresses = lease_addresses(service, front, 0);
        assert_ne!(lease_addresses(service, front, 1), own_addresses);
        assert_eq!(lease_gpus(service, front, 0, &minors[..2]), minors[..2]);
        assert_eq!(lease_gpus(service, front, 1, &minors), minors[2..]);

        service.obey(Command::Release { job: 0 }, false);
        for port in own {
            lease_ports(service, front, 2, PortRange::Exactly { start: port }).unwrap();
        }
        for port in others {
            let refused = lease_ports(service, front, 2, PortRange::Exactly { start: port }).unwrap_err();
            assert_eq!(refused.taken, [(port, true)]);
        }
        assert_eq!(lease_addresses(service, front, 2), own_addresses);
        assert_eq!(lease_gpus(service, front, 2, &minors), minors[..2]);
        true
    });
}

#[test]
fn ports_are_given_back_between_attempts_and_the_rest_is_kept() {
    in_a_guardian(|service, front| {
        let ports = lease_ports(service, front, 0, PortRange::Anywhere).unwrap().ports;
        let addresses = lease_addresses(service, front, 0);
        let kept = ask(service, front, Command::Clear { keep_ports: true });
        assert!(lease_ports(service, front, 1, PortRange::Exactly { start: ports[0] }).is_err());
        let cleared = ask(service, front, Command::Clear { keep_ports: false });
        lease_ports(service, front, 1, PortRange::Exactly { start: ports[0] }).unwrap();
        assert_ne!(lease_addresses(service, front, 1), addresses);
        [kept, cleared].iter().all(|notice| matches!(notice, Notice::Cleared { .. }))
    });
}
