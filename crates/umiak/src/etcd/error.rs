//! How etcd's members answered when a request failed, and what it means for the user.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::wire::etcd::{Fault, Refusal, Remedy};

/// Why one member did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Trouble {
    #[error("the name is unknown: {0}")]
    Name(String),
    #[error("connection refused")]
    Refused,
    #[error("{0}")]
    Unreachable(String),
    #[error("no connection within {} s", .0.as_secs_f32())]
    NoConnection(Duration),
    #[error(transparent)]
    Tls(TlsTrouble),
    /// The connection ended before the answer. The request may have been performed.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The request may have been performed.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Silent(Duration),
    #[error("the answer is too long")]
    TooLong,
    #[error("{0}")]
    NotEtcd(String),
    #[error("{0}")]
    Etcd(Refusal),
}

/// Why there is no secure connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum TlsTrouble {
    #[error("the server's certificate is signed by an unknown authority")]
    UnknownAuthority,
    #[error("the server's certificate is for other names{}", .0.as_ref().map(|names| format!(": {names}")).unwrap_or_default())]
    WrongName(Option<String>),
    #[error("the server requires a client certificate")]
    CertificateRequired,
    #[error("the server does not accept the client certificate")]
    CertificateRefused,
    #[error("the server does not speak TLS")]
    NotTls,
    /// The connection ended before it was secure. etcd without TLS does that.
    #[error("the TLS handshake failed: {0}")]
    Ended(String),
    #[error("TLS: {0}")]
    Other(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(refusal) => Self::Etcd(refusal),
            Fault::NotEtcd(text) => Self::NotEtcd(text),
        }
    }
}

impl Trouble {
    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Etcd(refusal) => refusal.remedy(),
            Self::Lost(_) | Self::Silent(_) => Remedy::TryAgain { maybe_done: true },
            Self::TooLong => Remedy::GiveUp,
            Self::Name(_)
            | Self::Refused
            | Self::Unreachable(_)
            | Self::NoConnection(_)
            | Self::Tls(_)
            | Self::NotEtcd(_) => Remedy::TryAgain { maybe_done: false },
        }
    }

    /// True if the same member will not answer differently a moment later.
    pub(super) fn is_lasting(&self) -> bool {
        match self {
            Self::Tls(trouble) => !matches!(trouble, TlsTrouble::Ended(_)),
            trouble => matches!(trouble, Self::NotEtcd(_)),
        }
    }

    /// True while the members elect a leader, or cannot.
    pub(super) fn is_leaderless(&self) -> bool {
        matches!(self, Self::Etcd(Refusal::NoLeader | Refusal::TimedOut | Refusal::Unavailable(_)))
    }
}

/// A member by its address, and its answer.
pub(crate) type Answer = (String, Trouble);

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EtcdError {
    /// No member gave an answer that is final: the last of each.
    Members { kind: Kind, answers: Vec<Answer> },
    /// A member's final answer.
    Refused { refusal: Refusal, member: String, key: String, user: Option<String> },
    /// An answer beyond the limit of sizes.
    TooLong { member: String, key: String },
    /// A file with certificates or a key.
    File { variable: &'static str, path: PathBuf, why: String },
    /// The name of a host for which there are no certificates.
    Name(String),
    /// The thread for network work could not be started.
    Thread(String),
}

/// What the answers of several members mean together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    NoLeader,
    Tls,
    NotEtcd,
    Unreachable,
}

impl EtcdError {
    /// From the last answer of each member. `healthy` if one of the silent ones still answers other questions.
    pub(super) fn of(answers: Vec<Answer>, healthy: bool) -> Self {
        let any = |test: fn(&Trouble) -> bool| answers.iter().any(|(_, trouble)| test(trouble));
        let kind = if healthy || any(Trouble::is_leaderless) {
            Kind::NoLeader
        } else if any(|trouble| matches!(trouble, Trouble::Tls(_))) {
            Kind::Tls
        } else if any(|trouble| matches!(trouble, Trouble::NotEtcd(_))) {
            Kind::NotEtcd
        } else {
            Kind::Unreachable
        };
        Self::Members { kind, answers }
    }

