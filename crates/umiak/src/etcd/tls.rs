//! Secure connections: certificates from files, and why a connection fails.

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use umiak_core::model::EtcdTls;

use super::error::{EtcdError, TlsTrouble};

const CA: &str = "UMIAK_ETCD_CA_FILE";
const CERTIFICATE: &str = "UMIAK_ETCD_CERT_FILE";
const KEY: &str = "UMIAK_ETCD_KEY_FILE";

/// Reads the files. With neither a file nor a certificate of the system no server is trusted.
pub(super) fn configuration(tls: &EtcdTls) -> Result<Arc<ClientConfig>, EtcdError> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(CA, path)? {
                roots.add(certificate).map_err(|error| unusable(CA, path, &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has ciphers of all versions")
        .with_root_certificates(roots);
    let configuration = match &tls.identity {
        Some((certificate, key)) => {
            let chain = certificates(CERTIFICATE, certificate)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(KEY, key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| unusable(KEY, key, &error))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(configuration))
}

fn certificates(variable: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if list.is_empty() => Err(unusable(variable, path, &"it contains no certificate")),
        Ok(list) => Ok(list),
        Err(error) => Err(unusable(variable, path, &error)),
    }
}

fn unusable(variable: &'static str, path: &Path, why: &dyn std::fmt::Display) -> EtcdError {
    EtcdError::File { variable, path: path.to_owned(), why: why.to_string() }
}

/// The failure of TLS among the causes of an error, if there is one.
pub(super) fn trouble(error: &(dyn StdError + 'static), has_identity: bool) -> Option<TlsTrouble> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(classify(error, has_identity));
        }
        // An I/O error shows the cause of the error inside it, and not that error.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn classify(error: &rustls::Error, has_identity: bool) -> TlsTrouble {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => TlsTrouble::UnknownAuthority,
            CertificateError::NotValidForName => TlsTrouble::WrongName(None),
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsTrouble::WrongName(Some(presented.join(", ")).filter(|names| !names.is_empty()))
            }
            other => TlsTrouble::Other(other.to_string()),
        },
        // Go's server sends the second, and since 1.21 the first, to a client without a certificate.
        rustls::Error::AlertReceived(Alert::CertificateRequired | Alert::BadCertificate) if !has_identity => {
            TlsTrouble::CertificateRequired
        }
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied,
        ) => TlsTrouble::CertificateRefused,
        rustls::Error::InvalidMessage(_) => TlsTrouble::NotTls,
        other => TlsTrouble::Other(other.to_string()),
    }
}
