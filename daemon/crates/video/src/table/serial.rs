//! The compact form of a table, kept with a dataset's index: some bytes a packet.
//!
//! A packet is a byte of flags and the numbers that the flags do not make needless: those that follow from the packet
//! before it.

use super::{MAX_PACKETS, MAX_STREAMS, Media, Packet, Stream, Table};
use crate::clip::{MAX_CONFIGURATION_BYTES, MAX_SIDE};
use crate::codec::{Codec, Color, Rotation, TimeBase};
use crate::error::{Refused, Result, refuse};
use crate::varint::{self, Reader};

/// The version of the form, its first byte.
const VERSION: u8 = 1;

/// The longest name of a codec that is not read.
const MAX_NAME_BYTES: u32 = 256;

const KEY: u8 = 1;
const DISCARD: u8 = 2;
/// It begins where the packet before it ends.
const FOLLOWS: u8 = 4;
/// Its `dts` is that of the packet before it and this one's duration.
const STEADY: u8 = 8;
/// Its duration is that of the packet before it.
const SAME_DURATION: u8 = 16;
/// It is shown when it is decoded.
const AT_ONCE: u8 = 32;

impl Table {
    /// Appends the compact form.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        varint::put(out, self.streams.len() as u64);
        for stream in &self.streams {
            stream.write(out);
        }
        varint::put(out, self.unknown.len() as u64);
        for name in &self.unknown {
            varint::put_bytes(out, name.as_bytes());
        }
    }

    /// The table of [`write`](Self::write).
    ///
    /// # Errors
    /// The bytes are not those of a table.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let reader = &mut Reader::new(bytes);
        let version = reader.byte()?;
        if version != VERSION {
            return refuse!("a table has the unknown version {version}");
        }
        let count = reader.up_to(MAX_STREAMS, "streams")?;
        let mut left = MAX_PACKETS;
        let streams = (0..count).map(|_| Stream::read(reader, &mut left)).collect::<Result<_>>()?;
        let count = reader.up_to(MAX_STREAMS, "other streams")?;
        let name = |_| {
            let name = reader.counted_bytes(MAX_NAME_BYTES, "bytes of a codec's name")?;
            let name = std::str::from_utf8(name);
            name.map(str::to_owned).map_err(|_| Refused("a codec's name is no text".to_owned()))
        };
        let unknown = (0..count).map(name).collect::<Result<_>>()?;
        match reader.rest() {
            [] => Ok(Self { streams, unknown }),
            rest => refuse!("a table has {} bytes too many", rest.len()),
        }
    }
}

impl Stream {
    fn write(&self, out: &mut Vec<u8>) {
        varint::put(out, self.number.into());
        out.push(self.codec as u8);
        varint::put_bytes(out, &self.configuration);
        match self.media {
            Media::Video { width, height, color, rotation } => {
                varint::put(out, width.into());
                varint::put(out, height.into());
                color.write(out);
                out.push(rotation as u8);
            }
            Media::Audio { rate, channels, skipped } => {
                for number in [rate, channels, skipped] {
                    varint::put(out, number.into());
                }
            }
        }
        self.time_base.write(out);
        varint::put(out, self.packets.len() as u64);
        let mut before = FIRST;
        for packet in &self.packets {
            write_packet(packet, &before, out);
            before = *packet;
        }
    }

    fn read(reader: &mut Reader<'_>, left: &mut u32) -> Result<Self> {
        let number = reader.up_to(u32::MAX, "streams")?;
        let code = reader.byte()?;
        let Some(codec) = Codec::of_code(code) else {
            return refuse!("a table has the unknown codec {code}");
        };
        let configuration =
            reader.counted_bytes(MAX_CONFIGURATION_BYTES, "bytes of configuration")?.to_vec();
        let media = if codec.is_video() {
            let width = reader.up_to(MAX_SIDE, "pixels of width")?;
            let height = reader.up_to(MAX_SIDE, "pixels of height")?;
            let color = Color::read(reader)?;
            Media::Video { width, height, color, rotation: Rotation::of_quarters(reader.byte()?) }
        } else {
            let mut next = || reader.up_to(u32::MAX, "as a number of a sound");
            Media::Audio { rate: next()?, channels: next()?, skipped: next()? }
        };
        let time_base = TimeBase::read(reader)?;
        let count = reader.up_to(*left, "packets")?;
        *left -= count;
        // Each packet has three bytes or more.
        let mut packets = Vec::with_capacity((count as usize).min(reader.rest().len() / 3));
        let mut before = FIRST;
        for _ in 0..count {
            before = read_packet(reader, &before)?;
            packets.push(before);
        }
        Ok(Self { number, codec, configuration, media, time_base, packets })
    }
}

