//! One member of the cluster: connections, requests, streams. It repeats nothing.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use umiak_core::model::{EtcdEndpoint, Host};
use umiak_core::wire::etcd::{Request, answer};

use super::error::{TlsTrouble, Trouble};
use super::tls;

/// Longest answer, and longest line of a stream. etcd itself accepts values of 1.5 MiB.
pub(super) const LONGEST: usize = 16 << 20;
/// Longest time to connect to one address.
const CONNECTING: Duration = Duration::from_secs(2);

/// For the reason of a connection that has ended.
const ENDING: Duration = Duration::from_millis(200);

/// An open connection.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Reads and writes; the result is why it ended, if TLS knows.
    driver: JoinHandle<Option<TlsTrouble>>,
    has_identity: bool,
}

#[derive(Debug)]
pub(super) struct Member {
    endpoint: EtcdEndpoint,
    security: Option<Security>,
    /// A connection that waits for the next request.
    idle: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Security {
    configuration: Arc<ClientConfig>,
    name: ServerName<'static>,
    has_identity: bool,
}

impl Member {
    /// With a configuration the connections are secure.
    pub(super) fn new(endpoint: EtcdEndpoint, configuration: Option<Arc<ClientConfig>>) -> Result<Self, EtcdEndpoint> {
        let security = match configuration {
            Some(configuration) => {
                let name = match &endpoint.at.address {
                    Host::Address(address) => ServerName::from(*address),
                    Host::Name(name) => ServerName::try_from(name.clone()).map_err(|_| endpoint.clone())?,
                };
                let has_identity = configuration.client_auth_cert_resolver.has_certs();
                Some(Security { configuration, name, has_identity })
            }
            None => None,
        };
        Ok(Self { endpoint, security, idle: Mutex::new(None) })
    }

    /// Its address; with `https://` if connections are secure.
    pub(super) fn name(&self) -> String {
        format!("{}{}", if self.security.is_some() { "https://" } else { "" }, self.endpoint.at)
    }

    /// Posts a request and reads the whole answer.
    pub(super) async fn post(
        &self,
        request: &Request,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<(u16, Bytes), Trouble> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The member may have closed a connection that waited: that is no news about the member.
        let ready = match kept {
            Some(mut kept) => kept.sender.ready().await.is_ok().then_some(kept),
            None => None,
        };
        let mut connection = match ready {
            Some(kept) => kept,
            None => self.connect().await?,
        };
        let result = timeout(limit, self.exchange(&mut connection, request, token)).await;
        let answer = result.map_err(|_| Trouble::Silent(limit))??;
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        Ok(answer)
    }

    /// Posts a request whose answer has no end.
    pub(super) async fn open(&self, request: &Request, token: Option<&str>, limit: Duration) -> Result<Lines, Trouble> {
        let mut connection = self.connect().await?;
        let result = timeout(limit, self.send(&mut connection, request, token)).await;
        let response = result.map_err(|_| Trouble::Silent(limit))??;
        let status = response.status().as_u16();
        Ok(Lines { status, body: response.into_body(), received: Vec::new(), scanned: 0, _connection: connection })
    }

