//! AU, as of Sun and NeXT: a header of six words, then the samples.

use super::{SoundCoding, SoundHeader, UNKNOWN, big_at, cut, not_read, stored};
use crate::Defect;

/// Reads the header.
pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
    let word = |number: usize| big_at(file, 4 * number, 4);
    let (start, length, kind) = (word(1)?, word(2)?, word(3)?);
    let coding = match kind {
        1 => (SoundCoding::MuLaw, 1),
        2 => (SoundCoding::SignedBig(1), 1),
        3 => (SoundCoding::SignedBig(2), 2),
        4 => (SoundCoding::SignedBig(3), 3),
        5 => (SoundCoding::SignedBig(4), 4),
        6 => (SoundCoding::FloatBig(4), 4),
        7 => (SoundCoding::FloatBig(8), 8),
        27 => (SoundCoding::ALaw, 1),
        kind => return Err(Defect(not_read(&format!("an AU file of coding {kind}")))),
    };
    let start = usize::try_from(start).map_err(|_| cut())?;
    let end = match length {
        UNKNOWN => file.len(),
        length => {
            let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
            end.filter(|end| *end <= file.len()).ok_or_else(cut)?
        }
    };
    stored(coding, (word(5)?, word(4)?), (None, start, end))
}
