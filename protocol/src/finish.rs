//! The conversion that the daemon leaves to the client's GPU: a slot has the images as decoded, bytes in height × width
//! × channels, and a [`Finish`] describes the tensor that the client makes of them.
//!
//! The parameters are sent as exact bits, and both sides compute the table of values from them with the same code
//! ([`crate::pixel_values`]), so the client's result is bit-identical to the daemon's with `on = "cpu"`. The client
//! chooses the device. `TensorSpec::finish_sides` checks that a `Finish` fits its tensor.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::pixel_values::{Normalization, PixelValues};

/// The maximum number of channels of an image.
pub const MAX_CHANNELS: u64 = 4;

/// The finished tensor, and the parameters of its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finish {
    /// The type of the finished elements: uint8 (only the layout changes), float16, bfloat16 or float32.
    pub dtype: DType,
    /// The shape of one finished row in memory, without the batch dimension.
    pub row_shape: Vec<u64>,
    /// Whether finished rows are height × width × channels, as in the slot, or channels × height × width.
    pub channels_last: bool,
    /// One entry per channel. Empty: a float is value / 255.
    pub normalization: Vec<ChannelNormalization>,
    /// The number of [`Mix`](crate::mix::Mix)es per batch, applied after the conversion; at most
    /// [`MAX_MIXES`](crate::mix::MAX_MIXES).
    pub mixes: u32,
}

/// Mean and standard deviation of one channel, for values between 0 and 1: the bits of two `f64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelNormalization {
    /// [`f64::to_bits`] of the mean.
    pub mean_bits: u64,
    /// [`f64::to_bits`] of the standard deviation.
    pub std_bits: u64,
}

/// The sides of the images for a [`Finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishSides {
    /// Height × width; at least 1.
    pub pixels_per_row: u32,
    /// 1 to [`MAX_CHANNELS`].
    pub channels: u8,
}

impl Finish {
    /// The finish for images of this height, width and number of channels, without mixes.
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
            mixes: 0,
        }
    }

    /// The value of each byte, computed by the same code as the daemon's rows. `None` for an unsupported type.
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
