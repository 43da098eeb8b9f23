//! DALI's `.idx` next to a remote archive: the locations of its members, without reading the whole archive.
//!
//! `wds2idx` writes `v1.2 SAMPLES`, then one line per sample with `EXTENSION OFFSET SIZE NAME` for each member. Such a
//! file may belong to another archive, or be wrong: GNU tar counts blocks such that offsets into PAX archives are
//! wrong. So it is used only if the archive agrees:
//!
//! - members follow each other as in tar, and end within the archive;
//! - the gaps between members are equal, or one gap of each length is checked;
//! - at [`PLACES`] positions, including the first and the last, the archive has a header with that name and size, and
//!   no other member before it; and after the last member, the archive ends.
//!
//! Other headers are checked when their samples are read.

use super::header::{self, BLOCK};
use super::members::{End, Members};
use super::names::{self, Name};
use forebay_dataset::error::DatasetError;
use forebay_index::stored_file::StoredFile;
use forebay_index::window::{Bytes, WindowSize};
use forebay_storage::Storage;

/// The number of members that are checked in each archive.
const PLACES: usize = 16;
/// The maximum number of different gaps between members, of which one each is checked.
const MAX_GAPS: usize = 32;
/// The maximum gap between two members: the headers of the second one.
const MAX_BETWEEN_BYTES: u64 = 64 << 10;
/// The maximum length of a name that a header contains as a whole.
const MAX_NAME_BYTES: usize = 100;

/// A member in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed<'a> {
    pub(super) name: &'a [u8],
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Listed<'_> {
    /// The end of its padding.
    const fn end(&self) -> u64 {
        // Cannot overflow: both are within the archive.
        (self.offset + self.size).next_multiple_of(BLOCK as u64)
    }
}

/// The members of an archive, in their order.
#[derive(Debug)]
pub(super) struct List {
    text: String,
    /// Per member: the range of its name in the text, and its extent.
    members: Vec<(std::ops::Range<usize>, u64, u64)>,
    /// How the archive ends.
    pub(super) end: End,
}

impl List {
    pub(super) fn members(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.members.len()).map(|place| self.member(place))
    }

    fn member(&self, place: usize) -> Listed<'_> {
        let (name, offset, size) = &self.members[place];
        Listed { name: self.text[name.clone()].as_bytes(), offset: *offset, size: *size }
    }

    /// The end of the previous member.
    fn end_before(&self, place: usize) -> u64 {
        place.checked_sub(1).map_or(0, |before| self.member(before).end())
    }
}

/// Reads the list next to a remote archive. Local archives do not use one, because reading their headers is equally
/// fast. `None`: the list does not exist. The inner error is the reason why it is not trusted.
///
/// # Errors
/// The storage is unavailable.
pub(super) fn read(
    storage: &dyn Storage,
    path: &[u8],
    archive: &StoredFile<'_>,
) -> Result<Option<Result<List, String>>, DatasetError> {
    let is_archive = path.len() > 4 && path[path.len() - 4..].eq_ignore_ascii_case(b".tar");
    if storage.remote_root().is_none() || !is_archive || storage.unpacks(path) {
        return Ok(None);
    }
    let list_path = [&path[..path.len() - 4], b".idx"].concat();
    let Some(file) = StoredFile::if_there(storage, &list_path)? else { return Ok(None) };
    let bytes = archive.stamp.bytes;
    // A member takes at least a block, and its text in a line less than half of one.
    let read =
        file.read_whole(bytes / 2 + (64 << 10)).and_then(|content| match parse(content, bytes) {
            Ok(list) => check(list, archive),
            Err(why) => Ok(Err(why)),
        });
    let trusted = match read {
        Err(error) if error.is_outage() => return Err(error),
        read => read.unwrap_or_else(|error| Err(error.to_string())),
    };
    let name = String::from_utf8_lossy(&list_path).into_owned();
    Ok(Some(trusted.map_err(|why| format!("{name}: {why}"))))
}

/// Parses a list, and checks the consistency of its offsets.
pub(super) fn parse(content: Vec<u8>, archive_bytes: u64) -> Result<List, String> {
    let text = String::from_utf8(content).map_err(|_| "it is no text".to_owned())?;
    let (head, body) = text.split_once('\n').unwrap_or((&text, ""));
    let samples = head.strip_prefix("v1.2 ").and_then(|count| count.parse::<usize>().ok());
    let samples = samples.ok_or_else(|| match head.split(' ').next() {
        Some(version) if version.starts_with("v1.") && version != "v1.2" => {
            format!("it is of version {version:.8}, and v1.2 is read")
        }
        _ => "it does not begin as wds2idx writes it".to_owned(),
    })?;
    let mut members = Vec::new();
    let (mut lines, mut last_end, mut line_start) = (0_usize, 0_u64, head.len() + 1);
    for line in body.split_inclusive('\n') {
        lines += 1;
        let fault = |why: &str| format!("line {}: {why}", lines + 1);
        let mut start = line_start;
        let words = line.strip_suffix('\n').unwrap_or(line).split(' ');
        let mut words = words.map(|word| {
            let range = start..start + word.len();
            start = range.end + 1;
            (word, range)
        });
        while let Some((extension, _)) = words.next() {
            let mut number = || {
                let number = words.next()?.0.parse::<u64>().ok()?;
                i64::try_from(number).is_ok().then_some(number)
            };
            let (Some(offset), Some(size)) = (number(), number()) else {
                let form = "not EXTENSION OFFSET SIZE NAME of each member (a name with a space?)";
                return Err(fault(form));
            };
            let Some((name, place)) = words.next().filter(|(name, _)| name.ends_with(extension))
            else {
                return Err(fault("an extension and a name that do not fit"));
            };
            if name.len() > MAX_NAME_BYTES || !name.is_ascii() {
                return Err(fault("a name that headers of archives have in pieces"));
            }
            let header = offset.checked_sub(BLOCK as u64);
            let header = header.filter(|at| at % BLOCK as u64 == 0 && *at >= last_end);
            if header.is_none_or(|header| header - last_end > MAX_BETWEEN_BYTES) {
                return Err(fault("a member that does not lie behind the one before"));
            }
            if size > archive_bytes || offset > archive_bytes - size {
                let end =
                    format!("a member ends behind the archive, which has {archive_bytes} bytes");
                return Err(fault(&end));
            }
            last_end = Listed { name: b"", offset, size }.end();
            members.push((place, offset, size));
        }
        line_start += line.len();
    }
    if lines != samples || members.is_empty() {
        return Err(format!("it announces {samples} samples and has {lines}"));
    }
    Ok(List { text, members, end: End::Unmarked })
}

