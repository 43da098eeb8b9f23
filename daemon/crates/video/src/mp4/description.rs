//! `stsd`: what a track is coded with.

use super::boxes::{Numbers, Part, find, parts};
use super::codec_boxes::{esds, opus_head};
use crate::clip::{MAX_CONFIGURATION_BYTES, MAX_SIDE};
use crate::codec::{Codec, Color, Rotation, refine};
use crate::error::{Result, refuse};
use crate::table::Media;

/// The codec of a track.
#[derive(Debug, Clone)]
pub(super) struct Description {
    pub(super) codec: Codec,
    pub(super) configuration: Vec<u8>,
    /// Its rotation and skipped frames are set by others.
    pub(super) media: Media,
}

impl Description {
    /// Reads the first description of a track; the inner error is the name of a codec that is not read.
    pub(super) fn read(handler: [u8; 4], body: &[u8]) -> Result<Result<Self, String>> {
        let body = body.get(8..).unwrap_or_default();
        let entry = match parts(body).next() {
            Some(entry) => entry?,
            None => return Ok(Err(name(handler))),
        };
        let described = match &handler {
            b"vide" => read_video(entry)?,
            b"soun" => read_audio(entry)?,
            _ => None,
        };
        let Some(described) = described else {
            if matches!(&entry.kind, b"encv" | b"enca") {
                return refuse!("it is encrypted (`{}`)", name(entry.kind));
            }
            return Ok(Err(name(entry.kind)));
        };
        let bytes = described.configuration.len();
        if bytes > MAX_CONFIGURATION_BYTES as usize {
            return refuse!(
                "a codec's configuration has {bytes} bytes, more than the limit of {MAX_CONFIGURATION_BYTES}"
            );
        }
        Ok(Ok(described))
    }
}

/// A kind as text.
fn name(kind: [u8; 4]) -> String {
    kind.escape_ascii().to_string().trim_end().to_owned()
}

fn read_video(Part { kind, body }: Part<'_>) -> Result<Option<Description>> {
    let mut numbers = Numbers::new(kind, body);
    // Reserved, reference, version, vendor, qualities.
    numbers.bytes(24)?;
    let (width, height) = (u32::from(numbers.u16()?), u32::from(numbers.u16()?));
    // Resolutions, size, frames, name, depth, palette.
    numbers.bytes(50)?;
    let inner = numbers.rest();
    let mut color = color(inner)?;
    let found = match &kind {
        b"avc1" | b"avc2" | b"avc3" | b"avc4" => (Codec::H264, find(inner, b"avcC")?),
        b"hvc1" | b"hev1" | b"dvh1" | b"dvhe" => (Codec::Hevc, find(inner, b"hvcC")?),
        b"av01" => (Codec::Av1, find(inner, b"av1C")?),
        b"vp08" => (Codec::Vp8, Some(&[][..])),
        b"vp09" => {
            let body = find(inner, b"vpcC")?;
            // Without version and flags.
            (Codec::Vp9, Some(body.and_then(|body| body.get(4..)).unwrap_or_default()))
        }
        b"jpeg" | b"mjpa" | b"AVDJ" => (Codec::Mjpeg, Some(&[][..])),
        b"mp4v" => match find(inner, b"esds")? {
            Some(body) => match esds(body)? {
                (0x20, configuration) => (Codec::Mpeg4, Some(configuration)),
                (0x6c, _) => (Codec::Mjpeg, Some(&[][..])),
                _ => return Ok(None),
            },
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let (codec, Some(configuration)) = found else {
        return refuse!("its `{}` has no decoder's configuration", name(kind));
    };
    if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE {
        return refuse!("its pictures have {width} x {height} pixels");
    }
    refine(codec, configuration, &mut color);
    let media = Media::Video { width, height, color, rotation: Rotation::None };
    Ok(Some(Description { codec, configuration: configuration.to_vec(), media }))
}

/// What `colr` says.
fn color(inner: &[u8]) -> Result<Color> {
    let mut color = Color::default();
    for part in parts(inner) {
        // What follows the boxes may be anything.
        let Ok(Part { kind, body }) = part else { break };
        if kind != *b"colr" {
            continue;
        }
        let mut numbers = Numbers::new(kind, body);
        let form = numbers.u32()?.to_be_bytes();
        if form != *b"nclx" && form != *b"nclc" {
            continue;
        }
        let mut part = || Ok(u8::try_from(numbers.u16()?).ok());
        (color.primaries, color.transfer, color.matrix) = (part()?, part()?, part()?);
        if form == *b"nclx" {
            color.full_range = Some(numbers.u8()? & 0x80 != 0);
        }
    }
    Ok(color)
}

fn read_audio(Part { kind, body }: Part<'_>) -> Result<Option<Description>> {
    let mut numbers = Numbers::new(kind, body);
    numbers.bytes(8)?;
    let version = numbers.u16()?;
    numbers.bytes(6)?;
    let channels = u32::from(numbers.u16()?);
    // Bits, compression, packet size.
    numbers.bytes(6)?;
    let rate = numbers.u32()? >> 16;
    let beyond = match version {
        1 => 16,
        2 => 36,
        _ => 0,
    };
    numbers.bytes(beyond)?;
    let mut inner = numbers.rest();
    if let Some(wave) = find_leniently(inner, b"wave") {
        inner = wave;
    }
    let descriptor = find_leniently(inner, b"esds");
    let (codec, configuration) = match &kind {
        b"mp4a" => match descriptor.map(esds).transpose()? {
            Some((0x40 | 0x66..=0x68, configuration)) => (Codec::Aac, configuration.to_vec()),
            Some((0x69 | 0x6b, _)) => (Codec::Mp3, Vec::new()),
            Some((0xdd, configuration)) => (Codec::Vorbis, configuration.to_vec()),
            _ => return Ok(None),
        },
        b".mp3" | b"ms\0U" => (Codec::Mp3, Vec::new()),
        b"Opus" => match find_leniently(inner, b"dOps") {
            Some(body) => (Codec::Opus, opus_head(body)?),
            None => return Ok(None),
        },
        b"fLaC" => match find_leniently(inner, b"dfLa").and_then(|body| body.get(8..42)) {
            Some(info) => (Codec::Flac, info.to_vec()),
            None => return Ok(None),
        },
        b"alac" => match find_leniently(inner, b"alac") {
            Some(body) => {
                let length = u32::try_from(body.len() + 8).unwrap_or(0).to_be_bytes();
                (Codec::Alac, [&length[..], b"alac", body].concat())
            }
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    let media = Media::Audio { rate, channels, skipped: 0 };
    Ok(Some(Description { codec, configuration, media }))
}

/// The first box of a kind; what follows the boxes of a sound may be anything.
fn find_leniently<'a>(body: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    parts(body).map_while(Result::ok).find(|part| part.kind == *kind).map(|part| part.body)
}
