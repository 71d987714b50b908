//! Images of a cluster, made from the static `busybox` of this machine: no registry is needed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::hex;
use crate::programs::find_on_path;

/// The image for pods: a shell and the usual commands, and `sh` if a pod names no command.
pub const IMAGE: &str = "local/busybox:1";
/// The image that holds the namespaces of a pod.
pub(super) const PAUSE: &str = "docker.io/local/pause:1";

/// `PT_INTERP`: the program header of what needs a loader.
const INTERPRETER: u32 = 3;

/// A `busybox` that needs no libraries.
pub(super) fn busybox() -> Option<PathBuf> {
    let path = find_on_path("busybox")?;
    let bytes = fs::read(&path).ok()?;
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = bytes.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = (0..count).map(|index| number(table + index * size, 4));
    kinds.all(|kind| kind.is_some_and(|kind| kind != INTERPRETER as usize)).then_some(path)
}

/// Writes both images as one archive, in the format of `docker save`.
pub(super) fn write(archive: &Path) -> io::Result<()> {
    let program = busybox().ok_or_else(|| io::Error::other("no static `busybox`"))?;
    let commands = Command::new(&program).arg("--list").stdin(Stdio::null()).output()?;
    let commands = String::from_utf8_lossy(&commands.stdout).into_owned();
    let mut layer = Tar::default();
    for directory in ["bin/", "dev/", "etc/", "proc/", "root/", "sys/"] {
        layer.add(directory, Entry::Directory(0o755));
    }
    layer.add("tmp/", Entry::Directory(0o1777));
    layer.add("bin/busybox", Entry::File(&fs::read(&program)?));
    for command in commands.lines().filter(|command| *command != "busybox") {
        layer.add(&format!("bin/{command}"), Entry::Link("busybox"));
    }
    layer.add("etc/passwd", Entry::File(b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"));
    layer.add("etc/group", Entry::File(b"root:x:0:\nnogroup:x:65534:\n"));
    let layer = layer.finish();
    let sum = hex(&Sha256::digest(&layer));

    let mut outer = Tar::default();
    outer.add("layer.tar", Entry::File(&layer));
    let mut manifest = Vec::new();
    let pause = ["/bin/busybox", "sleep", "2147483647"];
    for (name, words) in [(format!("docker.io/{IMAGE}"), &["/bin/sh"][..]), (PAUSE.to_owned(), &pause[..])] {
        let file = format!("{}.json", manifest.len());
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": { "Cmd": words, "Env": ["PATH=/bin:/usr/bin:/usr/local/bin"] },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
        });
        outer.add(&file, Entry::File(config.to_string().as_bytes()));
        manifest.push(json!({ "Config": file, "RepoTags": [name], "Layers": ["layer.tar"] }));
    }
    outer.add("manifest.json", Entry::File(serde_json::Value::from(manifest).to_string().as_bytes()));
    fs::write(archive, outer.finish())
}

/// An archive in the `ustar` format.
#[derive(Debug, Default)]
struct Tar {
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Entry<'a> {
    Directory(u32),
    /// All are programs or readable by all.
    File(&'a [u8]),
    Link(&'a str),
}

impl Tar {
    fn add(&mut self, name: &str, entry: Entry<'_>) {
        let (kind, mode, content, target): (u8, u32, &[u8], &str) = match entry {
            Entry::Directory(mode) => (b'5', mode, b"", ""),
            Entry::File(content) => (b'0', 0o755, content, ""),
            Entry::Link(target) => (b'2', 0o777, b"", target),
        };
        let mut header = [0; 512];
        let mut set = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        set(0, name.as_bytes());
        set(100, format!("{mode:07o}").as_bytes());
        // Owner and group, then size and time.
        set(108, b"0000000\x000000000\0");
        set(124, format!("{:011o}", content.len()).as_bytes());
        set(136, b"00000000000");
        // The sum is taken with blanks in its place.
        set(148, b"        ");
        set(156, &[kind]);
        set(157, target.as_bytes());
        set(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.bytes.extend(header);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}
