//! Plain casts between element types: like Rust's `as`, which equals NumPy's `astype` wherever that is defined.
//!
//! Float to integer truncates towards zero and saturates; anything to bool is "not zero".

use forebay_protocol::tensor::DType;
use half::{bf16, f16};

/// A number that represents any element exactly.
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

macro_rules! numbers {
    ($($type:ty, $bytes:literal, $kind:ident, $wide:ty;)+) => {$(
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
    )+};
}

numbers! {
    u8, 1, Unsigned, u64;
    i8, 1, Signed, i64;
    u16, 2, Unsigned, u64;
    i16, 2, Signed, i64;
    u32, 4, Unsigned, u64;
    i32, 4, Signed, i64;
    u64, 8, Unsigned, u64;
    i64, 8, Signed, i64;
    f32, 4, Float, f64;
    f64, 8, Float, f64;
}

impl Exact {
    #[expect(clippy::cast_precision_loss, reason = "a float of fewer bits is requested")]
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

/// Evaluates an expression with the element type of a `DType` as a type, and its size as a constant.
macro_rules! with_element {
    (@ $dtype:expr, $Type:ident, $BYTES:ident => $body:expr; $($Variant:ident $type:ty),+) => {
        match $dtype {
            $(DType::$Variant => {
                type $Type = $type;
                const $BYTES: usize = size_of::<$type>();
                $body
            })+
        }
    };
    ($dtype:expr, $Type:ident, $BYTES:ident => $body:expr) => {
        with_element!(@ $dtype, $Type, $BYTES => $body; U8 u8, I8 i8, U16 u16, I16 i16, I32 i32, I64 i64, U32 u32,
            U64 u64, F16 f16, BF16 bf16, F32 f32, F64 f64, Bool bool)
    };
}

fn convert<const N: usize, const M: usize, S: Element<N>, T: Element<M>>(
    from: &[u8],
    to: &mut [u8],
) {
    for (from, to) in from.as_chunks::<N>().0.iter().zip(to.as_chunks_mut::<M>().0) {
        *to = T::store(S::load(*from));
    }
}

fn cast_from<const N: usize, S: Element<N>>(from: &[u8], target: DType, to: &mut [u8]) {
    with_element!(target, Target, BYTES => convert::<N, BYTES, S, Target>(from, to));
}

/// Casts elements in native byte order. Equal types are copied.
///
/// # Panics
/// The types are equal and the lengths are not.
pub fn cast(source: DType, from: &[u8], target: DType, to: &mut [u8]) {
    if source == target {
        to.copy_from_slice(from);
        return;
    }
    with_element!(source, Source, BYTES => cast_from::<BYTES, Source>(from, target, to));
}