    /// The message for the user.
    pub(crate) fn diagnostic(&self) -> Diagnostic {
        match self {
            Self::Members { kind, answers } => members(*kind, answers),
            Self::Refused { refusal, member, key, user } => refused(refusal, member, key, user.as_deref()),
            Self::TooLong { member, key } => {
                Diagnostic::error(Code::R0037, format!("the answer of etcd for keys below `{key}` is too long"))
                    .row("member", member)
                    .hint("check whether other programs write below the keys of this job")
            }
            Self::File { variable, path, why } => {
                Diagnostic::error(Code::R0038, format!("the file of `{variable}` cannot be used"))
                    .row("file", path.display().to_string())
                    .row("reason", why)
            }
            Self::Name(endpoint) => Diagnostic::error(Code::R0038, format!("`{endpoint}` is not a valid host name")),
            Self::Thread(why) => Diagnostic::failed("start a thread", why),
        }
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.diagnostic().message)
    }
}

impl std::error::Error for EtcdError {}

impl From<io::Error> for EtcdError {
    fn from(error: io::Error) -> Self {
        Self::Thread(error.to_string())
    }
}

fn members(kind: Kind, answers: &[Answer]) -> Diagnostic {
    let diagnostic = match kind {
        Kind::NoLeader => Diagnostic::error(Code::R0034, "etcd has no leader, and accepts no requests"),
        Kind::Tls => Diagnostic::error(Code::R0031, "no secure connection to etcd"),
        Kind::NotEtcd => Diagnostic::error(Code::R0036, "the server is not etcd"),
        Kind::Unreachable => Diagnostic::error(Code::R0030, "etcd cannot be reached"),
    };
    let diagnostic =
        answers.iter().fold(diagnostic, |diagnostic, (member, trouble)| diagnostic.row(member, trouble.to_string()));
    let hints = answers.iter().filter_map(|(_, trouble)| tls_hint(trouble));
    match (kind, hints.min()) {
        (Kind::Tls | Kind::NotEtcd, Some(hint)) => diagnostic.hint(hint),
        (Kind::NotEtcd, None) => diagnostic.hint("check the address; etcd's port for clients is usually 2379"),
        (Kind::NoLeader, _) => diagnostic.hint(
            "check that more than half of the members run and reach each other: `etcdctl endpoint status --cluster`",
        ),
        // etcd with TLS closes other connections.
        (Kind::Unreachable, _) if answers.iter().any(is_plain_and_lost) => {
            diagnostic.hint("if etcd uses TLS, write the address with `https://`")
        }
        (Kind::Unreachable, _) => diagnostic.hint("check that etcd runs, and its addresses and ports"),
        (Kind::Tls, None) => diagnostic,
    }
}

fn is_plain_and_lost((member, trouble): &Answer) -> bool {
    matches!(trouble, Trouble::Lost(_)) && !member.starts_with("https://")
}

fn tls_hint(trouble: &Trouble) -> Option<&'static str> {
    match trouble {
        Trouble::Tls(TlsTrouble::UnknownAuthority) => Some(
            "name the certificate of etcd's authority with `UMIAK_ETCD_CA_FILE`, or with `cacert` in torchrun's `--rdzv-conf`",
        ),
        Trouble::Tls(TlsTrouble::WrongName(_)) => Some("use one of the names of the certificate as the address"),
        Trouble::Tls(TlsTrouble::CertificateRequired | TlsTrouble::CertificateRefused) => Some(
            "name a certificate that etcd accepts, and its key, with `UMIAK_ETCD_CERT_FILE` and `UMIAK_ETCD_KEY_FILE`, or with `cert` and `key` in torchrun's `--rdzv-conf`",
        ),
        Trouble::Tls(TlsTrouble::NotTls | TlsTrouble::Ended(_)) => {
            Some("if etcd does not use TLS, write the address with `http://`")
        }
        Trouble::NotEtcd(text) if text == "it expects TLS" => Some("write the address with `https://`"),
        _ => None,
    }
}

