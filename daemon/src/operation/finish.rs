//! `output.FIELD.on = "gpu"`: an image's row is left as decoded, bytes in height × width × channels, and its tensor says
//! what the client's GPU is to make of it.
//!
//! What the rows become is decided by `[output]` as for the CPU; this only changes who does it. The table of values is
//! the protocol's, so both give the same bits.

use forebay_protocol::finish::Finish;
use forebay_protocol::tensor::{DType, TensorSpec};

use super::contract::FieldType;
use super::image::{ImageFormat, Normalization, PixelValues};
use super::output::FieldOutput;
use crate::config::ImageLayout;

/// The tensor in the slot for one that the client is to finish, and how its row is written.
///
/// # Errors
/// A field that is no image, a type that is not made on the GPU, and an image of which nothing is left to be done.
pub(super) fn leave_to_the_gpu(
    kind: &FieldType,
    finished: &TensorSpec,
    normalization: Option<&Normalization>,
) -> Result<(TensorSpec, FieldOutput), String> {
    let name = &finished.name;
    let (FieldType::Image(_), &[first, second, third]) = (kind, &finished.row_shape[..]) else {
        return Err(format!(
            "`output.{name}.on`: only decoded images are finished on the GPU, and `{name}` is none; leave `on` out"
        ));
    };
    if finished.dtype == DType::F64 {
        return Err(format!(
            "`output.{name}.on`: float64 is not made on the GPU; set `output.{name}.dtype` to `float32`, `float16` or \
             `bfloat16`, or leave `on` out"
        ));
    }
    if finished.dtype == DType::U8 && finished.channels_last {
        return Err(format!(
            "`output.{name}.on`: nothing is left to the GPU, since images are decoded to `uint8` and `NHWC`; set \
             `output.{name}.dtype` or `layout`, or leave `on` out"
        ));
    }
    let shape =
        if finished.channels_last { [first, second, third] } else { [second, third, first] };
    let mut raw = TensorSpec::dense(name, DType::U8, &shape);
    raw.channels_last = true;
    raw.finish = Some(Finish::new(finished.dtype, shape, finished.channels_last, normalization));
    let format = ImageFormat { layout: ImageLayout::Nhwc, values: PixelValues::Bytes };
    Ok((raw, FieldOutput::Image(format)))
}

#[cfg(test)]
mod tests {
    use crate::operation::tests::{refusal, tensors};
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
    fn the_tensor_lies_as_decoded_and_says_what_the_cpu_would_have_made_of_it() {
        for (operations, keys, means) in [
            (SIZED, "dtype = \"float32\",", 0),
            (SIZED, "dtype = \"float16\", layout = \"NHWC\",", 0),
            (SIZED, "dtype = \"bfloat16\", mean = [0.1, 0.2, 0.3], std = [0.4, 0.5, 0.6],", 3),
            (SIZED, "", 0),
            // The operation's own normalisation, and the type that it brings.
            (NORMALIZED, "", 3),
        ] {
            let (on_cpu, on_gpu) = both(operations, keys);
            let finish = on_gpu.finish.clone().unwrap();
            assert_eq!(finish.finished("image"), on_cpu, "{keys}");
            assert_eq!(finish.normalization.len(), means, "{keys}");
            finish.sides(&on_gpu).unwrap();
            assert_eq!((on_gpu.dtype, &on_gpu.row_shape[..]), (DType::U8, &[8, 6, 3][..]));
        }
        let (on_cpu, on_gpu) = both(NORMALIZED, "");
        assert_eq!(on_cpu.dtype, DType::F32);
        assert_eq!(on_gpu.finish.unwrap().normalization[2].std_bits, 0.6_f64.to_bits());
    }

    #[test]
    fn what_no_gpu_finishes_is_refused_at_the_key_with_the_remedy() {
        for (output, expected) in [
            ("image = { dtype = \"float64\", on = \"gpu\" }", "`output.image.on`: float64"),
            ("image = { layout = \"NHWC\", on = \"gpu\" }", "nothing is left to the GPU"),
            ("label = { dtype = \"float32\", on = \"gpu\" }", "`label` is none; leave `on` out"),
        ] {
            let message = refusal(SIZED, output, &["image", "label"]);
            assert!(message.contains(expected), "{output}: {message}");
        }
    }
}
