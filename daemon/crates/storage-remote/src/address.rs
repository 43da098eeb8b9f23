//! A dataset's URL in parts, and which hosts a URL may name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use super::hub::RepositoryName;

/// The protocol of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// Files on a web server.
    Web,
    /// A dataset or a bucket of Hugging Face's hub.
    Hub,
}

/// A URL in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) scheme: Scheme,
    /// The URL up to the bucket or host, without a slash at the end.
    pub(super) base: String,
    /// The bucket; for a web server its host and port; for the hub owner and name.
    pub(super) bucket: String,
    /// Prefix of the objects' names, decoded, without slashes around it.
    pub(super) prefix: String,
}

impl Address {
    /// Parses a URL that the configuration has accepted. `None`: not a URL of a known scheme.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once("://")?;
        let scheme = match name {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gs,
            "az" => Scheme::Az,
            "https" | "http" => Scheme::Web,
            "hf" => Scheme::Hub,
            _ => return None,
        };
        let (bucket, prefix, base) = match scheme {
            Scheme::Hub => {
                let (repository, path) = RepositoryName::parse(rest)?;
                let named = rest.len() - path.len();
                (repository.id(), path, rest[..named].trim_end_matches('/'))
            }
            _ => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                (bucket.to_owned(), prefix, bucket)
            }
        };
        let prefix = prefix.trim_matches('/');
        let prefix = match scheme {
            Scheme::Web => percent_decode(prefix)?,
            _ => prefix.to_owned(),
        };
        let has_empty = prefix.split('/').any(|part| matches!(part, "" | "." | ".."));
        if bucket.is_empty() || (has_empty && !prefix.is_empty()) {
            return None;
        }
        let base = format!("{name}://{base}");
        Some(Self { scheme, base, bucket, prefix })
    }

    /// The hub's repository.
    pub(super) fn repository(&self) -> Option<RepositoryName> {
        let (name, _) = RepositoryName::parse(self.base.strip_prefix("hf://")?)?;
        Some(name)
    }

    /// The name of an object, from its path relative to the root.
    pub(super) fn key(&self, relative: &str) -> String {
        match (self.prefix.as_str(), relative) {
            ("", relative) => relative.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, relative) => format!("{prefix}/{relative}"),
        }
    }

    /// An object's URL in messages.
    pub(super) fn full(&self, relative: &str) -> String {
        match self.key(relative).as_str() {
            "" => self.base.clone(),
            key => format!("{}/{key}", self.base),
        }
    }

    /// The folder of an object, for a root that is an object itself.
    pub(super) fn parent(&self) -> Self {
        let prefix = self.prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        Self { prefix: prefix.to_owned(), ..self.clone() }
    }

    /// The last part of the prefix.
    pub(super) fn name(&self) -> &str {
        self.prefix.rsplit('/').next().unwrap_or_default()
    }
}

/// Decodes `%20`; `None`: not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    String::from_utf8(percent_decode_bytes(text)).ok()
}

/// Decodes `%20`.
pub(super) fn percent_decode_bytes(text: &str) -> Vec<u8> {
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
    bytes
}

/// Why data may not be requested from a server; `None`: it may.
pub(super) fn refusal(url: &Url, allow_http: bool) -> Option<String> {
    let host = url.host()?;
    let address = match host {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(_) => None,
    };
    if address.is_some_and(is_metadata) || url.host_str() == Some("metadata.google.internal") {
        return Some(format!(
            "{host} is a metadata service of this machine's cloud and never holds data; correct the address"
        ));
    }
    (url.scheme() == "http" && !is_loopback(url) && !allow_http).then(|| {
        format!(
            "http://{host} is not encrypted, so that data and credentials could be read and changed on the way; use \
             https://, or set storage.allow_http = true"
        )
    })
}

/// Whether a URL refers to this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

/// Whether an address belongs to a cloud's metadata service, which gives credentials or configuration to the machine
/// that asks, or is translated to such an address.
pub(super) fn is_metadata(address: IpAddr) -> bool {
    const ALIBABA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
    const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
    const ORACLE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 192);
    // The instance's metadata service, and EKS Pod Identity's.
    const AMAZON: [Ipv6Addr; 2] = [
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    ];
    const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);
    let is_v4 =
        |address: Ipv4Addr| address.is_link_local() || [ALIBABA, AZURE, ORACLE].contains(&address);
    match address {
        IpAddr::V4(address) => is_v4(address),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || AMAZON.contains(&address)
                || address == GOOGLE
                || embedded(address).into_iter().flatten().any(is_v4)
        }
    }
}