fn refused(refusal: &Refusal, member: &str, key: &str, user: Option<&str>) -> Diagnostic {
    let with_user = |diagnostic: Diagnostic| match user {
        Some(user) => diagnostic.row("user", user),
        None => diagnostic,
    };
    match refusal {
        Refusal::Password | Refusal::Token => {
            with_user(Diagnostic::error(Code::R0032, "etcd refused the user or the password"))
                .row("member", member)
                .hint("check `UMIAK_ETCD_USER` and `UMIAK_ETCD_PASSWORD`")
        }
        Refusal::NoUser => Diagnostic::error(Code::R0032, "etcd requires a user and a password")
            .row("member", member)
            .hint("set `UMIAK_ETCD_USER` and `UMIAK_ETCD_PASSWORD`"),
        Refusal::Permission => with_user(Diagnostic::error(Code::R0033, format!("no permission for `{key}` in etcd")))
            .row("member", member)
            .hint("grant the user's role `readwrite` for it: `etcdctl role grant-permission ROLE --prefix=true readwrite /paddle/`"),
        Refusal::Full => Diagnostic::error(Code::R0035, "the storage of etcd is full")
            .row("member", member)
            .hint("compact and defragment it, then clear the alarm with `etcdctl alarm disarm`"),
        refusal => Diagnostic::error(Code::R0037, format!("etcd refused a request for `{key}`"))
            .row("member", member)
            .row("reason", refusal.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answers: &[(&str, Trouble)]) -> String {
        let answers = answers.iter().map(|(member, trouble)| ((*member).to_owned(), trouble.clone())).collect();
        EtcdError::of(answers, false).diagnostic().to_plain()
    }

    #[test]
    fn what_several_answers_mean() {
        assert_eq!(
            told(&[("a:2379", Trouble::Refused), ("b:2379", Trouble::NoConnection(Duration::from_millis(2500)))]),
            "error[R0030]: etcd cannot be reached\n  a:2379  connection refused\n  b:2379  no connection within 2.5 s\nhint: check that etcd runs, and its addresses and ports\n"
        );
        assert_eq!(
            told(&[("a:2379", Trouble::Refused), ("b:2379", Trouble::Etcd(Refusal::NoLeader))]),
            "error[R0034]: etcd has no leader, and accepts no requests\n  a:2379  connection refused\n  b:2379  no leader\nhint: check that more than half of the members run and reach each other: `etcdctl endpoint status --cluster`\n"
        );
        assert_eq!(
            told(&[("https://a:1", Trouble::Tls(TlsTrouble::UnknownAuthority))]),
            "error[R0031]: no secure connection to etcd\n  https://a:1  the server's certificate is signed by an unknown authority\nhint: name the certificate of etcd's authority with `UMIAK_ETCD_CA_FILE`, or with `cacert` in torchrun's `--rdzv-conf`\n"
        );
        assert_eq!(
            told(&[("a:1", Trouble::NotEtcd("it expects TLS".to_owned()))]),
            "error[R0036]: the server is not etcd\n  a:1  it expects TLS\nhint: write the address with `https://`\n"
        );
    }

    #[test]
    fn final_answers() {
        let told = |refusal| {
            let (member, key, user) = ("a:1".to_owned(), "/paddle/j/np".to_owned(), Some("ann".to_owned()));
            EtcdError::Refused { refusal, member, key, user }.diagnostic().to_plain()
        };
        assert_eq!(
            told(Refusal::Permission),
            "error[R0033]: no permission for `/paddle/j/np` in etcd\n  user    ann\n  member  a:1\nhint: grant the user's role `readwrite` for it: `etcdctl role grant-permission ROLE --prefix=true readwrite /paddle/`\n"
        );
        assert!(
            told(Refusal::Password).starts_with("error[R0032]: etcd refused the user or the password\n  user    ann\n")
        );
        assert!(told(Refusal::Full).starts_with("error[R0035]: the storage of etcd is full\n"));
        assert_eq!(
            told(Refusal::Other("etcdserver: odd".to_owned())),
            "error[R0037]: etcd refused a request for `/paddle/j/np`\n  member  a:1\n  reason  etcdserver: odd\n"
        );
    }
}
