//! AIFF and AIFF-C: the form of the samples in the chunk `COMM`, the samples in `SSND`.

use super::{SoundCoding, SoundHeader, big, big_at, cut, not_read, stored};
use crate::Defect;

/// What `COMM` says.
struct Form {
    coding: (SoundCoding, u64),
    channels: u64,
    frames: u64,
    rate: u64,
}

/// Reads the header.
pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
    let is_compressed = file.get(11) == Some(&b'C');
    let (mut at, mut form, mut samples) = (12, None, None);
    while let Some(head) = file.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let start = at + 8;
        let length = usize::try_from(big(&head[4..])).unwrap_or(usize::MAX);
        let end = start.saturating_add(length);
        match &head[..4] {
            b"COMM" => {
                let body = file.get(start..end).ok_or_else(cut)?;
                let kind = if is_compressed { body.get(18..22).ok_or_else(cut)? } else { b"NONE" };
                form = Some(Form::read(body, kind)?);
            }
            b"SSND" => {
                let offset = usize::try_from(big_at(file, start, 4)?).map_err(|_| cut())?;
                samples = Some((start.saturating_add(8 + offset), end.min(file.len())));
            }
            _ => {}
        }
        if let (Some(form), Some((start, end))) = (&form, samples) {
            return stored(
                form.coding,
                (form.channels, form.rate),
                (Some(form.frames), start, end),
            );
        }
        at = end.saturating_add(length % 2);
    }
    match form {
        // Without frames there need be no samples.
        Some(form) if form.frames == 0 => {
            stored(form.coding, (form.channels, form.rate), (Some(0), file.len(), file.len()))
        }
        _ => Err(cut()),
    }
}

impl Form {
    /// Reads the chunk; `kind`: how the samples are stored.
    fn read(body: &[u8], kind: &[u8]) -> Result<Self, Defect> {
        let bits = big_at(body, 6, 2)?;
        let bytes = bits.div_ceil(8);
        let whole = u8::try_from(bytes).ok().filter(|bytes| (1..=4).contains(bytes));
        let coding = match (kind, whole) {
            // Bits that leave a byte unused are its lowest, and zero.
            (b"NONE" | b"twos" | b"in24" | b"in32", Some(bytes)) => SoundCoding::SignedBig(bytes),
            (b"sowt", Some(1)) => SoundCoding::SignedBig(1),
            // The last two are libsndfile's, `in24` and `in32` read backwards.
            (b"sowt" | b"42n1" | b"23ni", Some(bytes)) => SoundCoding::Signed(bytes),
            (b"raw ", Some(1)) => SoundCoding::Unsigned8,
            (b"fl32" | b"FL32", _) if bits == 32 => SoundCoding::FloatBig(4),
            (b"fl64" | b"FL64", _) if bits == 64 => SoundCoding::FloatBig(8),
            (b"ulaw" | b"ULAW", _) => SoundCoding::MuLaw,
            (b"alaw" | b"ALAW", _) => SoundCoding::ALaw,
            (kind, _) => {
                let kind = String::from_utf8_lossy(kind);
                return Err(Defect(not_read(&format!(
                    "an AIFF file of coding `{kind}` with {bits} bits"
                ))));
            }
        };
        // Some writers of G.711 say 16 bits, those of the unpacked samples.
        let bytes =
            if matches!(coding, SoundCoding::MuLaw | SoundCoding::ALaw) { 1 } else { bytes };
        let rate = extended(body.get(8..18).ok_or_else(cut)?);
        let (channels, frames) = (big_at(body, 0, 2)?, big_at(body, 2, 4)?);
        Ok(Self { coding: (coding, bytes), channels, frames, rate })
    }
}

/// The whole part of a float of 80 bits; 0 if it is negative, infinite or none.
fn extended(bytes: &[u8]) -> u64 {
    let (exponent, mantissa) = (big(&bytes[..2]), big(&bytes[2..10]));
    let shift = (16_383_u64 + 63).checked_sub(exponent);
    shift.filter(|shift| *shift < 64).map_or(0, |shift| mantissa >> shift)
}
