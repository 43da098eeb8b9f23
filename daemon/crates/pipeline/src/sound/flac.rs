//! The frames of a FLAC file, through claxon, which checks the sum of each.
//!
//! Metadata are read by `SoundHeader`, so that claxon sees frames alone.

use claxon::frame::FrameReader;
use claxon::input::BufferedReader;

use super::kept::Kept;
use forebay_source::dataset::{Defect, SoundHeader};

/// Gives all frames.
pub(super) fn decode(
    data: &[u8],
    header: &SoundHeader,
    bits: u8,
    kept: &mut Kept<'_>,
) -> Result<(), Defect> {
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let whole = (1_u32 << (bits - 1)) as f32;
    let mut reader = FrameReader::new(BufferedReader::new(data));
    let (mut block_memory, mut frames) = (Vec::new(), 0);
    while header.frames.is_none_or(|all| frames < all) {
        let block = reader.read_next_or_eof(std::mem::take(&mut block_memory));
        let Some(block) =
            block.map_err(|reason| Defect(format!("cannot decode the FLAC file: {reason}")))?
        else {
            break;
        };
        if block.channels() != u32::from(header.channels) {
            return Err(Defect(format!(
                "the FLAC file has {} channels, and a frame of it has {}",
                header.channels,
                block.channels()
            )));
        }
        for time in 0..block.duration() {
            let levels = 0..u16::try_from(block.channels()).unwrap_or(0);
            kept.push(levels.map(|channel| {
                #[expect(clippy::cast_precision_loss, reason = "at most 24 bits")]
                let level = block.sample(u32::from(channel), time) as f32;
                level / whole
            }))?;
        }
        frames += u64::from(block.duration());
        block_memory = block.into_buffer();
    }
    match header.frames {
        Some(all) if frames != all => {
            Err(Defect(format!("the sound file is truncated: {frames} of {all} frames of FLAC")))
        }
        _ => Ok(()),
    }
}
