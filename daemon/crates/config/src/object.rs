//! A Dataset object of the trainer: its pickle in sealed memory, which is sent with the configuration.
//!
//! The descriptor's path: the trainer writes and seals the memory, and sends the descriptor to its private daemon with
//! the first frame. The daemon passes it to the process that starts the workers of the stage that calls the object, and
//! returns it to the trainer's client with the state for a restart; the next daemon gets it from there. Only these
//! workers read it. The daemon neither reads nor maps it: it knows the object only by the keys of its `[dataset]`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_protocol::sealed::is_sealed;

/// The function of the stage whose workers get the object. It is part of the Python package.
pub const OBJECT_TARGET: &str = "forebay._dataset_worker:Items";

/// See the module's head.
#[derive(Debug, Clone)]
pub struct DatasetObject(Arc<OwnedFd>);

impl DatasetObject {
    /// Takes a descriptor from a client.
    ///
    /// # Errors
    /// The memory is not sealed: it could change while workers read it.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        match is_sealed(descriptor.as_fd()) {
            true => Ok(Self(Arc::new(descriptor))),
            false => Err(io::Error::other("the Dataset object is not in sealed memory")),
        }
    }
}

impl DatasetObject {
    /// For the process that starts workers.
    #[must_use]
    pub fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }
}

/// Equal if both are the same descriptor: the contents are not read.
impl PartialEq for DatasetObject {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::sealed::seal_bytes;

    use super::DatasetObject;

    #[test]
    fn only_sealed_memory_is_accepted_as_an_object() {
        let sealed = DatasetObject::new(seal_bytes("forebay-test", b"any").unwrap()).unwrap();
        assert_eq!(sealed, sealed.clone());
        assert_ne!(
            sealed,
            DatasetObject::new(seal_bytes("forebay-test", b"any").unwrap()).unwrap()
        );
        let refused = DatasetObject::new(tempfile::tempfile().unwrap().into()).unwrap_err();
        assert!(refused.to_string().contains("sealed memory"), "{refused}");
    }
}