/// Compares some members with the archive.
fn check(mut list: List, archive: &StoredFile<'_>) -> Result<Result<List, String>, DatasetError> {
    let Some(places) = places(&list) else {
        return Ok(Err("too much lies between its members".to_owned()));
    };
    for place in places {
        let listed = list.member(place);
        let part = Part::read(archive, list.end_before(place)..listed.offset)?;
        let mut name = Vec::new();
        header::append_name(part.last_block(), &mut name);
        if name != listed.name || !is_next(&mut part.members(), &listed) {
            return Ok(Err(format!(
                "the archive has no member {} of {} bytes at byte {}: it is of another archive",
                String::from_utf8_lossy(listed.name),
                listed.size,
                listed.offset
            )));
        }
    }
    let (last, bytes) = (list.end_before(list.members.len()), archive.stamp.bytes);
    let part = Part::read(archive, last..bytes.min(last + MAX_BETWEEN_BYTES))?;
    let mut members = part.members();
    let end = loop {
        match members.next() {
            Ok(None) => break members.end(),
            Ok(Some(member)) if names::split(member.name) == Name::Hidden => {}
            _ => break None,
        }
    };
    match end {
        Some(end) => list.end = end,
        None => return Ok(Err(format!("the archive goes on behind byte {last}, where it ends"))),
    }
    Ok(Ok(list))
}

/// Whether `listed` is the next member, except hidden ones, which `wds2idx` ignores.
fn is_next(members: &mut Members<'_>, listed: &Listed<'_>) -> bool {
    loop {
        match members.next() {
            Ok(Some(found)) if found.offset == listed.offset => {
                return found.name == listed.name && found.size == listed.size;
            }
            Ok(Some(found)) if names::split(found.name) == Name::Hidden => {}
            _ => return false,
        }
    }
}

/// The members to check: the first, the last, some between, and one for each gap length. `None`: there are too many
/// different gaps.
fn places(list: &List) -> Option<Vec<usize>> {
    let count = list.members.len();
    let mut places: Vec<usize> =
        (0..PLACES).map(|part| part * (count - 1) / (PLACES - 1)).collect();
    let mut distances = Vec::new();
    for place in 0..count {
        let distance = list.member(place).offset - list.end_before(place);
        if !distances.contains(&distance) {
            distances.push(distance);
            places.push(place);
        }
        if distances.len() > MAX_GAPS {
            return None;
        }
    }
    places.sort_unstable();
    places.dedup();
    Some(places)
}

/// A part of an archive, read at once.
struct Part<'a> {
    archive: &'a StoredFile<'a>,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Part<'a> {
    fn read(
        archive: &'a StoredFile<'a>,
        range: std::ops::Range<u64>,
    ) -> Result<Self, DatasetError> {
        let mut bytes = Vec::new();
        if !range.is_empty() {
            archive.read(range.start, range.end - range.start, &mut bytes)?;
        }
        Ok(Self { archive, start: range.start, bytes })
    }

    /// Iterates over the members of the part.
    fn members(&self) -> Members<'_> {
        Members::from(self, WindowSize::BLOCK, self.start)
    }

    /// The last block of the part: a member's header, if the part ends with one.
    fn last_block(&self) -> &[u8; BLOCK] {
        self.bytes.last_chunk().unwrap_or(&[0; BLOCK])
    }
}

impl Bytes for Part<'_> {
    /// The length of the archive, because positions are offsets in the archive.
    fn length(&self) -> u64 {
        self.archive.stamp.bytes
    }

    fn read(&self, offset: u64, length: u64, buffer: &mut Vec<u8>) -> Result<(), DatasetError> {
        let range = offset.checked_sub(self.start).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            self.bytes.get(from..from.checked_add(usize::try_from(length).ok()?)?)
        });
        buffer.clear();
        let range =
            range.ok_or_else(|| self.fault("it goes on behind what was read".to_owned()))?;
        buffer.extend_from_slice(range);
        Ok(())
    }

    fn fault(&self, reason: String) -> DatasetError {
        self.archive.fault(reason)
    }
}

#[cfg(test)]
#[path = "dali_index_tests.rs"]
mod tests;
