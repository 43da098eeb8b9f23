//! MP4 (M4A): the packets of its first sound, which is ALAC. Nothing is decoded here.
//!
//! The length is FFmpeg's: the durations of all packets, less what the edit list leaves out at the start. AAC, fragments
//! and files with several edits are refused by name.

use std::ops::Range;

use super::{SoundCoding, SoundHeader, big, big_at, cut, not_read};
use crate::Defect;

fn defect(reason: impl std::fmt::Display) -> Defect {
    Defect(format!("cannot read the MP4 file: {reason}"))
}

/// A box's name and body.
type NamedBox<'f> = ([u8; 4], &'f [u8]);

/// The boxes of a range, in order.
struct Boxes<'f>(&'f [u8]);

impl<'f> Boxes<'f> {
    fn next(&mut self) -> Result<Option<NamedBox<'f>>, Defect> {
        let Some(head) = self.0.first_chunk::<8>() else { return Ok(None) };
        let name = [head[4], head[5], head[6], head[7]];
        let (start, end) = match big(&head[..4]) {
            0 => (8, self.0.len() as u64),
            1 => (16, big_at(self.0, 8, 8)?),
            size => (8, size),
        };
        let end = usize::try_from(end).ok().filter(|end| *end >= start && *end <= self.0.len());
        let end = end.ok_or_else(cut)?;
        let body = &self.0[start..end];
        self.0 = &self.0[end..];
        Ok(Some((name, body)))
    }

    /// The first box of a name.
    fn find(body: &'f [u8], wanted: [u8; 4]) -> Result<Option<&'f [u8]>, Defect> {
        let mut boxes = Self(body);
        while let Some((name, body)) = boxes.next()? {
            if name == wanted {
                return Ok(Some(body));
            }
        }
        Ok(None)
    }

    fn require(body: &'f [u8], wanted: [u8; 4]) -> Result<&'f [u8], Defect> {
        Self::find(body, wanted)?
            .ok_or_else(|| defect(format!("it has no box `{}`", String::from_utf8_lossy(&wanted))))
    }
}

/// The most packets of a file: ten hours of the shortest that encoders make.
const MOST_PACKETS: u64 = 1 << 24;

/// The sound of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mp4 {
    /// What the decoder of ALAC needs to know.
    pub cookie: Vec<u8>,
    /// Its channels.
    pub channels: u16,
    /// Samples a second.
    pub rate: u32,
    /// Samples before the sound.
    pub skipped: u64,
    /// Samples of the sound.
    pub samples: u64,
    /// The places of its packets in the file, in order.
    pub packets: Vec<Range<usize>>,
    /// How many packets have how many samples each.
    pub durations: Vec<(u64, u64)>,
}

impl Mp4 {
    /// Finds the packets.
    ///
    /// # Errors
    /// There is no sound of a coding that is read, or the file lacks bytes.
    pub fn read(file: &[u8]) -> Result<Self, Defect> {
        let movie = Boxes::require(file, *b"moov")?;
        if Boxes::find(movie, *b"mvex")?.is_some() {
            return Err(Defect(not_read("a fragmented MP4 file")));
        }
        let scale = times(Boxes::require(movie, *b"mvhd")?)?.0;
        let mut boxes = Boxes(movie);
        while let Some((name, track)) = boxes.next()? {
            if name == *b"trak" {
                let media = Boxes::require(track, *b"mdia")?;
                let handler = Boxes::require(media, *b"hdlr")?;
                if handler.get(8..12) == Some(b"soun") {
                    return Self::track(file, track, media, scale);
                }
            }
        }
        Err(defect("it has no sound"))
    }

    fn track(file: &[u8], track: &[u8], media: &[u8], movie: u64) -> Result<Self, Defect> {
        let (scale, _) = times(Boxes::require(media, *b"mdhd")?)?;
        let tables = Boxes::require(Boxes::require(media, *b"minf")?, *b"stbl")?;
        let (cookie, channels, rate) = alac(Boxes::require(tables, *b"stsd")?)?;
        if scale != u64::from(rate) {
            return Err(Defect(not_read("an MP4 file whose times are not in samples")));
        }
        let packets = places(file.len(), tables)?;
        let durations = durations(Boxes::require(tables, *b"stts")?, packets.len() as u64)?;
        let all: u64 = durations.iter().map(|(count, each)| count * each).sum();
        let skipped = match Boxes::find(track, *b"edts")? {
            Some(edits) => skipped(Boxes::require(edits, *b"elst")?, movie)?,
            None => 0,
        };
        let samples = all.saturating_sub(skipped);
        Ok(Self { cookie, channels, rate, skipped, samples, packets, durations })
    }

    /// The packet that holds a sample, and the sample at which it begins.
    pub fn packet_of(&self, sample: u64) -> (usize, u64) {
        let (mut packet, mut start) = (0, 0);
        for (count, each) in &self.durations {
            let within = (sample - start).checked_div(*each).unwrap_or(*count);
            if within < *count {
                let whole = usize::try_from(within).unwrap_or(usize::MAX);
                return (packet + whole, start + within * each);
            }
            packet += usize::try_from(*count).unwrap_or(usize::MAX);
            start += count * each;
        }
        (self.packets.len(), start)
    }

