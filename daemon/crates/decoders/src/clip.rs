//! Decodes a clip: which packets are sent, which pictures are wanted, and what is a defect.
//!
//! Every packet of the clip is sent in its order. A picture is delivered once, when its time is wanted. A packet that the
//! decoder refuses, a picture whose pixels it has made up, and a wanted picture that lacks references or does not come
//! are defects of the sample. A picture that is only decoded on the way may lack references: a stream that is refreshed
//! bit by bit begins with such pictures. So may pictures shown before the packet at which decoding began.

use std::collections::BTreeSet;

use forebay_video::clip::{Clip, Packet};
use forebay_video::codec::Codec;

use crate::frames::{Frame, Frames};
use crate::library::Library;
use crate::stream::{Decoder, Picture, Sent, StreamError};

/// Why a clip has no pictures, or a sound no samples. Lowercase, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Defect {
    reason: String,
    cause: Cause,
}

/// What is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Clip,
    Memory,
    Library,
}

impl Defect {
    pub(crate) fn new(reason: String) -> Self {
        Self { reason, cause: Cause::Clip }
    }

    pub(crate) fn of(error: &StreamError, place: &str) -> Self {
        match error {
            // Says itself which codec.
            StreamError::Missing(missing) => {
                Self { reason: missing.to_string(), cause: Cause::Library }
            }
            StreamError::Memory => {
                Self { reason: format!("{place}: {error}"), cause: Cause::Memory }
            }
            StreamError::Refused(_) => Self::new(format!("{place}: {error}")),
        }
    }

    /// Whether memory was refused, which may be had in another process.
    #[must_use]
    pub const fn is_memory(&self) -> bool {
        matches!(self.cause, Cause::Memory)
    }

    /// Whether this library decodes no clip of the codec.
    #[must_use]
    pub const fn is_of_library(&self) -> bool {
        matches!(self.cause, Cause::Library)
    }
}

/// Takes the planes of the pictures, row by row, without gaps, or the frames of a sound.
pub trait Output {
    /// Appends bytes.
    ///
    /// # Errors
    /// There is no room.
    fn append(&mut self, row: &[u8]) -> Result<(), String>;
}

/// Decodes the wanted pictures of a clip into `output`; returns their head.
///
/// # Errors
/// The library has no decoder, or the clip is defective.
pub fn decode(
    library: &Library,
    clip: &Clip<'_>,
    max_pixels: u64,
    output: &mut dyn Output,
) -> Result<Frames, Defect> {
    let mut decoder = Decoder::open(library, clip.codec, configuration(clip), max_pixels)
        .map_err(|error| Defect::of(&error, clip.codec.name()))?;
    if clip.codec == Codec::H264 {
        decoder.set_reordering(reordering(&clip.packets));
    }
    let wanted: BTreeSet<i64> = clip.wanted.iter().copied().collect();
    let mut delivery = Delivery {
        clip,
        left: wanted.clone(),
        frames: Frames::default(),
        end: 0,
        begin: i64::MIN,
        output,
    };
    let mut is_first = true;
    for packet in &clip.packets {
        if packet.restarts {
            if !is_first {
                delivery.drain(&mut decoder)?;
                decoder.flush();
            }
            delivery.begin = packet.pts;
            if clip.codec == Codec::H264 {
                decoder.set_strict(is_closed(&clip.configuration, clip.bytes(packet)));
            }
        }
        if delivery.left.is_empty() {
            break;
        }
        is_first = false;
        // H.264 alone says for certain that no other picture needs one: in HEVC those of higher layers still may.
        if clip.codec == Codec::H264 {
            decoder.skip_unreferenced(!wanted.contains(&packet.pts));
        }
        let sent = Sent {
            bytes: clip.bytes(packet),
            pts: packet.pts,
            dts: packet.dts,
            is_key: packet.key,
            is_discarded: packet.discard,
        };
        decoder.send(sent).map_err(|error| delivery.of_packet(packet, &error))?;
        delivery.receive_all(&mut decoder)?;
    }
    if !delivery.left.is_empty() {
        delivery.drain(&mut decoder)?;
    }
    match delivery.left.first() {
        Some(pts) => Err(Defect::new(format!(
            "{}: no picture comes for the time {:.6} s",
            clip.codec.name(),
            clip.time_base.seconds(*pts)
        ))),
        None => Ok(delivery.frames),
    }
}

/// The configuration as libavcodec takes it: that of VP8 and VP9 in a container is not for decoders.
fn configuration<'c>(clip: &'c Clip<'_>) -> &'c [u8] {
    match clip.codec {
        Codec::Vp8 | Codec::Vp9 => &[],
        _ => &clip.configuration,
    }
}

