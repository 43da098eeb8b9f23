//! Finds the members of one archive by reading only headers.
//!
//! [`Members`] reads headers through a [`Window`] onto the archive. If archives are appended to one another, all of
//! them are read, as with `tar --ignore-zeros`.

use super::header::{self, BLOCK, Header, Kind, Records, SPARSE};
use forebay_dataset::error::DatasetError;
use forebay_index::window::{Bytes, Window, WindowSize};

/// The maximum size of PAX records or a long name.
const MAX_EXTENDED_BYTES: u64 = 1 << 20;
/// The maximum length of a name: more than any file system supports.
const MAX_NAME_BYTES: usize = u16::MAX as usize;

/// A regular file of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) name: &'a [u8],
    /// The offset of its data; its header is the block before.
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// How an archive ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With a block of zeros.
    Marked,
    /// After a member: it may be truncated.
    Unmarked,
}

/// Iterates over the members of an archive.
pub(super) struct Members<'a> {
    window: Window<'a>,
    /// The offset of the next block.
    position: u64,
    name: Vec<u8>,
    /// The number of hard links to other members, which have no data.
    links: u64,
    end: Option<End>,
}

impl<'a> Members<'a> {
    pub(super) fn new(archive: &'a dyn Bytes, size: WindowSize) -> Self {
        Self::from(archive, size, 0)
    }

    /// Starts at the offset of a header.
    pub(super) fn from(archive: &'a dyn Bytes, size: WindowSize, position: u64) -> Self {
        let window = Window::new(archive, size);
        Self { window, position, name: Vec::new(), links: 0, end: None }
    }

    /// How the archive ended; `None` before its end.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// The number of members so far that are hard links to others, without data.
    pub(super) fn links(&self) -> u64 {
        self.links
    }

