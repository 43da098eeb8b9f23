//! The targets that a loader can attach to.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_protocol::frames::ConfigSource;

/// The target of an attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A configuration: a private daemon is started for it and exits with the loader.
    Config(ConfigSource),
    /// The socket of a running daemon, and one of its streams; `None`: the first.
    Socket(PathBuf, Option<String>),
    /// A stream of the daemon whose socket is in `FOREBAY_SOCKET`, which `forebay run` sets; `None`: the first.
    Stream(Option<String>),
}

impl Target {
    /// A configuration as JSON text. Relative paths in it start at `folder`, or at the working directory.
    #[must_use]
    pub fn json(text: impl Into<String>, folder: Option<&Path>) -> Self {
        let folder = match folder {
            Some(folder) => folder.to_path_buf(),
            None => std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
        };
        Self::Config(ConfigSource::Json {
            name: "dict".to_owned(),
            folder: folder.display().to_string(),
            text: text.into(),
        })
    }

    /// Parses a target: a path that ends in `.toml` or names a file is a configuration; a path that names a socket or has a
    /// `/` is a socket; anything else is a stream's name.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        let path = Path::new(word);
        let kind = std::fs::metadata(path).map(|found| found.file_type()).ok();
        let is_socket = kind.is_some_and(|kind| kind.is_socket());
        let is_file = kind.is_some_and(|kind| kind.is_file());
        if !is_socket && (is_file || path.extension().is_some_and(|end| end == "toml")) {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
            return Self::Config(ConfigSource::File(absolute.display().to_string()));
        }
        if is_socket || word.contains('/') {
            return Self::Socket(path.to_path_buf(), None);
        }
        Self::Stream(Some(word.to_owned()))
    }
}

impl From<&str> for Target {
    fn from(word: &str) -> Self {
        Self::parse(word)
    }
}

impl From<String> for Target {
    fn from(word: String) -> Self {
        Self::parse(&word)
    }
}

impl From<&Path> for Target {
    fn from(path: &Path) -> Self {
        // A bare name given as a path is a path, not a stream.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Self::parse(&absolute.to_string_lossy())
    }
}

impl From<PathBuf> for Target {
    fn from(path: PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_parsed_by_what_it_names() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("daemon.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let plain = folder.path().join("plain-config");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(Target::from(socket.as_path()), Target::Socket(socket, None));
        assert!(matches!(
            Target::from(plain.to_str().unwrap()),
            Target::Config(ConfigSource::File(_))
        ));
        let Target::Config(ConfigSource::File(file)) = Target::from("absent.toml") else {
            panic!("a name that ends in .toml is a configuration");
        };
        assert!(Path::new(&file).is_absolute(), "{file}");
        assert_eq!(Target::from("train"), Target::Stream(Some("train".into())));
        assert_eq!(Target::from("./absent"), Target::Socket("./absent".into(), None));
    }
}
