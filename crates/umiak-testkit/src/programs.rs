//! Programs that tests start: this one, and those on `PATH`.

use std::path::PathBuf;

/// This test binary, which is also the toy trainer.
pub fn toy() -> String {
    std::env::current_exe().expect("the test binary has a path").to_string_lossy().into_owned()
}

pub fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}
