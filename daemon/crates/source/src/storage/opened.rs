//! A location between its opening and its reading: how long it is, and what its storage has open of it.

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
    /// Of the object, where opening it told.
    stamp: Option<ObjectStamp>,
}

/// What a storage has open of a location. It goes back to that storage alone.
#[derive(Debug)]
pub enum Handle {
    /// A file of a file system.
    File(OpenFile),
    /// What any other storage needs, such as an object's version and the connection to ask.
    Other(Box<dyn Any + Send>),
}

impl Opened {
    /// A location of so many bytes.
    #[must_use]
    pub const fn new(length_bytes: u64, handle: Handle) -> Self {
        Self { length_bytes, handle, opener: 0, stamp: None }
    }

    /// The same, of such an object.
    pub(super) fn of(self, stamp: ObjectStamp) -> Self {
        Self { stamp: Some(stamp), ..self }
    }

    /// The object's size and tag, where opening it told.
    pub(super) const fn stamp(&self) -> Option<ObjectStamp> {
        self.stamp
    }

    /// The same, opened by the storage at a place among several, below 65,536.
    #[expect(clippy::cast_possible_truncation, reason = "said to fit")]
    pub(super) fn by(self, opener: usize) -> Self {
        Self { opener: opener as u16, ..self }
    }

    /// The place of the storage that has opened it.
    pub(super) const fn opener(&self) -> usize {
        self.opener as usize
    }

    /// The bytes to read.
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

    /// What [`Handle::Other`] holds, if it is of this type; else all of it again.
    pub(super) fn try_into_other<T: 'static>(self) -> Result<Box<T>, Self> {
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

    /// What [`Handle::Other`] holds.
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
