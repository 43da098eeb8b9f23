//! A clip: what a decoder receives to make some frames of a video.
//!
//! The side that has the video's [table](crate) chooses the frames and the packets that they need; the decoder knows
//! neither files nor tables. What holds for every clip, and what [`Clip::from_bytes`] checks:
//! * The packets are in the order of decoding. The first one is a key packet.
//! * A packet with [`restarts`](Packet::restarts) does not follow the one before it in the file: the decoder delivers
//!   what it holds and forgets all packets (`flush`). It is a key packet. The first packet restarts.
//! * Packets that cannot be decoded without others, such as the leading pictures of an open group, are left out.
//! * Each [wanted](Clip::wanted) time is the `pts` of at least one packet that is not discarded. Times are in the order
//!   of the tensor's frames: they may repeat, for a short video, and may go back, for several clips.
//! * A [discarded](Packet::discard) packet is decoded and its frame is not delivered: an edit list leaves it out.
//!
//! The decoder feeds the packets in order, flushes at the end and before each restart, and gives, for each wanted time,
//! the frame with this `pts`. A wanted frame that does not come, or that the decoder flags as corrupt, is a defect of
//! the sample. Frames that are not wanted are dropped.
//!
//! A clip borrows what it is made of. Its bytes are a head, then the packets' bytes as they are in the file: a process
//! that shares memory with another one can pass both without copying ([`Clip::write_head`], [`Clip::of_parts`]).

mod limits;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use crate::codec::{Codec, Color, Rotation, TimeBase};
use crate::error::{Result, refuse};
use crate::varint::{self, Reader};

pub use limits::{MAX_CONFIGURATION_BYTES, MAX_PACKETS, MAX_SIDE, MAX_WANTED};

/// The first bytes of a clip's head: its name and version.
const MAGIC: [u8; 4] = *b"FVC\x01";

const KEY: u8 = 1;
const DISCARD: u8 = 2;
const RESTARTS: u8 = 4;

/// The packets that some frames need, and the times of these frames. See the module's head for what always holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip<'a> {
    /// What the packets are coded with.
    pub codec: Codec,
    /// The decoder's configuration, as [`Codec`] says for each codec (`extradata` of FFmpeg).
    pub configuration: Cow<'a, [u8]>,
    /// The width that the file announces, in pixels, before the rotation. The decoder's own width comes first.
    pub width: u32,
    /// The height that the file announces, in pixels, before the rotation.
    pub height: u32,
    /// How numbers are colours, as the file says.
    pub color: Color,
    /// The turn with which frames are to be shown.
    pub rotation: Rotation,
    /// The clock of all times.
    pub time_base: TimeBase,
    /// In the order of decoding.
    pub packets: Vec<Packet>,
    /// The presentation time of each frame of the result, in its order.
    pub wanted: Vec<i64>,
    /// The bytes that contain all packets, and possibly others between them.
    pub data: Cow<'a, [u8]>,
}

/// One packet of a clip. Times are ticks of the clip's [clock](Clip::time_base).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When its frame is shown. Edit lists are applied: it may be negative for a discarded packet.
    pub pts: i64,
    /// When it is decoded. Containers without this number have a made one that does not decrease.
    pub dts: i64,
    /// How long its frame is shown; 0: unknown.
    pub duration: u32,
    /// Where its bytes begin in the clip's [data](Clip::data).
    pub start: u32,
    /// The number of its bytes.
    pub length: u32,
    /// Whether decoding can begin here.
    pub key: bool,
    /// Whether its frame is decoded but never delivered.
    pub discard: bool,
    /// Whether the packet before it in the clip is not the one before it in the file.
    pub restarts: bool,
}

impl Packet {
    /// The place of its bytes in the clip's data.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.length as usize
    }
}

impl<'a> Clip<'a> {
    /// The bytes of a packet of this clip; empty for a packet of another one.
    #[must_use]
    pub fn bytes(&self, packet: &Packet) -> &[u8] {
        self.data.get(packet.range()).unwrap_or_default()
    }

