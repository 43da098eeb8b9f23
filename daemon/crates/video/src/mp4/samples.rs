//! `stbl`: the samples of a track that is not fragmented. Here a sample is a packet.

use super::boxes::{Numbers, Part, parts};
use super::left::Left;
use crate::error::{Result, refuse};

/// A packet before edit lists. Times are ticks of the track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) offset: u64,
    pub(super) size: u32,
    /// When it is decoded, from 0 on.
    pub(super) dts: i64,
    /// When it is shown.
    pub(super) pts: i64,
    pub(super) duration: u32,
    pub(super) key: bool,
}

/// Durations above are negative numbers of old writers.
const MAX_DURATION: u32 = u32::MAX - 480_000;
/// Composition offsets beyond this many ticks make a reader ignore all of them.
const MAX_COMPOSITION: u32 = 1 << 28;

/// The boxes of samples, each as its body.
#[derive(Debug, Default)]
struct Boxes<'a> {
    stts: &'a [u8],
    ctts: Option<&'a [u8]>,
    stsc: &'a [u8],
    stsz: Option<(bool, &'a [u8])>,
    chunks: Option<(bool, &'a [u8])>,
    stss: Option<&'a [u8]>,
    stps: Option<&'a [u8]>,
    rap: Option<&'a [u8]>,
}

/// The samples of `stbl`, at most what is left, and the positive number of ticks by which the first frame is shown before
/// its time.
pub(super) fn read(table: &[u8], left: &mut Left) -> Result<(Vec<Sample>, i64)> {
    let mut boxes = Boxes::default();
    for part in parts(table) {
        let Part { kind, body } = part?;
        match &kind {
            b"stts" => boxes.stts = body,
            b"ctts" => boxes.ctts = Some(body),
            b"stsc" => boxes.stsc = body,
            b"stsz" => boxes.stsz = Some((false, body)),
            b"stz2" => boxes.stsz = Some((true, body)),
            b"stco" => boxes.chunks = Some((false, body)),
            b"co64" => boxes.chunks = Some((true, body)),
            b"stss" => boxes.stss = Some(body),
            b"stps" => boxes.stps = Some(body),
            b"sbgp" if body.get(4..8) == Some(b"rap ") => boxes.rap = Some(body),
            _ => {}
        }
    }
    let Some(sizes) = boxes.stsz else { return Ok((Vec::new(), 0)) };
    let sizes = Sizes::read(sizes)?;
    left.take(sizes.count(), sizes.total())?;
    let mut samples = places(&boxes, &sizes)?;
    set_times(&mut samples, boxes.stts)?;
    let shift = match boxes.ctts {
        Some(body) => compose(&mut samples, body)?,
        None => 0,
    };
    set_keys(&mut samples, &boxes)?;
    Ok((samples, shift))
}

/// The sizes of samples.
enum Sizes<'a> {
    Equal { size: u32, count: usize },
    Each { bits: u8, count: usize, bytes: &'a [u8] },
}

impl<'a> Sizes<'a> {
    fn read((is_compact, body): (bool, &'a [u8])) -> Result<Self> {
        let kind = if is_compact { *b"stz2" } else { *b"stsz" };
        let (mut numbers, ..) = Numbers::versioned(kind, body)?;
        let size = numbers.u32()?;
        let count = numbers.u32()? as usize;
        let bits = match (is_compact, size & 0xff) {
            (false, _) if size != 0 => return Ok(Self::Equal { size, count }),
            (false, _) => 32,
            (true, 4) => 4,
            (true, 8) => 8,
            (true, 16) => 16,
            (true, bits) => return refuse!("its packet sizes (`stz2`) have {bits} bits"),
        };
        let bytes = numbers.bytes((count * usize::from(bits)).div_ceil(8))?;
        Ok(Self::Each { bits, count, bytes })
    }

    const fn count(&self) -> usize {
        match self {
            Self::Equal { count, .. } | Self::Each { count, .. } => *count,
        }
    }

    fn total(&self) -> u64 {
        match self {
            Self::Equal { size, count } => u64::from(*size).saturating_mul(*count as u64),
            Self::Each { count, .. } => (0..*count).map(|sample| u64::from(self.of(sample))).sum(),
        }
    }

    fn of(&self, sample: usize) -> u32 {
        let Self::Each { bits, bytes, .. } = self else {
            return if let Self::Equal { size, .. } = self { *size } else { 0 };
        };
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or(0));
        match bits {
            4 => byte(sample / 2) >> (4 * (1 - sample % 2)) & 15,
            8 => byte(sample),
            16 => byte(2 * sample) << 8 | byte(2 * sample + 1),
            _ => (0..4).fold(0, |all, part| all << 8 | byte(4 * sample + part)),
        }
    }
}

/// The samples with their offsets and sizes.
fn places(boxes: &Boxes<'_>, sizes: &Sizes<'_>) -> Result<Vec<Sample>> {
    let count = sizes.count();
    if count == 0 {
        return Ok(Vec::new());
    }
    let Some((is_wide, body)) = boxes.chunks else {
        return refuse!("a track has {count} packets and no places (`stco`)");
    };
    let (mut offsets, ..) = Numbers::versioned(*b"stco", body)?;
    let chunks = offsets.count(if is_wide { 8 } else { 4 })?;
    let (mut runs, ..) = Numbers::versioned(*b"stsc", boxes.stsc)?;
    let mut runs_left = runs.count(12)?;
    let mut next_run = |runs_left: &mut usize| -> Result<Option<[u32; 2]>> {
        if *runs_left == 0 {
            return Ok(None);
        }
        *runs_left -= 1;
        let (first, count, description) = (runs.u32()?, runs.u32()?, runs.u32()?);
        if description > 1 {
            return refuse!(
                "a track changes its codec's configuration (sample description {description}), which is not read"
            );
        }
        Ok(Some([first, count]))
    };
    let mut per_chunk = 0;
    let mut next = next_run(&mut runs_left)?;
    let mut samples = Vec::with_capacity(count.min(1 << 16));
    for chunk in 1..=chunks {
        while let Some([_, count]) = next.filter(|[first, _]| *first as usize <= chunk) {
            per_chunk = count;
            next = next_run(&mut runs_left)?;
        }
        let mut offset = if is_wide { offsets.u64()? } else { offsets.u32()?.into() };
        for _ in 0..per_chunk {
            if samples.len() == count {
                break;
            }
            let size = sizes.of(samples.len());
            let (dts, pts, duration, key) = (0, 0, 0, false);
            samples.push(Sample { offset, size, dts, pts, duration, key });
            offset = offset.saturating_add(size.into());
        }
    }
    if samples.len() < count {
        return refuse!("a track announces {count} packets and has places of {}", samples.len());
    }
    Ok(samples)
}

/// Sets when samples are decoded, and for now shown.
fn set_times(samples: &mut [Sample], body: &[u8]) -> Result<()> {
    if samples.is_empty() {
        return Ok(());
    }
    let (mut numbers, ..) = Numbers::versioned(*b"stts", body)?;
    let mut runs = numbers.count(8)?;
    let (mut left, mut duration, mut dts) = (0, 0, 0_i64);
    for sample in samples {
        while left == 0 && runs > 0 {
            runs -= 1;
            (left, duration) = (numbers.u32()?, numbers.u32()?);
            if duration > MAX_DURATION {
                let negative = duration.cast_signed();
                return refuse!("a packet lasts {negative} ticks (`stts`)");
            }
        }
        left = left.saturating_sub(1);
        (sample.dts, sample.pts, sample.duration) = (dts, dts, duration);
        dts = dts.saturating_add(duration.into());
    }
    Ok(())
}

/// Adds the composition offsets; returns the largest negative one, as a positive number.
fn compose(samples: &mut [Sample], body: &[u8]) -> Result<i64> {
    let (mut numbers, ..) = Numbers::versioned(*b"ctts", body)?;
    let count = numbers.count(8)?;
    let mut entries = numbers.clone();
    let mut shift = 0;
    for entry in 0..count {
        let (run, offset) = (entries.i32()?, entries.i32()?);
        if run > 0 && entry + 2 < count {
            if offset.unsigned_abs() > MAX_COMPOSITION {
                return Ok(0);
            }
            shift = shift.max(-i64::from(offset));
        }
    }
    let mut samples = samples.iter_mut();
    for _ in 0..count {
        let (run, offset) = (numbers.i32()?, numbers.i32()?);
        let run = usize::try_from(run).unwrap_or(0);
        for sample in samples.by_ref().take(run) {
            sample.pts = sample.dts.saturating_add(offset.into());
        }
    }
    Ok(shift)
}

/// Sets which samples decoding can begin with.
fn set_keys(samples: &mut [Sample], boxes: &Boxes<'_>) -> Result<()> {
    for body in [boxes.stss, boxes.stps].into_iter().flatten() {
        let (mut numbers, ..) = Numbers::versioned(*b"stss", body)?;
        for _ in 0..numbers.count(4)? {
            // Numbered from 1.
            let sample = (numbers.u32()? as usize).checked_sub(1);
            if let Some(sample) = sample.and_then(|number| samples.get_mut(number)) {
                sample.key = true;
            }
        }
    }
    if let Some(body) = boxes.rap {
        set_random_access(samples, body)?;
    }
    if boxes.stss.is_none() {
        samples.iter_mut().for_each(|sample| sample.key = true);
    }
    if let Some(first) = samples.first_mut().filter(|_| boxes.stss.is_some()) {
        // Some writers list no key packets at all. Other first packets are in the list.
        first.key |= boxes.stss.is_some_and(|body| body.len() <= 8);
    }
    Ok(())
}

/// Sets the samples of the group of random access points.
fn set_random_access(samples: &mut [Sample], body: &[u8]) -> Result<()> {
    let (mut numbers, version, _) = Numbers::versioned(*b"sbgp", body)?;
    numbers.bytes(if version == 1 { 8 } else { 4 })?;
    let count = numbers.count(8)?;
    let mut samples = samples.iter_mut();
    for _ in 0..count {
        let (run, group) = (numbers.u32()?, numbers.u32()?);
        for sample in samples.by_ref().take(run as usize) {
            sample.key |= group > 0;
        }
    }
    Ok(())
}
