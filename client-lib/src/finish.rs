//! The conversion that the configuration leaves to the client (`output.FIELD.on = "gpu"`): looks up each byte in a table
//! and transposes the channels.
//!
//! [`FinishPlan`] has the parameters, checked against the tensor: the sizes, and the table, computed by the same code
//! as the daemon's rows. [`finish_rows`] is the reference implementation on the CPU, [`KERNELS`] the implementation for
//! a GPU. The CPU, the GPU and the daemon give bit-identical results, because values are looked up and not computed. If
//! batch operations mix the images, they are mixed afterwards ([`mix_rows`], or the kernel `forebay_mix` in one step),
//! with the daemon's arithmetic.
//!
//! Devices, streams and leases are not handled here.

use std::borrow::Cow;

use forebay_protocol::mix::MIX_WORDS;
use forebay_protocol::tensor::{DType, TENSOR_ALIGNMENT_BYTES, TensorSpec};
use half::{bf16, f16};

use crate::error::Error;

mod mixing;

pub use forebay_protocol::mix::Mix;
pub use mixing::mix_rows;

/// The kernels in PTX, without a terminating zero. Its header documents the parameters and has the equivalent CUDA C.
pub const KERNELS: &str = include_str!("cuda/finish.ptx");

/// The kernel that finishes and mixes, as [`KERNELS`].
pub const MIX_KERNEL: &str = include_str!("cuda/mix.ptx");

/// How one tensor is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishPlan {
    finished: TensorSpec,
    pixels_per_row: u32,
    channels: u8,
    width: u32,
    table: Vec<u8>,
    mixes: u32,
}

impl FinishPlan {
    /// The plan for a tensor of a session's terms; `None` when it needs no finishing.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the daemon's description is inconsistent.
    pub fn of(raw: &TensorSpec) -> Result<Option<Self>, Error> {
        let Some(finish) = &raw.finish else {
            return Ok(None);
        };
        let invalid = |reason: String| Error::Protocol(format!("tensor `{}`: {reason}", raw.name));
        let sides = raw.finish_sides(finish).map_err(invalid)?;
        let values = finish
            .values(sides.channels)
            .ok_or_else(|| invalid(format!("there is no table for {}", finish.dtype.name())))?;
        Ok(Some(Self {
            finished: raw.finished(finish),
            pixels_per_row: sides.pixels_per_row,
            channels: sides.channels,
            // Fits: at most `pixels_per_row`, which is a u32.
            width: u32::try_from(raw.row_shape[1]).unwrap_or(u32::MAX),
            mixes: finish.mixes,
            table: values.table_bytes(sides.channels),
        }))
    }

    /// The finished tensor: as the daemon announces it with `on = "cpu"`.
    #[must_use]
    pub fn finished(&self) -> &TensorSpec {
        &self.finished
    }

    /// Height × width; at least 1.
    #[must_use]
    pub fn pixels_per_row(&self) -> u32 {
        self.pixels_per_row
    }