/// What the first packet is compared with.
const FIRST: Packet =
    Packet { offset: 0, size: 0, pts: 0, dts: 0, duration: 0, key: false, discard: false };

fn write_packet(packet: &Packet, before: &Packet, out: &mut Vec<u8>) {
    let flags = [
        (packet.key, KEY),
        (packet.discard, DISCARD),
        (packet.offset == before.end(), FOLLOWS),
        (packet.dts == before.dts.wrapping_add(before.duration.into()), STEADY),
        (packet.duration == before.duration, SAME_DURATION),
        (packet.pts == packet.dts, AT_ONCE),
    ];
    let flags = flags.iter().fold(0, |all, (is_set, flag)| if *is_set { all | flag } else { all });
    out.push(flags);
    varint::put(out, packet.size.into());
    if flags & FOLLOWS == 0 {
        varint::put_signed(out, packet.offset.wrapping_sub(before.end()).cast_signed());
    }
    if flags & STEADY == 0 {
        varint::put_signed(out, packet.dts.wrapping_sub(before.dts));
    }
    if flags & SAME_DURATION == 0 {
        varint::put(out, packet.duration.into());
    }
    if flags & AT_ONCE == 0 {
        varint::put_signed(out, packet.pts.wrapping_sub(packet.dts));
    }
}

fn read_packet(reader: &mut Reader<'_>, before: &Packet) -> Result<Packet> {
    let flags = reader.byte()?;
    let size = reader.up_to(u32::MAX, "bytes of a packet")?;
    let offset = match flags & FOLLOWS {
        0 => before.end().wrapping_add(reader.signed()?.cast_unsigned()),
        _ => before.end(),
    };
    let dts = match flags & STEADY {
        0 => before.dts.wrapping_add(reader.signed()?),
        _ => before.dts.wrapping_add(before.duration.into()),
    };
    let duration = match flags & SAME_DURATION {
        0 => reader.up_to(u32::MAX, "ticks of duration")?,
        _ => before.duration,
    };
    let pts = match flags & AT_ONCE {
        0 => dts.wrapping_add(reader.signed()?),
        _ => dts,
    };
    let (key, discard) = (flags & KEY != 0, flags & DISCARD != 0);
    Ok(Packet { offset, size, pts, dts, duration, key, discard })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packets() -> impl Strategy<Value = Vec<Packet>> {
        let packet = (0_u64..1 << 40, any::<u32>(), any::<i64>(), any::<i64>(), any::<u32>(), 0..4);
        let packet = packet.prop_map(|(offset, size, pts, dts, duration, flags)| Packet {
            offset,
            size,
            pts,
            dts,
            duration,
            key: flags & 1 != 0,
            discard: flags & 2 != 0,
        });
        prop::collection::vec(packet, 0..20)
    }

    proptest! {
        #[test]
        fn tables_survive_their_bytes(packets in packets(), sound in packets()) {
            let color = Color { matrix: Some(9), bits: Some(10), ..Color::default() };
            let rotation = Rotation::ThreeQuarters;
            let stream = Stream {
                number: 3,
                codec: Codec::Hevc,
                configuration: vec![1, 2, 3],
                media: Media::Video { width: 33, height: 17, color, rotation },
                time_base: TimeBase { numerator: 1001, denominator: 30_000 },
                packets,
            };
            let media = Media::Audio { rate: 48_000, channels: 2, skipped: 312 };
            let other = Stream { codec: Codec::Opus, media, packets: sound, ..stream.clone() };
            let table = Table { streams: vec![stream, other], unknown: vec!["tmcd".to_owned()] };
            let mut bytes = Vec::new();
            table.write(&mut bytes);
            prop_assert_eq!(Table::read(&bytes), Ok(table));
            for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
                prop_assert!(Table::read(&bytes[..length]).is_err());
            }
        }
    }

    #[test]
    fn steady_packets_take_three_bytes() {
        let packet = |number: u32| Packet {
            offset: 100 + u64::from(number) * 900,
            size: 900,
            pts: i64::from(number) * 512,
            dts: i64::from(number) * 512,
            duration: 512,
            key: false,
            discard: false,
        };
        let media = Media::Audio { rate: 0, channels: 0, skipped: 0 };
        let stream = |count| Stream {
            number: 0,
            codec: Codec::Aac,
            configuration: Vec::new(),
            media,
            time_base: TimeBase { numerator: 1, denominator: 1 },
            packets: (0..count).map(packet).collect(),
        };
        let length = |count| {
            let mut bytes = Vec::new();
            Table { streams: vec![stream(count)], unknown: Vec::new() }.write(&mut bytes);
            bytes.len()
        };
        assert_eq!(length(1000) - length(500), 1500);
    }
}
