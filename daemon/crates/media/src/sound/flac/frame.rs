//! A FLAC frame that claxon does not decode: with partitions of the residual that are not Rice-coded (escaped), or
//! without its number of bits. RFC 9639, section 9, has the format.
//!
//! Such frames are rare. claxon decodes all others, several times as fast.

use super::bits::Bits;
use super::defect;
use forebay_dataset::Defect;

/// What a frame's header says, and the frame's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// 1 to 8.
    pub(super) channels: usize,
    /// Samples of each channel.
    pub(super) duration: usize,
    /// Bytes of the whole frame.
    pub(super) bytes: usize,
}

/// How two channels are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stereo {
    Independent,
    LeftSide,
    SideRight,
    MidSide,
}

fn reserved(what: &str) -> Defect {
    defect(format!("{what} of a frame has a reserved value"))
}

/// Decodes the frame at the start of `data` into `levels`, channel by channel. `bits` are those of the file's header.
///
/// # Errors
/// The frame is defective, or its checksum is another.
pub(super) fn decode(data: &[u8], bits: u8, levels: &mut Vec<i32>) -> Result<Frame, Defect> {
    let mut input = Bits::new(data);
    // The synchronisation code, a reserved bit, and whether block sizes differ.
    if input.take(15)? != 0x7ffc {
        return Err(defect("a frame does not begin where the one before it ends"));
    }
    input.take(1)?;
    let (duration_code, rate_code) = (input.take(4)?, input.take(4)?);
    let (channels, stereo) = match input.take(4)? {
        8 => (2, Stereo::LeftSide),
        9 => (2, Stereo::SideRight),
        10 => (2, Stereo::MidSide),
        count @ 0..=7 => (count as usize + 1, Stereo::Independent),
        _ => return Err(reserved("the channels")),
    };
    let bits = match input.take(3)? {
        0 => u32::from(bits),
        1 => 8,
        2 => 12,
        4 => 16,
        5 => 20,
        6 => 24,
        7 => return Err(defect("a frame has 32 bits, which are not read")),
        _ => return Err(reserved("the bits")),
    };
    input.take(1)?;
    // The frame's or sample's number, coded like a character of UTF-8 of up to 7 bytes.
    let more = match input.take(8)?.to_le_bytes()[0].leading_ones() {
        0 => 0,
        count @ 2..=7 => count - 1,
        _ => return Err(reserved("the number")),
    };
    (0..more).try_for_each(|_| input.take(8).map(drop))?;
    let duration = match duration_code {
        0 => return Err(reserved("the length")),
        1 => 192,
        code @ 2..=5 => 576 << (code - 2),
        6 => input.take(8)? + 1,
        7 => input.take(16)? + 1,
        code => 256 << (code - 8),
    };
    // The rate is that of the file's header.
    input.take(match rate_code {
        12 => 8,
        13 | 14 => 16,
        15 => return Err(reserved("the rate")),
        _ => 0,
    })?;
    // The header's checksum; the frame's covers the header, too.
    input.take(8)?;

    let duration = usize::try_from(duration).map_err(defect)?;
    levels.clear();
    levels.resize(channels * duration, 0);
    for (channel, levels) in levels.chunks_exact_mut(duration).enumerate() {
        let is_side = match stereo {
            Stereo::Independent => false,
            Stereo::LeftSide | Stereo::MidSide => channel == 1,
            Stereo::SideRight => channel == 0,
        };
        subframe(&mut input, bits + u32::from(is_side), levels)?;
    }
    input.align();
    let end = input.bytes_read();
    if input.take(16)? != u32::from(crc_16(&data[..end])) {
        return Err(defect("the checksum of a frame is another one"));
    }
    if stereo != Stereo::Independent {
        let (first, second) = levels.split_at_mut(duration);
        first.iter_mut().zip(second).for_each(|(first, second)| uncouple(stereo, first, second));
    }
    Ok(Frame { channels, duration, bytes: input.bytes_read() })
}

/// Two stored channels to left and right.
const fn uncouple(stereo: Stereo, first: &mut i32, second: &mut i32) {
    match stereo {
        Stereo::Independent => {}
        Stereo::LeftSide => *second = first.wrapping_sub(*second),
        Stereo::SideRight => *first = first.wrapping_add(*second),
        Stereo::MidSide => {
            let (side, double_mid) = (*second, first.wrapping_shl(1) | (*second & 1));
            *first = double_mid.wrapping_add(side) >> 1;
            *second = double_mid.wrapping_sub(side) >> 1;
        }
    }
}

