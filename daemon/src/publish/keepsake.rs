//! What a private daemon gives its client for the case of its death: the resolved plan and the scanned index.
//!
//! The client keeps both descriptors and hands them to the daemon that takes this one's place, which then reads no
//! configuration and scans no folder. Nothing of it is believed: the plan must be sealed memory and resolve without an
//! error, the index sealed memory or a file of this user's with a sound checksum. Keeping is optional: where it fails,
//! the client's daemon cannot be restarted and a warning says so.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use forebay_protocol::frames::{Fault, FaultKind};
use forebay_protocol::kept::{is_kept, keep_bytes, read_kept};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::json;

use crate::config::Config;
use crate::dataset::IndexBytes;
use crate::engine::Stream;

/// The largest plan that is read back.
const MOST_PLAN_BYTES: u64 = 16 << 20;

/// The descriptors that go with `Kept`.
#[derive(Debug)]
pub(crate) struct Keepsake {
    plan: OwnedFd,
    index: Option<OwnedFd>,
}

impl Keepsake {
    /// Of a stream that is open.
    ///
    /// # Errors
    /// When the machine does not grant the memory or a descriptor.
    pub(crate) fn of(stream: &Stream) -> io::Result<Self> {
        let config = stream.config();
        let plan = json!({
            "name": config.name, "source": config.source, "config": config.resolved_toml(),
        });
        let index = match stream.index() {
            None => None,
            Some(IndexBytes::Mapped(mapped)) => Some(mapped.file().try_clone()?.into()),
            Some(IndexBytes::Owned(bytes)) => Some(keep_bytes("forebay-index", bytes)?),
        };
        Ok(Self { plan: keep_bytes("forebay-plan", plan.to_string().as_bytes())?, index })
    }

    /// Plan, then index.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.plan), self.index.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect()
    }

    /// The plan that a client brings back, with its index.
    ///
    /// # Errors
    /// A fault that says what was brought instead.
    pub(crate) fn open(descriptors: Vec<OwnedFd>) -> Result<Config, Fault> {
        let fault = |message: String| Fault { kind: FaultKind::Protocol, message };
        let mut descriptors = descriptors.into_iter();
        let (Some(plan), index, None) =
            (descriptors.next(), descriptors.next(), descriptors.next())
        else {
            return Err(fault("Restart comes with a plan and at most one index".to_owned()));
        };
        let refused = |reason: String| fault(format!("the plan of Restart: {reason}"));
        let text = read_kept(plan, MOST_PLAN_BYTES).map_err(|error| refused(error.to_string()))?;
        let plan: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        let part = |key: &str| {
            plan.get(key)
                .and_then(serde_json::Value::as_str)
                .ok_or_else(|| refused(format!("`{key}` is missing")))
        };
        let mut config = Config::from_resolved(part("name")?, part("source")?, part("config")?)
            .map_err(|error| refused(error.to_string()))?;
        if let Some(index) = index {
            let index = File::from(index);
            if !is_unchanging(&index) {
                return Err(fault(
                    "the index of Restart is neither sealed memory nor a file of this user's that was opened for \
                     reading"
                        .to_owned(),
                ));
            }
            config.dataset.kept_index = Some(Arc::new(index));
        }
        Ok(config)
    }
}

/// Whether nobody else shortens the file while it is mapped: by its seals, or as far as this user's own index files are
/// only ever replaced.
fn is_unchanging(file: &File) -> bool {
    let own_file = || {
        let status = file.metadata().ok()?;
        let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).ok()?);
        let own = status.uid() == nix::unistd::Uid::effective().as_raw();
        Some(status.is_file() && own && flags.intersection(OFlag::O_ACCMODE) == OFlag::O_RDONLY)
    };
    is_kept(file.as_fd()) || own_file().unwrap_or(false)
}
