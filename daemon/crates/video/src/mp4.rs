//! MP4, MOV and M4A: the table of a file from its headers, without its media.
//!
//! `moov` is read whole, wherever it is; the media between it and the beginning is passed over. A file that says there
//! that it is fragmented is walked from fragment to fragment, reading the head of each. Boxes by ISO/IEC 14496-12 and
//! the QuickTime File Format; where writers differ from these, as `FFmpeg` 5 reads them, so that frames have the same
//! times.

mod boxes;
mod codec_boxes;
mod description;
mod edits;
mod fragments;
mod left;
mod movie;
mod samples;
#[cfg(test)]
mod tests;

use crate::error::{Refused, refuse};
use crate::read_at::{Failure, ReadAt, Window};
use crate::table::Table;
use boxes::Kind;
use movie::Movie;

/// What is read at the beginning, in bytes: all headers of most files that begin with them.
const FIRST_READ: u64 = 64 << 10;
/// What is read where other boxes begin, in bytes. At the end of a file: all its headers, mostly.
const NEXT_READ: u64 = 256 << 10;
/// What is read where a fragment begins, in bytes.
const FRAGMENT_READ: u64 = 16 << 10;
/// The longest `moov` or `moof`, in bytes: one of 10 hours has some 30 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// The most boxes of a file outside of others.
const MAX_BOXES: u32 = 1 << 20;

/// Whether a file may be of this container, by its first 12 bytes or more.
#[must_use]
pub fn begins(bytes: &[u8]) -> bool {
    matches!(
        bytes.get(4..8),
        Some(b"ftyp" | b"moov" | b"mdat" | b"wide" | b"free" | b"skip" | b"pnot" | b"styp")
    )
}

/// Reads the table of a file.
///
/// # Errors
/// The file cannot be read, is not an MP4, or says what cannot be.
pub fn read<R: ReadAt>(source: R) -> Result<Table, Failure<R::Error>> {
    let mut file = Window::new(source);
    let length_bytes = file.length_bytes();
    if !begins(file.bytes(0, 12, FIRST_READ)?) {
        return Ok(refuse!("it begins as no MP4, MOV, Matroska or WebM file")?);
    }
    let mut movie: Option<Movie> = None;
    let mut at = 0;
    for _ in 0..MAX_BOXES {
        let Some(place) = next_box(&mut file, at, movie.is_some())? else { break };
        match &place.kind {
            b"moov" if movie.is_none() => {
                movie = Some(Movie::read(whole(&mut file, &place)?, length_bytes)?);
                if movie.as_ref().is_some_and(|movie| !movie.is_fragmented()) {
                    break;
                }
            }
            b"moof" => {
                let movie = movie
                    .as_mut()
                    .ok_or_else(|| Refused("a fragment (`moof`) comes before `moov`".to_owned()))?;
                movie.add_fragment(place.start, whole(&mut file, &place)?)?;
            }
            _ => {}
        }
        at = place.end;
    }
    let Some(movie) = movie else {
        return Ok(refuse!(
            "it has no header (`moov`) within its {length_bytes} bytes: the file is cut off, or its writer was killed"
        )?);
    };
    let table = movie.finish()?;
    table.check(length_bytes)?;
    Ok(table)
}

/// Where a box of the file is.
struct Place {
    kind: Kind,
    /// Of its head.
    start: u64,
    body: u64,
    end: u64,
}

/// The box at a place; `None` at the end of the file.
fn next_box<R: ReadAt>(
    file: &mut Window<R>,
    at: u64,
    is_among_fragments: bool,
) -> Result<Option<Place>, Failure<R::Error>> {
    let length_bytes = file.length_bytes();
    let ahead = if is_among_fragments { FRAGMENT_READ } else { NEXT_READ };
    let bytes = file.bytes(at, 16, ahead)?;
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let [size, kind] = [&head[..4], &head[4..]].map(|part| part.first_chunk::<4>().copied());
    let (size, kind) = (size.unwrap_or_default(), kind.unwrap_or_default());
    let (head_bytes, size) = match u32::from_be_bytes(size) {
        0 => (8, length_bytes - at),
        1 => match rest.first_chunk::<8>() {
            Some(size) => (16, u64::from_be_bytes(*size)),
            None => return Ok(None),
        },
        size => (8, u64::from(size)),
    };
    if size < head_bytes {
        return Ok(refuse!("the box `{}` at byte {at} has {size} bytes", kind.escape_ascii())?);
    }
    let end = at.saturating_add(size);
    Ok(Some(Place { kind, start: at, body: at + head_bytes, end }))
}

/// The body of a box, whole.
fn whole<'w, R: ReadAt>(
    file: &'w mut Window<R>,
    place: &Place,
) -> Result<&'w [u8], Failure<R::Error>> {
    let length_bytes = file.length_bytes();
    let name = place.kind.escape_ascii();
    if place.end > length_bytes {
        return Ok(refuse!(
            "its `{name}` ends at byte {} of {length_bytes}: the file is cut off",
            place.end
        )?);
    }
    let size = place.end - place.body;
    if size > MAX_HEADER_BYTES {
        return Ok(refuse!(
            "its `{name}` has {size} bytes, more than the limit of {MAX_HEADER_BYTES}"
        )?);
    }
    file.bytes(place.body, size, size)
}