    /// As [`SoundHeader::read`].
    pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
        Self::read(file).map(|Self { channels, rate, samples, .. }| SoundHeader {
            coding: SoundCoding::Alac,
            channels,
            rate,
            frames: Some(samples),
            data: 0..file.len(),
        })
    }
}

/// The units a second and the duration of a header of a movie or of a track's media.
fn times(body: &[u8]) -> Result<(u64, u64), Defect> {
    match body.first() {
        Some(0) => Ok((big_at(body, 12, 4)?, big_at(body, 16, 4)?)),
        Some(1) => Ok((big_at(body, 20, 4)?, big_at(body, 24, 8)?)),
        _ => Err(cut()),
    }
}

/// The cookie, channels and rate of the first description, which is ALAC.
fn alac(descriptions: &[u8]) -> Result<(Vec<u8>, u16, u32), Defect> {
    let (name, body) = Boxes(descriptions.get(8..).unwrap_or_default()).next()?.ok_or_else(cut)?;
    match &name {
        b"alac" => {}
        b"mp4a" => {
            return Err(Defect(
                "AAC (M4A) is not read: convert the file to FLAC, Opus or MP3, such as by `ffmpeg -i a.m4a a.flac`".to_owned(),
            ));
        }
        name => {
            let name = String::from_utf8_lossy(name);
            return Err(Defect(not_read(&format!("`{}` in an MP4 file", name.escape_debug()))));
        }
    }
    // QuickTime's second and third versions have more numbers before the boxes.
    let more = match big_at(body, 8, 2)? {
        0 => 0,
        1 => 16,
        _ => return Err(Defect(not_read("ALAC in an MP4 file of QuickTime's version 2"))),
    };
    let inner = body.get(28 + more..).ok_or_else(cut)?;
    let cookie = Boxes::require(inner, *b"alac")?.get(4..).ok_or_else(cut)?;
    if cookie.len() < 24 {
        return Err(cut());
    }
    let rate = u32::try_from(big_at(cookie, 20, 4)?).unwrap_or(0);
    Ok((cookie.to_vec(), u16::from(cookie[9]), rate))
}

/// The samples that an edit list leaves out at the start.
fn skipped(list: &[u8], movie: u64) -> Result<u64, Defect> {
    let several = || Defect(not_read("an MP4 file with several edits or a later start"));
    let is_long = list.first() == Some(&1);
    let count = big_at(list, 4, 4)?;
    let (start, unset) = if is_long {
        (big_at(list, 16, 8)?, u64::MAX)
    } else {
        (big_at(list, 12, 4)?, u32::MAX.into())
    };
    if count != 1 || start == unset || movie == 0 {
        return Err(several());
    }
    Ok(start)
}

/// How many packets have which duration.
fn durations(table: &[u8], packets: u64) -> Result<Vec<(u64, u64)>, Defect> {
    let entries = table.get(8..).ok_or_else(cut)?.as_chunks::<8>().0;
    let count = usize::try_from(big_at(table, 4, 4)?).unwrap_or(usize::MAX);
    let entries = entries.get(..count).ok_or_else(cut)?;
    let all: Vec<_> = entries.iter().map(|entry| (big(&entry[..4]), big(&entry[4..]))).collect();
    if all.iter().map(|(count, _)| count).sum::<u64>() != packets {
        return Err(defect("its tables have different numbers of packets"));
    }
    Ok(all)
}

/// Where the packets are.
fn places(file_bytes: usize, tables: &[u8]) -> Result<Vec<Range<usize>>, Defect> {
    let sizes = Boxes::require(tables, *b"stsz")?;
    let (fixed, count) = (big_at(sizes, 4, 4)?, big_at(sizes, 8, 4)?);
    let listed = sizes.get(12..).unwrap_or_default().as_chunks::<4>().0;
    if count > MOST_PACKETS
        || (fixed == 0 && count > listed.len() as u64)
        || count > file_bytes as u64
    {
        return Err(cut());
    }
    let (offsets, wide) = match Boxes::find(tables, *b"stco")? {
        Some(table) => (table, 4),
        None => (Boxes::require(tables, *b"co64")?, 8),
    };
    let offsets = offsets.get(8..).unwrap_or_default();
    let runs = Boxes::require(tables, *b"stsc")?.get(8..).unwrap_or_default().as_chunks::<12>().0;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut places = Vec::with_capacity(count);
    let mut run = runs.iter().peekable();
    let mut each = 0;
    for (chunk, offset) in (1_u64..).zip(offsets.chunks_exact(wide)) {
        if let Some(next) = run.next_if(|next| big(&next[..4]) <= chunk) {
            each = big(&next[4..8]);
        }
        let mut start = big(offset);
        for _ in 0..each {
            if places.len() == count {
                break;
            }
            let size = if fixed > 0 { fixed } else { big(&listed[places.len()]) };
            let end = start.checked_add(size).filter(|end| *end <= file_bytes as u64);
            let end = end.ok_or_else(cut)?;
            let place = |at: u64| usize::try_from(at).unwrap_or(file_bytes);
            places.push(place(start)..place(end));
            start = end;
        }
    }
    if places.len() == count { Ok(places) } else { Err(cut()) }
}
