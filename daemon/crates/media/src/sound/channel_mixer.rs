//! Collects a sound's frames while it is decoded: all channels, or their mean.

use forebay_dataset::Defect;

/// Receives decoded frames, and keeps the requested channels.
pub(super) struct ChannelMixer<'v> {
    pub(super) floats: &'v mut Vec<f32>,
    pub(super) mixes: bool,
    pub(super) most: usize,
}

impl ChannelMixer<'_> {
    /// Receives one frame.
    pub(super) fn push(&mut self, frame: impl ExactSizeIterator<Item = f32>) -> Result<(), Defect> {
        if self.mixes {
            #[expect(clippy::cast_precision_loss, reason = "a number of channels")]
            let count = frame.len() as f64;
            #[expect(clippy::cast_possible_truncation, reason = "rounded to single precision")]
            self.floats.push((frame.map(f64::from).sum::<f64>() / count) as f32);
        } else {
            self.floats.extend(frame);
        }
        if self.floats.len() > self.most {
            return Err(Defect(
                "the sound has more frames than limits.inflated_bytes allows".to_owned(),
            ));
        }
        Ok(())
    }
}
