//! The repository that an `hf://` URL names.
//!
//! ```text
//! hf://datasets/OWNER/NAME[@REVISION][/path]     REVISION: a branch, tag or commit (its slashes as %2F),
//! hf://buckets/OWNER/NAME[/path]                 refs/convert/NAME, refs/pr/NUMBER, or ~NAME for refs/convert/NAME
//! ```

use crate::address::percent_decode;

/// The branch that is read if a URL names none.
const MAIN: &str = "main";
const COMMIT_DIGITS: usize = 40;
const MAX_NAME_CHARS: usize = 96;

/// The kind of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Files under version control.
    Dataset,
    /// Files without versions.
    Bucket,
}

impl Kind {
    /// Its name in URLs.
    pub(crate) const fn folder(self) -> &'static str {
        match self {
            Self::Dataset => "datasets",
            Self::Bucket => "buckets",
        }
    }

    /// Its name in messages.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Dataset => "dataset",
            Self::Bucket => "bucket",
        }
    }
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepositoryName {
    pub(crate) kind: Kind,
    pub(crate) owner: String,
    pub(crate) name: String,
    /// The branch, tag or commit; a bucket's is not used.
    pub(crate) revision: String,
}

impl RepositoryName {
    /// The repository, and the path in it, from a URL's text after `hf://`. `None`: it is malformed.
    pub(crate) fn parse(rest: &str) -> Option<(Self, &str)> {
        let (kind, rest) = rest.split_once('/')?;
        let kind = match kind {
            "datasets" => Kind::Dataset,
            "buckets" => Kind::Bucket,
            _ => return None,
        };
        let (owner, rest) = rest.split_once('/')?;
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, revision, path) = match name.split_once('@') {
            None => (name, MAIN.to_owned(), path),
            Some(_) if kind == Kind::Bucket => return None,
            Some((name, "refs")) => {
                let (group, rest) = path.split_once('/')?;
                let (of, path) = rest.split_once('/').unwrap_or((rest, ""));
                if !matches!(group, "convert" | "pr") || of.is_empty() {
                    return None;
                }
                (name, format!("refs/{group}/{of}"), path)
            }
            Some((name, revision)) => match revision.strip_prefix('~') {
                Some("") => return None,
                Some(of) => (name, format!("refs/convert/{of}"), path),
                None => (name, percent_decode(revision)?, path),
            },
        };
        let is_revision = !revision.is_empty()
            && !revision.contains(char::is_control)
            && revision.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let (owner, name) = (owner.to_owned(), name.to_owned());
        (is_name(&owner) && is_name(&name) && is_revision)
            .then_some((Self { kind, owner, name, revision }, path))
    }

    /// `OWNER/NAME`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// Whether the revision is a commit, which never changes.
    pub(crate) fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

/// Whether a text is the number of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_name(text: &str) -> bool {
    let is_known = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    (1..=MAX_NAME_CHARS).contains(&text.len())
        && text.chars().all(is_known)
        && !text.chars().all(|char| char == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(rest: &str) -> Option<(String, String, String)> {
        let (name, path) = RepositoryName::parse(rest)?;
        Some((format!("{} {}", name.kind.word(), name.id()), name.revision, path.to_owned()))
    }

    fn some(name: &str, revision: &str, path: &str) -> Option<(String, String, String)> {
        Some((name.to_owned(), revision.to_owned(), path.to_owned()))
    }

    #[test]
    fn url_names_a_repository_a_revision_and_a_path() {
        assert_eq!(parsed("datasets/a/b"), some("dataset a/b", "main", ""));
        assert_eq!(parsed("datasets/a/b.c/d/e.tar"), some("dataset a/b.c", "main", "d/e.tar"));
        assert_eq!(parsed("datasets/a/b@v1/d"), some("dataset a/b", "v1", "d"));
        assert_eq!(parsed("datasets/a/b@x%2Fy/d@e"), some("dataset a/b", "x/y", "d@e"));
        assert_eq!(
            parsed("datasets/a/b@~parquet/d"),
            some("dataset a/b", "refs/convert/parquet", "d")
        );
        assert_eq!(
            parsed("datasets/a/b@refs/convert/parquet/d/e"),
            some("dataset a/b", "refs/convert/parquet", "d/e")
        );
        assert_eq!(parsed("datasets/a/b@refs/pr/7"), some("dataset a/b", "refs/pr/7", ""));
        assert_eq!(parsed("datasets/a/b@refs%2Fpr%2F7/d"), some("dataset a/b", "refs/pr/7", "d"));
        assert_eq!(parsed("buckets/a/b/c/d"), some("bucket a/b", "main", "c/d"));
    }

    #[test]
    fn malformed_names_are_refused() {
        for wrong in [
            "",
            "datasets",
            "datasets/",
            "datasets/a",
            "datasets/a/",
            "datasets//b",
            "models/a/b",
            "datasets/a/b@",
            "datasets/a/b@~",
            "datasets/a/b@refs/x/y",
            "datasets/a/b@refs/pr",
            "datasets/a/b@refs/pr/",
            "datasets/a/b@%FF",
            "datasets/a/b@%0a",
            "datasets/a/b@a%2F..%2Fb",
            "datasets/../b",
            "datasets/a/..",
            "datasets/a?b/c",
            "datasets/a/b c",
            "buckets/a/b@main",
            "datasets/ä/b",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        assert!(is_commit(&"0a".repeat(20)) && !is_commit(&"0g".repeat(20)) && !is_commit("0a"));
    }
}