    /// The next regular file; `None` at the end of the archive.
    ///
    /// # Errors
    /// The archive is broken or truncated, or has an unsupported member; the error has the byte offset.
    pub(super) fn next(&mut self) -> Result<Option<Member<'_>>, DatasetError> {
        let (mut records, mut long_name) = (Records::default(), None);
        loop {
            let is_pending = records != Records::default() || long_name.is_some();
            let Some(header) = self.header(is_pending)? else { return Ok(None) };
            let start = self.position;
            self.position = start + BLOCK as u64;
            self.links += u64::from(header.kind == Kind::Link);
            let fault = |reason: &str| self.fault(start, reason);
            match header.kind {
                Kind::Sparse => return Err(fault(SPARSE)),
                Kind::Extended | Kind::Global | Kind::LongName | Kind::LongLink => {
                    if header.size > MAX_EXTENDED_BYTES {
                        return Err(fault("an extended header is larger than 1 MiB"));
                    }
                    self.check_end(start, header.size)?;
                    let data = self.window.get(self.position, header.size)?;
                    match header.kind {
                        Kind::LongName => long_name = Some(header::text(data).to_vec()),
                        Kind::LongLink => {}
                        kind => {
                            let found =
                                Records::parse(data).map_err(|why| self.fault(start, why))?;
                            let is_global = kind == Kind::Global;
                            if is_global && found != Records::default() {
                                let reason = "a global PAX header gives a path or a size, on which \
                                              programs differ; make the archive again";
                                return Err(self.fault(start, reason));
                            }
                            records.path = found.path.or(records.path);
                            records.size = found.size.or(records.size);
                        }
                    }
                    self.skip(header.size);
                }
                Kind::File => {
                    let size = match records.size {
                        Some(size) if header.size != 0 && header.size != size => {
                            return Err(fault("its header and its PAX records give two sizes"));
                        }
                        Some(size) => size,
                        None => header.size,
                    };
                    self.take_name(start, records.path, long_name)?;
                    let offset = self.position;
                    self.check_end(start, size)?;
                    self.skip(size);
                    return Ok(Some(Member { name: &self.name, offset, size }));
                }
                // Preceding extended headers apply to this member.
                Kind::Link | Kind::Empty | Kind::Other => {
                    let size = records.size.unwrap_or(header.size);
                    if size != header.size {
                        return Err(fault("its header and its PAX records give two sizes"));
                    }
                    self.check_end(start, size)?;
                    self.skip(size);
                    (records, long_name) = (Records::default(), None);
                }
            }
        }
    }

    /// Determines the member's name.
    fn take_name(
        &mut self,
        start: u64,
        path: Option<Vec<u8>>,
        long_name: Option<Vec<u8>>,
    ) -> Result<(), DatasetError> {
        self.name.clear();
        match (path, long_name) {
            (Some(path), Some(long)) if path != long => {
                return Err(self.fault(start, "a PAX header and a GNU header give two names"));
            }
            (Some(name), _) | (None, Some(name)) => self.name = name,
            (None, None) => {
                let mut name = std::mem::take(&mut self.name);
                header::append_name(self.block(start)?, &mut name);
                self.name = name;
            }
        }
        if self.name.len() > MAX_NAME_BYTES {
            return Err(self.fault(start, "its name has more than 65535 bytes"));
        }
        Ok(())
    }

    /// The next header, at the then current position; `None` at the end.
    fn header(&mut self, is_pending: bool) -> Result<Option<Header>, DatasetError> {
        let start = self.position;
        let left = self.window.file.length().saturating_sub(start);
        if left < BLOCK as u64 {
            return match left {
                0 if start == 0 => Err(self.fault(0, "the file is empty")),
                0 if !is_pending => {
                    self.end = Some(End::Unmarked);
                    Ok(None)
                }
                _ => Err(self.fault(start, "the archive is cut off")),
            };
        }
        match header::parse(self.block(start)?) {
            Ok(None) if is_pending => {
                Err(self.fault(start, "the archive ends behind an extended header"))
            }
            Ok(None) => self.header_after_zeros(start),
            Ok(header) => Ok(header),
            Err(why) => {
                let hint = if start == 0 { compression(self.block(0)?) } else { None };
                Err(self.fault(start, hint.unwrap_or(why)))
            }
        }
    }

    /// The first header of an archive that was appended to this one, which ends at `end`; `None`: only zeros follow.
    fn header_after_zeros(&mut self, end: u64) -> Result<Option<Header>, DatasetError> {
        while self.window.file.length() - self.position >= BLOCK as u64 {
            let start = self.position;
            match header::parse(self.block(start)?) {
                Ok(None) => self.skip(BLOCK as u64),
                Ok(header) => return Ok(header),
                Err(_) => {
                    let reason = format!(
                        "the archive ends at byte {end} and is followed by what is not another archive, on which programs \
                         differ; make the archive again"
                    );
                    return Err(self.fault(start, &reason));
                }
            }
        }
        self.end = Some(End::Marked);
        Ok(None)
    }

    /// Refuses data past the end of the archive.
    fn check_end(&self, start: u64, size: u64) -> Result<(), DatasetError> {
        match self.position.checked_add(size) {
            Some(end) if end <= self.window.file.length() => Ok(()),
            _ => Err(self.fault(
                start,
                &format!(
                    "a member of {size} bytes ends behind the file, which has {}: the archive is cut off",
                    self.window.file.length()
                ),
            )),
        }
    }

    /// Skips data and its padding.
    fn skip(&mut self, size: u64) {
        // Cannot overflow: it is inside the file, whose size is below 2^63.
        self.position += size.next_multiple_of(BLOCK as u64);
    }

    fn block(&mut self, start: u64) -> Result<&[u8; BLOCK], DatasetError> {
        let block = self.window.get(start, BLOCK as u64)?;
        // The length is always that of a block.
        Ok(block.first_chunk().unwrap_or(&[0; BLOCK]))
    }

    fn fault(&self, start: u64, reason: &str) -> DatasetError {
        self.window.fault(start, reason)
    }
}

/// Detects a compressed archive by its first bytes.
fn compression(bytes: &[u8]) -> Option<&'static str> {
    const FORMS: [(&[u8], &str); 4] = [
        (
            b"\x1f\x8b",
            "it is compressed by gzip; decompress it (gunzip), as a member of it cannot be read alone",
        ),
        (
            b"\x28\xb5\x2f\xfd",
            "it is compressed by zstd; decompress it (unzstd), as a member of it cannot be read alone",
        ),
        (
            b"BZh",
            "it is compressed by bzip2; decompress it (bunzip2), as a member of it cannot be read alone",
        ),
        (
            b"\xfd7zXZ",
            "it is compressed by xz; decompress it (unxz), as a member of it cannot be read alone",
        ),
    ];
    FORMS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, words)| *words)
}

/// Whether the block before a member's data is still its header.
pub(super) fn is_header_of(block: &[u8; BLOCK], size: u64) -> bool {
    matches!(header::parse(block), Ok(Some(header)) if header.kind == Kind::File && (header.size == size || header.size == 0))
}
