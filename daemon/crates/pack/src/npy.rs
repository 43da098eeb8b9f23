//! Files of NumPy arrays: version 1.0, C order, little endian.

use forebay_protocol::tensor::DType;

use crate::sample::Array;

/// Elements begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// NumPy's name of a type; `None`: NumPy does not have it.
pub(crate) const fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        _ => return None,
    })
}

/// The file of an array.
///
/// # Errors
/// NumPy does not have the type, or there are too many dimensions.
pub(crate) fn file(array: &Array) -> Result<Vec<u8>, String> {
    let Array { dtype, shape, bytes } = array;
    let descr = descr(*dtype).ok_or_else(|| format!("NumPy has no arrays of {}", dtype.name()))?;
    let mut sides = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    if shape.len() == 1 {
        sides.push(',');
    }
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sides}), }}");
    // The magic, the version and the length take 10 bytes, and the header ends with a newline.
    let length = (10 + header.len() + 1).next_multiple_of(ALIGNMENT) - 10;
    header.push_str(&" ".repeat(length - header.len() - 1));
    header.push('\n');
    let length = u16::try_from(length).map_err(|_| format!("it has {} dimensions", shape.len()))?;
    let mut file = Vec::with_capacity(10 + header.len() + bytes.len());
    file.extend_from_slice(b"\x93NUMPY\x01\x00");
    file.extend_from_slice(&length.to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(bytes);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use forebay_dataset::npy_header::read_array;

    use super::*;

    #[test]
    fn files_are_read_back() {
        for shape in [vec![], vec![3], vec![2, 5], vec![0, 4], vec![1; 7]] {
            let count = usize::try_from(shape.iter().product::<u64>()).unwrap();
            let bytes: Vec<u8> = (0..count * 4).map(|byte| u8::try_from(byte).unwrap()).collect();
            let array = Array { dtype: DType::F32, shape, bytes };
            let file = file(&array).unwrap();
            let read = read_array(&file).unwrap();
            assert_eq!((read.dtype, &*read.shape), (DType::F32, &array.shape[..]));
            assert_eq!((&*read.bytes, read.fortran_order), (&array.bytes[..], false));
            assert_eq!((file.len() - array.bytes.len()) % ALIGNMENT, 0);
        }
    }
}
