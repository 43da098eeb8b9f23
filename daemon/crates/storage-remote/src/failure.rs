//! Classifies a failed call: which error it is, and for how long it is retried.
//!
//! ```text
//! no response, 408, 425, 429, 5xx, expired credentials     retried (`dataset.outage_timeout`)
//! no credentials at all                                    retried, if they have worked before
//! 404 of an object                                         retried for ten seconds
//! 401, 403, a redirect, any other 4xx, 501                 not retried
//! ```

use std::path::PathBuf;
use std::time::Duration;

use object_store::Error;

use super::client::{chain, shown};
use super::trace::Trace;
use forebay_storage::error::{RemoteFailure, RetryClass, StorageError};

/// The longest pause that a server may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Error codes for expired credentials.
const EXPIRED: [&str; 4] =
    ["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"];
/// Error codes for a clock that differs from the server's.
const SKEWED: [&str; 2] = ["RequestTimeTooSkewed", "RequestExpired"];
/// Error codes for a missing bucket or container.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "InvalidBucketName"];

/// Whether the server says that the credentials have expired.
pub(super) fn is_expired(trace: &Trace) -> bool {
    trace.code.as_deref().is_some_and(|code| EXPIRED.contains(&code))
}

/// A failed call.
#[derive(Debug)]
pub(super) struct Failed<'a> {
    /// The action, such as "reading".
    pub(super) action: &'static str,
    /// The object or the folder.
    pub(super) path: PathBuf,
    /// Whose credentials are used.
    pub(super) identity: &'a str,
    /// Whether a request has succeeded before.
    pub(super) has_worked: bool,
}

impl Failed<'_> {
    /// The error that corresponds to `object_store`'s error and the last request's trace.
    pub(super) fn error(self, error: &Error, trace: &Trace) -> StorageError {
        if let Some(refusal) = &trace.refusal {
            let pause = refusal.retry_after.or(trace.retry_after);
            let pause = pause.map(|pause| pause.min(MAX_RETRY_AFTER));
            return self.remote(refusal.what.clone(), refusal.class, pause);
        }
        if trace.is_credentials {
            return self.no_credentials(error, trace);
        }
        match trace.status {
            Some(404) if !trace.code.as_deref().is_some_and(|code| NO_BUCKET.contains(&code)) => {
                StorageError::Vanished { path: self.path }
            }
            Some(status) if !(200..300).contains(&status) => self.refused(status, trace),
            Some(200) if trace.has_range => self.no_ranges(),
            _ if trace.transport.is_some() => self.transport(trace),
            _ => self.answer(&chain(error), RetryClass::File),
        }
    }

    /// The server's response is malformed.
    pub(super) fn answer(self, what: &str, class: RetryClass) -> StorageError {
        let what = format!("the server's response cannot be used: {}", shown(what));
        self.remote(what, class, None)
    }

    /// A file that the server compresses for transfer.
    pub(super) fn encoded(self, encoding: &str) -> StorageError {
        let what = format!(
            "the server sends it compressed (Content-Encoding: {}), which was not requested: configure it to send files uncompressed",
            shown(encoding)
        );
        self.remote(what, RetryClass::Never, None)
    }

    fn no_ranges(self) -> StorageError {
        let what = "the server does not serve parts of files: it answers 200 with all of it to a request for a range; \
                    use another server, or copy the data to this machine";
        self.remote(what.to_owned(), RetryClass::File, None)
    }

    /// A failure before any request.
    pub(super) fn local(self, what: String) -> StorageError {
        self.remote(what, RetryClass::Never, None)
    }

    /// The connection failed.
    pub(super) fn transport(self, trace: &Trace) -> StorageError {
        let what = trace.transport.as_deref().unwrap_or("the connection ended");
        let host = if trace.host.is_empty() { "the server" } else { &trace.host };
        // rustls's message.
        if what.contains("invalid peer certificate") && !self.has_worked {
            let what = format!(
                "{host} has a certificate that is not trusted here: {what}. Set SSL_CERT_FILE or AWS_CA_BUNDLE to a file with the \
                 certificate of its CA"
            );
            return self.remote(what, RetryClass::Never, None);
        }
        let what = format!("no response from {host}: {what}");
        self.remote(what, RetryClass::Outage, None)
    }

    fn remote(
        self,
        what: String,
        class: RetryClass,
        retry_after: Option<Duration>,
    ) -> StorageError {
        let Self { action, path, .. } = self;
        let failure = RemoteFailure { action, what, class, retry_after };
        StorageError::Remote { path, failure: Box::new(failure) }
    }

    fn no_credentials(self, error: &Error, trace: &Trace) -> StorageError {
        let class = if self.has_worked { RetryClass::Outage } else { RetryClass::Never };
        if let Some(why) = &trace.no_keys {
            return self.remote(format!("no credentials: {why}"), class, None);
        }
        let answer = match (trace.status, &trace.transport) {
            (_, Some(what)) => format!("{}: {what}", trace.host),
            (Some(status), None) => format!("{} answers {}", trace.host, in_words(status, trace)),
            (None, None) => chain(error),
        };
        let what = format!(
            "no credentials: {answer}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the provider's variables) or \
             storage.profile, or storage.anonymous = true for a public bucket"
        );
        self.remote(what, class, None)
    }

    fn refused(self, status: u16, trace: &Trace) -> StorageError {
        let answer = in_words(status, trace);
        let code = trace.code.as_deref().unwrap_or_default();
        let (class, remedy) = match status {
            _ if EXPIRED.contains(&code) || SKEWED.contains(&code) => (
                RetryClass::Outage,
                format!("; {} have expired, or this machine's clock is wrong", self.identity),
            ),
            401 | 403 => {
                let remedy =
                    format!(": {} may not do that; grant reading and listing", self.identity);
                (RetryClass::Never, remedy)
            }
            404 => {
                (RetryClass::Never, ": the bucket does not exist; correct dataset.path".to_owned())
            }
            300..=399 => (RetryClass::Never, redirected(trace)),
            408 | 425 | 429 => (RetryClass::Outage, String::new()),
            501 => (RetryClass::Never, ": the server does not support this request".to_owned()),
            500.. => (RetryClass::Outage, String::new()),
            _ => match &trace.region {
                Some(region) => (
                    RetryClass::Never,
                    format!("; the bucket is in {region}: set storage.region = \"{region}\""),
                ),
                None => (RetryClass::Never, String::new()),
            },
        };
        let retry_after = trace.retry_after.map(|pause| pause.min(MAX_RETRY_AFTER));
        self.remote(format!("the server answers {answer}{remedy}"), class, retry_after)
    }
}

