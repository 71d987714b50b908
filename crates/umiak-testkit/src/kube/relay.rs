//! A TCP relay from a loopback port of this machine to an address in a cluster: programs under test are clients outside
//! of its network.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::space::Door;

/// A relay; its port and connections are closed when it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    door: Door,
    to: SocketAddr,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub fn start(door: Door, to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let shared = Shared { door, to, is_over: AtomicBool::new(false), open: Mutex::default() };
        let relay = Self { address: listener.local_addr()?, shared: Arc::new(shared) };
        let shared = relay.shared.clone();
        start_thread(move || {
            for near in listener.incoming().flatten() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                start_thread(move || drop(shared.carry(&near)));
            }
        });
        Ok(relay)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut(&self) {
        let mut open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

impl Shared {
    /// If nothing listens in the cluster, the client sees its connection close at once.
    fn carry(&self, near: &TcpStream) -> io::Result<()> {
        let far = self.door.connect(self.to)?;
        near.set_nodelay(true)?;
        let key = near.peer_addr()?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(near.try_clone()?);
        let (back_from, back_to) = (far.try_clone()?, near.try_clone()?);
        let back = thread::Builder::new().stack_size(64 << 10).spawn(move || copy(&back_from, &back_to))?;
        copy(near, &far);
        let _ = back.join();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|stream| stream.peer_addr().is_ok_and(|address| address != key));
        Ok(())
    }
}

/// Copies one direction. Its end is passed on, and a broken connection breaks the other one.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let how = if io::copy(&mut from, &mut to).is_ok() { Shutdown::Write } else { Shutdown::Both };
    let _ = to.shutdown(how);
    if how == Shutdown::Both {
        let _ = from.shutdown(how);
    }
}

fn start_thread(job: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().stack_size(64 << 10).spawn(job);
}
