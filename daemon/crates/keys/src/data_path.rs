//! `dataset.path`: a path on this machine, or the URL of a remote folder.
//!
//! A URL never contains a secret: one with a user or a query is refused, without repeating it, so that messages, logs,
//! states and fingerprints need not hide parts of a path.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::kind::LocalPath;
use crate::kinds;

/// Supported schemes.
const SCHEMES: [&str; 7] = ["s3", "gs", "az", "hf", "https", "http", "file"];
const SEPARATOR: &str = "://";

/// Whether a path is a URL. A local path never is one: doubled slashes are removed when it is read.
#[must_use]
pub fn is_url(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.windows(SEPARATOR.len()).any(|window| window == SEPARATOR.as_bytes())
}

kinds! {
    /// A local path as [`LocalPath`], or a URL; `file://` becomes a path.
    [pub] DataPath as PathBuf: "a local path (~ is not expanded, write ${HOME} instead) or a URL: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, hf://datasets/OWNER/NAME/path, https://host/path or file:///path", type "a path or a URL";
    read(value) {
        let text = value.as_text()?;
        let Some((scheme, rest)) = text.split_once(SEPARATOR) else {
            return LocalPath::read(value);
        };
        let is_known = SCHEMES.contains(&scheme) && !rest.contains(SEPARATOR);
        if !is_known || secret_in(rest).is_some() || rest.contains(char::is_control) {
            return None;
        }
        if scheme == "file" {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            return path.starts_with('/').then(|| decode_percent(path)).flatten();
        }
        let rest = rest.trim_end_matches('/');
        let has_host = !rest.is_empty() && !rest.starts_with('/');
        has_host.then(|| format!("{scheme}{SEPARATOR}{rest}").into())
    }
    write(out) { LocalPath::write(out) }
    resolve(out, folder) { if is_url(&out) { out } else { LocalPath::resolve(out, folder) } }
    refusal(value) {
        let (_, rest) = value.as_text()?.split_once(SEPARATOR)?;
        // The value is not repeated.
        secret_in(rest).map(|what| format!(
            " is a URL with {what}: a configuration is printed and saved, so credentials come from the environment or a \
             profile instead; see docs/guide/storage.md"
        ))
    }
    schema { "type": "string" }
}

/// The part of a URL, after its scheme, that may be a secret.
fn secret_in(rest: &str) -> Option<&'static str> {
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Some("a user or a password");
    }
    rest.contains(['?', '#']).then_some("a query or a fragment")
}

/// Decodes `%20`. `None`: digits are missing, or the path is not usable.
fn decode_percent(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    (!bytes.contains(&0)).then(|| std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::value::Value;

    fn read(text: &str) -> Option<PathBuf> {
        DataPath::read(&Value::String(text.to_owned()))
    }

    #[test]
    fn urls_are_unchanged_and_file_urls_become_paths() {
        for url in
            ["s3://bucket/a/b", "gs://bucket", "https://host:9000/a%20b", "hf://datasets/a/b@v1/c"]
        {
            assert_eq!(read(url).unwrap().to_str(), Some(url));
            assert!(is_url(Path::new(url)));
            let slashes = format!("{url}//");
            assert_eq!(read(&slashes).unwrap().to_str(), Some(url));
            assert_eq!(DataPath::resolve(url.into(), Path::new("/base")).to_str(), Some(url));
        }
        assert_eq!(read("file:///data/a%20b").unwrap(), Path::new("/data/a b"));
        assert_eq!(read("file://localhost/data").unwrap(), Path::new("/data"));
        assert_eq!(DataPath::resolve("x".into(), Path::new("/base")), Path::new("/base/x"));
        assert!(!is_url(Path::new("/data/s3:/x")));
        for wrong in [
            "ftp://x/y",
            "abfs://box/x",
            "s3://",
            "s3:///key",
            "file://host/x",
            "file:///%2",
            "~/x",
            "",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn url_with_a_secret_is_refused_without_repeating_it() {
        for (url, what) in [
            ("https://me:secret@host/x", "a user or a password"),
            ("s3://secret@bucket/x", "a user or a password"),
            ("https://host/x?sig=secret", "a query"),
            ("https://host/x#secret", "a query or a fragment"),
        ] {
            let value = Value::String(url.to_owned());
            assert_eq!(DataPath::read(&value), None);
            let refusal = DataPath::refusal(&value).unwrap();
            assert!(refusal.contains(what) && !refusal.contains("secret@"), "{refusal}");
            assert!(!refusal.contains(url) && !refusal.contains("sig="), "{refusal}");
        }
    }
}
