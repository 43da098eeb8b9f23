//! `output.FIELD.on = "gpu"`: an image's row is left as decoded, bytes in height × width × channels, and its tensor
//! describes the conversion on the client's GPU.
//!
//! `[output]` determines the result as for the CPU; only the place of the conversion differs. Both use the protocol's
//! table of values, so both give the same bits.

use forebay_protocol::finish::Finish;
use forebay_protocol::tensor::{DType, TensorSpec};

use super::contract::FieldType;
use super::image::{ImageFormat, Normalization, PixelValues};
use forebay_config::ImageLayout;

/// The tensor in the slot for a tensor that the client finishes, and how its row is written.
///
/// # Errors
/// The field is not an image, the type is not supported on the GPU, or there is nothing to convert.
pub(super) fn leave_to_the_gpu(
    kind: &FieldType,
    finished: &TensorSpec,
    normalization: Option<&Normalization>,
) -> Result<(TensorSpec, ImageFormat), String> {
    let name = &finished.name;
    let (FieldType::Image(_), &[first, second, third]) = (kind, &finished.row_shape[..]) else {
        return Err(format!(
            "`output.{name}.on`: `on = \"gpu\"` applies to decoded images only, and `{name}` is not one; remove `on`"
        ));
    };
    if !finished.row_shapes.is_empty() {
        return Err(format!(
            "`output.{name}.on`: the GPU path does not support the shapes of `batch.buckets`; remove `on`, and set `dtype = \
             \"uint8\"` to convert `{name}` yourself"
        ));
    }
    if finished.dtype == DType::F64 {
        return Err(format!(
            "`output.{name}.on`: the GPU path does not support float64; set `output.{name}.dtype` to `float32`, `float16` or \
             `bfloat16`, or remove `on`"
        ));
    }
    if finished.dtype == DType::U16 {
        return Err(format!(
            "`output.{name}.on`: the GPU path does not support levels of 16 bits; remove `on`"
        ));
    }
    if finished.dtype == DType::U8 && finished.channels_last {
        return Err(format!(
            "`output.{name}.on`: `on = \"gpu\"` has no effect: the output equals the decoded image (`uint8`, `NHWC`); set \
             `output.{name}.dtype` or `layout`, or remove `on`"
        ));
    }
    let shape =
        if finished.channels_last { [first, second, third] } else { [second, third, first] };
    let mut raw = TensorSpec::dense(name, DType::U8, &shape);
    raw.channels_last = true;
    raw.finish = Some(Finish::new(finished.dtype, shape, finished.channels_last, normalization));
    let format = ImageFormat { layout: ImageLayout::Nhwc, values: PixelValues::Bytes };
    Ok((raw, format))
}

#[cfg(test)]
mod tests {
    use crate::tests::{refusal, tensors};
    use forebay_protocol::tensor::{DType, TensorSpec};

    const SIZED: &str = "{ op = \"decode-image\" }, { op = \"resize\", size = [8, 6] }";
    const NORMALIZED: &str = "{ op = \"decode-image\" }, { op = \"resize\", size = [8, 6] }, { op = \"normalize\", \
                              mean = [0.1, 0.2, 0.3], std = [0.4, 0.5, 0.6] }";

    /// The image's tensor as the daemon finishes it, and as it leaves it to the GPU.
    fn both(operations: &str, keys: &str) -> (TensorSpec, TensorSpec) {
        let of = |on: &str| {
            tensors(operations, &format!("image = {{ {keys} on = \"{on}\" }}"))[0].clone()
        };
        (of("cpu"), of("gpu"))
    }

    #[test]
    fn tensor_is_left_as_decoded_and_describes_the_cpus_result() {
        for (operations, keys, means) in [
            (SIZED, "dtype = \"float32\",", 0),
            (SIZED, "dtype = \"float16\", layout = \"NHWC\",", 0),
            (SIZED, "dtype = \"bfloat16\", mean = [0.1, 0.2, 0.3], std = [0.4, 0.5, 0.6],", 3),
            (SIZED, "", 0),
            // The operation's own normalisation, and its default type.
            (NORMALIZED, "", 3),
        ] {
            let (on_cpu, on_gpu) = both(operations, keys);
            let finish = on_gpu.finish.clone().unwrap();
            assert_eq!(on_gpu.finished(&finish), on_cpu, "{keys}");
            assert_eq!(finish.normalization.len(), means, "{keys}");
            on_gpu.finish_sides(&finish).unwrap();
            assert_eq!((on_gpu.dtype, &on_gpu.row_shape[..]), (DType::U8, &[8, 6, 3][..]));
        }
        let (on_cpu, on_gpu) = both(NORMALIZED, "");
        assert_eq!(on_cpu.dtype, DType::F32);
        assert_eq!(on_gpu.finish.unwrap().normalization[2].std_bits, 0.6_f64.to_bits());
    }

    #[test]
    fn unsupported_conversion_on_the_gpu_is_refused_with_the_remedy() {
        for (output, expected) in [
            ("image = { dtype = \"float64\", on = \"gpu\" }", "does not support float64"),
            ("image = { layout = \"NHWC\", on = \"gpu\" }", "has no effect"),
            ("label = { dtype = \"float32\", on = \"gpu\" }", "`label` is not one; remove `on`"),
        ] {
            let message = refusal(SIZED, output, &["image", "label"]);
            assert!(message.contains(expected), "{output}: {message}");
        }
    }
}
