//! Hugging Face's hub: datasets and buckets of `hf://` URLs.
//!
//! `name` parses a URL, `endpoint` says which hosts may be asked, `token` finds the credentials. `repository` is what all
//! clients of one storage share: the commit that is read, the links to files (`links`), and what was listed (`tree`).
//! `client` sends the requests of one thread, `limits` stops those of the whole process while the hub wants none, and
//! `refusal` words what the hub refuses. `objects` connects them with [`RemoteObjects`](super::RemoteObjects).
//!
//! A file is requested at the endpoint, with the token; the endpoint either sends it or redirects to a storage host with a
//! signed link. The link is kept until the storage host refuses it, so that a sample costs one request.

mod client;
mod endpoint;
mod limits;
mod links;
mod name;
mod objects;
mod refusal;
mod repository;
#[cfg(test)]
mod tests;
mod token;
mod tree;

pub(super) use self::client::HubClient;
pub(super) use self::name::RepositoryName;
pub(super) use self::repository::Repository;
