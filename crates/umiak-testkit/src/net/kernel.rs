//! The kernel's files about a network namespace.

use std::collections::BTreeSet;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Local ports of listening sockets in `/proc/net/tcp` and `/proc/net/tcp6`.
pub(super) fn listening_ports(text: &str) -> BTreeSet<u16> {
    let sockets = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(3) == Some(&LISTENING)).then(|| fields[1].rsplit(':').next().unwrap_or_default().to_owned())
    });
    sockets.filter_map(|port| u16::from_str_radix(&port, 16).ok()).collect()
}

/// Names that begin with `@` in `/proc/net/unix`.
pub(super) fn abstract_sockets(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| Some(line.split_once(" @")?.1));
    names.map(|name| format!("@{name}")).collect()
}

/// Processes in the network namespace with this inode. An exited process is in none.
pub(super) fn processes(namespace: u64) -> Vec<(u32, String)> {
    let wanted = format!("net:[{namespace}]");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let is_here = std::fs::read_link(entry.path().join("ns/net")).is_ok_and(|link| link.as_os_str() == &*wanted);
        if is_here {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ").trim_end().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_listening_ports_of_both_families() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1C00 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:1C01 0100007F:1C00 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1
  sl  local_address                         remote_address                        st tx_queue
   0: 00000000000000000000000000000000:181A 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 13\n";
        assert_eq!(listening_ports(text), BTreeSet::from([6170, 7168]));
    }

    #[test]
    fn finds_leases() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20042 @umiak-port-6170
0000000000000000: 00000003 00000000 00000000 0001 03 20043 /run/other
0000000000000000: 00000003 00000000 00000000 0001 03 20044\n";
        assert_eq!(abstract_sockets(text), BTreeSet::from(["@umiak-port-6170".to_owned()]));
    }
}