/// A channel's levels.
fn subframe(input: &mut Bits<'_>, bits: u32, levels: &mut [i32]) -> Result<(), Defect> {
    if input.take(1)? != 0 {
        return Err(reserved("the padding"));
    }
    let kind = input.take(6)?;
    let wasted = if input.take(1)? == 1 { input.take_unary()? + 1 } else { 0 };
    let bits = bits
        .checked_sub(wasted)
        .filter(|bits| *bits > 0)
        .ok_or_else(|| defect("a frame has more wasted bits than bits"))?;
    match kind {
        0 => levels.fill(input.take_signed(bits)?),
        1 => warm_up(input, bits, levels)?,
        8..=12 => {
            let order = (kind - 8) as usize;
            let coefficients: &[i64] =
                [&[][..], &[1], &[2, -1], &[3, -3, 1], &[4, -6, 4, -1]][order];
            predicted(input, bits, order, |_| Ok((coefficients.to_vec(), 0)), levels)?;
        }
        32.. => {
            let order = (kind - 31) as usize;
            predicted(input, bits, order, |input| coefficients(input, order), levels)?;
        }
        _ => return Err(reserved("the prediction")),
    }
    levels.iter_mut().for_each(|level| *level = level.wrapping_shl(wasted));
    Ok(())
}

/// Levels as they are.
fn warm_up(input: &mut Bits<'_>, bits: u32, levels: &mut [i32]) -> Result<(), Defect> {
    for level in levels {
        *level = input.take_signed(bits)?;
    }
    Ok(())
}

/// The coefficients of a linear prediction, that of the last level first, and how many bits the sum is shifted by.
fn coefficients(input: &mut Bits<'_>, order: usize) -> Result<(Vec<i64>, u32), Defect> {
    let precision = input.take(4)? + 1;
    let shift = input.take_signed(5)?;
    if precision == 16 {
        return Err(reserved("the precision"));
    }
    let shift = u32::try_from(shift).map_err(|_| reserved("the shift"))?;
    let each = (0..order).map(|_| input.take_signed(precision).map(i64::from));
    Ok((each.collect::<Result<_, _>>()?, shift))
}

/// Levels of a linear prediction and a residual.
fn predicted<'f>(
    input: &mut Bits<'f>,
    bits: u32,
    order: usize,
    coefficients: impl FnOnce(&mut Bits<'f>) -> Result<(Vec<i64>, u32), Defect>,
    levels: &mut [i32],
) -> Result<(), Defect> {
    let first = levels.get_mut(..order).ok_or_else(|| defect("a frame is too short"))?;
    warm_up(input, bits, first)?;
    let (coefficients, shift) = coefficients(input)?;
    residual(input, order, levels)?;
    for at in order..levels.len() {
        let before = levels[at - order..at].iter().rev();
        let sum: i64 = before.zip(&coefficients).map(|(level, by)| i64::from(*level) * by).sum();
        let level = i64::from(levels[at]) + (sum >> shift);
        levels[at] = i32::try_from(level).map_err(|_| defect("a level has more bits than 32"))?;
    }
    Ok(())
}

/// Reads the residual to the levels after the first `order`.
fn residual(input: &mut Bits<'_>, order: usize, levels: &mut [i32]) -> Result<(), Defect> {
    let parameter_bits = match input.take(2)? {
        0 => 4,
        1 => 5,
        _ => return Err(reserved("the coding")),
    };
    let partitions = 1_usize << input.take(4)?;
    let length = levels.len() / partitions;
    if !levels.len().is_multiple_of(partitions) || length < order {
        return Err(defect("a frame has partitions that do not fit its length"));
    }
    for partition in 0..partitions {
        let start = if partition == 0 { order } else { partition * length };
        let levels = &mut levels[start..(partition + 1) * length];
        let parameter = input.take(parameter_bits)?;
        if parameter == (1 << parameter_bits) - 1 {
            // Escaped: signed numbers of so many bits.
            let bits = input.take(5)?;
            warm_up(input, bits, levels)?;
            continue;
        }
        for level in levels {
            let high = u64::from(input.take_unary()?) << parameter;
            let folded = high | u64::from(input.take(parameter)?);
            let folded = u32::try_from(folded).map_err(|_| defect("a residual is too large"))?;
            *level = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
        }
    }
    Ok(())
}

/// The frame's checksum: the polynomial x¹⁶ + x¹⁵ + x² + 1.
fn crc_16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x8005 }
        })
    })
}

#[cfg(test)]
mod tests;
