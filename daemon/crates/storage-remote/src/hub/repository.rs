//! What the clients of one storage share of a repository: its address, the token, the commit that is read, the links to its
//! files and what was listed of it.

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use url::Url;

use super::endpoint::Endpoint;
use super::links::Links;
use super::name::{Kind, RepositoryName, is_commit};
use super::refusal::Refused;
use super::token::Token;
use super::tree::Tree;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) name: RepositoryName,
    pub(crate) endpoint: Endpoint,
    token: Option<Token>,
    pub(crate) links: Links,
    commit: Mutex<Option<String>>,
    tree: Mutex<Tree>,
}

impl Repository {
    /// With the endpoint and the token of the environment; `is_anonymous`: without a token.
    ///
    /// # Errors
    /// `HF_ENDPOINT` or the token cannot be used.
    pub(crate) fn new(
        name: RepositoryName,
        is_anonymous: bool,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let endpoint = variable("HF_ENDPOINT").map(|text| text.to_string_lossy().into_owned());
        let endpoint = Endpoint::of(endpoint.as_deref())?;
        let token = if is_anonymous { None } else { Token::find(variable)? };
        let commit = name.is_pinned().then(|| name.revision.to_ascii_lowercase());
        let (links, tree) = (Links::default(), Mutex::default());
        Ok(Self { name, endpoint, token, links, commit: Mutex::new(commit), tree })
    }

    /// The token for requests to the endpoint.
    pub(crate) const fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Whose credentials are used, for messages.
    pub(crate) fn identity(&self) -> String {
        self.token.as_ref().map_or_else(
            || "a request without a token".to_owned(),
            |token| format!("the token of {}", token.source()),
        )
    }

    /// The folders that are known. A thread that lists holds the lock.
    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pinned(&self) -> MutexGuard<'_, Option<String>> {
        self.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its files have versions.
    pub(crate) fn has_revisions(&self) -> bool {
        self.name.kind == Kind::Dataset
    }

    /// Whether what is read is known, down to the commit.
    pub(crate) fn is_settled(&self) -> bool {
        !self.has_revisions() || self.pinned().is_some()
    }

    /// The commit that is read, once it is known.
    pub(crate) fn commit(&self) -> Option<String> {
        self.pinned().clone()
    }

    /// Reads this commit from now on, unless another thread has settled on one. Whether it is this one. Anything else than a
    /// commit is ignored.
    pub(crate) fn settle(&self, commit: &str) -> bool {
        let mut pinned = self.pinned();
        let is_free = self.has_revisions() && is_commit(commit) && pinned.is_none();
        if is_free {
            *pinned = Some(commit.to_owned());
        }
        is_free
    }

    /// Reads this commit from now on and returns the one before. Anything else than a commit is ignored.
    pub(crate) fn pin(&self, commit: &str) -> Option<String> {
        if !self.has_revisions() || !is_commit(commit) {
            return self.commit();
        }
        let before = self.pinned().replace(commit.to_owned());
        if before.as_deref() != Some(commit) {
            self.links.clear();
            *self.tree() = Tree::default();
        }
        before
    }

    /// The revision in requests: the commit, or the branch as long as no commit is known.
    fn revision(&self) -> String {
        self.commit().unwrap_or_else(|| self.name.revision.clone())
    }

    /// The URL of a file.
    pub(crate) fn file_url(&self, path: &str) -> Url {
        let RepositoryName { kind, owner, name, .. } = &self.name;
        let revision = self.revision();
        let mut parts = vec![kind.folder(), owner, name, "resolve"];
        match kind {
            Kind::Dataset => {
                parts.push(&revision);
                parts.extend(path.split('/'));
            }
            Kind::Bucket => parts.push(path),
        }
        self.endpoint.url(parts)
    }

    /// The URL of the first page of a recursive listing of a folder.
    pub(crate) fn tree_url(&self, folder: &str) -> Url {
        let RepositoryName { kind, owner, name, .. } = &self.name;
        let revision = self.revision();
        let mut parts = vec!["api", kind.folder(), owner, name, "tree"];
        if *kind == Kind::Dataset {
            parts.push(&revision);
        }
        if !folder.is_empty() {
            parts.push(folder);
        }
        let mut url = self.endpoint.url(parts);
        url.set_query(Some("recursive=true"));
        url
    }