/// Whether no picture before this one of H.264 is referred to afterwards: it is an IDR. After another key picture, with which
/// an open group begins, encoders name pictures of the group before to be forgotten, which is no error if they were never
/// decoded.
fn is_closed(configuration: &[u8], packet: &[u8]) -> bool {
    const SLICE: u8 = 1;
    const IDR_SLICE: u8 = 5;
    let Some([1, _, _, _, lengths, ..]) = configuration.first_chunk::<5>() else {
        // Units between start codes.
        let mut units = packet.windows(4).filter(|bytes| bytes.starts_with(&[0, 0, 1]));
        let slice = units.find(|bytes| [SLICE, IDR_SLICE].contains(&(bytes[3] & 31)));
        return slice.is_none_or(|bytes| bytes[3] & 31 == IDR_SLICE);
    };
    let mut rest = packet;
    while let Some((length, after)) = rest.split_at_checked(usize::from(lengths & 3) + 1) {
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        match after.first().map(|byte| byte & 31) {
            Some(IDR_SLICE) => return true,
            Some(SLICE) => return false,
            _ => rest = after.get(length..).unwrap_or_default(),
        }
    }
    true
}

/// The most pictures that a picture overtakes between decoding and showing.
fn reordering(packets: &[Packet]) -> usize {
    let mut most = 0;
    let mut begin = 0;
    for (number, packet) in packets.iter().enumerate() {
        if packet.restarts {
            begin = number;
        }
        // References are at most 16 pictures back, so that no more have to be looked at.
        let near = &packets[begin.max(number.saturating_sub(MAX_REORDERING * 2))..number];
        most = most.max(near.iter().filter(|other| other.pts > packet.pts).count());
    }
    most.min(MAX_REORDERING)
}

/// As H.264 allows.
const MAX_REORDERING: usize = 16;

/// The pictures that have been delivered, and those still wanted.
struct Delivery<'c, 'o> {
    clip: &'c Clip<'c>,
    left: BTreeSet<i64>,
    frames: Frames,
    /// The bytes appended so far.
    end: u64,
    /// The time of the packet at which decoding began last.
    begin: i64,
    output: &'o mut dyn Output,
}

impl Delivery<'_, '_> {
    fn of_packet(&self, packet: &Packet, error: &StreamError) -> Defect {
        let clip = self.clip;
        let (name, seconds) = (clip.codec.name(), clip.time_base.seconds(packet.pts));
        let length = packet.length;
        Defect::of(
            error,
            &format!("{name}: the packet of the picture at {seconds:.6} s, {length} bytes"),
        )
    }

    fn of_decoder(&self, error: &StreamError) -> Defect {
        Defect::of(error, self.clip.codec.name())
    }

    fn drain(&mut self, decoder: &mut Decoder<'_>) -> Result<(), Defect> {
        decoder.finish().map_err(|error| self.of_decoder(&error))?;
        self.receive_all(decoder)
    }

    fn receive_all(&mut self, decoder: &mut Decoder<'_>) -> Result<(), Defect> {
        loop {
            match decoder.receive() {
                Ok(None) => return Ok(()),
                Ok(Some(picture)) => self.take(&picture)?,
                Err(error) => return Err(self.of_decoder(&error)),
            }
        }
    }

    fn take(&mut self, picture: &Picture<'_>) -> Result<(), Defect> {
        let clip = self.clip;
        let seconds = || clip.time_base.seconds(picture.pts);
        let is_wanted = self.left.remove(&picture.pts);
        // Made-up pixels go on into the pictures that refer to them. Those that come before the stream is whole do not,
        // if its encoder refreshes it bit by bit: the decoder says of each picture whether it is whole.
        let is_corrupt = picture.is_made_up || is_wanted && picture.lacks_references;
        if is_corrupt && picture.pts >= self.begin {
            let name = clip.codec.name();
            return Err(Defect::new(format!(
                "{name}: the picture at {:.6} s is corrupt",
                seconds()
            )));
        }
        if !is_wanted {
            return Ok(());
        }
        let (width, height) = picture.size;
        let (format, colors) = (picture.format, picture.colors);
        let frame = Frame { pts: picture.pts, width, height, format, colors, at: self.end };
        for plane in 0..format.planes() {
            for row in picture.rows(plane) {
                self.output.append(row).map_err(Defect::new)?;
            }
        }
        self.end += frame.bytes() as u64;
        self.frames.frames.push(frame);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_closed_if_its_first_slice_is_an_idr() {
        let lengths = [1, 100, 0, 31, 0xff, 0xe1];
        let units = |units: &[&[u8]]| -> Vec<u8> {
            let unit =
                |unit: &&[u8]| [&[0, 0, 0, u8::try_from(unit.len()).unwrap()], *unit].concat();
            units.iter().flat_map(unit).collect()
        };
        // An SEI before the slice.
        let idr = units(&[&[6, 5, 1], &[0x65, 9, 9]]);
        let open = units(&[&[6, 5, 1], &[0x41, 9, 9], &[0x65, 9]]);
        assert!(is_closed(&lengths, &idr) && !is_closed(&lengths, &open));
        let codes = |kind| [0, 0, 0, 1, 9, 16, 0, 0, 1, kind, 7, 7];
        assert!(is_closed(&[], &codes(0x65)) && !is_closed(&[], &codes(0x41)));
        // Damage is judged strictly.
        for length in 0..open.len() {
            let _ = is_closed(&lengths, &open[length..]);
        }
        assert!(is_closed(&lengths, &[]) && is_closed(&lengths, &[0xff; 9]) && is_closed(&[], &[]));
    }
}
