//! Leased ports, and the error if there are too few.

use crate::diag::{Code, Diagnostic};
use crate::model::{Port, PortRequest};

/// Number of store ports of each group of ranks: Paddle's and torch's.
pub const STORES: u16 = 2;

/// Ports leased for a [`Layout`](super::Layout).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// One for each seat.
    pub endpoints: Vec<Port>,
    /// Paddle's and torch's. With a relay, the first is the relay's, and a third one is where rank 0 hosts Paddle's store.
    pub stores: Vec<Port>,
}

/// The error for ports that could not be leased.
pub fn too_few_ports(
    request: &PortRequest,
    wanted: u16,
    found: u16,
    (low, high): (u16, u16),
    taken: &[(u16, bool)],
) -> Diagnostic {
    match request {
        PortRequest::Fixed { start, source } if taken.is_empty() => {
            Diagnostic::error(Code::L0010, format!("`{source}` asks for ports above 65535"))
                .row("start", start.to_string())
                .row("needed", wanted.to_string())
                .hint(format!("choose a lower start, or leave `{source}` out to use free ports"))
        }
        PortRequest::Fixed { start, source } => {
            let list = taken
                .iter()
                .map(|(port, ours)| if *ours { format!("{port} (another umiak job)") } else { port.to_string() })
                .collect::<Vec<_>>()
                .join(", ");
            let last = u32::from(*start) + u32::from(wanted) - 1;
            Diagnostic::error(Code::L0010, format!("ports that `{source}` asks for are in use"))
                .row("asked for", if wanted == 1 { start.to_string() } else { format!("{start}-{last}") })
                .row("in use", list)
                .hint(if is_list(source) {
                    format!("stop the processes that use them, or set other ports in `{source}` on all nodes")
                } else {
                    format!("stop the processes that use them, choose another start, or leave `{source}` out to use free ports")
                })
        }
        PortRequest::Range { source, .. } => {
            Diagnostic::error(Code::L0010, format!("too few free ports in the range of `{source}`"))
                .row("needed", needed(wanted))
                .row("free", format!("{found} between {low} and {high}"))
                .hint(format!("widen `{source}`, or leave it out"))
        }
        PortRequest::Free => Diagnostic::error(Code::L0010, "too few free ports on this host")
            .row("needed", needed(wanted))
            .row("free", format!("{found} between {low} and {high}"))
            .hint("stop the processes that use them, or start fewer processes"),
    }
}

/// True for a flag that lists ports one by one.
fn is_list(source: &str) -> bool {
    ["--servers", "--workers", "--trainers", "--coordinators", "--heter_workers"].contains(&source)
}

/// The number of ports, with the stores explained.
fn needed(wanted: u16) -> String {
    match wanted.checked_sub(STORES) {
        Some(processes @ 1..) => format!("{wanted}: {processes} for processes, {STORES} for stores"),
        _ => wanted.to_string(),
    }
}
