//! Paddle's own `<job_id>.<pod>.log`: the lines that its launchers print, in the file where tools look for them.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use umiak_core::plan::Plan;
use umiak_sys::files::{self, Contents};

use crate::clock::paddle_stamp;
use crate::secrets;

/// An open pod log. Write errors do not stop the job.
#[derive(Debug)]
pub(super) struct PodLog(File);

impl PodLog {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(files::open(path, Contents::Append, files::READABLE)?))
    }

    /// Writes lines with the same time stamp, in one write.
    pub(super) fn lines(&mut self, lines: &[String]) {
        let stamp = paddle_stamp();
        let text: String =
            lines.iter().flat_map(|line| [secrets::masked(line).replace("<ts>", &stamp), "\n".to_owned()]).collect();
        let _ = self.0.write_all(text.as_bytes());
    }

    /// Writes a line; `<ts>` becomes the time as Paddle prints it.
    pub(super) fn line(&mut self, line: &str) {
        let _ = self.0.write_all(format!("{}\n", secrets::masked(line).replace("<ts>", &paddle_stamp())).as_bytes());
    }
}

/// The file name, with random letters for each start of umiak.
pub(super) fn pod_log_name(plan: &Plan) -> String {
    format!("{}.{}.log", plan.job.name, plan.options.pod_name.as_deref().unwrap_or_default())
}
