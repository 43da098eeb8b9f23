//! Plain casts between element types: as Rust's `as`, which is NumPy's `astype` wherever that is defined.
//!
//! Float to integer truncates towards zero and saturates; anything to bool is "not zero".

use forebay_protocol::tensor::DType;
use half::{bf16, f16};

/// A number that holds any element exactly.
#[derive(Clone, Copy)]
enum Exact {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

/// An element type in native byte order.
trait Element<const N: usize> {
    fn load(bytes: [u8; N]) -> Exact;
    fn store(value: Exact) -> [u8; N];
}

macro_rules! number {
    ($type:ty, $bytes:literal, $kind:ident, $wide:ty) => {
        impl Element<$bytes> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Exact {
                Exact::$kind(<$wide>::from(<$type>::from_ne_bytes(bytes)))
            }
            #[inline(always)]
            #[expect(
                clippy::allow_attributes,
                reason = "which casts lose depends on the type that the macro is used with"
            )]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_possible_wrap,
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                trivial_numeric_casts,
                clippy::unnecessary_cast,
                reason = "the cast that the user asked for"
            )]
            fn store(value: Exact) -> [u8; $bytes] {
                match value {
                    Exact::Signed(value) => value as $type,
                    Exact::Unsigned(value) => value as $type,
                    Exact::Float(value) => value as $type,
                }
                .to_ne_bytes()
            }
        }
    };
}

number!(u8, 1, Unsigned, u64);
number!(i8, 1, Signed, i64);
number!(u16, 2, Unsigned, u64);
number!(i16, 2, Signed, i64);
number!(u32, 4, Unsigned, u64);
number!(i32, 4, Signed, i64);
number!(u64, 8, Unsigned, u64);
number!(i64, 8, Signed, i64);
number!(f32, 4, Float, f64);
number!(f64, 8, Float, f64);

impl Exact {
    #[expect(clippy::cast_precision_loss, reason = "a float of fewer bits is asked for")]
    const fn as_f64(self) -> f64 {
        match self {
            Self::Signed(value) => value as f64,
            Self::Unsigned(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

macro_rules! half {
    ($type:ty) => {
        impl Element<2> for $type {
            #[inline(always)]
            fn load(bytes: [u8; 2]) -> Exact {
                Exact::Float(f64::from(<$type>::from_ne_bytes(bytes)))
            }
            #[inline(always)]
            fn store(value: Exact) -> [u8; 2] {
                <$type>::from_f64(value.as_f64()).to_ne_bytes()
            }
        }
    };
}

half!(f16);
half!(bf16);

impl Element<1> for bool {
    #[inline(always)]
    fn load(bytes: [u8; 1]) -> Exact {
        Exact::Unsigned(u64::from(bytes[0] != 0))
    }
    #[inline(always)]
    fn store(value: Exact) -> [u8; 1] {
        let is_set = match value {
            Exact::Signed(value) => value != 0,
            Exact::Unsigned(value) => value != 0,
            Exact::Float(value) => value != 0.0,
        };
        [u8::from(is_set)]
    }
}

fn convert<const N: usize, const M: usize, S: Element<N>, T: Element<M>>(
    from: &[u8],
    to: &mut [u8],
) {
    for (from, to) in from.as_chunks::<N>().0.iter().zip(to.as_chunks_mut::<M>().0) {
        *to = T::store(S::load(*from));
    }
}

macro_rules! from_type {
    ($from:ty, $from_bytes:literal, $bytes:expr, $target:expr, $to:expr) => {
        match $target {
            DType::U8 => convert::<$from_bytes, 1, $from, u8>($bytes, $to),
            DType::I8 => convert::<$from_bytes, 1, $from, i8>($bytes, $to),
            DType::U16 => convert::<$from_bytes, 2, $from, u16>($bytes, $to),
            DType::I16 => convert::<$from_bytes, 2, $from, i16>($bytes, $to),
            DType::I32 => convert::<$from_bytes, 4, $from, i32>($bytes, $to),
            DType::I64 => convert::<$from_bytes, 8, $from, i64>($bytes, $to),
            DType::U32 => convert::<$from_bytes, 4, $from, u32>($bytes, $to),
            DType::U64 => convert::<$from_bytes, 8, $from, u64>($bytes, $to),
            DType::F16 => convert::<$from_bytes, 2, $from, f16>($bytes, $to),
            DType::BF16 => convert::<$from_bytes, 2, $from, bf16>($bytes, $to),
            DType::F32 => convert::<$from_bytes, 4, $from, f32>($bytes, $to),
            DType::F64 => convert::<$from_bytes, 8, $from, f64>($bytes, $to),
            DType::Bool => convert::<$from_bytes, 1, $from, bool>($bytes, $to),
        }
    };
}

/// Casts elements in native byte order. Nothing is computed where the types are the same.
///
/// # Panics
/// When the types are the same and the lengths are not.
pub(super) fn cast(source: DType, from: &[u8], target: DType, to: &mut [u8]) {
    if source == target {
        to.copy_from_slice(from);
        return;
    }
    match source {
        DType::U8 => from_type!(u8, 1, from, target, to),
        DType::I8 => from_type!(i8, 1, from, target, to),
        DType::U16 => from_type!(u16, 2, from, target, to),
        DType::I16 => from_type!(i16, 2, from, target, to),
        DType::I32 => from_type!(i32, 4, from, target, to),
        DType::I64 => from_type!(i64, 8, from, target, to),
        DType::U32 => from_type!(u32, 4, from, target, to),
        DType::U64 => from_type!(u64, 8, from, target, to),
        DType::F16 => from_type!(f16, 2, from, target, to),
        DType::BF16 => from_type!(bf16, 2, from, target, to),
        DType::F32 => from_type!(f32, 4, from, target, to),
        DType::F64 => from_type!(f64, 8, from, target, to),
        DType::Bool => from_type!(bool, 1, from, target, to),
    }
}
