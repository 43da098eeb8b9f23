//! Compressions of parts of a file, and their decoders.
//!
//! No length in the data is trusted: the result has the length that the caller gives, or decoding fails.

use std::cell::RefCell;
use std::io::{self, BufRead, Read};

use libdeflater::{DecompressionError, Decompressor as Inflate};
use zstd::bulk::Decompressor;
use zstd::stream::read::Decoder as ZstdReader;
use zstd::zstd_safe::WriteBuf;

use crate::riegeli;

/// The logarithm of the window that a zstd frame may require beyond its length: enough for the usual levels.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
const MAX_ZSTD_WINDOW: u64 = 1 << MAX_ZSTD_WINDOW_LOG;

/// The size of one read from a decoder.
const READ_BYTES: usize = 4 << 10;

/// A zstd frame requires a larger window than is allowed.
#[derive(Debug, thiserror::Error)]
#[error("its window has {window_bytes} bytes, and at most {MAX_ZSTD_WINDOW} are allowed")]
pub struct WindowTooLarge {
    /// The window that it requires.
    pub window_bytes: u64,
}

/// A compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Without a frame.
    Snappy,
    /// One member or several.
    Gzip,
    /// One frame or several.
    Zstd,
    /// A block without a frame.
    Lz4,
    /// One stream.
    Brotli,
    /// One stream.
    Zlib,
    /// A chunk of a Riegeli file, with its header: see [`riegeli`].
    Riegeli {
        /// Its offset in the file modulo [`riegeli::BLOCK_BYTES`].
        start: u16,
    },
}

impl Codec {
    /// The codecs with a number in indexes, in the order of their numbers.
    const NUMBERED: [Self; 6] =
        [Self::Snappy, Self::Gzip, Self::Zstd, Self::Lz4, Self::Brotli, Self::Zlib];

    /// Maximal unpacked bytes that a decoder keeps.
    pub const MAX_HISTORY_BYTES: u64 = MAX_ZSTD_WINDOW;

    /// Deflate expands one byte to at most 1032 (zlib's technical details, "Maximum Compression Factor").
    pub const MAX_DEFLATE_FACTOR: u64 = 1032;

    /// A zstd frame says within its first bytes what it unpacks to.
    pub const MAX_ZSTD_HEAD_BYTES: u64 = 18;

    /// What a zstd frame unpacks to, by its first bytes; `None`: they are not of a frame, or it does not say so.
    #[must_use]
    pub fn zstd_content_bytes(head: &[u8]) -> Option<u64> {
        let (descriptor, rest) = head.strip_prefix(&ZSTD_MAGIC)?.split_first()?;
        let is_single = descriptor >> 5 & 1 == 1;
        // A byte of the window, and the number of a dictionary.
        let before = usize::from(!is_single) + [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = rest.get(before..)?;
        match descriptor >> 6 {
            0 if is_single => size.first().map(|size| u64::from(*size)),
            0 => None,
            1 => size.first_chunk().map(|size| u64::from(u16::from_le_bytes(*size)) + 256),
            2 => size.first_chunk().map(|size| u64::from(u32::from_le_bytes(*size))),
            _ => size.first_chunk().map(|size| u64::from_le_bytes(*size)),
        }
    }

    /// Its number in indexes; that of no codec for a chunk of Riegeli, whose indexes need none.
    #[must_use]
    pub fn number(self) -> u8 {
        let number = Self::NUMBERED.iter().position(|codec| *codec == self);
        number.and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX)
    }

