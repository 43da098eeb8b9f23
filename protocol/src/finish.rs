//! What the daemon leaves to the client's GPU: a tensor of images lies in its slot as decoded, bytes in
//! height × width × channels, and this says what it is to become.
//!
//! The parameters travel as exact bits, and both sides make the table of values from them with the same code
//! ([`crate::pixel_values`]); so what a client finishes is equal to the bit to what the daemon would have written. Who
//! finishes, and on what, is the client's affair.

use serde::{Deserialize, Serialize};

use crate::pixel_values::{Normalization, PixelValues};
use crate::tensor::{DType, Extent, TensorSpec};

/// The most channels of an image.
pub const MAX_CHANNELS: u64 = 4;

/// What a tensor is to become, and by which values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finish {
    /// The type of the finished elements: uint8 (another layout only), float16, bfloat16 or float32.
    pub dtype: DType,
    /// The shape of one finished row, as it lies in memory, without the batch's own dimension.
    pub row_shape: Vec<u64>,
    /// Whether finished rows lie as height × width × channels, like those in the slot, else channels × height × width.
    pub channels_last: bool,
    /// One a channel; empty: a float is value / 255.
    pub normalization: Vec<ChannelNormalization>,
}

/// Mean and standard deviation of one channel, of values between 0 and 1: the bits of two `f64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelNormalization {
    /// [`f64::to_bits`] of the mean.
    pub mean_bits: u64,
    /// [`f64::to_bits`] of the standard deviation.
    pub std_bits: u64,
}

/// The sides of the images that a [`Finish`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishSides {
    /// Height × width; at least 1.
    pub pixels_per_row: u32,
    /// 1 to [`MAX_CHANNELS`].
    pub channels: u8,
}

impl Finish {
    /// What images of this height, width and number of channels are to become.
    #[must_use]
    pub fn new(
        dtype: DType,
        [height, width, channels]: [u64; 3],
        channels_last: bool,
        normalization: Option<&Normalization>,
    ) -> Self {
        let bits = |(mean, std): (&f64, &f64)| ChannelNormalization {
            mean_bits: mean.to_bits(),
            std_bits: std.to_bits(),
        };
        Self {
            dtype,
            row_shape: if channels_last {
                vec![height, width, channels]
            } else {
                vec![channels, height, width]
            },
            channels_last,
            normalization: normalization
                .map_or_else(Vec::new, |by| by.mean.iter().zip(&by.std).map(bits).collect()),
        }
    }

    /// The finished tensor, as the daemon would have announced it.
    #[must_use]
    pub fn finished(&self, name: impl Into<String>) -> TensorSpec {
        let channels_last = self.channels_last;
        TensorSpec { channels_last, ..TensorSpec::dense(name, self.dtype, &self.row_shape) }
    }

    /// Checks it against the tensor that it is a part of: all that a client computes with must agree.
    ///
    /// # Errors
    /// What does not fit, for a message that names the tensor.
    pub fn sides(&self, raw: &TensorSpec) -> Result<FinishSides, String> {
        let [height, width, channels] = raw.row_shape[..] else {
            return Err(format!("its rows have {} dimensions instead of 3", raw.row_shape.len()));
        };
        if raw.dtype != DType::U8 || raw.extent != Extent::Dense || !raw.channels_last {
            return Err("its rows are no bytes in height × width × channels".to_owned());
        }
        if !matches!(self.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32) {
            return Err(format!("it cannot be finished to {}", self.dtype.name()));
        }
        let sides = match (u8::try_from(channels), height.checked_mul(width)) {
            (Ok(count @ 1..=4), Some(pixels @ 1..)) => {
                u32::try_from(pixels).ok().map(|pixels_per_row| (pixels_per_row, count))
            }
            _ => None,
        };
        let Some((pixels_per_row, count)) = sides else {
            return Err(format!(
                "rows of {height} × {width} × {channels} cannot be finished: 1 to {MAX_CHANNELS} channels and at most \
                 {} pixels can",
                u32::MAX
            ));
        };
        let shape =
            if self.channels_last { [height, width, channels] } else { [channels, height, width] };
        if self.row_shape != shape {
            return Err(format!("its finished rows are {:?} instead of {shape:?}", self.row_shape));
        }
        let normalized = self.normalization.len();
        if normalized != 0 && (self.dtype == DType::U8 || normalized != usize::from(count)) {
            return Err(format!(
                "{normalized} means stand beside {count} channels of {}",
                self.dtype.name()
            ));
        }
        Ok(FinishSides { pixels_per_row, channels: count })
    }

