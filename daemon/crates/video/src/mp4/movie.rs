//! `moov`: the tracks of a file.

use super::boxes::{Numbers, Part, find, parts};
use super::description::Description;
use super::edits::{self, Edit};
use super::fragments::Extends;
use super::left::Left;
use super::samples::{self, Sample};
use crate::codec::{Rotation, TimeBase};
use crate::error::{Result, refuse};
use crate::table::{MAX_STREAMS, Media, Packet, Stream, Table};

/// The matrix of a picture that is shown as it is.
const IDENTITY: Matrix = [0x1_0000, 0, 0, 0x1_0000];

/// The part of a display matrix that turns, row by row, in 16.16 fixed point.
type Matrix = [i32; 4];

/// What `moov` and the fragments say.
#[derive(Debug)]
pub(super) struct Movie {
    /// Ticks a second of edit lists.
    scale: u32,
    pub(super) tracks: Vec<Track>,
    pub(super) extends: Vec<Extends>,
    is_fragmented: bool,
    pub(super) left: Left,
}

/// A track of the file.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) id: u32,
    /// Ticks a second.
    scale: u32,
    rotation: Rotation,
    edits: Vec<Edit>,
    /// What it is coded with, or the name of what is not read.
    pub(super) description: Result<Description, String>,
    samples: Vec<Sample>,
    /// What is taken off all decoding times, since a frame is shown before its time: a positive number of ticks.
    pub(super) shift: i64,
    /// The packets of fragments.
    pub(super) fragments: Vec<Packet>,
    /// Where the next fragment begins, if it does not say so.
    pub(super) end: i64,
}

impl Movie {
    /// Reads `moov`, of a file of so many bytes.
    pub(super) fn read(body: &[u8], file_bytes: u64) -> Result<Self> {
        let mut scale = 0;
        let mut matrix = IDENTITY;
        let left = Left::of_file(file_bytes);
        let mut movie =
            Self { scale, tracks: Vec::new(), extends: Vec::new(), is_fragmented: false, left };
        for part in parts(body) {
            let Part { kind, body } = part?;
            match &kind {
                b"mvhd" => {
                    let (mut numbers, version, _) = Numbers::versioned(kind, body)?;
                    numbers.bytes(if version == 1 { 16 } else { 8 })?;
                    scale = numbers.u32()?;
                    numbers.wide(version)?;
                    // Rate, volume, reserved.
                    numbers.bytes(16)?;
                    matrix = read_matrix(&mut numbers)?;
                }
                b"trak" => {
                    if movie.tracks.len() >= MAX_STREAMS as usize {
                        return refuse!("it has more than {MAX_STREAMS} tracks");
                    }
                    movie.tracks.push(Track::read(body, matrix, &mut movie.left)?);
                }
                b"mvex" => {
                    movie.is_fragmented = true;
                    for part in parts(body) {
                        let Part { kind, body } = part?;
                        if kind == *b"trex" {
                            movie.extends.push(Extends::read(body)?);
                        }
                    }
                }
                b"cmov" => return refuse!("its header is compressed (`cmov`), which is not read"),
                _ => {}
            }
        }
        movie.scale = scale;
        Ok(movie)
    }

    pub(super) const fn is_fragmented(&self) -> bool {
        self.is_fragmented
    }

    /// What is taken off the times of a track's fragments: where its edit list begins.
    pub(super) fn start_of(&self, track: usize) -> i64 {
        self.tracks
            .get(track)
            .map_or(0, |track| edits::start(&track.edits, track.scale, self.scale))
    }

    /// The table.
    pub(super) fn finish(self) -> Result<Table> {
        let mut table = Table::default();
        let mut left = Left::of_file(self.left.file_bytes());
        for (number, track) in (0..).zip(self.tracks) {
            let description = match &track.description {
                Ok(description) => description.clone(),
                Err(name) => {
                    table.unknown.push(name.clone());
                    continue;
                }
            };
            let is_video = description.codec.is_video();
            let timing = edits::Timing {
                edits: &track.edits,
                scale: track.scale,
                movie_scale: self.scale,
                shift: track.shift,
                codec: description.codec,
            };
            let (mut packets, skipped) = timing.packets(&track.samples, &mut left)?;
            left.take(track.fragments.len(), 0)?;
            packets.extend(
                track.fragments.iter().map(|packet| Packet {
                    pts: packet.pts.saturating_add(track.shift),
                    ..*packet
                }),
            );
            let media = match description.media {
                Media::Video { width, height, color, .. } => {
                    Media::Video { width, height, color, rotation: track.rotation }
                }
                Media::Audio { rate, channels, .. } => Media::Audio { rate, channels, skipped },
            };
            debug_assert_eq!(is_video, matches!(media, Media::Video { .. }));
            table.streams.push(Stream {
                number,
                codec: description.codec,
                configuration: description.configuration,
                media,
                time_base: TimeBase { numerator: 1, denominator: track.scale },
                packets,
            });
        }
        Ok(table)
    }
}

