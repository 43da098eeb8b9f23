//! What a private daemon's client keeps for a restart: the resolved plan, the page of the samples under work, and the
//! scanned index.
//!
//! The client passes the descriptors to the next daemon, which then reads no configuration and scans no folder. None is
//! trusted: the plan must be sealed memory and resolve without an error, the index sealed memory or a file of this
//! user's with a valid checksum; the page is read once, and one that is no page is empty. Keeping is optional: where it fails, the daemon cannot be restarted and a warning says so.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::sealed::{is_sealed, read_sealed, seal_bytes};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::json;

use forebay_config::Config;
use forebay_engine::{Stream, WorkPage};
use forebay_source::dataset::IndexBytes;

/// The largest plan that is read back.
const MAX_PLAN_BYTES: u64 = 16 << 20;

/// What a client brings back.
#[derive(Debug)]
pub struct Resumed {
    /// The plan.
    pub config: Config,
    /// The dead daemon's page.
    pub page: File,
    /// The index, where the dataset has one.
    pub index: Option<File>,
}

/// The descriptors that go with `Kept`.
#[derive(Debug)]
pub struct RestartState {
    plan: OwnedFd,
    page: OwnedFd,
    index: Option<OwnedFd>,
}

impl RestartState {
    /// Of a stream that is open, whose samples under work are noted in `page`.
    ///
    /// # Errors
    /// When the machine does not grant the memory or a descriptor.
    pub fn of(stream: &Stream, page: &WorkPage) -> io::Result<Self> {
        let config = stream.config();
        let plan = json!({
            "name": config.name, "source": config.source, "config": config.resolved_toml(),
        });
        let index = match stream.index() {
            None => None,
            Some(IndexBytes::Mapped(mapped)) => Some(mapped.file().try_clone()?.into()),
            Some(IndexBytes::Owned(bytes)) => Some(seal_bytes("forebay-index", bytes)?),
        };
        let page = page.descriptor().try_clone_to_owned()?;
        Ok(Self { plan: seal_bytes("forebay-plan", plan.to_string().as_bytes())?, page, index })
    }

    /// Plan, page, then index.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.plan), Some(&self.page), self.index.as_ref()]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd)
            .collect()
    }

    /// The plan that a client brings back, with what goes with it.
    ///
    /// # Errors
    /// A fault that says what was brought instead.
    pub fn open(descriptors: Vec<OwnedFd>) -> Result<Resumed, Fault> {
        let fault = |message: String| Fault { kind: FaultKind::Protocol, message };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next();
        let (Some(plan), Some(page), index, None) = (next(), next(), next(), next()) else {
            return Err(fault("Restart takes one plan, one page and at most one index".to_owned()));
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
        let config = Config::from_resolved(part("name")?, part("source")?, part("config")?)
            .map_err(|error| refused(error.to_string()))?;
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

/// Whether no other process shortens the file while it is mapped: it is sealed, or an index file of this user, which are
/// only ever replaced.
fn is_unchanging(file: &File) -> bool {
    let own_file = || {
        let status = file.metadata().ok()?;
        let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).ok()?);
        let own = status.uid() == nix::unistd::Uid::effective().as_raw();
        Some(status.is_file() && own && flags.intersection(OFlag::O_ACCMODE) == OFlag::O_RDONLY)
    };
    is_sealed(file.as_fd()) || own_file().unwrap_or(false)
}
