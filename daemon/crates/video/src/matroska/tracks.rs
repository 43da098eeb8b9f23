//! `Tracks`: what each track is coded with.

use super::elements::{elements, float, id, unsigned};
use crate::clip::{MAX_CONFIGURATION_BYTES, MAX_SIDE};
use crate::codec::{Codec, Color, Rotation, TimeBase, refine};
use crate::error::{Result, refuse};
use crate::table::{MAX_STREAMS, Media, Packet, Stream, Table};

/// A longer name is of no codec that is known.
const MAX_NAME_BYTES: usize = 64;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Nanoseconds of a tick, if a file does not say them.
pub(super) const fn default_scale() -> u64 {
    1_000_000
}

/// The tracks of a file.
#[derive(Debug)]
pub(super) struct Tracks {
    time_base: TimeBase,
    pub(super) tracks: Vec<Track>,
}

/// A track.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) number: u64,
    /// What is decoded, or the name of what is not read.
    pub(super) stream: Result<Described, String>,
    /// Of a packet, in ticks; 0: unknown.
    pub(super) duration: u32,
    /// What is taken off all times, in ticks.
    pub(super) delay: i64,
    pub(super) packets: Vec<Packet>,
}

/// A track that is read.
#[derive(Debug)]
pub(super) struct Described {
    codec: Codec,
    configuration: Vec<u8>,
    media: Media,
}

/// The nanoseconds of a tick that `Info` says.
pub(super) fn scale(body: &[u8]) -> Result<Option<u64>> {
    for element in elements(body) {
        let (id, bytes) = element?;
        if id == id::TIMESTAMP_SCALE {
            return unsigned(bytes).map(Some);
        }
    }
    Ok(None)
}

const fn divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl Tracks {
    pub(super) fn read(body: &[u8], scale: u64) -> Result<Self> {
        let common = divisor(scale, SECOND).max(1);
        let part = |number: u64| u32::try_from(number / common).unwrap_or(0);
        let time_base = TimeBase { numerator: part(scale), denominator: part(SECOND) };
        if time_base.numerator == 0 || time_base.denominator == 0 {
            return refuse!("its clock has a tick of {scale} ns");
        }
        let mut tracks = Vec::new();
        for element in elements(body) {
            let (id, bytes) = element?;
            if id != id::TRACK {
                continue;
            }
            if tracks.len() >= MAX_STREAMS as usize {
                return refuse!("it has more than {MAX_STREAMS} tracks");
            }
            tracks.push(Track::read(bytes, scale)?);
        }
        Ok(Self { time_base, tracks })
    }

    /// The table.
    pub(super) fn finish(self) -> Result<Table> {
        let mut table = Table::default();
        for (number, mut track) in (0..).zip(self.tracks) {
            match track.stream {
                Err(name) => table.unknown.push(name),
                Ok(Described { codec, configuration, media }) => {
                    make_decoding_times(&mut track.packets);
                    let (time_base, packets) = (self.time_base, track.packets);
                    table.streams.push(Stream {
                        number,
                        codec,
                        configuration,
                        media,
                        time_base,
                        packets,
                    });
                }
            }
        }
        Ok(table)
    }
}

/// Sets when packets are decoded, which the container does not say: at the times of the frames in their order, so much
/// earlier that none is later than its frame.
fn make_decoding_times(packets: &mut [Packet]) {
    let mut times: Vec<_> = packets.iter().map(|packet| packet.pts).collect();
    times.sort_unstable();
    let late = times.iter().zip(&*packets).map(|(time, packet)| time.saturating_sub(packet.pts));
    let late = late.max().unwrap_or(0).max(0);
    for (packet, time) in packets.iter_mut().zip(times) {
        packet.dts = time.saturating_sub(late);
    }
}

