//! Admits clients whose certificates have a name that `feed.allow` wants, after all of rustls's checks.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use webpki::EndEntityCert;

use super::NamePattern;
use super::names::Name;

/// The certificate is valid, and none of its names is wanted.
#[derive(Debug, thiserror::Error)]
#[error("its certificate has {}, which matches none of feed.allow = [{}]", list(.names), list(.patterns))]
pub(super) struct NotAllowed {
    names: Vec<String>,
    patterns: Vec<String>,
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no DNS name and no URI".to_owned(),
        _ => names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "),
    }
}

/// See the module's head. Without patterns every certificate is wanted that rustls accepts.
#[derive(Debug)]
pub(super) struct Allowed {
    inner: Arc<dyn ClientCertVerifier>,
    patterns: Arc<[NamePattern]>,
}

impl Allowed {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, patterns: Arc<[NamePattern]>) -> Self {
        Self { inner, patterns }
    }

    fn check_names(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        let parsed = EndEntityCert::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let names = Name::all(&parsed);
        if names.iter().any(|name| self.patterns.iter().any(|pattern| pattern.matches(name))) {
            return Ok(());
        }
        let refusal = NotAllowed {
            names: names.iter().map(|name| name.text().to_owned()).collect(),
            patterns: self.patterns.iter().map(ToString::to_string).collect(),
        };
        Err(CertificateError::Other(OtherError(Arc::new(refusal))).into())
    }
}

impl ClientCertVerifier for Allowed {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        self.check_names(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
