//! Names in certificates (subject alternative names: DNS names and URIs) and the patterns of `feed.allow`.

use std::str::FromStr;

use webpki::EndEntityCert;

use super::TlsError;

/// Limit of a pattern's length, in bytes: that of the longest DNS name, with room for a URI's path.
const MAX_PATTERN_BYTES: usize = 1024;
/// Number of names of a certificate that are compared and shown; the rest is ignored.
const MAX_NAMES: usize = 64;

/// A pattern of names. `*` stands for any characters, also none and dots. One with `://` matches URIs (SPIFFE) by case,
/// others match DNS names whatever the case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    is_uri: bool,
}

impl FromStr for NamePattern {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        let refuse = |reason| Err(TlsError::Pattern { pattern: text.to_owned(), reason });
        if text.is_empty() {
            return refuse("is empty");
        }
        if text.len() > MAX_PATTERN_BYTES {
            return refuse("is longer than 1024 bytes");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("has a character that no certificate's name has");
        }
        let is_uri = text.contains("://");
        let text = if is_uri { text.to_owned() } else { text.to_ascii_lowercase() };
        Ok(Self { text, is_uri })
    }
}

impl std::fmt::Display for NamePattern {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.text)
    }
}

/// A name of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    Dns(String),
    Uri(String),
}

impl Name {
    /// The names of a certificate, at most [`MAX_NAMES`] of each kind.
    pub(super) fn all(certificate: &EndEntityCert<'_>) -> Vec<Self> {
        let dns = certificate.valid_dns_names().take(MAX_NAMES);
        let uris = certificate.valid_uri_names().take(MAX_NAMES);
        dns.map(|name| Self::Dns(name.to_ascii_lowercase()))
            .chain(uris.map(|name| Self::Uri(name.to_owned())))
            .collect()
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl NamePattern {
    /// Whether the name matches.
    pub(super) fn matches(&self, name: &Name) -> bool {
        match name {
            Name::Dns(name) => !self.is_uri && glob(self.text.as_bytes(), name.as_bytes()),
            Name::Uri(name) => self.is_uri && glob(self.text.as_bytes(), name.as_bytes()),
        }
    }
}

/// Matches greedily and returns to the last `*` only: at most pattern × text steps.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                last_star = Some((at, read));
                at += 1;
            }
            Some(byte) if *byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => match last_star {
                Some((star, begin)) => {
                    last_star = Some((star, begin + 1));
                    at = star + 1;
                    read = begin + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    #[test]
    fn star_stands_for_any_characters() {
        for (wanted, name, is_match) in [
            ("trainer", "trainer", true),
            ("trainer", "trainers", false),
            ("trainer", "a.trainer", false),
            ("*.trainers.svc", "a.b.trainers.svc", true),
            ("*.trainers.svc", "trainers.svc", false),
            ("*", "anything.at.all", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("*a*a*a*a*", "aaa", false),
            ("TRAINER", "trainer", true),
        ] {
            let name = Name::Dns(name.to_owned());
            assert_eq!(pattern(wanted).matches(&name), is_match, "{wanted} {name:?}");
        }
    }

    #[test]
    fn uri_pattern_matches_uris_only_and_by_case() {
        let uri = Name::Uri("spiffe://cluster/ns/Train/sa/a".to_owned());
        assert!(pattern("spiffe://cluster/ns/Train/*").matches(&uri));
        assert!(!pattern("spiffe://cluster/ns/train/*").matches(&uri));
        assert!(!pattern("*").matches(&uri));
        let dns = Name::Dns("spiffe".to_owned());
        assert!(!pattern("spiffe://*").matches(&dns));
    }

    #[test]
    fn pattern_that_matches_nothing_is_refused_with_its_text() {
        for text in ["", "a b", "zoë", &"a".repeat(MAX_PATTERN_BYTES + 1)] {
            let error = text.parse::<NamePattern>().unwrap_err().to_string();
            assert!(error.starts_with("feed.allow: "), "{error}");
        }
    }

    #[test]
    fn hostile_pattern_and_name_end_soon() {
        let wanted = "a*".repeat(500);
        let name = Name::Dns("a".repeat(250));
        assert!(!pattern(&(wanted + "b")).matches(&name));
    }
}
