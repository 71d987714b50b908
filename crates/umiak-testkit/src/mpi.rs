//! Real launchers of MPI, and several hosts for them on this one.
//!
//! The hosts are names that need not resolve. A script takes the place of ssh: it runs the command here, with the name in
//! [`HOST`], which all processes of that host inherit.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umiak_core::cluster::mpi::{Launcher, LauncherKind, identify};

/// Has the name of the host.
pub const HOST: &str = "TEST_MPI_HOST";

/// A launcher that is installed.
#[derive(Debug, Clone)]
pub struct Installed {
    pub program: PathBuf,
    pub launcher: Launcher,
}

impl Installed {
    /// `None` if the program does not exist, or is another launcher.
    pub fn find(program: PathBuf, kind: LauncherKind) -> Option<Self> {
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let launcher = identify(&program, &String::from_utf8_lossy(&output.stdout)).ok()?;
        (launcher.kind == kind).then_some(Self { program, launcher })
    }

    /// Options that replace ssh by a script, which is written to this directory. Each host has temporary files of its
    /// own: with those of another, the daemons of Open MPI 4 hang now and then.
    pub fn hosts_without_ssh(&self, directory: &Path) -> Vec<String> {
        let script = directory.join("rsh");
        let text = format!(
            "#!/bin/sh\nwhile :; do case $1 in -[olpiF]) shift 2 ;; -*) shift ;; *) break ;; esac; done\n{HOST}=$1\n\
             TMPDIR=${{TMPDIR:-/tmp}}/$1\nmkdir -p \"$TMPDIR\"\nexport {HOST} TMPDIR\nshift\nexec sh -c \"$*\"\n"
        );
        std::fs::write(&script, text).expect("the directory can be written");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our own file");
        let script = script.display().to_string();
        let words: &[&str] = match self.launcher.kind {
            LauncherKind::OpenMpi4 => &["--mca", "plm_rsh_agent", &script],
            LauncherKind::OpenMpi5 => &["--prtemca", "plm_ssh_agent", &script],
            LauncherKind::Hydra => &["-launcher", "ssh", "-launcher-exec", &script],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}
