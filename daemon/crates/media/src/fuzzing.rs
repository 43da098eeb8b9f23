//! Entry points for fuzzing the image decoders. See `forebay::fuzzing`.

use std::cell::RefCell;
use std::sync::Arc;

use super::array::ArrayBuffer;
use super::decode::raster::{Raster, RasterAxes};
use super::decode::{self, Content, Decoders, png::crc32};
use super::jpeg;
use super::reduction::{REDUCTIONS, Wanted};
use super::size::Rectangle;
use super::sound::{self, NoSoundDecoder, SoundTools};
use super::video::VideoFrame;
use forebay_dataset::sound::ogg;
use forebay_dataset::{Sound, SoundCoding, SoundForm, SoundHeader, SoundSpan};
use forebay_decoders::Frames;
use forebay_video::codec::{Color, Rotation};

/// The maximal number of pixels that a target decodes: enough for every code path, and fast.
const MOST_PIXELS: u64 = 1 << 16;

thread_local! {
    /// One decoder for successive files, as in a work thread: state that one file leaves for the next is tested, too.
    static DECODERS: RefCell<(Decoders, Vec<u8>)> = RefCell::default();
}

/// A JPEG file: its first bytes choose channels and region, the rest is decoded.
pub fn jpeg(bytes: &[u8]) {
    decode(b"\xff\xd8\xff", bytes);
}

/// A PNG file, once unchanged and once with corrected checksums, since a fuzzer does not get past wrong ones.
pub fn png(bytes: &[u8]) {
    decode(PNG, bytes);
    let mut mended = bytes.to_vec();
    set_checksums_right(&mut mended);
    decode(PNG, &mended);
}

/// A WebP file, with a corrected container length.
pub fn webp(bytes: &[u8]) {
    decode(b"RIFF", bytes);
    let mut mended = bytes.to_vec();
    if let Some(length) = mended.len().checked_sub(CHOICES + 8)
        && let Some(field) = mended.get_mut(CHOICES + 4..CHOICES + 8)
    {
        field.copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
    decode(b"RIFF", &mended);
}

/// A TIFF file, of either byte order, as an image and as a raster.
pub fn tiff(bytes: &[u8]) {
    for magic in [b"II\x2a\0", b"MM\0\x2a"] {
        decode(magic, bytes);
        let file = [magic, bytes.get(CHOICES..).unwrap_or_default()].concat();
        let Ok(raster) = Raster::open(&file) else { continue };
        for axes in [RasterAxes::SamplesFirst, RasterAxes::SamplesLast] {
            let elements = raster
                .array_type(axes)
                .shape
                .iter()
                .fold(1, |all: u64, side| all.saturating_mul(*side));
            if elements.saturating_add(raster.decoding_bytes()) <= 16 * MOST_PIXELS {
                let _ = raster.decode(axes, &mut ArrayBuffer::default());
            }
        }
    }
}

/// What a process that decodes videos answers: the number of the head's bytes, the head, the planes. The first picture is
/// converted whole and in part, in each turn.
pub fn pictures(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return };
    let Some((head, planes)) = rest.split_at_checked(usize::from(*length)) else { return };
    let Ok(frames) = Frames::of_bytes(head, planes.len() as u64, MOST_PIXELS) else { return };
    let planes = Arc::new(planes.to_vec());
    for frame in frames.frames.iter().take(4) {
        for rotation in (0..4).map(Rotation::of_quarters) {
            let color = Color { matrix: Some(1), full_range: Some(true), ..Color::default() };
            let Some(picture) = VideoFrame::new(&planes, frame, color, rotation) else { return };
            let whole = Rectangle::whole(picture.size());
            let part =
                Rectangle { left: whole.width / 2, width: whole.width - whole.width / 2, ..whole };
            for part in [whole, part] {
                picture.write(part, &mut vec![0; part.width as usize * part.height as usize * 3]);
            }
        }
    }
}

/// A BMP file.
pub fn bmp(bytes: &[u8]) {
    decode(b"BM", bytes);
}

/// A GIF file.
pub fn gif(bytes: &[u8]) {
    decode(b"GIF8", bytes);
}

/// A coded mask.
pub fn mask(bytes: &[u8]) {
    decode(b"\x8bmask\r\n\x01", bytes);
}

/// A sound file: the first byte chooses the form.
///
/// # Panics
/// The array's length does not match its shape, or exceeds the limit.
pub fn sound(bytes: &[u8]) {
    const MOST_BYTES: u64 = 1 << 20;
    let Some((choice, file)) = bytes.split_first() else {
        return;
    };
    let channels = [None, Some(1), Some(2), None][usize::from(choice & 3)];
    let rate = [None, Some(16_000), Some(7_999), Some(48_000)][usize::from(choice >> 2 & 3)];
    let sound = Sound { file, form: SoundForm { channels, rate, span: None } };
    let (mut tools, mut array) = (SoundTools::default(), ArrayBuffer::default());
    if sound::decode(&sound, MOST_BYTES, &mut tools, &mut NoSoundDecoder, &mut array).is_ok() {
        let elements: u64 = array.shape.iter().product();
        let length = array.bytes.len() as u64;
        assert!(length == 4 * elements && length <= MOST_BYTES, "{:?}", array.shape);
    }
}