    /// 1 to 4.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.channels.into()
    }

    /// Whether a finished row is channels × height × width, else height × width × channels.
    #[must_use]
    pub fn channels_first(&self) -> bool {
        !self.finished.channels_last
    }

    /// The bits of every value: the value of byte `v` in channel `c` is entry `c × 256 + v`, of
    /// [`element_bytes`](Self::element_bytes), in native byte order. 256 to 4,096 bytes.
    #[must_use]
    pub fn table(&self) -> &[u8] {
        &self.table
    }

    /// The width of an image; at least 1.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The number of mixes; 0 if rows are not mixed.
    #[must_use]
    pub fn mixes(&self) -> u32 {
        self.mixes
    }

    /// The number of bytes from the start of the mixes in a slot to the first row; 0 if rows are not mixed.
    #[must_use]
    pub fn mixes_bytes(&self) -> usize {
        let bytes = u64::from(self.mixes) * 8 * MIX_WORDS as u64;
        // At most 2 KiB: `of` refuses more mixes.
        usize::try_from(bytes.next_multiple_of(TENSOR_ALIGNMENT_BYTES)).unwrap_or(usize::MAX)
    }

    /// The table for [`kernel`](Self::kernel): [`table`](Self::table), or for `forebay_mix` the same values as float32.
    #[must_use]
    pub fn kernel_table(&self) -> Cow<'_, [u8]> {
        if self.mixes == 0 {
            return Cow::Borrowed(&self.table);
        }
        let halves = || self.table.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes));
        let floats = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
            values.flat_map(f32::to_ne_bytes).collect()
        };
        Cow::Owned(match self.finished.dtype {
            DType::U8 => floats(&mut self.table.iter().copied().map(f32::from)),
            DType::F16 => floats(&mut halves().map(|bits| f16::from_bits(bits).to_f32())),
            DType::BF16 => floats(&mut halves().map(|bits| bf16::from_bits(bits).to_f32())),
            _ => return Cow::Borrowed(&self.table),
        })
    }

    /// The kernels that contain [`kernel`](Self::kernel).
    #[must_use]
    pub fn kernels(&self) -> &'static str {
        if self.mixes > 0 { MIX_KERNEL } else { KERNELS }
    }

    /// The size of a finished element: 1, 2 or 4.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        match self.finished.dtype {
            DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            // `of` refuses every other type.
            _ => 4,
        }
    }

    /// The size of a raw row: one byte for each channel of each pixel.
    #[must_use]
    pub fn raw_row_bytes(&self) -> u64 {
        u64::from(self.pixels_per_row) * u64::from(self.channels)
    }

    /// The size of a finished row.
    #[must_use]
    pub fn finished_row_bytes(&self) -> u64 {
        self.raw_row_bytes() * self.element_bytes() as u64
    }

    /// The entry point for this plan, in [`kernels`](Self::kernels).
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        match self.element_bytes() {
            _ if self.mixes > 0 => "forebay_mix",
            1 => "forebay_finish_u8",
            2 => "forebay_finish_u16",
            _ => "forebay_finish_u32",
        }
    }
}

/// Finishes rows on the CPU: `raw` as in the slot, `out` as the daemon writes it with `on = "cpu"`. Not optimised.
///
/// # Errors
/// [`Error::Protocol`] when `raw` or `out` are not exactly `rows` rows long.
pub fn finish_rows(
    plan: &FinishPlan,
    raw: &[u8],
    rows: usize,
    out: &mut [u8],
) -> Result<(), Error> {
    let expected = [plan.raw_row_bytes(), plan.finished_row_bytes()]
        .map(|row_bytes| row_bytes.checked_mul(rows as u64));
    if expected != [Some(raw.len() as u64), Some(out.len() as u64)] {
        return Err(Error::Protocol(format!(
            "{rows} rows of `{}` are {expected:?} bytes before and after, not {} and {}",
            plan.finished.name,
            raw.len(),
            out.len()
        )));
    }
    match plan.element_bytes() {
        1 => look_up::<1>(plan, raw, out),
        2 => look_up::<2>(plan, raw, out),
        _ => look_up::<4>(plan, raw, out),
    }
    Ok(())
}

