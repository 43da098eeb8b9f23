//! A dataset's URL in parts, and which hosts a URL may name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// What is spoken at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Amazon's S3, and what speaks it.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// Files behind a web server.
    Web,
}

/// A URL in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    /// The URL up to the bucket or host, without a slash at the end.
    pub(super) base: String,
    /// The bucket; of a web server its host and port.
    pub(super) bucket: String,
    /// What comes before the names of objects, decoded, without slashes around it.
    pub(super) prefix: String,
}

impl Address {
    /// Reads a URL that the configuration has taken. `None`: it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once("://")?;
        let scheme = match name {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gs,
            "az" => Scheme::Az,
            "https" | "http" => Scheme::Web,
            _ => return None,
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let prefix = match scheme {
            Scheme::Web => percent_decode(prefix)?,
            _ => prefix.to_owned(),
        };
        let has_empty = prefix.split('/').any(|part| matches!(part, "" | "." | ".."));
        if bucket.is_empty() || (has_empty && !prefix.is_empty()) {
            return None;
        }
        let base = format!("{name}://{bucket}");
        Some(Self { scheme, base, bucket: bucket.to_owned(), prefix })
    }

    /// The name of an object, from its path relative to the root.
    pub(super) fn key(&self, relative: &str) -> String {
        match (self.prefix.as_str(), relative) {
            ("", relative) => relative.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, relative) => format!("{prefix}/{relative}"),
        }
    }

    /// What messages call an object.
    pub(super) fn full(&self, relative: &str) -> String {
        match self.key(relative).as_str() {
            "" => self.base.clone(),
            key => format!("{}/{key}", self.base),
        }
    }

    /// The folder that an object lies in, for a root that is an object itself.
    pub(super) fn parent(&self) -> Self {
        let prefix = self.prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        Self { prefix: prefix.to_owned(), ..self.clone() }
    }

    /// The last part of the prefix.
    pub(super) fn name(&self) -> &str {
        self.prefix.rsplit('/').next().unwrap_or_default()
    }
}

/// Decodes `%20`; `None`: no UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = if *byte == b'%' { rest.get(..2) } else { None };
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &rest[2..];
            }
            None => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Why a server may not be asked for data; `None`: it may.
pub(super) fn refusal(url: &Url, allow_http: bool) -> Option<String> {
    let host = url.host()?;
    let address = match host {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(_) => None,
    };
    if address.is_some_and(is_metadata) || url.host_str() == Some("metadata.google.internal") {
        return Some(format!(
            "{host} is an address of this machine's cloud for credentials and never holds data; correct the address"
        ));
    }
    (url.scheme() == "http" && !is_loopback(url) && !allow_http).then(|| {
        format!(
            "http://{host} is not encrypted, so that data and credentials could be read and changed on the way; use \
             https://, or set storage.allow_http = true"
        )
    })
}

/// Whether a URL leads to this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

/// Whether an address is one at which a cloud gives credentials or configuration to the machine that asks.
pub(super) fn is_metadata(address: IpAddr) -> bool {
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    const AMAZON: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || [ALIBABA, AZURE].contains(&address),
        IpAddr::V6(address) => address.is_unicast_link_local() || address == AMAZON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_its_bucket_and_its_prefix() {
        let address = Address::parse("s3://bucket/a/b%20").unwrap();
        assert_eq!((address.bucket.as_str(), address.prefix.as_str()), ("bucket", "a/b%20"));
        assert_eq!(address.full("c/1.npy"), "s3://bucket/a/b%20/c/1.npy");
        assert_eq!(address.parent().full(""), "s3://bucket/a");
        assert_eq!(address.name(), "b%20");
        let address = Address::parse("https://host:81/a%20b").unwrap();
        assert_eq!((address.scheme, address.key("x")), (Scheme::Web, "a b/x".to_owned()));
        let address = Address::parse("gs://bucket").unwrap();
        assert_eq!(
            (address.key("x/y"), address.full("")),
            ("x/y".to_owned(), "gs://bucket".to_owned())
        );
        for wrong in
            ["/data", "abfs://b", "ftp://x", "s3://b/a//c", "s3://b/../c", "https://h/%2e%2e/x"]
        {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn metadata_services_and_plain_http_are_refused() {
        let refused = |url: &str, allow| refusal(&Url::parse(url).unwrap(), allow).is_some();
        for url in [
            "http://169.254.169.254/latest",
            "https://169.254.170.2/x",
            "http://[fe80::1]/x",
            "http://[fd00:ec2::254]/x",
            "http://[::ffff:169.254.169.254]/x",
            "http://2852039166/x",
            "http://metadata.google.internal/x",
            "http://100.100.100.200/x",
        ] {
            assert!(refused(url, true), "{url}");
        }
        assert!(refused("http://10.0.0.1/x", false) && !refused("http://10.0.0.1/x", true));
        assert!(!refused("https://10.0.0.1/x", false));
        for url in ["http://127.0.0.1:9000/x", "http://localhost/x", "http://[::1]:1/x"] {
            assert!(!refused(url, false), "{url}");
        }
    }
}
