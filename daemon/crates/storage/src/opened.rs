//! A location between opening and reading: its length, and its storage's handle.

use std::any::Any;

use super::descriptor::OpenFile;
use crate::location::ObjectStamp;

/// A location whose length is known, so that memory can be granted before it is read.
#[derive(Debug)]
pub struct Opened {
    length_bytes: u64,
    handle: Handle,
    /// Which of several storages has opened it.
    opener: u16,
    /// The object's stamp, if known at opening.
    stamp: Option<ObjectStamp>,
}

/// A storage's handle of a location, to be read by that storage only.
#[derive(Debug)]
pub enum Handle {
    /// A file of a file system.
    File(OpenFile),
    /// The handle of any other storage, such as an object's version and the connection.
    Other(Box<dyn Any + Send>),
}

impl Opened {
    /// A location of this length.
    #[must_use]
    pub const fn new(length_bytes: u64, handle: Handle) -> Self {
        Self { length_bytes, handle, opener: 0, stamp: None }
    }

    /// Adds the object's stamp.
    #[must_use]
    pub fn of(self, stamp: ObjectStamp) -> Self {
        Self { stamp: Some(stamp), ..self }
    }

    /// The object's size and tag, if known at opening.
    #[must_use]
    pub const fn stamp(&self) -> Option<ObjectStamp> {
        self.stamp
    }

    /// Records the storage's number among several, below 65,536.
    #[expect(clippy::cast_possible_truncation, reason = "the caller guarantees it")]
    pub(super) fn by(self, opener: usize) -> Self {
        Self { opener: opener as u16, ..self }
    }

    /// The number of the storage that has opened it.
    pub(super) const fn opener(&self) -> usize {
        self.opener as usize
    }

    /// The number of bytes to read.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The open file.
    ///
    /// # Panics
    /// When another storage has opened it.
    pub(super) fn into_file(self) -> OpenFile {
        match self.handle {
            Handle::File(file) => file,
            Handle::Other(_) => panic!("a location is read by the storage that opened it"),
        }
    }

    /// The contents of [`Handle::Other`], if they have this type; otherwise the location.
    pub fn try_into_other<T: 'static>(self) -> Result<Box<T>, Self> {
        let Self { length_bytes, handle, opener, stamp } = self;
        match handle {
            Handle::Other(other) => other.downcast().map_err(|other| Self {
                length_bytes,
                handle: Handle::Other(other),
                opener,
                stamp,
            }),
            handle => Err(Self { length_bytes, handle, opener, stamp }),
        }
    }

    /// The contents of [`Handle::Other`].
    ///
    /// # Panics
    /// When another storage has opened it.
    #[must_use]
    pub fn into_other<T: 'static>(self) -> Box<T> {
        let other = match self.handle {
            Handle::Other(other) => other.downcast().ok(),
            Handle::File(_) => None,
        };
        other.expect("a location is read by the storage that opened it")
    }
}
