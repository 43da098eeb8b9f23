//! CAF, Apple's container: the form of the samples in the chunk `desc`, the samples in `data`.

use super::{SoundCoding, SoundHeader, big, big_at, cut, not_read, stored};
use crate::Defect;

/// The length of data that extend to the end of the file.
const TO_THE_END: u64 = u64::MAX;
/// Flags of linear samples.
const IS_FLOAT: u64 = 1;
const IS_LITTLE: u64 = 2;

/// The coding with its bytes a sample, the channels and the rate.
type Form = ((SoundCoding, u64), (u64, u64));

/// Reads the header.
pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
    let (mut at, mut form) = (8, None);
    while let Some(head) = file.get(at..).and_then(|rest| rest.first_chunk::<12>()) {
        let (start, length) = (at + 12, big(&head[4..]));
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let end = end.filter(|end| *end <= file.len());
        match (&head[..4], end) {
            (b"data", end) => {
                let Some((coding, sizes)) = form else {
                    return Err(Defect("the CAF file has data before its description".to_owned()));
                };
                let end = if length == TO_THE_END { Some(file.len()) } else { end };
                // Before the samples is a count of edits.
                return stored(coding, sizes, (None, start + 4, end.ok_or_else(cut)?));
            }
            (b"desc", Some(end)) => form = Some(description(&file[start..end])?),
            (_, None) => break,
            _ => {}
        }
        at = end.unwrap_or(usize::MAX);
    }
    Err(cut())
}

fn description(body: &[u8]) -> Result<Form, Defect> {
    let rate = f64::from_bits(big_at(body, 0, 8)?);
    let word = |number: usize| big_at(body, 8 + 4 * number, 4);
    let kind = body.get(8..12).ok_or_else(cut)?;
    let (flags, packet_bytes, frames, channels, bits) =
        (word(1)?, word(2)?, word(3)?, word(4)?, word(5)?);
    let bytes = bits / 8;
    let whole = u8::try_from(bytes).ok().filter(|bytes| (1..=4).contains(bytes) && bits % 8 == 0);
    let coding = match (kind, flags & IS_FLOAT, flags & IS_LITTLE, whole) {
        (b"lpcm", 0, _, Some(1)) => SoundCoding::SignedBig(1),
        (b"lpcm", 0, 0, Some(bytes)) => SoundCoding::SignedBig(bytes),
        (b"lpcm", 0, _, Some(bytes)) => SoundCoding::Signed(bytes),
        (b"lpcm", _, 0, _) if bits == 32 => SoundCoding::FloatBig(4),
        (b"lpcm", _, 0, _) if bits == 64 => SoundCoding::FloatBig(8),
        (b"lpcm", _, _, _) if bits == 32 => SoundCoding::Float32,
        (b"lpcm", _, _, _) if bits == 64 => SoundCoding::Float64,
        (b"ulaw", ..) => SoundCoding::MuLaw,
        (b"alaw", ..) => SoundCoding::ALaw,
        (kind, ..) => {
            let kind = String::from_utf8_lossy(kind);
            return Err(Defect(not_read(&format!(
                "a CAF file of coding `{kind}` with {bits} bits"
            ))));
        }
    };
    let bytes = if matches!(coding, SoundCoding::MuLaw | SoundCoding::ALaw) { 1 } else { bytes };
    if frames != 1 || packet_bytes != bytes * channels {
        return Err(Defect(format!(
            "the CAF file has packets of {packet_bytes} bytes for {frames} frames of {channels} channels"
        )));
    }
    // A rate that is no positive number becomes 0, and is refused.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let rate = rate as u64;
    Ok(((coding, bytes), (channels, rate)))
}