/// The IPv4 addresses that an IPv6 address may contain: mapped and compatible ones (RFC 4291), NAT64 with the
/// well-known prefix 64:ff9b::/96 (RFC 6052) and with prefixes of 64:ff9b:1::/48 (RFC 8215), 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 5] {
    let bytes = address.octets();
    let at = |places: [usize; 4]| Some(Ipv4Addr::from(places.map(|place| bytes[place])));
    let last = at([12, 13, 14, 15]);
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            [last, None, None, None, None]
        }
        // RFC 6052 puts the address after a prefix of 48, 56, 64 or 96 bits and skips byte 8.
        [0x64, 0xff9b, 1, ..] => {
            [last, at([6, 7, 9, 10]), at([7, 9, 10, 11]), at([9, 10, 11, 12]), None]
        }
        [0x2002, ..] => [at([2, 3, 4, 5]), None, None, None, None],
        _ => [None; 5],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_bucket_and_prefix() {
        let address = Address::parse("s3://bucket/a/b%20").unwrap();
        assert_eq!((address.bucket.as_str(), address.prefix.as_str()), ("bucket", "a/b%20"));
        assert_eq!(address.full("c/1.npy"), "s3://bucket/a/b%20/c/1.npy");
        assert_eq!(address.parent().full(""), "s3://bucket/a");
        assert_eq!(address.name(), "b%20");
        let address = Address::parse("https://host:81/a%20b").unwrap();
        assert_eq!((address.scheme, address.key("x")), (Scheme::Web, "a b/x".to_owned()));
        let address = Address::parse("hf://datasets/a/b@refs/pr/1/c/d.tar").unwrap();
        assert_eq!(
            (address.bucket.as_str(), address.prefix.as_str(), address.full("")),
            ("a/b", "c/d.tar", "hf://datasets/a/b@refs/pr/1/c/d.tar".to_owned())
        );
        assert_eq!(address.parent().full("x"), "hf://datasets/a/b@refs/pr/1/c/x");
        assert_eq!(address.repository().unwrap().revision, "refs/pr/1");
        let address = Address::parse("hf://datasets/a/b").unwrap();
        assert_eq!((address.name(), address.full("x")), ("", "hf://datasets/a/b/x".to_owned()));
        let address = Address::parse("gs://bucket").unwrap();
        assert_eq!(
            (address.key("x/y"), address.full("")),
            ("x/y".to_owned(), "gs://bucket".to_owned())
        );
        for wrong in [
            "/data",
            "abfs://b",
            "hf://a/b",
            "hf://datasets/a",
            "hf://datasets/a/b/../c",
            "ftp://x",
            "s3://b/a//c",
            "s3://b/../c",
            "https://h/%2e%2e/x",
        ] {
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
            "http://168.63.129.16/x",
            "http://169.254.170.23/x",
            "http://192.0.0.192/x",
            "http://[fd00:ec2::23]/x",
            "http://[fd20:ce::254]/x",
            "http://[64:ff9b::a9fe:a9fe]/x",
            "http://[64:ff9b::192.0.0.192]/x",
            "http://[64:ff9b:1::a9fe:a9fe]/x",
            "http://[64:ff9b:1:a9fe:a9:fe00::]/x",
            "http://[64:ff9b:1:2a9:fe:a9fe::]/x",
            "http://[64:ff9b:1:2:a9:fea9:fe00:0]/x",
            "http://[::a9fe:a9fe]/x",
            "http://[::ffff:192.0.0.192]/x",
            "http://[2002:a9fe:a9fe::1]/x",
        ] {
            assert!(refused(url, true), "{url}");
        }
        assert!(refused("http://10.0.0.1/x", false) && !refused("http://10.0.0.1/x", true));
        assert!(!refused("https://10.0.0.1/x", false));
        for url in [
            "https://[64:ff9b::8.8.8.8]/x",
            "https://[64:ff9b:1::8.8.8.8]/x",
            "https://[fd20:ce::255]/x",
            "https://[fd00:ec2::24]/x",
            "https://[2001:db8::a9fe:a9fe]/x",
            "https://192.0.0.191/x",
        ] {
            assert!(!refused(url, false), "{url}");
        }
        for url in ["http://127.0.0.1:9000/x", "http://localhost/x", "http://[::1]:1/x"] {
            assert!(!refused(url, false), "{url}");
        }
    }
}
