//! Ways in which a part of a file is compressed, and what unpacks it.
//!
//! Nothing here believes a length: what is unpacked is as long as the caller says, or there is nothing.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

/// The history that a zstd frame may ask for beyond its own length: what its writers use at the usual levels.
const MAX_ZSTD_WINDOW: u64 = 8 << 20;

/// What a decoder takes at once of what it unpacks.
const READ_BYTES: usize = 4 << 10;

/// A way to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Without a frame.
    Snappy,
    /// One member or several.
    Gzip,
    /// One frame.
    Zstd,
    /// A block without a frame.
    Lz4,
    /// One stream.
    Brotli,
}

impl Codec {
    /// All, in the order of their numbers in indexes.
    const ALL: [Self; 5] = [Self::Snappy, Self::Gzip, Self::Zstd, Self::Lz4, Self::Brotli];

    /// What a decoder holds at most of what it has unpacked.
    pub(crate) const MAX_HISTORY_BYTES: u64 = MAX_ZSTD_WINDOW;

    /// Its number in indexes.
    #[must_use]
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Gives `take` what a file unpacks to, of several frames or members one after the other.
    ///
    /// # Errors
    /// It is damaged, cut off, or not of this kind; or those of `take`.
    pub(crate) fn unpack_stream(
        self,
        packed: &mut impl BufRead,
        take: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Gzip => take(&mut flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Zstd => take(&mut ZstdFrames { packed, frame: None }),
            Self::Snappy | Self::Lz4 | Self::Brotli => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Replaces the buffer's contents by the first `wanted` of the `whole` bytes that `packed` unpacks to, or by more of
    /// them. False: there are not so many, or others.
    pub(crate) fn unpack(
        self,
        packed: &[u8],
        (whole, wanted): (usize, usize),
        buffer: &mut Vec<u8>,
    ) -> bool {
        buffer.clear();
        if wanted > whole {
            return false;
        }
        match self {
            Self::Snappy => {
                if snap::raw::decompress_len(packed).ok() != Some(whole) {
                    return false;
                }
                buffer.resize(whole, 0);
                snap::raw::Decoder::new().decompress(packed, buffer).ok() == Some(whole)
            }
            Self::Lz4 => {
                buffer.resize(whole, 0);
                lz4_flex::block::decompress_into(packed, buffer).ok() == Some(whole)
            }
            Self::Gzip => {
                take(flate2::bufread::MultiGzDecoder::new(packed), (whole, wanted), buffer)
            }
            Self::Brotli => {
                let decoder = brotli_decompressor::Decompressor::new(packed, READ_BYTES);
                take(decoder, (whole, wanted), buffer)
            }
            Self::Zstd => {
                let most = MAX_ZSTD_WINDOW.max(whole as u64);
                let decoder = StreamingDecoder::new_with_max_window_size(packed, most);
                decoder.is_ok_and(|decoder| take(decoder, (whole, wanted), buffer))
            }
        }
    }
}

/// Reads so many bytes; where all are wanted there are to be no more.
fn take(reader: impl Read, (whole, wanted): (usize, usize), buffer: &mut Vec<u8>) -> bool {
    buffer.reserve_exact(wanted + 1);
    let most = wanted as u64 + u64::from(wanted == whole);
    reader.take(most).read_to_end(buffer).is_ok() && buffer.len() == wanted
}

/// The frames of a zstd file, as one text.
struct ZstdFrames<'p, P: BufRead> {
    packed: &'p mut P,
    frame: Option<Box<FrameDecoder>>,
}

impl<P: BufRead> ZstdFrames<'_, P> {
    /// Begins the next frame; false: there is none.
    fn begin(&mut self) -> io::Result<bool> {
        if self.packed.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW);
        match decoder.init(&mut *self.packed) {
            Ok(()) => self.frame = Some(Box::new(decoder)),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let skipped =
                    io::copy(&mut (&mut *self.packed).take(length.into()), &mut io::sink())?;
                if skipped < length.into() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(true)
    }
}

impl<P: BufRead> Read for ZstdFrames<'_, P> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else {
                match self.begin()? {
                    true => continue,
                    false => return Ok(0),
                }
            };
            while frame.can_collect() == 0 && !frame.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                frame.decode_blocks(&mut *self.packed, one).map_err(io::Error::other)?;
            }
            if frame.can_collect() > 0 {
                return frame.read(to);
            }
            let expected = frame.get_checksum_from_data();
            if expected.is_some() && expected != frame.get_calculated_checksum() {
                return Err(io::Error::other("the checksum of a frame is another"));
            }
            self.frame = None;
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn frames_follow_each_other_and_damage_is_told() {
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
    fn lengths_are_not_believed() {
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
        let frame = &FRAMES[..FRAMES.len()];
        assert!(Codec::Zstd.unpack(frame, (11, 11), &mut buffer) && buffer == b"frame one, ");
        for whole in [0, 10, 12] {
            assert!(!Codec::Zstd.unpack(frame, (whole, whole), &mut buffer), "{whole}");
        }
        // Bytes as they are, in one piece.
        let packed = [&[0x8b, 0x05, 0x80][..], b"twelve bytes", &[3]].concat();
        assert!(Codec::Brotli.unpack(&packed, (12, 12), &mut buffer) && buffer == b"twelve bytes");
        assert!(Codec::Brotli.unpack(&packed, (12, 6), &mut buffer) && buffer == b"twelve");
        for whole in [0, 11, 13] {
            assert!(!Codec::Brotli.unpack(&packed, (whole, whole), &mut buffer), "{whole}");
        }
        for number in 0..5 {
            assert_eq!(Codec::of_number(number).map(Codec::number), Some(number));
        }
        assert_eq!(Codec::of_number(5), None);
    }
}
