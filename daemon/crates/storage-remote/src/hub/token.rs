//! The token for the hub: from the environment, or from the file that `hf auth login` writes.

use std::ffi::OsString;
use std::path::PathBuf;

use http::HeaderValue;

const MAX_FILE_BYTES: u64 = 64 << 10;

/// A token, which is never printed.
#[derive(Clone)]
pub(crate) struct Token {
    header: HeaderValue,
    /// Where it comes from, for messages.
    source: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Token of {}", self.source)
    }
}

impl Token {
    /// The token of `HF_TOKEN`, else of the token file. `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read or cannot be a token; its text is not repeated.
    pub(crate) fn find(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, String> {
        let is_blank = |text: &OsString| text.to_str().is_some_and(|text| text.trim().is_empty());
        if let Some(text) = variable("HF_TOKEN").filter(|text| !is_blank(text)) {
            let text = text.into_string().unwrap_or_else(|_| "\0".to_owned());
            return Self::new(&text, "HF_TOKEN".to_owned());
        }
        let Some(path) = token_file(variable) else { return Ok(None) };
        let shown = path.display();
        if std::fs::metadata(&path).is_ok_and(|status| status.len() > MAX_FILE_BYTES) {
            return Err(format!("{shown} is too large for a file with a token"));
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::new(&text, shown.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{shown} cannot be read: {error}")),
        }
    }

    fn new(text: &str, source: String) -> Result<Option<Self>, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let is_token = text.bytes().all(|byte| byte.is_ascii_graphic());
        let header = HeaderValue::try_from(format!("Bearer {text}")).ok().filter(|_| is_token);
        let mut header =
            header.ok_or_else(|| format!("{source} has characters that a token cannot have"))?;
        header.set_sensitive(true);
        Ok(Some(Self { header, source }))
    }

    /// The value of the header `Authorization`.
    pub(crate) const fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Where it comes from, for messages.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

/// The file of the token: `HF_TOKEN_PATH`, else `token` in `HF_HOME`, in `$XDG_CACHE_HOME/huggingface` or in
/// `~/.cache/huggingface`.
fn token_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    path("HF_TOKEN_PATH").or_else(|| {
        let home = path("HF_HOME").or_else(|| {
            let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
            Some(cache.join("huggingface"))
        })?;
        Some(home.join("token"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pairs: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, text)| text.into())
        };
        let text = |token: Token| token.header().to_str().unwrap().to_owned();
        Token::find(variable).map(|token| token.map(text))
    }

    #[test]
    fn token_is_the_variables_or_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let file = format!("{path}/token");
        assert_eq!(find(&[("HF_HOME", path)]), Ok(None));
        std::fs::write(&file, "hf_file\n").unwrap();
        let some = |text: &str| Ok(Some(format!("Bearer {text}")));
        assert_eq!(find(&[("HF_HOME", path)]), some("hf_file"));
        assert_eq!(find(&[("HF_TOKEN_PATH", &file), ("HF_HOME", "/x")]), some("hf_file"));
        assert_eq!(find(&[("HF_HOME", path), ("HF_TOKEN", " hf_own ")]), some("hf_own"));
        for blank in ["", " ", "\t \n"] {
            assert_eq!(find(&[("HF_HOME", path), ("HF_TOKEN", blank)]), some("hf_file"));
        }
        let cache = folder.path().join("huggingface");
        std::fs::create_dir(&cache).unwrap();
        std::fs::rename(&file, cache.join("token")).unwrap();
        assert_eq!(find(&[("XDG_CACHE_HOME", path), ("HOME", "/x")]), some("hf_file"));
        assert_eq!(find(&[]), Ok(None));
    }

    #[test]
    fn unusable_token_is_not_repeated() {
        let error = find(&[("HF_TOKEN", "hf_se cret\u{1}")]).unwrap_err();
        assert!(error.contains("HF_TOKEN") && !error.contains("cret"), "{error}");
        let token = Token::new("hf_secret", "HF_TOKEN".to_owned()).unwrap().unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("secret"));
    }
}
