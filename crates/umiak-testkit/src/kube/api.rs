//! A small client of the API server for the harness itself: starting `kubectl` costs a tenth of a second of CPU time.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};
use serde_json::Value;

use super::space::Door;

const PATIENCE: Duration = Duration::from_secs(60);

/// The content types of the requests that change objects.
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MERGE: &str = "application/merge-patch+json";

/// A client with all permissions.
#[derive(Debug)]
pub struct Api {
    door: Door,
    server: SocketAddr,
    token: String,
    tls: Arc<ClientConfig>,
    idle: Mutex<Vec<Connection>>,
}

impl Api {
    pub(super) fn new(door: Door, server: SocketAddr, authority: &Path, token: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(authority).expect("our own certificate");
        roots.add(authority).expect("our own certificate");
        let tls = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { door, server, token: token.to_owned(), tls: Arc::new(tls), idle: Mutex::default() }
    }

    /// An object or a list, if it is there and the server answers.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.send("GET", path, JSON, b"").ok()?;
        (status == 200).then(|| serde_json::from_slice(&body).ok())?
    }

    /// The status of the answer, if the server answers.
    pub fn status(&self, path: &str) -> Option<u16> {
        Some(self.send("GET", path, JSON, b"").ok()?.0)
    }

    /// Status and answer; an error if there was none.
    pub fn post(&self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        self.change("POST", path, JSON, body.to_string().as_bytes())
    }

    pub fn put(&self, path: &str, body: &Value) -> io::Result<(u16, Value)> {
        self.change("PUT", path, JSON, body.to_string().as_bytes())
    }

    pub fn merge(&self, path: &str, patch: &Value) -> io::Result<(u16, Value)> {
        self.change("PATCH", path, MERGE, patch.to_string().as_bytes())
    }

    pub fn delete(&self, path: &str, options: &Value) -> io::Result<(u16, Value)> {
        self.change("DELETE", path, JSON, options.to_string().as_bytes())
    }

    /// Creates an object from YAML.
    pub fn post_yaml(&self, path: &str, yaml: &str) -> io::Result<(u16, Value)> {
        self.change("POST", path, YAML, yaml.as_bytes())
    }

    /// Calls `each` for every event until it returns false or the connection ends.
    pub fn watch(&self, path: &str, mut each: impl FnMut(Value) -> bool) -> io::Result<()> {
        let mut connection = self.connect(None)?;
        let head = self.head("GET", path, JSON, 0);
        connection.stream.get_mut().write_all(head.as_bytes())?;
        let head = connection.read_head()?;
        if head.status != 200 {
            return Err(io::Error::other(format!("{path}: {}", head.status)));
        }
        let mut line = Vec::new();
        while let Some(chunk) = connection.read_chunk()? {
            for byte in chunk {
                if byte != b'\n' {
                    line.push(byte);
                } else if !each(serde_json::from_slice(&std::mem::take(&mut line))?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn change(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<(u16, Value)> {
        let (status, body) = self.send(method, path, kind, body)?;
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        Ok((status, serde_json::from_slice(&body).unwrap_or_else(|_| text())))
    }

    /// Uses a connection again if it is still open: the server may close one at any time.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let message = [self.head(method, path, kind, body.len()).as_bytes(), body].concat();
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(mut connection) = idle
            && let Ok(answer) = connection.exchange(&message)
        {
            self.keep(connection);
            return Ok(answer);
        }
        let mut connection = self.connect(Some(PATIENCE))?;
        let answer = connection.exchange(&message)?;
        self.keep(connection);
        Ok(answer)
    }

    fn keep(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    fn head(&self, method: &str, path: &str, kind: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: {JSON}\r\n\
             Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n",
            self.server, self.token
        )
    }

    fn connect(&self, timeout: Option<Duration>) -> io::Result<Connection> {
        let stream = self.door.connect(self.server)?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST).into());
        let session = ClientConnection::new(self.tls.clone(), name).map_err(io::Error::other)?;
        Ok(Connection { stream: BufReader::with_capacity(64 << 10, StreamOwned::new(session, stream)) })
    }
}

#[derive(Debug)]
struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

struct Head {
    status: u16,
    /// Without a length the body comes in chunks.
    length: Option<usize>,
}

impl Connection {
    fn exchange(&mut self, message: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.stream.get_mut().write_all(message)?;
        let head = self.read_head()?;
        let mut body = Vec::new();
        if let Some(length) = head.length {
            body.resize(length, 0);
            self.stream.read_exact(&mut body)?;
        } else {
            while let Some(chunk) = self.read_chunk()? {
                body.extend(chunk);
            }
        }
        Ok((head.status, body))
    }

    fn read_head(&mut self) -> io::Result<Head> {
        let status = self.read_line()?;
        let status = status.split(' ').nth(1).and_then(|word| word.parse().ok());
        let mut head = Head { status: status.ok_or_else(|| io::Error::other("not HTTP"))?, length: None };
        loop {
            let line = self.read_line()?.to_ascii_lowercase();
            if line.is_empty() {
                return Ok(head);
            }
            if let Some(length) = line.strip_prefix("content-length:") {
                head.length = length.trim().parse().ok();
            }
        }
    }

    /// The next chunk, or `None` after the last one.
    fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = usize::from_str_radix(&self.read_line()?, 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; length];
        self.stream.read_exact(&mut chunk)?;
        self.read_line()?;
        Ok((length > 0).then_some(chunk))
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}
