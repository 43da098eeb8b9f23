//! Offsets of the fields that libavcodec and libavutil give no function for, for each major version.
//!
//! `AVPacket`, the first fields of `AVFrame` and of `AVCodecParameters` are the same in all of them. The fields further
//! down in `AVFrame` move when deprecated ones before them are removed. [`Layout::of`] has them as declared in the
//! headers of the releases named there; a new frame's defaults are compared before a table is used.

/// Offsets in `AVPacket`, in bytes.
pub(crate) mod packet {
    pub(crate) const PTS: usize = 8;
    pub(crate) const DTS: usize = 16;
    pub(crate) const DATA: usize = 24;
    pub(crate) const FLAGS: usize = 40;
}

/// Offsets in `AVCodecParameters`, in bytes.
pub(crate) mod parameters {
    pub(crate) const EXTRADATA: usize = 16;
    pub(crate) const EXTRADATA_SIZE: usize = 24;
}

/// Offsets in `AVFrame` that are the same in all versions, in bytes.
pub(crate) mod frame {
    pub(crate) const DATA: usize = 0;
    pub(crate) const LINESIZE: usize = 64;
    pub(crate) const WIDTH: usize = 104;
    pub(crate) const HEIGHT: usize = 108;
    /// Of a block of sound.
    pub(crate) const FRAMES: usize = 112;
    pub(crate) const FORMAT: usize = 116;
    pub(crate) const PTS: usize = 136;
}

/// The other offsets in `AVFrame`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// `flags`. After it, 4 bytes each: range, primaries, transfer, matrix, chroma location; then, at the next multiple
    /// of 8, `best_effort_timestamp`.
    pub(crate) flags: usize,
    /// `decode_error_flags`.
    pub(crate) errors: usize,
}

impl Layout {
    /// The layout of a major version of libavcodec; `None`: not known.
    pub(crate) const fn of(major: u32) -> Option<Self> {
        Some(match major {
            // FFmpeg 4.
            58 => Self { flags: 380, errors: 440 },
            // FFmpeg 5 and 6.
            59 | 60 => Self { flags: 316, errors: 376 },
            // FFmpeg 7.
            61 => Self { flags: 292, errors: 344 },
            // FFmpeg 8, and 9 as far as it is known.
            62 | 63 => Self { flags: 276, errors: 320 },
            _ => return None,
        })
    }

    pub(crate) const fn range(self) -> usize {
        self.flags + 4
    }

    pub(crate) const fn primaries(self) -> usize {
        self.flags + 8
    }

    pub(crate) const fn transfer(self) -> usize {
        self.flags + 12
    }

    pub(crate) const fn matrix(self) -> usize {
        self.flags + 16
    }

    pub(crate) const fn chroma_location(self) -> usize {
        self.flags + 20
    }

    pub(crate) const fn best_effort_pts(self) -> usize {
        (self.flags + 24).next_multiple_of(8)
    }
}
