//! The connection between a supervisor and agents whose nodes do not see the directory of the run: it copies the files that
//! they would share. What is sent is in [`umiak_core::cluster::post`].
//!
//! | part | in one sentence |
//! |---|---|
//! | this file | frames on an encrypted connection, and the keys of both sides |
//! | [`office`] | the side of the supervisor, which listens |
//! | [`courier`] | the side of an agent, which connects |
//!
//! Keys: the supervisor makes a key pair and a token for each unit. Slurm gives the public key and the token to the agents,
//! as a variable of the job. An agent talks only to the owner of that key, and the supervisor only to those who know the
//! token; TLS 1.3 hides both the token and the files, which have secrets of the job.

pub(crate) mod courier;
pub(crate) mod office;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ClientConfig, ServerConfig, client, crypto, server, version};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use umiak_core::cluster::post::{Header, encode, lengths};

/// Where agents connect: addresses with ports, separated by spaces.
pub(crate) const ADDRESSES: &str = "UMIAK_CONNECT";
/// What they need for it: the key of the supervisor and the token, in hexadecimal digits, separated by `:`.
pub(crate) const KEY: &str = "UMIAK_CONNECT_KEY";

/// Time for a peer to answer before it is known.
const GREETING: Duration = Duration::from_secs(10);
/// Interval at which directories are searched for news.
const EVERY: Duration = Duration::from_millis(200);
/// Frames that have arrived and are not handled yet. More than a window of them, so that none waits for its answer.
const ARRIVED: usize = 64;

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.is_ascii() && text.len().is_multiple_of(2);
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>().filter(|_| digits)
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

async fn write(to: &mut (impl AsyncWrite + Unpin), header: &Header, body: &[u8]) -> io::Result<()> {
    to.write_all(&encode(header, body.len())).await?;
    to.write_all(body).await?;
    to.flush().await
}

async fn read(from: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<(Header, Vec<u8>)> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes).await?;
    let (header, body) =
        lengths(bytes).filter(|(_, body)| *body <= most).ok_or_else(|| broken("a frame is too long"))?;
    let mut text = vec![0; header];
    from.read_exact(&mut text).await?;
    let header = serde_json::from_slice(&text).map_err(|_| broken("a frame cannot be read"))?;
    // As it arrives: a peer that announces much does not take memory before it sends it.
    let mut bytes = Vec::new();
    from.take(body as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < body {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header, bytes))
}

/// The key pair of a supervisor.
fn key_pair(pkcs8: &[u8]) -> io::Result<Arc<dyn SigningKey>> {
    let key = PrivatePkcs8KeyDer::from(pkcs8.to_vec());
    crypto::ring::sign::any_eddsa_type(&key).map_err(io::Error::other)
}

fn new_key_pair() -> io::Result<Vec<u8>> {
    let random = ring::rand::SystemRandom::new();
    let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random);
    document.map(|document| document.as_ref().to_vec()).map_err(|_| io::Error::other("no key could be made"))
}

fn public(key: &Arc<dyn SigningKey>) -> io::Result<Vec<u8>> {
    let public = key.public_key().ok_or_else(|| io::Error::other("the key has no public part"))?;
    Ok(public.as_ref().to_vec())
}

fn accepting(key: Arc<dyn SigningKey>) -> io::Result<Arc<ServerConfig>> {
    let own = CertifiedKey::new(vec![CertificateDer::from(public(&key)?)], key);
    let resolver = server::AlwaysResolvesServerRawPublicKeys::new(Arc::new(own));
    let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&version::TLS13]).map_err(io::Error::other)?;
    Ok(Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver))))
}

fn connecting(public: Vec<u8>) -> io::Result<Arc<ClientConfig>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&version::TLS13]).map_err(io::Error::other)?;
    // It knows the one key that it trusts.
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Pinned { public }));
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Trusts one key.
#[derive(Debug)]
struct Pinned {
    public: Vec<u8>,
}

impl client::danger::ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<client::danger::ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.public {
            return Ok(client::danger::ServerCertVerified::assertion());
        }
        Err(rustls::Error::General("another key".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is used".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = crypto::ring::default_provider().signature_verification_algorithms;
        let public = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        crypto::verify_tls13_signature_with_raw_key(message, &public, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