    /// The codec with a number of an index.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::NUMBERED.get(usize::from(number)).copied()
    }

    /// Passes the unpacked bytes of a file to `take`; frames or members are concatenated.
    ///
    /// # Errors
    /// The file is damaged, truncated, or of another kind; or `take` fails.
    pub fn unpack_stream(
        self,
        packed: &mut impl BufRead,
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        take(&mut *self.reader(packed)?)
    }

    /// A reader of a file's unpacked bytes, as [`unpack_stream`](Self::unpack_stream) passes them on.
    ///
    /// # Errors
    /// No file as a whole is compressed so.
    pub fn reader<'p>(self, mut packed: impl BufRead + 'p) -> io::Result<Box<dyn Read + 'p>> {
        match self {
            Self::Gzip => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(packed))),
            Self::Zstd => {
                // The decoder refuses such a window as well, here and in later frames, but does not say its size.
                let head = packed.fill_buf()?;
                if head.is_empty() {
                    return Ok(Box::new(io::empty()));
                }
                let window = zstd_window_bytes(head);
                if let Some(window_bytes) = window.filter(|bytes| *bytes > MAX_ZSTD_WINDOW) {
                    return Err(io::Error::other(WindowTooLarge { window_bytes }));
                }
                Ok(Box::new(zstd_reader(packed, MAX_ZSTD_WINDOW)?))
            }
            Self::Snappy | Self::Lz4 | Self::Brotli | Self::Zlib | Self::Riegeli { .. } => {
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    /// Replaces the buffer's contents by at least the first `wanted` of the `whole` bytes that `packed` unpacks to.
    /// False: the length or the contents differ.
    pub fn unpack(
        self,
        packed: &[u8],
        (whole, wanted): (usize, usize),
        buffer: &mut Vec<u8>,
    ) -> bool {
        if wanted > whole {
            return false;
        }
        // Before so much memory is written to.
        let is_deflate = matches!(self, Self::Gzip | Self::Zlib);
        if is_deflate && whole as u64 / Self::MAX_DEFLATE_FACTOR > packed.len() as u64 {
            return false;
        }
        match self {
            // Bytes that are there are written over.
            Self::Zlib | Self::Lz4 => {}
            Self::Gzip if wanted == whole => {}
            _ => buffer.clear(),
        }
        match self {
            Self::Snappy => {
                if snap::raw::decompress_len(packed).ok() != Some(whole) {
                    return false;
                }
                buffer.resize(whole, 0);
                snap::raw::Decoder::new().decompress(packed, buffer).ok() == Some(whole)
            }
            Self::Lz4 | Self::Zlib => {
                buffer.resize(whole, 0);
                self.unpack_into(packed, buffer)
            }
            Self::Gzip if wanted == whole => {
                buffer.resize(whole, 0);
                self.unpack_into(packed, buffer)
            }
            Self::Gzip => {
                take(flate2::bufread::MultiGzDecoder::new(packed), (whole, wanted), buffer)
            }
            Self::Brotli => {
                let decoder = brotli_decompressor::Decompressor::new(packed, READ_BYTES);
                take(decoder, (whole, wanted), buffer)
            }
            Self::Zstd if wanted == whole => {
                // Written to without being zeroed first.
                buffer.reserve_exact(whole);
                unpack_zstd(packed, whole, buffer)
            }
            Self::Zstd => zstd_reader(packed, MAX_ZSTD_WINDOW.max(whole as u64))
                .is_ok_and(|decoder| take(decoder, (whole, wanted), buffer)),
            Self::Riegeli { start } => riegeli::unpack(packed, start, (whole, wanted), buffer),
        }
    }

    /// Fills a buffer with all that `packed` unpacks to. False: the length or the contents differ.
    pub fn unpack_into(self, packed: &[u8], into: &mut [u8]) -> bool {
        let whole = into.len();
        match self {
            Self::Lz4 => lz4_flex::block::decompress_into(packed, into).ok() == Some(whole),
            Self::Zstd => unpack_zstd(packed, whole, into),
            Self::Zlib => inflate(|inflate| inflate.zlib_decompress(packed, into), whole),
            Self::Gzip => {
                // The size of one member is that of all, or there are several.
                let last = packed.last_chunk().map(|bytes| u32::from_le_bytes(*bytes));
                last.is_some_and(|last| u64::from(last) == whole as u64)
                    && inflate(|inflate| inflate.gzip_decompress(packed, into), whole)
                    || unpack_members(packed, into)
            }
            Self::Snappy | Self::Brotli | Self::Riegeli { .. } => {
                let mut buffer = Vec::new();
                let is_good = self.unpack(packed, (whole, whole), &mut buffer);
                if is_good {
                    into.copy_from_slice(&buffer);
                }
                is_good
            }
        }
    }
}

/// Reads this many bytes; if all are wanted, the input must end there.
fn take(reader: impl Read, (whole, wanted): (usize, usize), buffer: &mut Vec<u8>) -> bool {
    buffer.reserve_exact(wanted + 1);
    let most = wanted as u64 + u64::from(wanted == whole);
    reader.take(most).read_to_end(buffer).is_ok() && buffer.len() == wanted
}

/// Inflates a stream, whose size is known: half the time of a decoder that can pause.
fn inflate(
    unpack: impl FnOnce(&mut Inflate) -> Result<usize, DecompressionError>,
    whole: usize,
) -> bool {
    thread_local! {
        /// 11 kB that would be allocated for each value.
        static INFLATE: RefCell<Inflate> = RefCell::new(Inflate::new());
    }
    INFLATE.with_borrow_mut(unpack).is_ok_and(|bytes| bytes == whole)
}

