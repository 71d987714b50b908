//! Which packets a host drops, in the format of `iptables-restore`: complete, the same for both families.

use std::collections::BTreeSet;
use std::fmt;

/// Hosts whose packets are dropped, and the share of other packets that is dropped.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// By hardware address, which covers all addresses of the other host.
    silent: BTreeSet<String>,
    /// Ports to which packets from others are dropped.
    filtered: BTreeSet<u16>,
    /// In percent.
    pub(super) loss: u8,
}

impl Rules {
    pub(super) fn silence(&mut self, mac: String) {
        self.silent.insert(mac);
    }

    pub(super) fn hear(&mut self, mac: &str) {
        self.silent.remove(mac);
    }

    pub(super) fn filter(&mut self, port: u16) {
        self.filtered.insert(port);
    }

    /// Number of dropped packets, from the output of `iptables-save -c`.
    pub(super) fn dropped(saved: &str) -> u64 {
        let drops = saved.lines().filter(|line| line.ends_with("-j DROP"));
        drops.filter_map(|line| line.strip_prefix('[')?.split(':').next()?.parse::<u64>().ok()).sum()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]")?;
        for mac in &self.silent {
            writeln!(f, "-A INPUT -i eth0 -m mac --mac-source {mac} -j DROP")?;
        }
        for port in &self.filtered {
            writeln!(f, "-A INPUT -i eth0 -p tcp --dport {port} -j DROP")?;
        }
        match self.loss {
            0 => {}
            100 => writeln!(f, "-A INPUT -i eth0 -j DROP")?,
            percent => {
                let probability = f64::from(percent) / 100.0;
                writeln!(f, "-A INPUT -i eth0 -m statistic --mode random --probability {probability:.2} -j DROP")?;
            }
        }
        writeln!(f, "COMMIT")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_come_before_loss() {
        let mut rules = Rules { loss: 7, ..Rules::default() };
        rules.silence("02:00:00:00:00:02".into());
        let text = rules.to_string();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("-A")).collect();
        assert_eq!(
            lines,
            [
                "-A INPUT -i eth0 -m mac --mac-source 02:00:00:00:00:02 -j DROP",
                "-A INPUT -i eth0 -m statistic --mode random --probability 0.07 -j DROP"
            ]
        );
        rules.hear("02:00:00:00:00:02");
        rules.loss = 0;
        assert!(!rules.to_string().contains("DROP"));
    }

    #[test]
    fn counts_what_was_dropped() {
        let saved =
            "*filter\n:INPUT ACCEPT [9:900]\n[3:120] -A INPUT -i eth0 -j DROP\n[4:1] -A INPUT -j ACCEPT\nCOMMIT\n";
        assert_eq!(Rules::dropped(saved), 3);
    }
}