impl Track {
    fn read(body: &[u8], scale: u64) -> Result<Self> {
        let (mut number, mut codec, mut configuration) = (0, "", &[][..]);
        let (mut delay, mut duration, mut is_encoded) = (0, 0, false);
        let (mut width, mut height, mut color) = (0, 0, Color::default());
        let (mut rate, mut channels) = (8000.0, 1);
        for element in elements(body) {
            let (id, bytes) = element?;
            match id {
                id::TRACK_NUMBER => number = unsigned(bytes)?,
                id::CODEC if bytes.len() <= MAX_NAME_BYTES => {
                    codec = std::str::from_utf8(bytes).unwrap_or("?").trim_end_matches('\0')
                }
                id::CODEC_PRIVATE => configuration = bytes,
                id::CODEC_DELAY => delay = unsigned(bytes)?,
                id::DEFAULT_DURATION => duration = unsigned(bytes)?,
                id::ENCODINGS => is_encoded = true,
                id::VIDEO => (width, height, color) = read_video(bytes)?,
                id::AUDIO => {
                    for element in elements(bytes) {
                        match element? {
                            (id::RATE, bytes) => rate = float(bytes),
                            (id::CHANNELS, bytes) => channels = unsigned(bytes)?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let ticks = |time: u64| (u128::from(time) + u128::from(scale) / 2) / u128::from(scale);
        let mut track = Self {
            number,
            stream: Err(codec.to_owned()),
            duration: u32::try_from(ticks(duration)).unwrap_or(0),
            delay: i64::try_from(ticks(delay)).unwrap_or(0),
            packets: Vec::new(),
        };
        if is_encoded {
            track.stream = Err(format!("{codec}, compressed or encrypted"));
        } else if let Some((codec, configuration)) = codec_of(codec, configuration) {
            if configuration.len() > MAX_CONFIGURATION_BYTES as usize {
                return refuse!("a codec's configuration has {} bytes", configuration.len());
            }
            let number = |number: u64| u32::try_from(number).unwrap_or(0);
            let media = if codec.is_video() {
                let (width, height) = (number(width), number(height));
                if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE {
                    return refuse!("its pictures have {width} x {height} pixels");
                }
                refine(codec, configuration, &mut color);
                Media::Video { width, height, color, rotation: Rotation::None }
            } else {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates"
                )]
                Media::Audio { rate: rate as u32, channels: number(channels), skipped: 0 }
            };
            track.stream = Ok(Described { codec, configuration: configuration.to_vec(), media });
        }
        Ok(track)
    }

    /// Leaves out a track with several frames in a block, which only sounds have.
    pub(super) fn leave_out_laced(&mut self) -> Result<()> {
        if let Ok(described) = &self.stream {
            if described.codec.is_video() {
                return refuse!("a block has several pictures");
            }
            self.stream = Err(format!("{}, several frames a block", described.codec.name()));
            self.packets.clear();
        }
        Ok(())
    }
}

fn read_video(body: &[u8]) -> Result<(u64, u64, Color)> {
    let (mut width, mut height, mut color) = (0, 0, Color::default());
    for element in elements(body) {
        match element? {
            (id::WIDTH, bytes) => width = unsigned(bytes)?,
            (id::HEIGHT, bytes) => height = unsigned(bytes)?,
            (id::COLOUR, bytes) => read_color(bytes, &mut color)?,
            _ => {}
        }
    }
    Ok((width, height, color))
}

/// Sets what a stream's element says of its colours.
fn read_color(body: &[u8], color: &mut Color) -> Result<()> {
    for element in elements(body) {
        let (id, bytes) = element?;
        let number = u8::try_from(unsigned(bytes).unwrap_or(0)).ok();
        match id {
            id::MATRIX => color.matrix = number,
            id::BITS => color.bits = number.filter(|bits| *bits > 0),
            id::TRANSFER => color.transfer = number,
            id::PRIMARIES => color.primaries = number,
            id::RANGE => {
                color.full_range = match number {
                    Some(1) => Some(false),
                    Some(2) => Some(true),
                    _ => None,
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The codec of a name, and its configuration.
fn codec_of<'a>(name: &str, configuration: &'a [u8]) -> Option<(Codec, &'a [u8])> {
    let whole = |codec| Some((codec, configuration));
    match name {
        "V_MPEG4/ISO/AVC" => whole(Codec::H264),
        "V_MPEGH/ISO/HEVC" => whole(Codec::Hevc),
        "V_AV1" => whole(Codec::Av1),
        "V_VP8" => Some((Codec::Vp8, &[])),
        "V_VP9" => Some((Codec::Vp9, &[])),
        "V_MJPEG" => Some((Codec::Mjpeg, &[])),
        "V_MPEG4/ISO/ASP" | "V_MPEG4/ISO/SP" | "V_MPEG4/ISO/AP" => whole(Codec::Mpeg4),
        "A_AAC" => whole(Codec::Aac),
        "A_OPUS" => whole(Codec::Opus),
        "A_VORBIS" => whole(Codec::Vorbis),
        "A_MPEG/L3" => Some((Codec::Mp3, &[])),
        // `fLaC`, the head of the first block, and the block.
        "A_FLAC" => Some((Codec::Flac, configuration.get(8..42)?)),
        _ => None,
    }
}