fn redirected(trace: &Trace) -> String {
    match (&trace.region, &trace.redirect) {
        (Some(region), _) => {
            format!("; the bucket is in {region}: set storage.region = \"{region}\"")
        }
        (None, Some(host)) => format!(
            ", a redirect to {host}, which is not followed: set dataset.path or storage.endpoint to the data's location"
        ),
        (None, None) => ", a redirect, which is not followed".to_owned(),
    }
}

/// `503 SlowDown "Reduce your request rate" (request 4442587FB7D0A2F9)`.
fn in_words(status: u16, trace: &Trace) -> String {
    let name = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let mut text = status.to_string();
    if let Some(name) = trace.code.as_deref().or(name) {
        text = format!("{text} {name}");
    }
    if let Some(message) = &trace.message {
        text = format!("{text} {message:?}");
    }
    if let Some(id) = &trace.request_id {
        text = format!("{text} (request {id})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(trace: &Trace, has_worked: bool) -> StorageError {
        let failed = Failed {
            action: "reading",
            path: "s3://bucket/key".into(),
            identity: "the credentials of profile `research`",
            has_worked,
        };
        let source = "x".into();
        failed.error(&Error::Generic { store: "S3", source }, trace)
    }

    fn answer(status: u16, code: &str) -> Trace {
        let code = (!code.is_empty()).then(|| code.to_owned());
        let request_id = Some("4442587F".to_owned());
        Trace { status: Some(status), code, request_id, ..Trace::default() }
    }

    #[test]
    fn only_failures_that_may_pass_are_retried() {
        for (status, code, class) in [
            (403, "AccessDenied", RetryClass::Never),
            (403, "RequestTimeTooSkewed", RetryClass::Outage),
            (400, "ExpiredToken", RetryClass::Outage),
            (400, "", RetryClass::Never),
            (301, "PermanentRedirect", RetryClass::Never),
            (404, "NoSuchKey", RetryClass::File),
            (404, "NoSuchBucket", RetryClass::Never),
            (408, "", RetryClass::Outage),
            (429, "", RetryClass::Outage),
            (500, "InternalError", RetryClass::Outage),
            (501, "NotImplemented", RetryClass::Never),
            (503, "SlowDown", RetryClass::Outage),
        ] {
            let error = error(&answer(status, code), true);
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains("s3://bucket/key") && !error.is_bad_sample());
        }
        let away = Trace { transport: Some("connection refused".into()), ..Trace::default() };
        assert_eq!(error(&away, false).class(), RetryClass::Outage);
        let transport = Some("invalid peer certificate: UnknownIssuer".into());
        let untrusted = Trace { transport, ..Trace::default() };
        assert_eq!(error(&untrusted, false).class(), RetryClass::Never);
        assert_eq!(error(&untrusted, true).class(), RetryClass::Outage);
        let none = Trace { is_credentials: true, ..away };
        assert_eq!(error(&none, false).class(), RetryClass::Never, "{}", error(&none, false));
        assert_eq!(error(&none, true).class(), RetryClass::Outage);
    }

    #[test]
    fn failed_command_is_reported_unchanged_and_retried_if_it_has_worked() {
        let why = "the credential_process `keys` of profile `lab` ended with status 1".to_owned();
        let trace =
            || Trace { is_credentials: true, no_keys: Some(why.clone()), ..Trace::default() };
        let first = error(&trace(), false);
        assert_eq!(
            first.to_string(),
            format!("reading s3://bucket/key failed: no credentials: {why}")
        );
        assert_eq!(first.class(), RetryClass::Never);
        assert_eq!(error(&trace(), true).class(), RetryClass::Outage);
        assert!(is_expired(&answer(400, "ExpiredToken")) && !is_expired(&answer(403, "")));
        assert!(
            !is_expired(&answer(403, "RequestTimeTooSkewed")),
            "new keys do not correct a clock"
        );
    }

    #[test]
    fn error_names_the_credentials_and_the_servers_message() {
        let mut trace = answer(403, "AccessDenied");
        trace.message = Some("Access Denied".to_owned());
        let said = error(&trace, true).to_string();
        assert_eq!(
            said,
            "reading s3://bucket/key failed: the server answers 403 AccessDenied \"Access Denied\" (request 4442587F): the \
             credentials of profile `research` may not do that; grant reading and listing"
        );
        let mut trace = answer(301, "PermanentRedirect");
        trace.region = Some("eu-west-1".to_owned());
        assert!(error(&trace, true).to_string().contains("storage.region = \"eu-west-1\""));
        let mut trace = answer(503, "SlowDown");
        trace.retry_after = Some(Duration::from_secs(1_000_000));
        assert_eq!(error(&trace, true).retry_after(), Some(MAX_RETRY_AFTER));
    }
}