fn look_up<const BYTES: usize>(plan: &FinishPlan, raw: &[u8], out: &mut [u8]) {
    let (channels, pixels) = (usize::from(plan.channels), plan.pixels_per_row as usize);
    let table = plan.table.as_chunks::<BYTES>().0;
    let out = out.as_chunks_mut::<BYTES>().0;
    for (index, byte) in raw.iter().enumerate() {
        let (pixel, channel) = (index / channels, index % channels);
        let (row, pixel) = (pixel / pixels, pixel % pixels);
        let to = if plan.channels_first() {
            (row * channels + channel) * pixels + pixel
        } else {
            (row * pixels + pixel) * channels + channel
        };
        out[to] = table[channel * 256 + usize::from(*byte)];
    }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::finish::Finish;
    use forebay_protocol::pixel_values::Normalization;

    use super::*;

    fn raw_spec(finish: Option<Finish>) -> TensorSpec {
        TensorSpec {
            channels_last: true,
            finish,
            ..TensorSpec::dense("image", DType::U8, &[2, 3, 2])
        }
    }

    fn plan(dtype: DType, channels_last: bool, by: Option<&Normalization>) -> FinishPlan {
        let finish = Finish::new(dtype, [2, 3, 2], channels_last, by);
        FinishPlan::of(&raw_spec(Some(finish))).unwrap().unwrap()
    }

    /// Two rows of ascending bytes: 0, 1 is the first pixel.
    fn raw() -> Vec<u8> {
        (0..24).collect()
    }

    #[test]
    fn channels_are_first_or_last() {
        let mut out = [0; 24];
        finish_rows(&plan(DType::U8, false, None), &raw(), 2, &mut out).unwrap();
        let first = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11];
        assert_eq!(out[..12], first);
        assert_eq!(out[12..], first.map(|value| value + 12));
        let mut out = [0; 96];
        finish_rows(&plan(DType::F32, true, None), &raw(), 2, &mut out).unwrap();
        let values: Vec<f32> =
            out.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        assert_eq!(values, raw().iter().map(|byte| f32::from(*byte) / 255.0).collect::<Vec<_>>());
    }

    #[test]
    fn each_channel_has_a_separate_mean_and_deviation() {
        let by = Normalization { mean: vec![0.0, 0.5], std: vec![1.0, 0.25] };
        let mut out = [0; 96];
        finish_rows(&plan(DType::F32, false, Some(&by)), &raw(), 2, &mut out).unwrap();
        let value = |index: usize| f32::from_ne_bytes(out.as_chunks::<4>().0[index]);
        assert_eq!(value(1), 2.0 / 255.0);
        assert_eq!(value(6), (1.0 / 255.0 - 0.5) / 0.25);
    }

    #[test]
    fn plan_has_the_parameters_of_the_kernel() {
        assert_eq!(FinishPlan::of(&raw_spec(None)), Ok(None));
        let mut unfit = raw_spec(Some(Finish::new(DType::F32, [2, 3, 2], false, None)));
        unfit.row_shape[0] = 3;
        assert!(matches!(FinishPlan::of(&unfit), Err(Error::Protocol(_))));
        for (dtype, kernel, bytes) in [
            (DType::U8, "forebay_finish_u8", 1),
            (DType::F16, "forebay_finish_u16", 2),
            (DType::BF16, "forebay_finish_u16", 2),
            (DType::F32, "forebay_finish_u32", 4),
        ] {
            let plan = plan(dtype, false, None);
            assert_eq!((plan.kernel(), plan.element_bytes()), (kernel, bytes));
            assert!(KERNELS.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
            assert_eq!(plan.table().len(), 2 * 256 * bytes);
            assert_eq!((plan.pixels_per_row(), plan.channels()), (6, 2));
            assert_eq!((plan.raw_row_bytes(), plan.finished_row_bytes()), (12, 12 * bytes as u64));
            assert_eq!(plan.finished(), &TensorSpec::dense("image", dtype, &[2, 2, 3]));
        }
        // cuModuleLoadData takes zero-terminated text, so the text itself must not contain a zero.
        for text in [KERNELS, MIX_KERNEL] {
            assert!(text.is_ascii() && !text.contains('\0'));
        }
    }

    #[test]
    fn plan_with_mixes_has_the_values_as_floats() {
        assert!(MIX_KERNEL.contains(".visible .entry forebay_mix("));
        let by = Normalization { mean: vec![0.1, 0.7], std: vec![0.3, 0.9] };
        for (dtype, by, error) in [
            (DType::U8, None, 0.0),
            (DType::F32, Some(&by), 0.0),
            (DType::F16, Some(&by), 0.001),
            (DType::BF16, Some(&by), 0.01),
        ] {
            let finish = Finish { mixes: 9, ..Finish::new(dtype, [2, 3, 2], false, by) };
            let plan = FinishPlan::of(&raw_spec(Some(finish))).unwrap().unwrap();
            assert_eq!((plan.kernel(), plan.mixes(), plan.width()), ("forebay_mix", 9, 3));
            assert_eq!(plan.kernels(), MIX_KERNEL);
            assert_eq!(plan.mixes_bytes(), 512);
            let table = plan.kernel_table();
            let floats = table.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            let floats: Vec<f32> = floats.collect();
            assert_eq!(floats.len(), 2 * 256);
            let expected = match dtype {
                DType::U8 => 200.0,
                _ => (200.0_f32 / 255.0 - 0.7) / 0.9,
            };
            assert!((floats[256 + 200] - expected).abs() <= error, "{dtype:?}");
        }
    }

    #[test]
    fn wrong_number_of_rows_is_refused() {
        let plan = plan(DType::F32, false, None);
        for (raw_bytes, rows, out_bytes) in
            [(24, 1, 96), (24, 3, 96), (24, 2, 95), (23, 2, 96), (24, usize::MAX, 96)]
        {
            let refused = finish_rows(&plan, &raw()[..raw_bytes], rows, &mut vec![0; out_bytes]);
            assert!(matches!(refused, Err(Error::Protocol(_))), "{raw_bytes} {rows} {out_bytes}");
        }
    }
}
