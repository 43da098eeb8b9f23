//! Collects a sound's frames while it is decoded: those of the wanted part, in all channels or as their mean.

use std::ops::Range;

use forebay_dataset::Defect;

/// Receives decoded frames, and keeps what is requested.
pub(super) struct ChannelMixer<'v> {
    /// Floats in native order.
    pub(super) bytes: &'v mut Vec<u8>,
    pub(super) mixes: bool,
    pub(super) most_bytes: u64,
    /// Frames before the wanted part.
    pub(super) skip: u64,
    /// Frames of the wanted part that are to come; as many as there are if the end is unknown.
    pub(super) left: u64,
}

impl ChannelMixer<'_> {
    /// Whether the wanted part is complete.
    #[cfg(feature = "sound")]
    pub(super) const fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// The places of the wanted part in the next frames, which are counted.
    pub(super) fn take(&mut self, frames: usize) -> Range<usize> {
        let from = usize::try_from(self.skip).unwrap_or(usize::MAX).min(frames);
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(frames - from);
        self.skip -= from as u64;
        self.left -= count as u64;
        from..from + count
    }

    /// Receives frames as a plane for each channel.
    #[cfg(feature = "sound")]
    pub(super) fn planes(&mut self, planes: &[&[f32]]) -> Result<(), Defect> {
        let range = self.take(planes.first().map_or(0, |plane| plane.len()));
        match *planes {
            [one] if !range.is_empty() => {
                self.bytes.extend(one[range].iter().flat_map(|value| value.to_ne_bytes()));
                self.verify_length()
            }
            [left, right] => {
                let pairs = left[range.clone()].iter().zip(&right[range]);
                if self.mixes {
                    self.bytes.extend(pairs.flat_map(|(left, right)| mean(*left, *right)));
                } else {
                    self.bytes.extend(pairs.flat_map(|(left, right)| both(*left, *right)));
                }
                self.verify_length()
            }
            _ => {
                range.into_iter().try_for_each(|at| self.push(planes.iter().map(|plane| plane[at])))
            }
        }
    }

    /// Receives frames one after another, with all their channels.
    #[cfg(feature = "sound")]
    pub(super) fn interleaved(&mut self, bytes: &[u8], channels: usize) -> Result<(), Defect> {
        let floats = bytes.as_chunks::<4>().0;
        let range = self.take(floats.len() / channels);
        let wanted = &floats[range.start * channels..range.end * channels];
        let float = |bytes: &[u8; 4]| f32::from_ne_bytes(*bytes);
        match channels {
            2 if self.mixes => {
                let pairs = wanted.as_chunks::<2>().0.iter();
                self.bytes.extend(pairs.flat_map(|[left, right]| mean(float(left), float(right))));
            }
            2.. if self.mixes => {
                let mut frames = wanted.chunks_exact(channels);
                return frames.try_for_each(|frame| self.push(frame.iter().map(float)));
            }
            _ => self.bytes.extend_from_slice(wanted.as_flattened()),
        }
        self.verify_length()
    }

    /// Receives one frame of the wanted part.
    pub(super) fn push(&mut self, frame: impl ExactSizeIterator<Item = f32>) -> Result<(), Defect> {
        if self.mixes {
            #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
            let count = frame.len() as f64;
            #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
            let mean = (frame.map(f64::from).sum::<f64>() / count) as f32;
            self.bytes.extend_from_slice(&mean.to_ne_bytes());
        } else {
            frame.for_each(|value| self.bytes.extend_from_slice(&value.to_ne_bytes()));
        }
        self.verify_length()
    }

    fn verify_length(&self) -> Result<(), Defect> {
        if self.bytes.len() as u64 > self.most_bytes {
            return Err(Defect(
                "the sound has more frames than limits.inflated_bytes allows".to_owned(),
            ));
        }
        Ok(())
    }
}

/// The mean of two channels. As bytes, of which those of many frames are copied at once.
#[cfg(feature = "sound")]
#[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
fn mean(left: f32, right: f32) -> [u8; 4] {
    (((f64::from(left) + f64::from(right)) / 2.0) as f32).to_ne_bytes()
}

/// Two channels, likewise.
#[cfg(feature = "sound")]
fn both(left: f32, right: f32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&left.to_ne_bytes());
    bytes[4..].copy_from_slice(&right.to_ne_bytes());
    bytes
}