    /// The values of all bytes, by the code that the daemon itself writes rows with. `None` for a type that
    /// [`sides`](Self::sides) refuses.
    #[must_use]
    pub fn values(&self, channels: u8) -> Option<PixelValues> {
        let of = |bits: fn(&ChannelNormalization) -> u64| {
            self.normalization.iter().map(|channel| f64::from_bits(bits(channel))).collect()
        };
        let by = Normalization {
            mean: of(|channel| channel.mean_bits),
            std: of(|channel| channel.std_bits),
        };
        PixelValues::new(self.dtype, channels, (!by.mean.is_empty()).then_some(&by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(finish: Finish) -> TensorSpec {
        TensorSpec {
            channels_last: true,
            finish: Some(finish),
            ..TensorSpec::dense("image", DType::U8, &[5, 7, 3])
        }
    }

    #[test]
    fn a_finish_gives_the_daemons_own_values() {
        let by = Normalization { mean: vec![0.485, 0.456, 0.1], std: vec![0.229, 1e-9, 3.0] };
        for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
            for by in [None, Some(&by)] {
                let finish = Finish::new(dtype, [5, 7, 3], false, by);
                let expected = PixelValues::new(dtype, 3, by).unwrap().table_bytes(3);
                assert_eq!(finish.values(3).unwrap().table_bytes(3), expected, "{dtype:?}");
                assert_eq!(expected.len() as u64, 3 * 256 * dtype.size_bytes());
            }
        }
        let finish = Finish::new(DType::F32, [5, 7, 3], false, None);
        let sides = FinishSides { pixels_per_row: 35, channels: 3 };
        assert_eq!(finish.sides(&raw(finish.clone())), Ok(sides));
        assert_eq!(finish.finished("image"), TensorSpec::dense("image", DType::F32, &[3, 5, 7]));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let by = Normalization { mean: vec![0.5; 3], std: vec![0.5; 3] };
        let good = Finish::new(DType::F16, [5, 7, 3], true, Some(&by));
        assert!(good.sides(&raw(good.clone())).is_ok());
        let mut wrong: Vec<(Finish, TensorSpec, &str)> = Vec::new();
        for (change, words) in [
            ((|it| it.dtype = DType::F64) as fn(&mut Finish), "float64"),
            (|it| it.dtype = DType::U8, "3 means"),
            (|it| it.row_shape[0] = 6, "[6, 7, 3]"),
            (|it| it.channels_last = false, "[3, 5, 7]"),
            (|it| it.normalization.truncate(2), "2 means"),
        ] {
            let mut finish = good.clone();
            change(&mut finish);
            wrong.push((finish.clone(), raw(finish), words));
        }
        for (change, words) in [
            ((|it| it.dtype = DType::I8) as fn(&mut TensorSpec), "no bytes"),
            (|it| it.channels_last = false, "no bytes"),
            (|it| it.extent = Extent::Ragged { max_row_bytes: 9, compact: false }, "no bytes"),
            (|it| it.row_shape = vec![35, 3], "2 dimensions"),
            (|it| it.row_shape = vec![0, 7, 3], "0 × 7"),
            (|it| it.row_shape = vec![5, 7, 5], "channels"),
            (|it| it.row_shape = vec![1 << 20, 1 << 20, 3], "pixels"),
            (|it| it.row_shape = vec![u64::MAX, 2, 3], "pixels"),
        ] {
            let mut spec = raw(good.clone());
            change(&mut spec);
            wrong.push((good.clone(), spec, words));
        }
        for (finish, spec, words) in wrong {
            let reason = finish.sides(&spec).unwrap_err();
            assert!(reason.contains(words), "{reason}");
        }
    }
}
