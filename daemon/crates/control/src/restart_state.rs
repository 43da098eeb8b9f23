//! The state that a private daemon's client stores for a restart: the resolved plan, the page of the samples in
//! progress, and the scanned index.
//!
//! The client passes the descriptors to the next daemon, which then reads no configuration and scans no folder. None is
//! trusted: the plan must be sealed memory and resolve without an error, the index must be sealed memory or a file of
//! this user with a valid checksum, a Dataset object must be sealed memory; the page is read once, and an invalid page
//! counts as empty. Storing the state is optional: if it fails, the daemon cannot be restarted, and a warning is logged.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::sealed::{is_sealed, read_sealed, seal_bytes};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::json;

use forebay_config::{Config, DatasetObject};
use forebay_dataset::IndexBytes;
use forebay_engine::{Stream, WorkPage};

/// The largest plan that is accepted.
const MAX_PLAN_BYTES: u64 = 16 << 20;

/// The descriptors of `Restart`, for messages.
const TAKEN: &str =
    "Restart takes one plan, one page, at most one index and at most one Dataset object";

/// The state that a client returns.
#[derive(Debug)]
pub struct Resumed {
    /// The plan.
    pub config: Config,
    /// The dead daemon's page.
    pub page: File,
    /// The index, if the dataset has one.
    pub index: Option<File>,
}

/// The descriptors sent with `Kept`.
#[derive(Debug)]
pub struct RestartState {
    plan: OwnedFd,
    page: OwnedFd,
    index: Option<OwnedFd>,
    object: Option<Arc<OwnedFd>>,
}

impl RestartState {
    /// The state of an open stream, whose samples in progress are recorded in `page`.
    ///
    /// # Errors
    /// The machine does not provide the memory or a descriptor.
    pub fn of(stream: &Stream, page: &WorkPage) -> io::Result<Self> {
        let config = stream.config();
        let plan = json!({
            "name": config.name, "source": config.source, "config": config.resolved_toml(),
            "has_object": config.dataset.object.is_some(),
        });
        let object = config.dataset.object.as_ref().map(DatasetObject::descriptor);
        let index = match stream.index() {
            None => None,
            Some(IndexBytes::Mapped(mapped)) => Some(mapped.file().try_clone()?.into()),
            Some(IndexBytes::Owned(bytes)) => Some(seal_bytes("forebay-index", bytes)?),
        };
        let page = page.descriptor().try_clone_to_owned()?;
        Ok(Self {
            plan: seal_bytes("forebay-plan", plan.to_string().as_bytes())?,
            page,
            index,
            object,
        })
    }

    /// Plan, page, then index, then the Dataset object.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.plan), Some(&self.page), self.index.as_ref(), self.object.as_deref()]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd)
            .collect()
    }

    /// Reads the plan that a client returns, with its descriptors.
    ///
    /// # Errors
    /// A fault that describes what was received instead.
    pub fn open(descriptors: Vec<OwnedFd>) -> Result<Resumed, Fault> {
        let fault = |message: String| Fault { kind: FaultKind::Protocol, message };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next();
        let (Some(plan), Some(page), third, fourth, None) =
            (next(), next(), next(), next(), next())
        else {
            return Err(fault(TAKEN.to_owned()));
        };
        let refused = |reason: String| fault(format!("the plan of Restart: {reason}"));
        let text = read_sealed(plan, MAX_PLAN_BYTES).map_err(|error| refused(error.to_string()))?;
        let plan: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        let part = |key: &str| {
            plan.get(key)
                .and_then(serde_json::Value::as_str)
                .ok_or_else(|| refused(format!("`{key}` is missing")))
        };
        let has_object = plan.get("has_object").and_then(serde_json::Value::as_bool) == Some(true);
        let (index, object) = match (has_object, third, fourth) {
            (true, index, Some(object)) => (index, Some(object)),
            (true, object, None) => (None, object),
            (false, index, None) => (index, None),
            (false, _, Some(_)) => return Err(fault(TAKEN.to_owned())),
        };
        let object = object.map(DatasetObject::new).transpose();
        let object = object.map_err(|error| fault(format!("Restart: {error}")))?;
        let mut config = Config::from_resolved(part("name")?, part("source")?, part("config")?)
            .map_err(|error| refused(error.to_string()))?;
        config.dataset.object = object;
        let index = index.map(File::from);
        if index.as_ref().is_some_and(|index| !is_unchanging(index)) {
            return Err(fault(
                "the index of Restart must be sealed memory or a read-only descriptor of a file owned by this user"
                    .to_owned(),
            ));
        }
        Ok(Resumed { config, page: page.into(), index })
    }
}

/// Whether no other process truncates the file while it is mapped: it is sealed, or an index file of this user, which
/// is only ever replaced.
fn is_unchanging(file: &File) -> bool {
    let own_file = || {
        let status = file.metadata().ok()?;
        let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).ok()?);
        let own = status.uid() == nix::unistd::Uid::effective().as_raw();
        Some(status.is_file() && own && flags.intersection(OFlag::O_ACCMODE) == OFlag::O_RDONLY)
    };
    is_sealed(file.as_fd()) || own_file().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(has_object: bool) -> OwnedFd {
        let config = "[dataset]\nformat = \"python\"\npath = \"/\"\nclass = \"m:D\"\nsource = \"\"\nitems = 5\n\
                      [batch]\nsize = 2\n[[stage]]\nname = \"items\"\noperations = []\n";
        let plan = json!({
            "name": "train", "source": "the dict", "config": config, "has_object": has_object,
        });
        seal_bytes("forebay-plan", plan.to_string().as_bytes()).unwrap()
    }

    fn sealed() -> OwnedFd {
        seal_bytes("forebay-test", b"never read").unwrap()
    }

    fn unsealed() -> OwnedFd {
        let (_, end) = std::os::unix::net::UnixStream::pair().unwrap();
        end.into()
    }

    #[test]
    fn dataset_object_is_returned_with_the_plan() {
        let resumed = RestartState::open(vec![plan(true), unsealed(), sealed()]).unwrap();
        assert!(resumed.config.dataset.object.is_some() && resumed.index.is_none());
        let both = RestartState::open(vec![plan(true), unsealed(), sealed(), sealed()]).unwrap();
        assert!(both.config.dataset.object.is_some() && both.index.is_some());
        let neither = RestartState::open(vec![plan(false), unsealed()]).unwrap();
        assert!(neither.config.dataset.object.is_none() && neither.index.is_none());
        let index = RestartState::open(vec![plan(false), unsealed(), sealed()]).unwrap();
        assert!(index.config.dataset.object.is_none() && index.index.is_some());
    }

    #[test]
    fn unsealed_or_extra_dataset_objects_are_refused() {
        for (descriptors, word) in [
            (vec![plan(true), unsealed(), unsealed()], "sealed memory"),
            (vec![plan(true), unsealed(), sealed(), unsealed()], "sealed memory"),
            (vec![plan(false), unsealed(), sealed(), sealed()], "at most one Dataset object"),
            (vec![plan(true), unsealed(), sealed(), sealed(), sealed()], "at most one"),
            (vec![plan(true)], "one page"),
        ] {
            let fault = RestartState::open(descriptors).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Protocol);
            assert!(fault.message.contains(word), "{word}: {}", fault.message);
        }
    }
}
