//! Collects a sound's frames while it is decoded: those of the wanted part, in all channels or as their mean.

use std::ops::Range;

use forebay_dataset::Defect;

/// Receives decoded frames, and keeps what is requested.
pub(super) struct ChannelMixer<'v> {
    pub(super) floats: &'v mut Vec<f32>,
    pub(super) mixes: bool,
    pub(super) most: usize,
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
                self.floats.extend_from_slice(&one[range]);
                self.verify_length()
            }
            [left, right] => {
                let pairs = left[range.clone()].iter().zip(&right[range]);
                if self.mixes {
                    #[expect(clippy::cast_possible_truncation, reason = "rounded")]
                    let mean = |(left, right): (&f32, &f32)| {
                        ((f64::from(*left) + f64::from(*right)) / 2.0) as f32
                    };
                    self.floats.extend(pairs.map(mean));
                } else {
                    self.floats.extend(pairs.flat_map(|(left, right)| [*left, *right]));
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
    pub(super) fn interleaved(&mut self, floats: &[f32], channels: usize) -> Result<(), Defect> {
        let range = self.take(floats.len() / channels);
        let wanted = &floats[range.start * channels..range.end * channels];
        if self.mixes && channels > 1 {
            return wanted
                .chunks_exact(channels)
                .try_for_each(|frame| self.push(frame.iter().copied()));
        }
        self.floats.extend_from_slice(wanted);
        self.verify_length()
    }

    /// Receives one frame of the wanted part.
    pub(super) fn push(&mut self, frame: impl ExactSizeIterator<Item = f32>) -> Result<(), Defect> {
        if self.mixes {
            #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
            let count = frame.len() as f64;
            #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
            self.floats.push((frame.map(f64::from).sum::<f64>() / count) as f32);
        } else {
            self.floats.extend(frame);
        }
        self.verify_length()
    }

    fn verify_length(&self) -> Result<(), Defect> {
        if self.floats.len() > self.most {
            return Err(Defect(
                "the sound has more frames than limits.inflated_bytes allows".to_owned(),
            ));
        }
        Ok(())
    }
}
