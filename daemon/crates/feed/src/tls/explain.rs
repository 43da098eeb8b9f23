//! Turns the failure of a handshake into a sentence with the file and the remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::TlsFiles;

/// Which side reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The server: its peer is a daemon.
    Feeder,
    /// The client: its peer is a feeder.
    Daemon,
}

impl Side {
    fn peer(self) -> &'static str {
        match self {
            Self::Feeder => "the client",
            Self::Daemon => "the feeder",
        }
    }
}

/// See [`super::ServerTls::explain`].
pub(super) fn explain(error: &io::Error, files: &TlsFiles, side: Side) -> String {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return plain(error, side);
    };
    let peer = side.peer();
    match tls {
        Error::NoCertificatesPresented => {
            format!("{peer} showed no certificate; set feeders.tls in the trainer's configuration")
        }
        Error::InvalidCertificate(reason) => certificate(reason, files, side),
        Error::AlertReceived(alert) => refusal(*alert, files, side),
        Error::InvalidMessage(_) | Error::PeerMisbehaved(_) => match side {
            Side::Feeder => format!(
                "{peer} does not speak TLS 1.3 ({tls}); set feeders.tls in the trainer's configuration"
            ),
            Side::Daemon => {
                format!("{peer} does not speak TLS ({tls}); set feed.tls in its configuration")
            }
        },
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::Tls13RequiredForQuic,
        ) => {
            format!("{peer} does not speak TLS 1.3: {tls}")
        }
        _ => format!("TLS with {peer} failed: {tls}"),
    }
}

fn plain(error: &io::Error, side: Side) -> String {
    let peer = side.peer();
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("{peer} closed the connection during the handshake; does it use TLS?")
        }
        _ => format!("TLS with {peer} failed: {error}"),
    }
}

fn certificate(reason: &CertificateError, files: &TlsFiles, side: Side) -> String {
    let (peer, ca) = (side.peer(), files.ca.display());
    match reason {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {peer} is not signed by a CA in {ca}; both sides need certificates of CAs that the other side knows"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "the certificate of {peer} has expired; renew it, for example with `forebay keys --renew DIR`"
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => format!(
            "the certificate of {peer} is not valid yet; compare the clocks of both machines"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "{reason} (the certificate of {peer}); name one of its DNS names in feeders.tls.name, or make a certificate with this name: `forebay keys DIR --feeder NAME`"
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            let wanted = match side {
                Side::Feeder => "clientAuth (`trainer.crt`)",
                Side::Daemon => "serverAuth (`feeder.crt`)",
            };
            format!("the certificate of {peer} is not for its purpose; it must be for {wanted}")
        }
        // Only `allowed` gives it.
        CertificateError::Other(other) => format!(
            "{peer} is not admitted: {}; add its name there if it shall be admitted",
            other.0
        ),
        _ => format!("the certificate of {peer} is refused: {reason}"),
    }
}

/// The peer refused this side's certificate, and says no more than a number.
fn refusal(alert: AlertDescription, files: &TlsFiles, side: Side) -> String {
    let (peer, cert) = (side.peer(), files.cert.display());
    let why = match alert {
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => {
            "none of its names matches the feeder's feed.allow"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the other side's `ca` does not have the CA that signed it"
        }
        AlertDescription::CertificateExpired => {
            "it has expired; renew it: `forebay keys --renew DIR`"
        }
        AlertDescription::CertificateRequired => "none was shown; set feeders.tls",
        AlertDescription::UnsupportedCertificate => {
            "it is for another purpose: feeders need serverAuth (`feeder.crt`), trainers clientAuth (`trainer.crt`)"
        }
        AlertDescription::BadCertificate => {
            "it lacks the name by which the feeder was addressed (feeders.tls.name)"
        }
        AlertDescription::NoApplicationProtocol => {
            "the two sides have no protocol in common; is it a feeder?"
        }
        other => {
            return format!("{peer} ended TLS with {other:?} ({cert}); its log has the reason");
        }
    };
    format!("{peer} refuses {cert}: {why}; its log has more")
}
