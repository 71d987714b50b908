//! An echo server, and a client for it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use super::Host;
use super::helper::{Helper, say, work};
use crate::programs::toy;

pub(super) const MODE: &str = "net-echo";
pub(super) const ASK: &str = "net-ask";

/// An unrelated program that listens on a host and echoes; killed when dropped.
#[derive(Debug)]
pub struct Echo {
    _helper: Helper,
    address: SocketAddr,
}

impl Echo {
    /// Returns once it listens.
    pub fn start(host: &Host, listen: SocketAddr) -> Self {
        let mut helper = Helper::start(host, MODE, &[listen.to_string()]);
        let address = helper.line().parse().expect("it prints its address");
        Self { _helper: helper, address }
    }

    /// Where it listens, with the actual port if 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

pub(super) fn run(arguments: &[String]) -> u8 {
    let [listen] = arguments else { panic!("LISTEN") };
    let listener = TcpListener::bind(listen).unwrap_or_else(|error| panic!("{listen}: {error}"));
    work(move || {
        say(&listener.local_addr().expect("it is bound").to_string());
        for stream in listener.incoming().flatten() {
            let answer = move || std::io::copy(&mut &stream, &mut &stream);
            let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(answer);
        }
        0
    })
}

/// With `is_last`, the other side is told that nothing follows the message.
pub(super) fn ask_from(
    host: &Host,
    to: SocketAddr,
    message: &[u8],
    timeout: Duration,
    is_last: bool,
) -> Result<Vec<u8>, String> {
    let mut command = host.command(toy());
    command.args([ASK, &to.to_string(), &timeout.as_millis().to_string(), &is_last.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    child.stdin.take().expect("a pipe").write_all(message).expect("it reads");
    let output = child.wait_with_output().expect("our own child");
    if output.status.success() { Ok(output.stdout) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

pub(super) fn ask(arguments: &[String]) -> u8 {
    let [to, timeout, is_last] = arguments else { panic!("TO MILLISECONDS IS_LAST") };
    let timeout = Duration::from_millis(timeout.parse().expect("milliseconds"));
    match converse(to.parse().expect("an address"), timeout, is_last == "true") {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{to}: {error}");
            1
        }
    }
}

fn converse(to: SocketAddr, timeout: Duration, is_last: bool) -> std::io::Result<()> {
    let mut message = Vec::new();
    std::io::stdin().read_to_end(&mut message)?;
    let stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut answer = Vec::new();
    std::thread::scope(|scope| {
        // Write in parallel: the other side may answer before it has read everything.
        scope.spawn(|| {
            (&stream).write_all(&message)?;
            if is_last { stream.shutdown(Shutdown::Write) } else { Ok(()) }
        });
        let result = (&stream).read_to_end(&mut answer);
        if result.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        result
    })?;
    std::io::stdout().write_all(&answer)
}