    /// True if the member answers questions about itself.
    pub(super) async fn is_alive(&self, limit: Duration) -> bool {
        let request =
            hyper::Request::builder().method(Method::GET).uri("/health").header(HOST, self.endpoint.at.to_string());
        let Ok(request) = request.body(Full::default()) else { return false };
        let asked = async {
            let mut connection = self.connect().await.ok()?;
            let response = connection.sender.send_request(request).await.ok()?;
            let body = Limited::new(response.into_body(), LONGEST).collect().await.ok()?;
            Some(answer::is_health(&body.to_bytes()))
        };
        timeout(limit, asked).await.ok().flatten().unwrap_or(false)
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
        token: Option<&str>,
    ) -> Result<(u16, Bytes), Trouble> {
        let response = self.send(connection, request, token).await?;
        let status = response.status().as_u16();
        match Limited::new(response.into_body(), LONGEST).collect().await {
            Ok(body) => Ok((status, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(Trouble::TooLong),
            Err(error) => Err(lost(&*error)),
        }
    }

    async fn send(
        &self,
        connection: &mut Connection,
        request: &Request,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut builder = hyper::Request::builder()
            .method(Method::POST)
            .uri(request.path)
            .header(HOST, self.endpoint.at.to_string())
            .header(CONTENT_TYPE, "application/json")
            // A member without a leader refuses at once, and ends watches, instead of waiting for one.
            .header("Grpc-Metadata-hasleader", "true");
        if let Some(token) = token {
            builder = builder.header(AUTHORIZATION, token);
        }
        let body = Full::new(Bytes::from(request.body.clone()));
        let request = builder.body(body).map_err(|error| Trouble::NotEtcd(error.to_string()))?;
        match connection.sender.send_request(request).await {
            Ok(response) => Ok(response),
            Err(error) if error.is_parse() => Err(Trouble::NotEtcd("it does not speak HTTP".to_owned())),
            Err(error) => {
                // A server that refuses the client's certificate says so after the handshake, before or after this
                // request was written: the request has the reason, or the driver.
                if let Some(refused) = tls::trouble(&error, connection.has_identity) {
                    return Err(Trouble::Tls(refused));
                }
                let why = timeout(ENDING, &mut connection.driver).await;
                let refused = why.ok().and_then(Result::ok).flatten();
                Err(refused.map_or_else(|| lost(&error), Trouble::Tls))
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        let stream = self.connect_plain().await?;
        // Requests are small, and each waits for its answer.
        let _ = stream.set_nodelay(true);
        let Some(security) = &self.security else { return begin(stream, false).await };
        let connector = TlsConnector::from(security.configuration.clone());
        let secure = timeout(CONNECTING, connector.connect(security.name.clone(), stream)).await;
        let secure = secure.map_err(|_| Trouble::Tls(TlsTrouble::NotTls))?.map_err(|error| {
            let ended = || TlsTrouble::Ended(error.to_string());
            Trouble::Tls(tls::trouble(&error, security.has_identity).unwrap_or_else(ended))
        });
        begin(secure?, security.has_identity).await
    }

    async fn connect_plain(&self) -> Result<TcpStream, Trouble> {
        let port = self.endpoint.at.port.get();
        let addresses: Vec<SocketAddr> = match &self.endpoint.at.address {
            Host::Address(address) => vec![SocketAddr::from((*address, port))],
            Host::Name(name) => match timeout(CONNECTING, tokio::net::lookup_host((name.as_str(), port))).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(error)) => return Err(Trouble::Name(error.to_string())),
                Err(_) => return Err(Trouble::Name("no answer about its address".to_owned())),
            },
        };
        let mut trouble = Trouble::Name("it has no address".to_owned());
        for address in addresses {
            match timeout(CONNECTING, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => trouble = Trouble::Refused,
                Ok(Err(error)) => trouble = Trouble::Unreachable(error.to_string()),
                Err(_) => trouble = Trouble::NoConnection(CONNECTING),
            }
        }
        Err(trouble)
    }
}

/// Starts HTTP on a connection.
async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    has_identity: bool,
) -> Result<Connection, Trouble> {
    let (sender, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
    let driver = tokio::spawn(async move { tls::trouble(&driver.await.err()?, has_identity) });
    Ok(Connection { sender, driver, has_identity })
}

/// A connection that ended; the innermost cause says most.
fn lost(error: &(dyn StdError + 'static)) -> Trouble {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Trouble::Lost(cause.to_string())
}

/// The lines of an answer without an end.
#[derive(Debug)]
pub(super) struct Lines {
    status: u16,
    body: Incoming,
    received: Vec<u8>,
    /// How much of it has no end of a line.
    scanned: usize,
    /// Ends when dropped.
    _connection: Connection,
}

impl Lines {
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// The next line, without its end. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, Trouble> {
        loop {
            if let Some(end) = self.received[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(self.scanned + end + 1);
                self.scanned = 0;
                let mut line = std::mem::replace(&mut self.received, rest);
                line.pop();
                return Ok(line);
            }
            self.scanned = self.received.len();
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                    if self.received.len() > LONGEST {
                        return Err(Trouble::TooLong);
                    }
                }
                Some(Err(error)) => return Err(lost(&error)),
                // A refusal is one line without an end.
                None if !self.received.is_empty() => {
                    self.scanned = 0;
                    return Ok(std::mem::take(&mut self.received));
                }
                None => return Err(Trouble::Lost("the member closed it".to_owned())),
            }
        }
    }
}
