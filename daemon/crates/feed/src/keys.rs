//! Certificates for feeders and trainers: one authority, and a certificate for each of the two sides.
//!
//! [`make`] writes six files into a folder: `ca.crt` and `ca.key`, `feeder.crt` and `feeder.key` (serverAuth),
//! `trainer.crt` and `trainer.key` (clientAuth). Existing files are never overwritten. [`renew`] makes new keys and
//! certificates of both sides with the same authority, and replaces each file at once by renaming.
//!
//! A host needs the authority's certificate, and certificate and key of its side. The authority's key stays where the
//! folder was made: who has it can admit himself.

pub(crate) mod pem;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use time::{Duration, OffsetDateTime};

use crate::tls::{self, TlsError};

/// The name that each feeder's certificate has, for `feeders.tls.name`.
pub const FEEDER_NAME: &str = "feeder.forebay.internal";
/// The name that each trainer's certificate has, for `feed.allow`.
pub const TRAINER_NAME: &str = "trainer.forebay.internal";
/// For how long a side's certificate is valid if nothing else is said, in days.
pub const DEFAULT_DAYS: u16 = 30;
/// For how long the authority's certificate is valid, in days.
pub const CA_DAYS: u16 = 5 * 365;
/// Certificates are valid from this long before they are made: clocks of hosts differ.
const CLOCK_SKEW: Duration = Duration::hours(1);
/// The longest validity of a side's certificate, in days.
const MAX_DAYS: u16 = 365;
/// Number of names beside the default one.
const MAX_NAMES: usize = 64;

/// What to make.
#[derive(Debug, Clone)]
pub struct KeysRequest {
    /// The folder; it is made with rights for its owner alone if it does not exist.
    pub folder: PathBuf,
    /// Further names of feeders: DNS names or IP addresses.
    pub feeder_names: Vec<String>,
    /// Further names of trainers: DNS names, IP addresses or URIs.
    pub trainer_names: Vec<String>,
    /// For how long the two sides' certificates are valid, in days, 1 to 365.
    pub days: u16,
}

/// Why keys could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file is there already.
    #[error("{} exists, and no key is overwritten; name another folder, or renew the certificates with --renew", .0.display())]
    Exists(PathBuf),
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The authority's files are of no use for a renewal.
    #[error("{}: {reason}; renewing needs the ca.crt and ca.key of the first run. Without them, make keys in another folder and replace the files on all hosts", .path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A name cannot be in a certificate.
    #[error("{0:?} is neither a DNS name nor an IP address, nor a URI (of trainers)")]
    Name(String),
    /// Too many names.
    #[error(
        "{0} names, and a certificate has at most {MAX_NAMES}; a pattern such as \"*.feeders.svc\" is one name"
    )]
    ManyNames(usize),
    /// The validity is out of its range.
    #[error("{0} days of validity; expected 1 to {MAX_DAYS}")]
    Days(u16),
    /// The library refused.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// What was made is not accepted by the part that uses it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Makes all six files.
///
/// # Errors
/// One of them exists, nothing is written then; the folder is not writable, or a name is unusable.
pub fn make(request: &KeysRequest) -> Result<(), KeysError> {
    let folder = &request.folder;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| KeysError::Write { path: folder.clone(), source })?;
    for name in Name::ALL {
        let path = folder.join(name.file());
        // A link that leads nowhere is a file, too.
        if path.symlink_metadata().is_ok() {
            return Err(KeysError::Exists(path));
        }
    }
    let now = OffsetDateTime::from(SystemTime::now());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let params = authority(&key, now);
    let certificate = params.self_signed(&key)?;
    let leaves = leaves(request, &Issuer::from_params(&params, &key), now)?;
    write_new(&folder.join(Name::CaKey.file()), &pem::private_key(&key))?;
    write_new(&folder.join(Name::CaCertificate.file()), &pem::certificate(&certificate))?;
    for (name, text) in leaves {
        write_new(&folder.join(name.file()), &text)?;
    }
    Ok(())
}

/// Makes new keys and certificates for both sides, signed by the authority in the folder.
///
/// # Errors
/// The authority's files are missing, do not belong together or have expired; or see [`make`].
pub fn renew(request: &KeysRequest) -> Result<(), KeysError> {
    let now = OffsetDateTime::from(SystemTime::now());
    let ca_path = request.folder.join(Name::CaCertificate.file());
    let key = read_authority_key(&request.folder)?;
    let params = authority(&key, now);
    let leaves = leaves(request, &Issuer::from_params(&params, &key), now)?;
    let replaced: Vec<(PathBuf, PathBuf)> = leaves
        .iter()
        .map(|(name, text)| {
            let path = request.folder.join(name.file());
            let new = new_path(&request.folder, *name);
            // Of a renewal that was interrupted.
            let _ = std::fs::remove_file(&new);
            write_new(&new, text).map(|()| (new, path))
        })
        .collect::<Result<_, _>>()?;
    // The new files are tried with the authority's certificate before they replace anything.
    check_new(&request.folder).map_err(|error| {
        for (new, _) in &replaced {
            let _ = std::fs::remove_file(new);
        }
        KeysError::Authority { path: ca_path, reason: error }
    })?;
    for (new, path) in replaced {
        std::fs::rename(&new, &path).map_err(|source| KeysError::Write { path, source })?;
    }
    Ok(())
}

/// The files that [`make`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The authority's certificate, for all hosts.
    CaCertificate,
    /// The authority's key, for no host.
    CaKey,
    /// The feeders' certificate.
    FeederCertificate,
    /// The feeders' key.
    FeederKey,
    /// The trainers' certificate.
    TrainerCertificate,
    /// The trainers' key.
    TrainerKey,
}

