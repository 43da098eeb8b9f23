//! Which version of a file it is: what a storage says ([`FileStatus`]), what an index stores ([`FileStamp`]), and what a
//! request to an object storage asks for ([`ObjectStamp`]).

use std::borrow::Cow;

/// A file's present status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Its size in bytes.
    pub bytes: u64,
    /// Distinguishes the file from a replacement and from its earlier contents.
    pub identity: ObjectIdentity,
}

/// Changes when a file is replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectIdentity {
    /// A file of a file system.
    Inode {
        /// The file system.
        device: u64,
        /// The file in it.
        inode: u64,
        /// The last change of its bytes: seconds since 1970, and nanoseconds. Programs can set it.
        modified: (i64, u32),
        /// The last change of its bytes or its inode, which programs cannot set; `None`: its file system does not
        /// record it.
        changed: Option<(i64, u32)>,
    },
    /// The object's ETag or version.
    Tag(String),
}

impl ObjectIdentity {
    /// Distinguishes a file from others of its path and size, as one text; empty: nothing does.
    pub fn tag(&self) -> Cow<'_, str> {
        match self {
            Self::Inode { inode, modified: (seconds, nanoseconds), changed, .. } => {
                let changed = changed.map(|(seconds, rest)| format!(" {seconds} {rest}"));
                format!("{inode} {seconds} {nanoseconds}{}", changed.unwrap_or_default()).into()
            }
            Self::Tag(tag) => tag.into(),
        }
    }

    /// Whether a file changed within the clock's tick before `now_seconds`, so that it may change again without a new
    /// time. A time far in the future does not come from a clock, so nothing follows from it.
    #[must_use]
    pub fn may_be_changing(&self, now_seconds: i64) -> bool {
        /// The resolution of the coarsest file systems.
        const CLOCK_TICK_SECONDS: u64 = 2;
        match self {
            Self::Inode { modified: (seconds, _), .. } => {
                seconds.abs_diff(now_seconds) <= CLOCK_TICK_SECONDS
            }
            Self::Tag(_) => false,
        }
    }
}

/// Distinguishes a file from another one that replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStamp {
    /// The length in bytes.
    pub bytes: u64,
    /// When the bytes last changed, in seconds since 1970.
    pub modified_seconds: i64,
    /// The nanoseconds of that time.
    pub modified_nanoseconds: u32,
    /// The status change time (ctime) in nanoseconds since 1970, which programs cannot set; 0: the file system does not
    /// record it.
    pub status_changed: u64,
    /// Derived from an object's ETag; 0: a file, or an object without one.
    pub tag: u64,
}

impl FileStamp {
    /// The stamp of a file with this status.
    pub fn of(status: &FileStatus) -> Self {
        let bytes = status.bytes;
        match &status.identity {
            ObjectIdentity::Inode {
                modified: (modified_seconds, modified_nanoseconds),
                changed,
                ..
            } => {
                let number = |(seconds, nanoseconds): (i64, u32)| {
                    let seconds = seconds.cast_unsigned();
                    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds.into())
                };
                Self {
                    bytes,
                    modified_seconds: *modified_seconds,
                    modified_nanoseconds: *modified_nanoseconds,
                    status_changed: changed.map_or(0, number),
                    tag: 0,
                }
            }
            ObjectIdentity::Tag(tag) => {
                Self { bytes, tag: ObjectStamp::new(bytes, Some(tag)).tag, ..Self::default() }
            }
        }
    }

    /// The stamp for requests to an object storage.
    pub fn object(self) -> ObjectStamp {
        ObjectStamp { bytes: self.bytes, tag: self.tag }
    }
}

/// An object's size, and a tag that distinguishes it from another of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectStamp {
    /// Its size in bytes.
    pub bytes: u64,
    /// Hash of its ETag; 0: it has none.
    pub tag: u64,
}

impl ObjectStamp {
    /// From a size and an ETag. Quotes and the mark of a weak tag are ignored: listings and responses differ in them.
    #[must_use]
    pub fn new(bytes: u64, tag: Option<&str>) -> Self {
        let bare = tag.map(|tag| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"'));
        let digest = |tag: &str| {
            let digest = blake3::hash(tag.as_bytes());
            digest.as_bytes().first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes).max(1))
        };
        Self { bytes, tag: bare.filter(|tag| !tag.is_empty()).map_or(0, digest) }
    }

    /// Whether both may belong to the same object.
    #[must_use]
    pub fn agrees(self, other: Self) -> bool {
        let is_known = self.tag != 0 && other.tag != 0;
        self.bytes == other.bytes && (!is_known || self.tag == other.tag)
    }

    /// Whether both have the same tag.
    #[must_use]
    pub fn has_tag_of(self, other: Self) -> bool {
        self.tag != 0 && self.tag == other.tag
    }
}
