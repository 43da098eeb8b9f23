//! Decodes the packets of a sound to floats, and how a process asks another for that.
//!
//! The library's decoders of sound choose their functions by the processor, which round differently (by 1e-7). Here they
//! use the instructions of a level, so that processors of the same level give the same samples.

use std::borrow::Cow;

use forebay_video::codec::Codec;
use serde::{Deserialize, Serialize};

use crate::clip::{Defect, Output};
use crate::library::Library;
use crate::stream::{Block, Decoder, StreamError};

/// The most channels of a sound.
pub const MAX_SOUND_CHANNELS: u16 = 8;
/// The most bytes that a decoder of sound allocates, the packets apart.
pub const SOUND_WORKING_BYTES: u64 = 24 << 20;
const FLOAT_BYTES: u64 = 4;

/// A part of a sound that is asked for: all packets from the first one on, of which frames at the beginning are dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoundRequest<'r> {
    /// The number of the codec.
    codec: u8,
    /// The decoder's configuration, as [`Codec`] says.
    #[serde(borrow)]
    pub configuration: Cow<'r, [u8]>,
    /// The channels that the file announces.
    pub channels: u16,
    /// The frames a second that the file announces.
    pub rate: u32,
    /// Frames at the beginning that are not returned.
    pub skip: u64,
    /// Frames that are returned.
    pub frames: u64,
    /// The bytes of each packet.
    pub packets: Vec<u32>,
    /// The packets, one after another.
    #[serde(skip)]
    pub data: Cow<'r, [u8]>,
}

impl<'r> SoundRequest<'r> {
    /// Asks for nothing yet.
    #[must_use]
    pub fn new(codec: Codec, configuration: &'r [u8]) -> Self {
        Self {
            codec: codec as u8,
            configuration: configuration.into(),
            channels: 0,
            rate: 0,
            skip: 0,
            frames: 0,
            packets: Vec::new(),
            data: Cow::Borrowed(&[]),
        }
    }

    /// The bytes of the result: floats, frame after frame.
    #[must_use]
    pub fn result_bytes(&self) -> u64 {
        self.frames.saturating_mul(u64::from(self.channels) * FLOAT_BYTES)
    }

    /// All but the packets' bytes.
    #[must_use]
    pub fn head(&self) -> Vec<u8> {
        // No value of these types cannot be written.
        bincode::serde::encode_to_vec(self, bincode::config::standard()).unwrap_or_default()
    }

    /// The request of a head and the packets' bytes.
    ///
    /// # Errors
    /// They do not belong together.
    pub fn of_parts(head: &'r [u8], data: &'r [u8]) -> Result<Self, String> {
        let config = bincode::config::standard();
        let (read, used): (Self, usize) = bincode::serde::borrow_decode_from_slice(head, config)
            .map_err(|error| format!("a request for a sound: {error}"))?;
        let bytes: u64 = read.packets.iter().map(|bytes| u64::from(*bytes)).sum();
        if used != head.len() || bytes != data.len() as u64 {
            return Err("a request for a sound has other packets than it says".to_owned());
        }
        if !(1..=MAX_SOUND_CHANNELS).contains(&read.channels) {
            return Err(format!("a request for a sound of {} channels", read.channels));
        }
        Ok(Self { data: data.into(), ..read })
    }
}

/// Decodes the frames that are asked for into `output`: floats in native order, frame after frame.
///
/// # Errors
/// The library has no decoder, or the sound is defective.
pub fn decode_sound(
    library: &Library,
    request: &SoundRequest<'_>,
    output: &mut dyn Output,
) -> Result<(), Defect> {
    let codec = Codec::of_code(request.codec)
        .ok_or_else(|| Defect::new(format!("the codec {} is not known", request.codec)))?;
    let mut decoder = Decoder::open(library, codec, &request.configuration, 0)
        .map_err(|error| Defect::of(&error, codec.name()))?;
    let mut delivery =
        Delivery { request, skip: request.skip, left: request.frames, row: Vec::new(), output };
    let mut rest = &request.data[..];
    for (number, bytes) in request.packets.iter().enumerate() {
        if delivery.left == 0 {
            break;
        }
        let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
        let (packet, others) = rest.split_at_checked(bytes).unwrap_or((rest, &[]));
        rest = others;
        let place = |error: &StreamError| {
            Defect::of(error, &format!("{}: packet {number}, {bytes} bytes", codec.name()))
        };
        decoder.send_sound(packet).map_err(|error| place(&error))?;
        while let Some(block) = decoder.receive_block().map_err(|error| place(&error))? {
            delivery.take(codec, &block)?;
        }
    }
    match delivery.left {
        0 => Ok(()),
        left => Err(Defect::new(format!("{}: {left} frames are missing", codec.name()))),
    }
}

