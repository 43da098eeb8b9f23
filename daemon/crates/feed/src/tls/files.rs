//! Reads the PEM files and notices when they change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use super::{TlsError, TlsFiles};

/// Limit of a file's size, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What the three files say.
pub(super) struct Identity {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads the files; the certificate must be of use to this side now, that is, for `usage`, whose name in a
    /// certificate is `purpose`.
    pub(super) fn read(
        files: &TlsFiles,
        usage: KeyUsage,
        purpose: &'static str,
    ) -> Result<Self, TlsError> {
        let roots = authorities(&files.ca)?;
        let chain = certificates(&files.cert)?;
        check_own(&files.cert, &chain, &roots, usage, purpose)?;
        let key = read_private_key(&files.key)?;
        Ok(Self { roots: Arc::new(roots), chain, key })
    }
}

/// Refuses a certificate that each peer would refuse, so that this side fails with its file's name and not the peers.
/// The peers may trust another CA than this side does: an unknown issuer is none of its business.
fn check_own(
    path: &Path,
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    usage: KeyUsage,
    purpose: &'static str,
) -> Result<(), TlsError> {
    let fail = |reason: String, remedy| {
        Err(TlsError::Certificate { path: path.to_owned(), reason, remedy })
    };
    let renew =
        "renew it, for example with `forebay keys --renew DIR`, or set this machine's clock";
    match verify(chain, roots, usage) {
        Err(webpki::Error::CertExpired { .. }) => {
            fail("the certificate has expired".to_owned(), renew)
        }
        Err(webpki::Error::CertNotValidYet { .. }) => {
            fail("the certificate is not valid yet".to_owned(), renew)
        }
        Err(webpki::Error::RequiredEkuNotFoundContext(_)) => fail(
            format!("the certificate is not for {purpose}"),
            "feeders need `feeder.crt` (serverAuth) and trainers `trainer.crt` (clientAuth)",
        ),
        Err(webpki::Error::CaUsedAsEndEntity) => {
            fail("a CA's certificate".to_owned(), "name the certificate that the CA signed")
        }
        Err(error @ (webpki::Error::BadDer | webpki::Error::BadDerTime)) => {
            Err(TlsError::unusable(path, &error))
        }
        _ => Ok(()),
    }
}

/// Whether the authorities sign a certificate, followed by those between, for this usage, and it is valid now. For a
/// certificate of an authority the answer is that it has expired, or [`webpki::Error::CaUsedAsEndEntity`].
pub(crate) fn verify(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    usage: KeyUsage,
) -> Result<(), webpki::Error> {
    let [own, between @ ..] = chain else { return Err(webpki::Error::BadDer) };
    EndEntityCert::try_from(own)?
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &roots.roots,
            between,
            UnixTime::now(),
            usage,
            None,
            None,
        )
        .map(|_| ())
}

/// The authorities in a file, at least one.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| TlsError::unusable(path, &error))?;
    }
    Ok(roots)
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let malformed = |reason: String| TlsError::Malformed {
        path: path.to_owned(),
        reason,
        expected: "one certificate or more",
    };
    let text = read(path)?;
    let found = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| malformed(error.to_string()))?;
    if found.is_empty() {
        return Err(malformed("no certificate in it".to_owned()));
    }
    Ok(found)
}

/// The private key in a file.
pub(crate) fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| {
        let reason = match error {
            rustls::pki_types::pem::Error::NoItemsFound => "no private key in it".to_owned(),
            error => error.to_string(),
        };
        TlsError::Malformed { path: path.to_owned(), reason, expected: "one private key" }
    })
}

/// A whole file of bounded size. A pipe or a device is refused before it can block.
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |source| TlsError::Read { path: path.to_owned(), source };
    let other = |text: &str| fail(io::Error::other(text));
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text).map_err(fail)?;
    match text.len() as u64 > MAX_FILE_BYTES {
        true => Err(other("larger than 1 MiB")),
        false => Ok(text),
    }
}

/// What changes with a file: device, inode, size, and the times of its content and of its inode, in nanoseconds.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    let changed = (data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
    Some((data.dev(), data.ino(), data.size(), changed.0, changed.1, changed.2, changed.3))
}

fn stamps(files: &TlsFiles) -> [Stamp; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| stamp(path))
}

/// What is made of the files, made again when one of them changes.
#[derive(Debug)]
pub(super) struct Watched<T> {
    files: TlsFiles,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// Of the files that `made` is made of.
    read: [Stamp; 3],
    /// Of files that are unusable and reported.
    reported: Option<[Stamp; 3]>,
    made: Arc<T>,
}

impl<T> Watched<T> {
    pub(super) fn open(
        files: TlsFiles,
        make: impl FnOnce(&TlsFiles) -> Result<T, TlsError>,
    ) -> Result<Self, TlsError> {
        // Before the reading: a change in between is noticed by the next call.
        let read = stamps(&files);
        let made = Arc::new(make(&files)?);
        Ok(Self { files, state: Mutex::new(State { read, reported: None, made }) })
    }

    pub(super) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// What is made of the present files, or of the last usable ones.
    pub(super) fn current(&self, make: impl FnOnce(&TlsFiles) -> Result<T, TlsError>) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = stamps(&self.files);
        if found != state.read {
            match make(&self.files) {
                Ok(made) => {
                    *state = State { read: found, reported: None, made: Arc::new(made) };
                    tracing::info!(cert = %self.files.cert.display(), "the certificates were read again");
                }
                // Certificate and key are two files: between their replacements they do not belong together.
                Err(error) if state.reported != Some(found) => {
                    state.reported = Some(found);
                    tracing::warn!(
                        "changed certificates are not used, and those before stay in use: {error}"
                    );
                }
                Err(_) => {}
            }
        }
        Arc::clone(&state.made)
    }
}
