//! The table of a file: where the packets of its streams are, and when they are decoded and shown.

mod serial;

use crate::codec::{Codec, Color, Rotation, TimeBase};
use crate::error::{Result, refuse};

/// The most streams of a table.
pub const MAX_STREAMS: u32 = 64;
/// The most packets of all streams of a table.
pub const MAX_PACKETS: u32 = 1 << 22;
/// How often the bytes of a file may be packets of a stream.
pub(crate) const MOST_REPEATED: u64 = 4;

/// The streams of a file that are pictures or sound with a known codec, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// See above.
    pub streams: Vec<Stream>,
    /// The codecs of the others, as the file names them.
    pub unknown: Vec<String>,
}

/// A stream of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// The number of the stream in the file, among all its streams, from 0.
    pub number: u32,
    /// What its packets are coded with.
    pub codec: Codec,
    /// The decoder's configuration, as [`Codec`] says.
    pub configuration: Vec<u8>,
    /// What is decoded of it.
    pub media: Media,
    /// The clock of its packets.
    pub time_base: TimeBase,
    /// In the order of decoding.
    pub packets: Vec<Packet>,
}

/// What a stream is decoded to, as its container says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// Pictures.
    Video {
        /// In pixels, before the rotation.
        width: u32,
        /// In pixels, before the rotation.
        height: u32,
        /// How numbers are colours.
        color: Color,
        /// The turn with which pictures are shown.
        rotation: Rotation,
    },
    /// Sound.
    Audio {
        /// Frames a second; 0: not said.
        rate: u32,
        /// 0: not said.
        channels: u32,
        /// Frames at the beginning that are decoded and not heard.
        skipped: u32,
    },
}

/// One packet of a file. Times are ticks of the stream's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub size: u32,
    /// When it is shown or heard; edit lists are applied.
    pub pts: i64,
    /// When it is decoded.
    pub dts: i64,
    /// 0: unknown.
    pub duration: u32,
    /// Whether decoding can begin here.
    pub key: bool,
    /// Whether an edit list leaves it out: it is decoded and not shown.
    pub discard: bool,
}

impl Packet {
    /// Where it ends in the file.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.size as u64)
    }
}

impl Stream {
    /// Whether it is pictures.
    #[must_use]
    pub const fn is_video(&self) -> bool {
        self.codec.is_video()
    }
}

impl Table {
    /// The first stream of pictures.
    #[must_use]
    pub fn video(&self) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.is_video())
    }

    /// The first stream of pictures, without the others.
    ///
    /// # Errors
    /// There is none whose codec is known.
    pub fn into_video(self) -> Result<Stream> {
        let Self { streams, mut unknown } = self;
        unknown.extend(streams.iter().map(|stream| stream.codec.name().to_owned()));
        streams.into_iter().find(Stream::is_video).ok_or_else(|| {
            let names = unknown.join(", ");
            crate::Refused(format!(
                "it has no pictures of a codec that is read (its streams: {names})"
            ))
        })
    }

    /// The first stream of sound.
    #[must_use]
    pub fn audio(&self) -> Option<&Stream> {
        self.streams.iter().find(|stream| !stream.is_video())
    }

    /// Checks that every packet is inside of a file of so many bytes, and that there is a packet.
    ///
    /// # Errors
    /// The first one that is not.
    pub(crate) fn check(&self, length_bytes: u64) -> Result<()> {
        for stream in &self.streams {
            let outside = stream.packets.iter().position(|packet| packet.end() > length_bytes);
            if let Some(number) = outside {
                return refuse!(
                    "packet {number} of stream {} ends at byte {} of {length_bytes}: the file is cut off, or its header is \
                     wrong",
                    stream.number,
                    stream.packets[number].end()
                );
            }
            // Edits may show packets more than once; a few bytes of a header could announce millions that overlap.
            let bytes: u64 = stream.packets.iter().map(|packet| u64::from(packet.size)).sum();
            if bytes > length_bytes.saturating_mul(MOST_REPEATED) {
                return refuse!(
                    "the packets of stream {} have {bytes} bytes, and the file has {length_bytes}: they overlap",
                    stream.number
                );
            }
        }
        if self.streams.iter().all(|stream| stream.packets.is_empty()) {
            let unknown = match self.unknown.as_slice() {
                [] => String::new(),
                names => format!(" (it has {}, which is not read)", names.join(", ")),
            };
            return refuse!("it has no packets of pictures or sound{unknown}");
        }
        Ok(())
    }
}