impl Track {
    fn read(body: &[u8], movie: Matrix, left: &mut Left) -> Result<Self> {
        let mut track = Self {
            id: 0,
            scale: 1,
            rotation: Rotation::None,
            edits: Vec::new(),
            description: Err("a track without a description".to_owned()),
            samples: Vec::new(),
            shift: 0,
            fragments: Vec::new(),
            end: 0,
        };
        for part in parts(body) {
            let Part { kind, body } = part?;
            match &kind {
                b"tkhd" => track.read_header(body, movie)?,
                b"edts" => {
                    if let Some(list) = find(body, b"elst")? {
                        track.edits = edits::read(list)?;
                    }
                }
                b"mdia" => track.read_media(body, left)?,
                _ => {}
            }
        }
        Ok(track)
    }

    /// When the last packet outside of fragments is decoded.
    pub(super) fn samples_end(&self) -> Option<i64> {
        self.samples.last().map(|last| last.dts.saturating_sub(self.shift))
    }

    fn read_header(&mut self, body: &[u8], movie: Matrix) -> Result<()> {
        let (mut numbers, version, _) = Numbers::versioned(*b"tkhd", body)?;
        numbers.bytes(if version == 1 { 16 } else { 8 })?;
        self.id = numbers.u32()?;
        numbers.u32()?;
        numbers.wide(version)?;
        // Reserved, layer, group, volume.
        numbers.bytes(16)?;
        self.rotation = rotation(product(read_matrix(&mut numbers)?, movie));
        Ok(())
    }

    fn read_media(&mut self, body: &[u8], left: &mut Left) -> Result<()> {
        let mut handler = *b"    ";
        let mut information = None;
        for part in parts(body) {
            let Part { kind, body } = part?;
            match &kind {
                b"mdhd" => {
                    let (mut numbers, version, _) = Numbers::versioned(kind, body)?;
                    numbers.bytes(if version == 1 { 16 } else { 8 })?;
                    self.scale = numbers.u32()?;
                }
                b"hdlr" => {
                    let (mut numbers, ..) = Numbers::versioned(kind, body)?;
                    numbers.u32()?;
                    handler = numbers.u32()?.to_be_bytes();
                }
                b"minf" => information = Some(body),
                _ => {}
            }
        }
        let table = match information {
            Some(information) => find(information, b"stbl")?,
            None => None,
        };
        let Some(table) = table else { return Ok(()) };
        let description = find(table, b"stsd")?.unwrap_or_default();
        self.description = Description::read(handler, description)?;
        if self.description.is_err() {
            return Ok(());
        }
        if self.scale == 0 {
            return refuse!("a track's clock has no ticks (`mdhd`)");
        }
        if let Some(information) = information {
            check_references(information)?;
        }
        (self.samples, self.shift) = samples::read(table, left)?;
        self.end =
            self.samples.last().map_or(0, |last| last.dts.saturating_add(last.duration.into()));
        Ok(())
    }
}

/// Refuses media in other files.
fn check_references(information: &[u8]) -> Result<()> {
    let references = match find(information, b"dinf")? {
        Some(body) => find(body, b"dref")?,
        None => None,
    };
    let Some(body) = references else { return Ok(()) };
    let (mut numbers, ..) = Numbers::versioned(*b"dref", body)?;
    numbers.u32()?;
    for part in parts(numbers.rest()) {
        let Part { kind, body } = part?;
        let (.., flags) = Numbers::versioned(kind, body)?;
        if flags & 1 == 0 {
            return refuse!("its media is in another file (`dref`), which is not read");
        }
    }
    Ok(())
}

fn read_matrix(numbers: &mut Numbers<'_>) -> Result<Matrix> {
    let mut row = || -> Result<[i32; 2]> {
        let row = [numbers.i32()?, numbers.i32()?];
        numbers.i32()?;
        Ok(row)
    };
    let ([a, b], [c, d]) = (row()?, row()?);
    Ok([a, b, c, d])
}

/// Both turns, one after the other.
fn product(first: Matrix, second: Matrix) -> Matrix {
    let [a, b, c, d] = first.map(i64::from);
    let [e, f, g, h] = second.map(i64::from);
    let narrow = |sum: i64| i32::try_from(sum >> 16).unwrap_or(0);
    let sum = |x: i64, y: i64, z: i64, w: i64| {
        narrow(x.saturating_mul(y).saturating_add(z.saturating_mul(w)))
    };
    [sum(a, e, b, g), sum(a, f, b, h), sum(c, e, d, g), sum(c, f, d, h)]
}

/// The quarter turn that is nearest to a matrix's.
fn rotation([a, b, c, d]: Matrix) -> Rotation {
    let [a, b, c, d] = [a, b, c, d].map(f64::from);
    let (columns, rows) = (a.hypot(c), b.hypot(d));
    if columns == 0.0 || rows == 0.0 {
        return Rotation::None;
    }
    let (cosine, sine) = (a / columns, b / rows);
    match cosine.abs() >= sine.abs() {
        true if cosine >= 0.0 => Rotation::None,
        true => Rotation::Half,
        false if sine >= 0.0 => Rotation::Quarter,
        false => Rotation::ThreeQuarters,
    }
}