/// Fills a buffer with all members of a gzip file.
fn unpack_members(packed: &[u8], into: &mut [u8]) -> bool {
    let mut members = flate2::bufread::MultiGzDecoder::new(packed);
    members.read_exact(into).is_ok() && members.read(&mut [0]).is_ok_and(|more| more == 0)
}

/// What a zstd frame begins with.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// The window that the zstd frame with this beginning requires; `None`: that is not the beginning of a frame.
fn zstd_window_bytes(head: &[u8]) -> Option<u64> {
    let (descriptor, rest) = head.strip_prefix(&ZSTD_MAGIC)?.split_first()?;
    if descriptor >> 5 & 1 == 1 {
        return Codec::zstd_content_bytes(head);
    }
    let window = rest.first()?;
    let power = 1 << (10 + (window >> 3));
    Some(power + power / 8 * u64::from(window & 7))
}

/// A reader of concatenated frames, whose windows have at most this many bytes.
fn zstd_reader<'p, P: BufRead + 'p>(packed: P, most: u64) -> io::Result<ZstdReader<'p, P>> {
    let mut reader = ZstdReader::with_buffer(packed)?;
    reader.window_log_max(u64::BITS - (most - 1).leading_zeros())?;
    Ok(reader)
}

/// Fills a buffer with the `whole` bytes that frames unpack to. False: the length or the contents differ.
fn unpack_zstd(packed: &[u8], whole: usize, into: &mut (impl WriteBuf + ?Sized)) -> bool {
    thread_local! {
        /// 160 kB that would be allocated for each value.
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => match Decompressor::new() {
                Ok(new) => kept.insert(new),
                Err(_) => return false,
            },
        };
        decompressor.decompress_to_buffer(packed, into).is_ok_and(|bytes| bytes == whole)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// `zstd -3 --check` of "frame one, ", then a frame that is skipped, then one of "and two".
    const FRAMES: &[u8] = include_bytes!("../fixtures/frames.zst");

    fn unpacked(codec: Codec, mut packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        codec
            .unpack_stream(&mut packed, &mut |reader| reader.read_to_end(&mut found).map(|_| ()))?;
        Ok(found)
    }

    #[test]
    fn frames_are_concatenated_and_damage_is_reported() {
        assert_eq!(unpacked(Codec::Zstd, FRAMES).unwrap(), b"frame one, and two");
        for end in 1..FRAMES.len() {
            let found = unpacked(Codec::Zstd, &FRAMES[..end]);
            assert!(found.is_err() || found.unwrap() == b"frame one, ", "{end}");
        }
        let mut refused = 0;
        for place in 0..FRAMES.len() {
            let mut bytes = FRAMES.to_vec();
            bytes[place] ^= 0x10;
            refused += u8::from(unpacked(Codec::Zstd, &bytes).is_err());
        }
        assert!(usize::from(refused) > FRAMES.len() / 2, "{refused}");
        assert_eq!(unpacked(Codec::Zstd, b"").unwrap(), b"");
        unpacked(Codec::Gzip, b"\x1f\x8b").unwrap_err();
    }

    #[test]
    fn a_zstd_frame_says_what_it_unpacks_to() {
        let head = |descriptor: u8, rest: &[u8]| {
            let head = [&[0x28, 0xB5, 0x2F, 0xFD, descriptor][..], rest].concat();
            Codec::zstd_content_bytes(&head)
        };
        assert_eq!(head(0x20, &[7]), Some(7));
        assert_eq!(head(0x60, &[1, 1]), Some(0x101 + 256));
        assert_eq!(head(0xA0, &[1, 0, 0, 1]), Some(0x0100_0001));
        assert_eq!(head(0xE0, &[1, 0, 0, 0, 0, 0, 0, 1]), Some(0x0100_0000_0000_0001));
        // Behind a window, and behind the number of a dictionary.
        assert_eq!(head(0x80, &[0x58, 9, 0, 0, 0]), Some(9));
        assert_eq!(head(0x23, &[1, 2, 3, 4, 5]), Some(5));
        // None is said, or the head is cut off.
        for (descriptor, rest) in [(0x00, &[0x58, 1, 1][..]), (0x20, &[]), (0xE0, &[0; 7])] {
            assert_eq!(head(descriptor, rest), None);
        }
        assert_eq!(Codec::zstd_content_bytes(b"LDFZ01\0\0"), None);
    }

    #[test]
    fn windows_above_the_limit_are_refused_with_their_size() {
        // The window's byte: a power of two from 1 KiB on, and eighths of it.
        let head = |window: u8| [&ZSTD_MAGIC[..], &[0, window, 1, 0, 0]].concat();
        for (window, bytes) in
            [(0, 1 << 10), (13 << 3, 8 << 20), (13 << 3 | 1, 9 << 20), (17 << 3, 128 << 20)]
        {
            assert_eq!(zstd_window_bytes(&head(window)), Some(bytes));
            let error = unpacked(Codec::Zstd, &head(window)).err();
            let refused = error.as_ref().and_then(|error| error.get_ref()?.downcast_ref());
            let expected = (bytes > MAX_ZSTD_WINDOW).then_some(bytes);
            assert_eq!(refused.map(|WindowTooLarge { window_bytes }| *window_bytes), expected);
        }
        // A single segment, whose window is its contents.
        let whole = [&ZSTD_MAGIC[..], &[0xA0], &(9_u32 << 20).to_le_bytes()].concat();
        assert_eq!(zstd_window_bytes(&whole), Some(9 << 20));
        // A later frame's is refused without its size.
        unpacked(Codec::Zstd, &[FRAMES, &head(17 << 3)].concat()).unwrap_err();
        assert_eq!(zstd_window_bytes(b"LDFZ01"), None);
    }

    #[test]
    fn lengths_are_checked() {
        let mut buffer = Vec::new();
        let packed = snap::raw::Encoder::new().compress_vec(b"twelve bytes").unwrap();
        assert!(
            Codec::Snappy.unpack(&packed, (12, 6), &mut buffer) && buffer.starts_with(b"twelve")
        );
        for whole in [0, 11, 13, 1 << 40] {
            assert!(!Codec::Snappy.unpack(&packed, (whole, whole), &mut buffer), "{whole}");
        }
        let packed = lz4_flex::block::compress(b"twelve bytes");
        assert!(Codec::Lz4.unpack(&packed, (12, 12), &mut buffer) && buffer == b"twelve bytes");
        for whole in [0, 11, 13] {
            assert!(!Codec::Lz4.unpack(&packed, (whole, whole), &mut buffer), "{whole}");
        }
        assert!(Codec::Zstd.unpack(FRAMES, (18, 18), &mut buffer));
        assert_eq!(buffer, b"frame one, and two");
        assert!(Codec::Zstd.unpack(FRAMES, (18, 5), &mut buffer) && buffer == b"frame");
        for whole in [0, 11, 17, 19] {
            assert!(!Codec::Zstd.unpack(FRAMES, (whole, whole), &mut buffer), "{whole}");
        }
        // Uncompressed bytes, in one piece.
        let packed = [&[0x8b, 0x05, 0x80][..], b"twelve bytes", &[3]].concat();
        assert!(Codec::Brotli.unpack(&packed, (12, 12), &mut buffer) && buffer == b"twelve bytes");
        assert!(Codec::Brotli.unpack(&packed, (12, 6), &mut buffer) && buffer == b"twelve");
        for whole in [0, 11, 13] {
            assert!(!Codec::Brotli.unpack(&packed, (whole, whole), &mut buffer), "{whole}");
        }
        for number in 0..6 {
            assert_eq!(Codec::of_number(number).map(Codec::number), Some(number));
        }
        assert_eq!(Codec::of_number(6), None);
    }

    #[test]
    fn streams_of_deflate_have_the_length_that_is_given() {
        let level = flate2::Compression::default();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
        zlib.write_all(b"twelve bytes").unwrap();
        let zlib = zlib.finish().unwrap();
        let member = |bytes: &[u8]| {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
            gzip.write_all(bytes).unwrap();
            gzip.finish().unwrap()
        };
        let gzip = member(b"twelve bytes");
        let members = [member(b"twelve "), member(b"bytes")].concat();
        let mut buffer = vec![1; 40];
        for (codec, packed) in [(Codec::Zlib, &zlib), (Codec::Gzip, &gzip), (Codec::Gzip, &members)]
        {
            assert!(codec.unpack(packed, (12, 12), &mut buffer) && buffer == b"twelve bytes");
            assert!(codec.unpack(packed, (12, 6), &mut buffer) && buffer.starts_with(b"twelve"));
            for whole in [0, 5, 7, 11, 13, 1 << 40] {
                assert!(!codec.unpack(packed, (whole, whole), &mut buffer), "{codec:?} {whole}");
            }
            for place in 0..packed.len() {
                assert!(
                    !codec.unpack(&packed[..place], (12, 12), &mut buffer),
                    "{codec:?} {place}"
                );
                let mut bytes = packed.clone();
                bytes[place] ^= 0x10;
                let is_good = codec.unpack(&bytes, (12, 12), &mut buffer);
                assert!(!is_good || buffer == b"twelve bytes", "{codec:?} {place}");
            }
        }
    }
}