/// What has been returned, and what is still to come.
struct Delivery<'r, 'o> {
    request: &'r SoundRequest<'r>,
    skip: u64,
    left: u64,
    row: Vec<u8>,
    output: &'o mut dyn Output,
}

impl Delivery<'_, '_> {
    fn take(&mut self, codec: Codec, block: &Block<'_>) -> Result<(), Defect> {
        let SoundRequest { channels, rate, .. } = *self.request;
        let planes = block.planes();
        // One channel may become two, should parametric stereo follow that no header announces.
        let is_doubled = channels == 1 && planes.len() == 2;
        if !is_doubled && planes.len() != usize::from(channels) || block.rate() != i64::from(rate) {
            return Err(Defect::new(format!(
                "{}: a packet has {} channels and {} frames a second, and the file's header says {channels} and {rate}{}",
                codec.name(),
                planes.len(),
                block.rate(),
                if block.rate() == 2 * i64::from(rate) {
                    ": HE-AAC whose header does not say so is not read; convert the file to FLAC, Opus or MP3"
                } else {
                    ""
                }
            )));
        }
        let frames = planes.first().map_or(0, |plane| plane.len());
        let from = usize::try_from(self.skip).unwrap_or(usize::MAX).min(frames);
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(frames - from);
        self.skip -= from as u64;
        self.left -= count as u64;
        self.row.clear();
        let samples = from..from + count;
        let planes: Vec<&[f32]> = planes.iter().map(|plane| &plane[samples.clone()]).collect();
        match *planes {
            [one] => self.row.extend(one.iter().flat_map(|value| value.to_ne_bytes())),
            [left, right] if is_doubled => {
                let mean = |(left, right): (&f32, &f32)| left.midpoint(*right).to_ne_bytes();
                self.row.extend(left.iter().zip(right).flat_map(mean));
            }
            [left, right] => self.row.extend(left.iter().zip(right).flat_map(in_pairs)),
            _ => (0..count).for_each(|at| {
                planes.iter().for_each(|plane| self.row.extend(plane[at].to_ne_bytes()));
            }),
        }
        self.output.append(&self.row).map_err(Defect::new)
    }
}

/// A frame of two channels. As an array of bytes, of which a plane's worth is copied at once.
fn in_pairs((left, right): (&f32, &f32)) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&left.to_ne_bytes());
    bytes[4..].copy_from_slice(&right.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_read_again_and_damage_is_refused() {
        let mut request = SoundRequest::new(Codec::Aac, &[0x12, 0x10]);
        (request.channels, request.rate, request.skip, request.frames) = (2, 44_100, 1024, 99);
        request.packets = vec![2, 1];
        request.data = Cow::Borrowed(&[1, 2, 3]);
        let head = request.head();
        assert_eq!(SoundRequest::of_parts(&head, &[1, 2, 3]), Ok(request.clone()));
        assert_eq!(request.result_bytes(), 99 * 8);
        assert!(SoundRequest::of_parts(&head, &[1, 2]).is_err());
        assert!(SoundRequest::of_parts(&[&head[..], &[0]].concat(), &[1, 2, 3]).is_err());
        for at in 0..head.len() {
            assert!(SoundRequest::of_parts(&head[..at], &[1, 2, 3]).is_err());
            for value in [0, 1, 0x7f, 0x80, 0xfb, 0xfc, 0xfd, 0xff] {
                let mut changed = head.clone();
                changed[at] = value;
                let _ = SoundRequest::of_parts(&changed, &[1, 2, 3]);
            }
        }
        let none = SoundRequest { channels: 0, ..request };
        assert!(SoundRequest::of_parts(&none.head(), &[1, 2, 3]).is_err());
    }
}
