//! Orders, byte orders, casts.

use std::borrow::Cow;

use half::{bf16, f16};

use super::*;

fn array<'a>(dtype: DType, shape: &[u64], bytes: &'a [u8]) -> ArrayValue<'a> {
    ArrayValue {
        dtype,
        shape: shape.to_vec().into(),
        fortran_order: false,
        big_endian: false,
        bytes: Cow::Borrowed(bytes),
    }
}

fn written(value: &ArrayValue<'_>, target: DType) -> Vec<u8> {
    let elements: u64 = value.shape.iter().product();
    let mut row = vec![0xaa; usize::try_from(elements * target.size_bytes()).unwrap()];
    write_array("array", value, target, &mut Vec::new(), &mut row).unwrap();
    row
}

fn little(numbers: &[i16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn ragged_array_differs_only_in_its_first_dimension() {
    let bytes = [0; 24];
    let check = |dtype, shape: &[u64], bytes| {
        check_ragged_type("boxes", &array(dtype, shape, bytes), DType::I16, &[4])
            .map_err(|defect| defect.0)
    };
    assert_eq!(check(DType::I16, &[3, 4], &bytes), Ok(()));
    assert_eq!(check(DType::I16, &[0, 4], &[]), Ok(()));
    let expected = "`boxes` is int16 [4, 3], and int16 [any, 4] is expected, as the first sample's";
    assert_eq!(check(DType::I16, &[4, 3], &bytes).unwrap_err(), expected);
    assert!(check(DType::U16, &[3, 4], &bytes).is_err());
    assert!(check(DType::I16, &[], &bytes).is_err());
    assert!(check(DType::I16, &[3, 4, 1], &bytes).is_err());
    let short = check(DType::I16, &[4, 4], &bytes).unwrap_err();
    assert!(short.contains("24 bytes") && short.contains("needs 32"), "{short}");
}

#[test]
fn orders_and_byte_orders_are_converted_to_native() {
    let c_order: Vec<i16> = (0..24).map(|n| n * 300 - 1000).collect();
    let expected: Vec<u8> = c_order.iter().flat_map(|number| number.to_ne_bytes()).collect();
    // The same array of shape 2 × 3 × 4 with the first axis fastest.
    let mut fortran = Vec::new();
    for k in 0..4 {
        for j in 0..3 {
            for i in 0..2 {
                fortran.push(c_order[(i * 3 + j) * 4 + k]);
            }
        }
    }
    for (numbers, fortran_order) in [(&c_order, false), (&fortran, true)] {
        for big_endian in [false, true] {
            let mut bytes = little(numbers);
            if big_endian {
                bytes.chunks_exact_mut(2).for_each(<[u8]>::reverse);
            }
            let value =
                ArrayValue { fortran_order, big_endian, ..array(DType::I16, &[2, 3, 4], &bytes) };
            assert_eq!(written(&value, DType::I16), expected, "{fortran_order} {big_endian}");
            let floats = written(&value, DType::F32);
            let floats: Vec<f32> =
                floats.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
            assert_eq!(floats, c_order.iter().map(|n| f32::from(*n)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn casts_are_plain() {
    let floats: Vec<u8> =
        [-1.7_f32, 0.0, 1e9].iter().flat_map(|number| number.to_le_bytes()).collect();
    let value = array(DType::F32, &[3], &floats);
    assert_eq!(written(&value, DType::Bool), [1, 0, 1]);
    assert_eq!(written(&value, DType::I8), [0xff, 0, 127]);
    let half: Vec<u8> =
        [-1.7_f32, 0.0, 1e9].iter().flat_map(|n| f16::from_f32(*n).to_ne_bytes()).collect();
    assert_eq!(written(&value, DType::F16), half);
    let short: Vec<u8> =
        [-1.7_f32, 0.0, 1e9].iter().flat_map(|n| bf16::from_f32(*n).to_ne_bytes()).collect();
    assert_eq!(written(&value, DType::BF16), short);
    let large = u64::MAX.to_ne_bytes();
    let value = array(DType::U64, &[], &large);
    assert_eq!(written(&value, DType::I64), (-1_i64).to_ne_bytes());
    for source in DType::ALL {
        for target in DType::ALL {
            let one = {
                let value = array(DType::U8, &[1], &[1]);
                written(&value, source)
            };
            let value =
                ArrayValue { big_endian: cfg!(target_endian = "big"), ..array(source, &[1], &one) };
            let back = written(&value, target);
            let value = ArrayValue {
                big_endian: cfg!(target_endian = "big"),
                ..array(target, &[1], &back)
            };
            assert_eq!(written(&value, DType::U8), [1], "{source:?} {target:?}");
        }
    }
}

#[test]
fn empty_axes_and_wrong_lengths_do_not_panic() {
    let value = ArrayValue { fortran_order: true, ..array(DType::I16, &[2, 0, 3], &[]) };
    assert_eq!(written(&value, DType::I16), Vec::<u8>::new());
    let short = array(DType::I16, &[3], &[1, 2]);
    let refused = write_array("x", &short, DType::I16, &mut Vec::new(), &mut [0; 6]).unwrap_err();
    assert_eq!(refused.0, "`x` has 2 bytes, and int16 of shape [3] needs 6");
    let expected = ArrayType { dtype: DType::F32, shape: vec![3] };
    let refused = check_type("x", &short, &expected).unwrap_err();
    assert_eq!(refused.0, "`x` is int16 [3], and the first sample's is float32 [3]");
}

#[test]
fn arrays_of_different_lengths_name_the_key_for_ragged_rows() {
    let message = |shape: &[u64], first: &[u64]| {
        let expected = ArrayType { dtype: DType::I16, shape: first.to_vec() };
        check_type("x", &array(DType::I16, shape, &[]), &expected).unwrap_err().0
    };
    let hint = |size| {
        format!(
            "; if lengths differ from sample to sample, set `[output] x = {{ ragged = true, max_bytes = \"{size}\" }}`"
        )
    };
    assert!(message(&[3], &[2]).ends_with(&hint("64KiB")));
    assert!(message(&[3, 4], &[20_000, 4]).ends_with(&hint("256KiB")));
    for (shape, first) in
        [(&[3, 4][..], &[3, 5][..]), (&[3][..], &[3, 1][..]), (&[3, 4][..], &[][..])]
    {
        assert!(!message(shape, first).contains("ragged"), "{shape:?} {first:?}");
    }
}