/// A sound in packets: the first bytes choose the form and the part, which must be the same as that of the whole sound;
/// but for MP3, where that holds for files of which no frame refers to data that are not there.
///
/// # Panics
/// As [`sound`], or the part is another.
pub fn sound_lossy(bytes: &[u8]) {
    const MOST_BYTES: u64 = 1 << 20;
    let Some((&[choice, start, length], file)) = bytes.split_first_chunk() else {
        return;
    };
    let mut file = file.to_vec();
    if file.starts_with(b"OggS") {
        ogg::set_checksums_right(&mut file);
    }
    let channels = [None, Some(1), Some(2), None][usize::from(choice & 3)];
    let milliseconds = |byte: u8| u64::from(byte) * 4_000_000;
    let span = SoundSpan { start: milliseconds(start), length: Some(milliseconds(length)) };
    let floats = |span| {
        let sound = Sound { file: &file, form: SoundForm { channels, rate: None, span } };
        let (mut tools, mut array) = (SoundTools::default(), ArrayBuffer::default());
        sound::decode(&sound, MOST_BYTES, &mut tools, &mut NoSoundDecoder, &mut array).ok()?;
        let elements: u64 = array.shape.iter().product();
        let bytes = array.bytes.len() as u64;
        assert!(bytes == 4 * elements && bytes <= MOST_BYTES, "{:?}", array.shape);
        Some(array.bytes)
    };
    if let (Some(whole), Ok(header)) = (floats(None), SoundHeader::read(&file))
        && let Ok(frames) = span.frames(header.frames.unwrap_or(0), header.rate)
        && let Some(part) = floats(Some(span))
    {
        let frame_bytes = 4 * u64::from(channels.unwrap_or(1));
        let place = |frame: u64| usize::try_from(frame * frame_bytes).unwrap_or(usize::MAX);
        let is_mp3 = header.coding == SoundCoding::Mp3;
        assert!(is_mp3 || part == whole[place(frames.start)..place(frames.end)], "{frames:?}");
    }
}

/// The markers of a JPEG file, without its pixels.
pub fn jpeg_markers(bytes: &[u8]) {
    let _ = jpeg::read_header(bytes);
    let _ = jpeg::ending(bytes);
}

/// An EXIF block.
///
/// # Panics
/// The orientation is invalid.
pub fn exif(bytes: &[u8]) {
    assert!((1..=8).contains(&decode::exif::orientation(bytes)));
}

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The bytes before the file: channels, orientation, reduction and whether indices or wide levels are read, then the
/// region's corner and size in 256ths.
const CHOICES: usize = 5;

fn decode(magic: &[u8], bytes: &[u8]) {
    let Some((choices, file)) = bytes.split_at_checked(CHOICES) else {
        return;
    };
    if !file.starts_with(magic) {
        return;
    }
    DECODERS.with_borrow_mut(|(decoders, pixels)| {
        let Ok(header) = decoders.read_header(file, choices[0] & 4 != 0, MOST_PIXELS) else {
            return;
        };
        let content = [Content::Colours, Content::Indices, Content::Wide, Content::Colours]
            [usize::from(choices[0] >> 5 & 3)];
        let Ok(header) = header.with_content(content) else {
            return;
        };
        let reduction = header.reducible(REDUCTIONS[usize::from(choices[0] >> 3 & 3)]);
        let size = reduction.size(header.size());
        let channels = match content {
            // As in the operation.
            Content::Indices => 1,
            Content::Colours | Content::Wide => [1, 3, 4, 3][usize::from(choices[0] & 3)],
        };
        let channels = channels * u8::try_from(content.element_bytes()).unwrap_or(1);
        let part = |whole: u32, share: u8| whole * u32::from(share) / 256;
        let (left, top) = (part(size.width, choices[1]), part(size.height, choices[2]));
        let needed = Rectangle {
            left,
            top,
            width: 1 + part(size.width - left - 1, choices[3]),
            height: 1 + part(size.height - top - 1, choices[4]),
        };
        let wanted = Wanted { reduction, channels, needed, in_colour_rows: false };
        decoders.assert_agreement(file, &header, wanted);
        if let Ok(decoded) = decoders.decode(file, &header, wanted, pixels) {
            let area = decoded.area;
            let holds = area.left <= needed.left
                && area.top <= needed.top
                && area.left + area.width >= needed.left + needed.width
                && area.top + area.height >= needed.top + needed.height;
            let bytes = area.width as usize * area.height as usize * usize::from(channels);
            assert!(holds && pixels.len() >= bytes, "{needed:?} of {area:?}");
        }
    });
}

/// Corrects the CRC-32 of each chunk.
fn set_checksums_right(file: &mut [u8]) {
    let mut at = CHOICES + PNG.len();
    while let Some(head) = file.get(at..at + 4).and_then(|head| head.first_chunk::<4>()) {
        let length = u32::from_be_bytes(*head) as usize;
        let Some(end) = (at + 8).checked_add(length).filter(|end| end + 4 <= file.len()) else {
            return;
        };
        let checksum = crc32(&file[at + 4..end]);
        file[end..end + 4].copy_from_slice(&checksum.to_be_bytes());
        at = end + 4;
    }
}