    /// Appends all but the packets' bytes.
    pub fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.push(self.codec as u8);
        out.push(self.rotation as u8);
        varint::put(out, self.width.into());
        varint::put(out, self.height.into());
        self.color.write(out);
        self.time_base.write(out);
        varint::put_bytes(out, &self.configuration);
        varint::put(out, self.packets.len() as u64);
        let (mut dts, mut end) = (0_i64, 0_i64);
        for packet in &self.packets {
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = [(packet.key, KEY), (packet.discard, DISCARD), (packet.restarts, RESTARTS)];
            out.push(flags.iter().fold(0, |all, (is_set, bit)| all | flag(*is_set, *bit)));
            varint::put_signed(out, packet.dts.wrapping_sub(dts));
            varint::put_signed(out, packet.pts.wrapping_sub(packet.dts));
            varint::put(out, packet.duration.into());
            varint::put_signed(out, i64::from(packet.start) - end);
            varint::put(out, packet.length.into());
            dts = packet.dts;
            end = i64::from(packet.start) + i64::from(packet.length);
        }
        varint::put(out, self.wanted.len() as u64);
        let mut before = 0_i64;
        for wanted in &self.wanted {
            varint::put_signed(out, wanted.wrapping_sub(before));
            before = *wanted;
        }
    }

    /// The clip as bytes: the number of the head's bytes as a little-endian u32, the head, the packets' bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        self.write_head(&mut out);
        let head = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&head.to_le_bytes());
        out.extend_from_slice(&self.data);
        out
    }

    /// The clip of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// The bytes are not those of a clip, or what the module's head says does not hold.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self> {
        let split = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        match split {
            Some((head, data)) => Self::of_parts(head, data),
            None => refuse!("a clip of {} bytes ends in its head", bytes.len()),
        }
    }

    /// The clip of a head and the packets' bytes.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn of_parts(head: &'a [u8], data: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(head);
        if reader.bytes(MAGIC.len())? != MAGIC {
            return refuse!("not a clip, or one of another version");
        }
        let code = reader.byte()?;
        let Some(codec) = Codec::of_code(code) else {
            return refuse!("a clip has the unknown codec {code}");
        };
        let rotation = Rotation::of_quarters(reader.byte()?);
        let width = reader.up_to(MAX_SIDE, "pixels of width")?;
        let height = reader.up_to(MAX_SIDE, "pixels of height")?;
        let color = Color::read(&mut reader)?;
        let time_base = TimeBase::read(&mut reader)?;
        let configuration =
            reader.counted_bytes(MAX_CONFIGURATION_BYTES, "bytes of configuration")?.into();
        let packets = read_packets(&mut reader)?;
        let wanted = read_wanted(&mut reader)?;
        if !reader.rest().is_empty() {
            return refuse!("a clip's head has {} bytes too many", reader.rest().len());
        }
        let data = data.into();
        let clip = Self {
            codec,
            configuration,
            width,
            height,
            color,
            rotation,
            time_base,
            packets,
            wanted,
            data,
        };
        clip.check()?;
        Ok(clip)
    }

    /// Checks what the module's head says.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<()> {
        let bytes = self.data.len();
        for (number, packet) in self.packets.iter().enumerate() {
            if packet.length == 0 || self.data.get(packet.range()).is_none() {
                let Range { start, end } = packet.range();
                return refuse!("packet {number} is at {start}..{end} of {bytes} bytes");
            }
            if (packet.restarts || number == 0) && !(packet.restarts && packet.key) {
                return refuse!("decoding cannot begin with packet {number} of the clip");
            }
        }
        let shown = self.packets.iter().filter(|packet| !packet.discard).map(|packet| packet.pts);
        let mut shown: Vec<_> = shown.collect();
        shown.sort_unstable();
        match self.wanted.iter().find(|wanted| shown.binary_search(wanted).is_err()) {
            Some(wanted) => refuse!("no packet has the frame at {wanted}"),
            None => Ok(()),
        }
    }
}

fn read_packets(reader: &mut Reader<'_>) -> Result<Vec<Packet>> {
    let count = reader.up_to(MAX_PACKETS, "packets")?;
    let (mut dts, mut end) = (0_i64, 0_i64);
    let mut packets = Vec::with_capacity((count as usize).min(reader.rest().len() / 6));
    for number in 0..count {
        let flags = reader.byte()?;
        dts = dts.wrapping_add(reader.signed()?);
        let pts = dts.wrapping_add(reader.signed()?);
        let duration = reader.up_to(u32::MAX, "ticks of duration")?;
        let start = reader.signed()?;
        let length = reader.up_to(u32::MAX, "bytes of a packet")?;
        let Ok(start) = u32::try_from(end.saturating_add(start)) else {
            return refuse!("packet {number} of the clip is outside of its bytes");
        };
        end = i64::from(start) + i64::from(length);
        let [key, discard, restarts] = [KEY, DISCARD, RESTARTS].map(|flag| flags & flag != 0);
        packets.push(Packet { pts, dts, duration, start, length, key, discard, restarts });
    }
    Ok(packets)
}

fn read_wanted(reader: &mut Reader<'_>) -> Result<Vec<i64>> {
    let count = reader.up_to(MAX_WANTED, "frames")?;
    let mut before = 0_i64;
    let mut wanted = Vec::with_capacity((count as usize).min(reader.rest().len()));
    for _ in 0..count {
        before = before.wrapping_add(reader.signed()?);
        wanted.push(before);
    }
    Ok(wanted)
}
