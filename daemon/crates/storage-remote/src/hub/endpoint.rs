//! The hub's server, and the hosts that it may redirect to.

use url::{Host, Url};

use crate::address::is_loopback;

const DEFAULT: &str = "https://huggingface.co";
/// The hub's storage hosts are below these domains.
const STORAGE_DOMAINS: [&str; 2] = [".huggingface.co", ".hf.co"];

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    url: Url,
    is_loopback: bool,
}

impl Endpoint {
    /// From `HF_ENDPOINT`, if it is set.
    ///
    /// # Errors
    /// It is not the address of a server, or its requests would not be encrypted.
    pub(crate) fn of(variable: Option<&str>) -> Result<Self, String> {
        let text = variable.filter(|text| !text.is_empty()).unwrap_or(DEFAULT);
        let url = Url::parse(text.trim_end_matches('/'))
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())
            .filter(|url| url.username().is_empty() && url.password().is_none())
            .filter(|url| url.query().is_none() && url.fragment().is_none())
            .ok_or_else(|| {
                format!("HF_ENDPOINT must be the address of a server such as \"{DEFAULT}\", without a user or a query")
            })?;
        let is_loopback = is_loopback(&url);
        if url.scheme() == "http" && !is_loopback {
            return Err(format!(
                "HF_ENDPOINT is {url}, which is not encrypted, so that the token could be read on the way; use https://"
            ));
        }
        if let Some(why) = crate::address::refusal(&url, false) {
            return Err(format!("HF_ENDPOINT: {why}"));
        }
        Ok(Self { url, is_loopback })
    }

    /// Whether it is on this machine, as in tests.
    pub(crate) const fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// Whether its requests are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Scheme, host and port.
    pub(crate) fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Its address if it is not the usual one.
    pub(crate) fn unusual(&self) -> Option<String> {
        let text = self.url.as_str().trim_end_matches('/');
        (text != DEFAULT).then(|| text.to_owned())
    }

    /// The URL of a path at this server; each part is encoded.
    pub(crate) fn url<'p>(&self, parts: impl IntoIterator<Item = &'p str>) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// Whether a URL is at this very server, which gets the token.
    pub(crate) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.url.origin()
    }

    /// Why a redirect to a URL is not followed; `None`: it is.
    pub(crate) fn refusal(&self, url: &Url) -> Option<String> {
        let host = url.host_str().unwrap_or_default();
        if !url.username().is_empty() || url.password().is_some() {
            return Some(format!(
                "it redirects to a URL of {host} with a user, which is not followed"
            ));
        }
        let is_storage = match (url.host(), self.is_loopback) {
            (Some(_), true) => is_loopback(url) && matches!(url.scheme(), "http" | "https"),
            (Some(Host::Domain(name)), false) => {
                url.scheme() == "https"
                    && (Some(name) == self.url.host_str()
                        || STORAGE_DOMAINS.iter().any(|domain| name.ends_with(domain)))
            }
            _ => false,
        };
        (!is_storage).then(|| {
            format!(
                "it redirects to {}://{host}, which is no storage of the hub (https:// and *.huggingface.co, *.hf.co or the \
                 endpoint's host): the redirect is not followed",
                url.scheme()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follows(endpoint: &str, target: &str) -> bool {
        let endpoint = Endpoint::of(Some(endpoint).filter(|text| !text.is_empty())).unwrap();
        endpoint.refusal(&Url::parse(target).unwrap()).is_none()
    }

    #[test]
    fn redirects_are_followed_to_the_hubs_storage_only() {
        for target in [
            "https://cas-bridge.xethub.hf.co/x?y=z",
            "https://cdn-lfs-us-1.huggingface.co/x",
            "https://huggingface.co/x",
        ] {
            assert!(follows("", target), "{target}");
        }
        for target in [
            "https://evil.com/x",
            "https://hf.co.evil.com/x",
            "https://evilhf.co/x",
            "https://127.0.0.1/x",
            "https://10.0.0.1/x",
            "http://cdn.hf.co/x",
            "ftp://cdn.hf.co/x",
            "https://me@cdn.hf.co/x",
            "https://evil.com\\@cdn.hf.co/x",
        ] {
            assert!(!follows("", target), "{target}");
        }
        assert!(follows("https://mirror.lab:8443", "https://mirror.lab/x"));
        assert!(!follows("https://mirror.lab", "http://mirror.lab/x"));
        assert!(follows("http://127.0.0.1:80", "http://127.0.0.1:81/x"));
        assert!(!follows("http://127.0.0.1:80", "https://cdn.hf.co/x"));
        assert!(!follows("http://127.0.0.1:80", "http://10.0.0.1/x"));
    }

    #[test]
    fn endpoint_is_encrypted_or_on_this_machine() {
        for wrong in [
            "http://huggingface.co",
            "ftp://x",
            "huggingface.co",
            "https://a:b@x",
            "https://x?y",
            "https://169.254.169.254",
            "x",
        ] {
            let error = Endpoint::of(Some(wrong)).unwrap_err();
            assert!(error.starts_with("HF_ENDPOINT") && !error.contains("a:b"), "{error}");
        }
        let endpoint = Endpoint::of(Some("https://lab/hub/")).unwrap();
        let url = endpoint.url(["datasets", "a/b", "c d%"]);
        assert_eq!(url.as_str(), "https://lab/hub/datasets/a%2Fb/c%20d%25");
        assert_eq!(endpoint.unusual().as_deref(), Some("https://lab/hub"));
        assert!(
            endpoint.is_own(&url) && !endpoint.is_own(&Url::parse("https://lab:1/hub").unwrap())
        );
        assert_eq!(Endpoint::of(Some("")).unwrap().unusual(), None);
        assert!(Endpoint::of(Some("http://localhost:8080")).unwrap().is_loopback());
    }
}
