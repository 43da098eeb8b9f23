//! `order.weights`: a `.npy` file with one weight per sample.

use std::path::Path;

use forebay_protocol::tensor::DType;

use crate::npy_header::read_array;

/// The weights of a dataset's samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleWeights {
    /// One weight per sample, finite and not negative.
    pub values: Vec<f64>,
    /// BLAKE3 of the values as little-endian float64: a float32 file with the same values has the same digest.
    pub digest: [u8; 32],
}

/// Reads one weight for each of the `samples` samples from a local file.
///
/// # Errors
/// The file cannot be read or is not an array of such weights: names the file, and the row of an invalid weight.
pub fn read_weights(path: &Path, samples: u64) -> Result<SampleWeights, String> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let array = read_array(&bytes).map_err(|defect| format!("{name}: {defect}"))?;
    let size = match array.dtype {
        DType::F32 => 4,
        DType::F64 => 8,
        other => {
            let other = other.name();
            return Err(format!("{name} holds {other}; weights are float32 or float64"));
        }
    };
    if array.shape[..] != [samples] {
        return Err(format!(
            "{name} has the shape {:?}; the dataset has {samples} samples, so it must be [{samples}]: a weight for each, \
             in the order of `index`",
            array.shape
        ));
    }
    let value = |element: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(element);
        if array.big_endian {
            bytes[..size].reverse();
        }
        let [a, b, c, d, ..] = bytes;
        match size {
            4 => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => f64::from_le_bytes(bytes),
        }
    };
    let values: Vec<f64> = array.bytes.chunks_exact(size).map(value).collect();
    let wrong = values.iter().position(|weight| !(*weight >= 0.0 && weight.is_finite()));
    if let Some(row) = wrong {
        let weight = values[row];
        return Err(format!(
            "{name}: row {row} is {weight}; a weight is a finite number, 0 or more"
        ));
    }
    let sum: f64 = values.iter().sum();
    if sum == 0.0 {
        return Err(format!("{name}: every weight is 0, so no sample could be drawn"));
    }
    if !sum.is_finite() {
        return Err(format!("{name}: the sum of the weights is not finite; scale them down"));
    }
    let mut hasher = blake3::Hasher::new();
    for value in &values {
        // Maps −0 to 0.
        hasher.update(&(value + 0.0).to_le_bytes());
    }
    Ok(SampleWeights { values, digest: *hasher.finalize().as_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::npy_bytes;

    fn read(descr: &str, shape: &str, elements: &[u8]) -> Result<SampleWeights, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.npy");
        std::fs::write(&path, npy_bytes(descr, false, shape, elements)).unwrap();
        read_weights(&path, 3)
    }

    fn doubles(values: [f64; 3]) -> Result<SampleWeights, String> {
        read("<f8", "(3,)", &values.map(f64::to_le_bytes).concat())
    }

    #[test]
    fn weights_are_floats_of_either_size_and_order() {
        let values = [0.5, 0.0, 2.0];
        let found = doubles(values).unwrap();
        assert_eq!(found.values, values);
        let single = [0.5_f32, 0.0, 2.0];
        assert_eq!(read("<f4", "(3,)", &single.map(f32::to_le_bytes).concat()), Ok(found.clone()));
        assert_eq!(read(">f4", "(3,)", &single.map(f32::to_be_bytes).concat()), Ok(found.clone()));
        assert_eq!(read(">f8", "(3,)", &values.map(f64::to_be_bytes).concat()), Ok(found.clone()));
        assert_ne!(doubles([0.5, 0.0, 2.5]).unwrap().digest, found.digest);
        assert_eq!(doubles([0.5, -0.0, 2.0]).unwrap().digest, found.digest);
    }

    #[test]
    fn invalid_weight_is_named_with_file_and_row() {
        for (found, parts) in [
            (doubles([1.0, -0.5, 2.0]), ["row 1 is -0.5", "0 or more"]),
            (doubles([1.0, 2.0, f64::NAN]), ["row 2 is NaN", "0 or more"]),
            (doubles([f64::INFINITY, 2.0, 1.0]), ["row 0 is inf", "finite"]),
            (doubles([0.0; 3]), ["every weight is 0", ""]),
            (doubles([f64::MAX; 3]), ["sum", "not finite"]),
            (read("<i8", "(3,)", &[0; 24]), ["int64", "float32 or float64"]),
            (read("<f8", "(2,)", &[0; 16]), ["[2]", "3 samples"]),
            (read("<f8", "(3, 1)", &[0; 24]), ["[3, 1]", "[3]"]),
            (read("<f8", "(3,)", &[0; 20]), ["cut short", ""]),
            (read_weights(Path::new("/nowhere/weights.npy"), 3), ["cannot be read", "nowhere"]),
        ] {
            let message = found.unwrap_err();
            assert!(message.contains("weights.npy"), "{message}");
            for part in parts {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    }
}
