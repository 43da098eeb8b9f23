//! What a stream is coded with, and how its pictures are to be shown.

use crate::error::{Result, refuse};
use crate::varint::{self, Reader};

/// Declares the codecs: the number in serialised forms, which never changes, and the name for users.
macro_rules! codecs {
    ($($(#[$doc:meta])* $codec:ident = $code:literal $name:literal,)*) => {
        /// What a stream of packets is coded with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Codec { $($(#[$doc])* $codec = $code,)* }

        impl Codec {
            /// All codecs.
            pub const ALL: &[Self] = &[$(Self::$codec,)*];

            /// The name that `FFmpeg` gives it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$codec => $name,)* }
            }
        }
    };
}

codecs! {
    /// H.264. Configuration: the `avcC` record. Packets: NAL units, each after its length.
    H264 = 1 "h264",
    /// HEVC (H.265). Configuration: the `hvcC` record. Packets: NAL units, each after its length.
    Hevc = 2 "hevc",
    /// AV1. Configuration: the `av1C` record, whose OBUs follow its first 4 bytes. Packets: temporal units without
    /// delimiters.
    Av1 = 3 "av1",
    /// VP8. No configuration.
    Vp8 = 4 "vp8",
    /// VP9. Configuration: the `vpcC` record of an MP4 without its version and flags, or none.
    Vp9 = 5 "vp9",
    /// MPEG-4 Part 2. Configuration: the headers of the stream.
    Mpeg4 = 6 "mpeg4",
    /// Motion JPEG: each packet is a JPEG file. No configuration.
    Mjpeg = 7 "mjpeg",
    /// AAC. Configuration: the `AudioSpecificConfig`.
    Aac = 64 "aac",
    /// Opus. Configuration: the `OpusHead` packet of an Ogg stream.
    Opus = 65 "opus",
    /// MP3, or MPEG audio of another layer. No configuration.
    Mp3 = 66 "mp3",
    /// FLAC. Configuration: the STREAMINFO block, 34 bytes.
    Flac = 67 "flac",
    /// Vorbis. Configuration: its three headers, laced as in Matroska.
    Vorbis = 68 "vorbis",
    /// Apple Lossless. Configuration: the `alac` box, with its head.
    Alac = 69 "alac",
}

impl Codec {
    /// The codec of a number in a serialised form.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|codec| *codec as u8 == code)
    }

    /// Whether its packets are pictures.
    #[must_use]
    pub const fn is_video(self) -> bool {
        (self as u8) < 64
    }
}

/// The seconds of one tick of a stream's clock, as a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeBase {
    /// At least 1.
    pub numerator: u32,
    /// At least 1.
    pub denominator: u32,
}

impl TimeBase {
    /// The seconds of a number of ticks.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn seconds(self, ticks: i64) -> f64 {
        ticks as f64 * f64::from(self.numerator) / f64::from(self.denominator)
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        varint::put(out, self.numerator.into());
        varint::put(out, self.denominator.into());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let numerator = reader.up_to(u32::MAX, "ticks")?;
        let denominator = reader.up_to(u32::MAX, "ticks a second")?;
        if numerator == 0 || denominator == 0 {
            return refuse!("its clock has a tick of {numerator}/{denominator} s");
        }
        Ok(Self { numerator, denominator })
    }
}

/// How the numbers of a stream's pictures are colours, as far as its file says so. What the stream itself says, as the
/// decoder reports it, comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Color {
    /// The matrix coefficients, numbered as in ITU-T H.273; 2: not said.
    pub matrix: Option<u8>,
    /// The primaries, numbered as in ITU-T H.273.
    pub primaries: Option<u8>,
    /// The transfer characteristics, numbered as in ITU-T H.273.
    pub transfer: Option<u8>,
    /// Whether the numbers use their full range.
    pub full_range: Option<bool>,
    /// The bits of a sample of a plane.
    pub bits: Option<u8>,
}

impl Color {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let range = self.full_range.map(u8::from);
        for part in [self.matrix, self.primaries, self.transfer, range, self.bits] {
            varint::put(out, part.map_or(0, |part| u64::from(part) + 1));
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let mut part = || -> Result<Option<u8>> {
            let number = reader.up_to(256, "as a part of a colour's description")?;
            Ok(number.checked_sub(1).and_then(|part| u8::try_from(part).ok()))
        };
        let (matrix, primaries, transfer) = (part()?, part()?, part()?);
        let full_range = part()?.map(|range| range != 0);
        Ok(Self { matrix, primaries, transfer, full_range, bits: part()? })
    }
}

/// The clockwise turn with which a stream's pictures are to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Rotation {
    /// As they are.
    #[default]
    None = 0,
    /// By 90 degrees clockwise.
    Quarter = 1,
    /// By 180 degrees.
    Half = 2,
    /// By 270 degrees clockwise.
    ThreeQuarters = 3,
}

impl Rotation {
    /// The clockwise quarter turns, modulo 4.
    #[must_use]
    pub const fn of_quarters(quarters: u8) -> Self {
        match quarters % 4 {
            0 => Self::None,
            1 => Self::Quarter,
            2 => Self::Half,
            _ => Self::ThreeQuarters,
        }
    }

    /// Whether width and height are exchanged.
    #[must_use]
    pub const fn swaps_sides(self) -> bool {
        matches!(self, Self::Quarter | Self::ThreeQuarters)
    }
}

/// Adds what a decoder's configuration says of colours.
pub(crate) fn refine(codec: Codec, configuration: &[u8], color: &mut Color) {
    let byte = |at: usize| configuration.get(at).copied();
    color.bits = match codec {
        Codec::Hevc => byte(17).map(|bits| (bits & 7) + 8),
        Codec::Av1 => byte(2).map(|flags| match (flags & 0x40 != 0, flags & 0x20 != 0) {
            (true, true) => 12,
            (true, false) => 10,
            _ => 8,
        }),
        Codec::Vp9 => byte(2).map(|bits| bits >> 4),
        Codec::Vp8 | Codec::Mjpeg | Codec::Mpeg4 => Some(8),
        _ => None,
    };
    if let (Codec::Vp9, Some(flags)) = (codec, byte(2)) {
        color.full_range = Some(flags & 1 != 0);
        color.primaries = color.primaries.or(byte(3));
        color.transfer = color.transfer.or(byte(4));
        color.matrix = color.matrix.or(byte(5));
    }
}
