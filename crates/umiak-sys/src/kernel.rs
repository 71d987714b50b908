//! What the kernel says about a process that has died: killed for memory, where it faulted, which file
//! system was full. Read at the time of death, where we are permitted to.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::wait::read_small;

/// The kernel's log: at most this much of its end is looked at.
const LOG: usize = 256 << 10;

/// Lines of the kernel's log that name this process; empty where we may not read it.
pub fn log_lines_about(pid: u32) -> Vec<String> {
    let Ok(mut file) = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut total = 0;
    let mut record = vec![0; 8192];
    // Each read returns one record; the end is "try again".
    while total < LOG {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(count) => {
                total += count;
                let text = String::from_utf8_lossy(&record[..count]).into_owned();
                // `priority,sequence,time,flags;message`, then continuation lines.
                let message = text.split_once(';').map_or("", |(_, message)| message.lines().next().unwrap_or(""));
                if mentions(message, pid) {
                    found.push(message.to_owned());
                }
            }
            // Records were overwritten while we read: go on with the next.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    found
}

/// `Killed process 123 (python)` or `python[123]: segfault at …`.
fn mentions(message: &str, pid: u32) -> bool {
    message.contains(&format!("Killed process {pid} ")) || message.contains(&format!("[{pid}]"))
}

/// Bytes free for us on the file system of `path`; `None` if it cannot be asked.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: statvfs is plain data that the kernel fills; the result is checked.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the path is a valid C string.
    (unsafe { libc::statvfs(path.as_ptr(), &raw mut stats) } == 0).then(|| stats.f_bavail * stats.f_frsize)
}

/// Where cores go: the kernel's pattern.
pub fn core_pattern() -> Option<String> {
    read_small("/proc/sys/kernel/core_pattern").map(|text| text.trim().to_owned())
}

/// How many processes of our memory cgroup the kernel has killed for memory so far, in version 2 or 1.
pub fn oom_kills() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let files = match controllers {
            "" => {
                [format!("/sys/fs/cgroup{path}/memory.events"), format!("/sys/fs/cgroup/unified{path}/memory.events")]
            }
            "memory" => [
                format!("/sys/fs/cgroup/memory{path}/memory.oom_control"),
                "/sys/fs/cgroup/memory/memory.oom_control".to_owned(),
            ],
            _ => return None,
        };
        files.iter().find_map(|file| {
            read_small(file)?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_lines_name_a_process() {
        assert!(mentions("Out of memory: Killed process 4121 (python3) total-vm:1kB", 4121));
        assert!(mentions("python3[4121]: segfault at 0 ip 00007f error 4 in libfoo.so[7f+1000]", 4121));
        assert!(!mentions("Killed process 41210 (python3)", 4121));
    }

    #[test]
    fn free_space_is_known() {
        assert!(free_bytes(Path::new("/")).is_some());
        assert_eq!(free_bytes(Path::new("/nonexistent")), None);
    }
}
