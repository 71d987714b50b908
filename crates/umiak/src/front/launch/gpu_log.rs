//! Paddle's `<job_id>.gpu.log`: the GPUs, the processes that use them, and their load every five seconds. Only with
//! `--enable_gpu_log`, because a query of the driver is not free. It runs on its own thread, so that a driver that
//! hangs does not block the job.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use umiak_core::model::{Device, Request};
use umiak_core::plan::{Plan, paddle_lines};
use umiak_sys::files::{self, Contents};
use umiak_sys::helper;
use umiak_sys::wait::{Waker, readable};

use super::pod_log::{PodLog, pod_log_name};

const EVERY: Duration = Duration::from_secs(5);
/// Timeout of a query.
const LIMIT: Duration = Duration::from_secs(3);
/// How long the end of the job waits for the last row.
const PATIENCE: Duration = Duration::from_millis(300);

/// The fields of each section: they are queried, and printed as its head.
const DEVICES: &str = "index,uuid,driver_version,name,gpu_serial,display_active,display_mode";
const PROCESSES: &str = "pid,process_name,gpu_uuid,gpu_name,used_memory";
const LOAD: &str = "index,utilization.gpu,memory.total,memory.used,memory.free,timestamp";

/// The watcher. Dropping it stops it.
#[derive(Debug)]
pub(super) struct GpuLog {
    stop: Arc<Waker>,
    done: Arc<Waker>,
}

impl GpuLog {
    /// Starts the watcher, if it is enabled and the job has devices. Errors do not stop the job.
    pub(super) fn start(request: &Request, plan: &Plan) -> Option<Self> {
        let labels = Device::labels(plan.replicas.iter().flat_map(|replica| &replica.devices));
        if !request.paddle.as_ref().is_some_and(|paddle| paddle.gpu_log) || labels.is_empty() {
            return None;
        }
        let path = plan.logs.dir().join(format!("{}.gpu.log", request.job_id));
        let file = files::open(&path, Contents::Replace, files::READABLE).ok()?;
        let (stop, done) = (Arc::new(Waker::new().ok()?), Arc::new(Waker::new().ok()?));
        let watcher = Watcher {
            file,
            ids: format!("--id={labels}"),
            warning: paddle_lines::warning(request, "<text>"),
            pod_log: plan.logs.dir().join(pod_log_name(plan)),
            failing: false,
            stop: stop.clone(),
        };
        let end = done.clone();
        let run = move || {
            watcher.run();
            end.wake();
        };
        std::thread::Builder::new().name("gpu-log".into()).stack_size(256 << 10).spawn(run).ok()?;
        Some(Self { stop, done })
    }
}

impl Drop for GpuLog {
    fn drop(&mut self) {
        self.stop.wake();
        let _ = readable(&[self.done.as_fd()], Some(PATIENCE));
    }
}

#[derive(Debug)]
struct Watcher {
    file: File,
    ids: String,
    /// Paddle's warning, with `<text>` for the error; none at log levels that hide it.
    warning: Option<String>,
    pod_log: PathBuf,
    failing: bool,
    stop: Arc<Waker>,
}

impl Watcher {
    fn run(mut self) {
        let sections = [("--query-gpu", DEVICES), ("--query-compute-apps", PROCESSES)];
        for (query, fields) in sections {
            let rows = self.query(query, fields);
            let rows = self.rows("save gpu info failed", rows);
            self.write(&format!("{fields}\n{rows}\n"));
        }
        self.write(&format!("{}\n", LOAD.replace('.', "_")));
        loop {
            let rows = self.query("--query-gpu", LOAD);
            let absent = rows.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            let rows = self.rows("save gpu log failed", rows);
            self.write(&rows);
            // Without `nvidia-smi`, do not try again.
            let pause = if absent { None } else { Some(EVERY) };
            match readable(&[self.stop.as_fd()], pause) {
                Ok(ready) if !ready[0] => {}
                _ => return,
            }
        }
    }

    fn query(&self, query: &str, fields: &str) -> io::Result<Vec<u8>> {
        let mut command = Command::new("nvidia-smi");
        command.args(["--format=csv,noheader,nounits", &format!("{query}={fields}"), &self.ids]);
        helper::output(command, LIMIT, self.stop.as_fd())
    }

    /// The rows as Paddle writes them. An error is logged once, until a query succeeds again.
    fn rows(&mut self, failed: &str, answer: io::Result<Vec<u8>>) -> String {
        match answer {
            Ok(answer) => {
                self.failing = false;
                let answer = String::from_utf8_lossy(&answer);
                let rows = answer.lines().filter(|line| !line.is_empty()).map(|line| line.replace(", ", ","));
                rows.flat_map(|row| [row, "\n".to_owned()]).collect()
            }
            Err(error) => {
                let told = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Interrupted) || self.failing;
                if let (false, Some(warning)) = (told, &self.warning) {
                    self.failing = true;
                    if let Ok(mut log) = PodLog::open(&self.pod_log) {
                        log.line(&warning.replace("<text>", &format!("{failed}: {error}")));
                    }
                }
                String::new()
            }
        }
    }

    /// Writes each part at once, so that a reader never sees half a row.
    fn write(&mut self, text: &str) {
        let _ = self.file.write_all(text.as_bytes());
    }
}
