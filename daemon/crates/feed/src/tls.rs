//! TLS between trainers' daemons and feeders: mutual, 1.3 only, from PEM files that are read again when they change.
//!
//! [`ServerTls`] is the feeder's side and [`ClientTls`] the daemon's. Both give a rustls configuration for each new
//! connection; whoever accepts or connects does the handshake and bounds its time. An established connection keeps the
//! certificates with which it began.
//!
//! A certificate is accepted if the CA file's certificates sign it for the purpose, it is valid now, and its names are
//! wanted: the host (or `feeders.tls.name`) for a feeder, a pattern of `feed.allow` for a daemon. There are no
//! revocation lists: certificates are short-lived, and `feed.allow` excludes a name at once for new connections.
//!
//! Sessions are not resumed, so that each connection verifies the peer's certificate by the present files.

mod allowed;
mod error;
mod explain;
mod files;
mod names;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig, version::TLS13};
use serde::Deserialize;

use allowed::Allowed;
pub use error::TlsError;
use explain::Side;
use files::{Identity, Watched};
pub(crate) use files::{authorities, certificates, read_private_key, verify};
pub use names::NamePattern;

/// The only protocol inside TLS, as ALPN has it: HTTP/2, which gRPC needs.
const ALPN: &[u8] = b"h2";

/// The PEM files of one side. Each may be a symbolic link that is replaced, as in a Kubernetes Secret.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificates of the authorities that sign the peers' certificates.
    pub ca: PathBuf,
    /// The certificate of this side, followed by those between it and its authority.
    pub cert: PathBuf,
    /// The private key of this side's certificate.
    pub key: PathBuf,
}

/// The feeder's side: it shows its certificate and admits daemons by theirs.
#[derive(Debug)]
pub struct ServerTls {
    allow: Arc<[NamePattern]>,
    watched: Watched<ServerConfig>,
}

impl ServerTls {
    /// Reads the files. With an empty `allow` each certificate is admitted that the CA signed for clients.
    ///
    /// # Errors
    /// A file cannot be read, has not what it must have, or has a certificate that is of no use now.
    pub fn open(files: TlsFiles, allow: Vec<NamePattern>) -> Result<Self, TlsError> {
        let allow: Arc<[NamePattern]> = allow.into();
        let watched = Watched::open(files, |files| server_config(files, &allow))?;
        Ok(Self { allow, watched })
    }

    /// The configuration for the next connection. Costs three `stat` calls while the files are as they were. If changed
    /// files are unusable, it is the one of the files before, and a warning is logged once for each change.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.watched.current(|files| server_config(files, &self.allow))
    }

    /// Why a handshake with a daemon, or the first read after it, failed, with the remedy.
    #[must_use]
    pub fn explain(&self, error: &std::io::Error) -> String {
        explain::explain(error, self.watched.files(), Side::Feeder)
    }
}

/// The daemon's side: it shows its certificate and verifies the feeder's.
#[derive(Debug)]
pub struct ClientTls {
    name: Option<ServerName<'static>>,
    watched: Watched<ClientConfig>,
}

impl ClientTls {
    /// Reads the files. `name` is the DNS name that feeders' certificates have instead of the host of their address
    /// (`feeders.tls.name`).
    ///
    /// # Errors
    /// A file cannot be read, has not what it must have, or has a certificate that is of no use now; or `name` is not a
    /// DNS name or an IP address.
    pub fn open(files: TlsFiles, name: Option<String>) -> Result<Self, TlsError> {
        let name = name.map(|name| parse_name(&name, "feeders.tls.name")).transpose()?;
        Ok(Self { name, watched: Watched::open(files, client_config)? })
    }

    /// The configuration for the next connection; see [`ServerTls::current`].
    #[must_use]
    pub fn current(&self) -> Arc<ClientConfig> {
        self.watched.current(client_config)
    }

    /// The name that the certificate of the feeder at `host` must have: `feeders.tls.name`, else the host.
    ///
    /// # Errors
    /// The host is neither a DNS name nor an IP address.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => parse_name(host, "feeders.addresses"),
        }
    }

    /// Why a handshake with a feeder, or the first read after it, failed, with the remedy. In TLS 1.3 a feeder's refusal
    /// arrives with the first read.
    #[must_use]
    pub fn explain(&self, error: &std::io::Error) -> String {
        explain::explain(error, self.watched.files(), Side::Daemon)
    }
}

fn parse_name(name: &str, key: &'static str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| TlsError::NotAName { key, name: name.to_owned() })
}

fn server_config(files: &TlsFiles, allow: &Arc<[NamePattern]>) -> Result<ServerConfig, TlsError> {
    let Identity { roots, chain, key } =
        Identity::read(files, webpki::KeyUsage::server_auth(), "serverAuth")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|error| TlsError::unusable(&files.ca, &error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::unusable(&files.cert, &error))?
        .with_client_cert_verifier(Arc::new(Allowed::new(verifier, Arc::clone(allow))))
        .with_single_cert(chain, key)
        .map_err(|error| TlsError::pair(files, &error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let Identity { roots, chain, key } =
        Identity::read(files, webpki::KeyUsage::client_auth(), "clientAuth")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::unusable(&files.cert, &error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| TlsError::pair(files, &error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