impl Name {
    /// All files.
    pub const ALL: [Self; 6] = [
        Self::CaCertificate,
        Self::CaKey,
        Self::FeederCertificate,
        Self::FeederKey,
        Self::TrainerCertificate,
        Self::TrainerKey,
    ];

    /// The file's name in the folder.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::CaCertificate => "ca.crt",
            Self::CaKey => "ca.key",
            Self::FeederCertificate => "feeder.crt",
            Self::FeederKey => "feeder.key",
            Self::TrainerCertificate => "trainer.crt",
            Self::TrainerKey => "trainer.key",
        }
    }
}

/// Equal for equal keys, so that a renewal signs as the issuer that `ca.crt` names. Its own name differs between
/// authorities: a host that knows several finds the one that signed.
pub(crate) fn authority(key: &KeyPair, now: OffsetDateTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    let id: String =
        params.key_identifier(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Forebay feeders CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::days(CA_DAYS.into());
    params
}

/// The four files of the two sides.
fn leaves(
    request: &KeysRequest,
    issuer: &Issuer<'_, &KeyPair>,
    now: OffsetDateTime,
) -> Result<[(Name, String); 4], KeysError> {
    if !(1..=MAX_DAYS).contains(&request.days) {
        return Err(KeysError::Days(request.days));
    }
    let not_after = now + Duration::days(request.days.into());
    let make = |main: &str, names: &[String], purpose: ExtendedKeyUsagePurpose, uris: bool| {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, main);
        params.subject_alt_names = alternative_names(main, names, uris)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        params.not_before = now - CLOCK_SKEW;
        params.not_after = not_after;
        let certificate = params.signed_by(&key, issuer)?;
        Ok::<_, KeysError>((pem::certificate(&certificate), pem::private_key(&key)))
    };
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let feeder = make(FEEDER_NAME, &request.feeder_names, server, false)?;
    let trainer = make(TRAINER_NAME, &request.trainer_names, client, true)?;
    Ok([
        (Name::FeederKey, feeder.1),
        (Name::FeederCertificate, feeder.0),
        (Name::TrainerKey, trainer.1),
        (Name::TrainerCertificate, trainer.0),
    ])
}

fn alternative_names(main: &str, names: &[String], uris: bool) -> Result<Vec<SanType>, KeysError> {
    if names.len() >= MAX_NAMES {
        return Err(KeysError::ManyNames(names.len()));
    }
    std::iter::once(main)
        .chain(names.iter().map(String::as_str))
        .map(|name| {
            let refuse = || KeysError::Name(name.to_owned());
            if let Ok(address) = name.parse::<IpAddr>() {
                return Ok(SanType::IpAddress(address));
            }
            if uris && name.contains("://") {
                return Ok(SanType::URI(name.try_into().map_err(|_| refuse())?));
            }
            // `*.domain` is a name in a certificate, and no DNS name.
            let plain = name.strip_prefix("*.").unwrap_or(name);
            rustls::pki_types::DnsName::try_from(plain).map_err(|_| refuse())?;
            Ok(SanType::DnsName(name.try_into().map_err(|_| refuse())?))
        })
        .collect()
}

fn read_authority_key(folder: &Path) -> Result<KeyPair, KeysError> {
    let path = folder.join(Name::CaKey.file());
    let fail = |reason: String| KeysError::Authority { path: path.clone(), reason };
    let der = tls::read_private_key(&path).map_err(|error| fail(error.to_string()))?;
    let rustls::pki_types::PrivateKeyDer::Pkcs8(der) = der else {
        return Err(fail("not a key that `forebay keys` made (PKCS #8)".to_owned()));
    };
    let der = PrivatePkcs8KeyDer::from(der.secret_pkcs8_der().to_vec());
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256)
        .map_err(|_| fail("not a key that `forebay keys` made (ECDSA P-256)".to_owned()))
}

/// Whether `ca.crt` is valid and verifies the new certificates. Nobody else compares the authority's end with the clock:
/// rustls takes it as it is.
fn check_new(folder: &Path) -> Result<(), String> {
    let path = folder.join(Name::CaCertificate.file());
    let text = |error: TlsError| error.to_string();
    let authorities = tls::authorities(&path).map_err(text)?;
    let own = tls::certificates(&path).map_err(text)?;
    let for_client = webpki::KeyUsage::client_auth();
    if let Err(webpki::Error::CertExpired { .. }) = tls::verify(&own, &authorities, for_client) {
        return Err("the authority's certificate has expired".to_owned());
    }
    for (name, usage) in [
        (Name::FeederCertificate, webpki::KeyUsage::server_auth()),
        (Name::TrainerCertificate, webpki::KeyUsage::client_auth()),
    ] {
        let chain = tls::certificates(&new_path(folder, name)).map_err(text)?;
        tls::verify(&chain, &authorities, usage).map_err(|error| match error {
            webpki::Error::UnknownIssuer => "it does not belong to the ca.key beside it".to_owned(),
            error => error.to_string(),
        })?;
    }
    Ok(())
}

/// Where a renewal keeps a file until all are tried.
fn new_path(folder: &Path, name: Name) -> PathBuf {
    folder.join(format!(".{}.new", name.file()))
}

/// Writes a file that must not exist, for its owner alone, to the disk.
fn write_new(path: &Path, text: &str) -> Result<(), KeysError> {
    let fail = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => KeysError::Exists(path.to_owned()),
        _ => KeysError::Write { path: path.to_owned(), source },
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)
}
