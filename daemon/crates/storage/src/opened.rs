//! A location between opening and reading.

use super::body_sink::Target;
use super::descriptor::OpenFile;
use super::error::StorageError;
use crate::location::Location;
use crate::version::ObjectStamp;

/// A location whose length is known, so that memory can be granted before it is read. Storages are layers; each sets
/// what it needs for reading and leaves the rest as the layer below has set it.
#[derive(Debug)]
pub struct Opened {
    /// What was requested. A packed part has the length of its page.
    pub location: Location,
    /// The number of bytes to read.
    pub length_bytes: u64,
    /// The object's size and tag, if known at opening.
    pub stamp: Option<ObjectStamp>,
    /// The key under which the cache adds the bytes after reading; `None`: it does not.
    pub new_key: Option<[u8; 32]>,
    /// Decides which layer reads it.
    pub handle: Handle,
}

/// What is open for a location.
#[derive(Debug)]
pub enum Handle {
    /// Nothing: reading sends a request.
    Unrequested,
    /// Nothing: the file is opened when it is read, because its sample has many.
    Deferred,
    /// A response whose body follows.
    Response(Box<dyn Response>),
    /// A file of a file system.
    File(OpenFile),
    /// Nothing: a part of a file that is unpacked into the cache.
    Unpacked,
    /// Nothing: the cache may have the location.
    Cached {
        /// The entry's key.
        key: [u8; 32],
        /// Whether the bytes are added if the entry is missing.
        adds: Adds,
    },
}

impl Handle {
    /// Refuses to read what another storage opened.
    ///
    /// # Panics
    /// Always: it is a mistake of the layers.
    pub fn refuse(&self) -> ! {
        unreachable!("a location is read by the storage that opened it: {self:?}")
    }
}

/// Whether bytes are added to a cache under a key that was made before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adds {
    /// The key identifies the bytes.
    Always,
    /// The file may change without a change of its stamp.
    Never,
    /// If the file still has this stamp.
    IfStill(ObjectStamp),
}

/// A response whose body has not been read.
pub trait Response: Send {
    /// Reads the body, of `length_bytes`. False: the target accepts no more.
    ///
    /// # Errors
    /// Reading fails, or the body has another length.
    fn read(self: Box<Self>, length_bytes: u64, target: Target<'_>) -> Result<bool, StorageError>;
}

impl std::fmt::Debug for dyn Response {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Response")
    }
}

impl Opened {
    /// A location of this length.
    #[must_use]
    pub const fn new(location: Location, length_bytes: u64, handle: Handle) -> Self {
        Self { location, length_bytes, stamp: None, new_key: None, handle }
    }
}