    /// The URL that tells the revision's present commit.
    pub(crate) fn revision_url(&self) -> Url {
        let RepositoryName { kind, owner, name, revision } = &self.name;
        let mut url = self.endpoint.url(["api", kind.folder(), owner, name, "revision", revision]);
        url.set_query(Some("expand=sha"));
        url
    }

    /// The repository's page for users.
    fn page(&self) -> Url {
        let RepositoryName { kind, owner, name, .. } = &self.name;
        self.endpoint.url([kind.folder(), owner, name])
    }

    /// The sentence for a refusal of the endpoint, if it needs another one than that of a server in general.
    pub(crate) fn refusal(
        &self,
        status: http::StatusCode,
        code: &str,
    ) -> Option<(String, forebay_storage::error::RetryClass)> {
        let (id, page, revision) = (self.name.id(), self.page(), self.revision());
        let token = self.token.as_ref().map(Token::source);
        let kind = self.name.kind.word();
        Refused { status, code, token, kind, id: &id, revision: &revision, page: page.as_str() }
            .sentence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(rest: &str) -> Repository {
        let (name, _) = RepositoryName::parse(rest).unwrap();
        let variable = |name: &str| (name == "HF_TOKEN").then(|| "hf_secret".into());
        Repository::new(name, false, variable).unwrap()
    }

    #[test]
    fn requests_name_the_commit_once_it_is_known() {
        let dataset = repository("datasets/a/b@x%2Fy");
        assert_eq!(
            dataset.file_url("c/d e.tar").as_str(),
            "https://huggingface.co/datasets/a/b/resolve/x%2Fy/c/d%20e.tar"
        );
        assert_eq!(
            dataset.revision_url().as_str(),
            "https://huggingface.co/api/datasets/a/b/revision/x%2Fy?expand=sha"
        );
        let commit = "0123456789".repeat(4);
        dataset.links.slot("c");
        assert_eq!(dataset.pin("main"), None);
        assert_eq!(dataset.pin(&commit), None);
        assert_eq!(dataset.pin(&commit).as_deref(), Some(commit.as_str()));
        assert_eq!(
            dataset.tree_url("c/d").as_str(),
            format!("https://huggingface.co/api/datasets/a/b/tree/{commit}/c%2Fd?recursive=true")
        );
        assert!(repository(&format!("datasets/a/b@{commit}")).commit().is_some());
    }

    #[test]
    fn first_of_two_threads_settles_the_commit() {
        let dataset = repository("datasets/a/b");
        let commits = ["1", "2"].map(|digit| digit.repeat(40));
        assert!(!dataset.settle("main") && !dataset.is_settled());
        assert!(dataset.settle(&commits[0]) && !dataset.settle(&commits[1]));
        assert!(!dataset.settle(&commits[0]));
        assert_eq!(dataset.commit().as_ref(), Some(&commits[0]));
        // The commit of an index takes its place.
        assert_eq!(dataset.pin(&commits[1]).as_ref(), Some(&commits[0]));
        assert_eq!(dataset.commit().as_ref(), Some(&commits[1]));
        assert!(!repository("buckets/a/b").settle(&commits[0]));
    }

    #[test]
    fn buckets_have_no_revisions() {
        let bucket = repository("buckets/a/b");
        bucket.pin(&"0".repeat(40));
        assert_eq!(bucket.commit(), None);
        assert_eq!(
            bucket.file_url("c/d").as_str(),
            "https://huggingface.co/buckets/a/b/resolve/c%2Fd"
        );
        assert_eq!(
            bucket.tree_url("").as_str(),
            "https://huggingface.co/api/buckets/a/b/tree?recursive=true"
        );
    }

    #[test]
    fn token_is_not_in_what_is_printed() {
        assert!(!format!("{:?}", repository("datasets/a/b")).contains("secret"));
    }
}
