//! The types that a tensor's elements can have.

use serde::{Deserialize, Serialize};

/// One row per type: its meaning, name, discriminant, size of an element in bytes, and name in configuration files.
macro_rules! dtypes {
    ($($(#[$meaning:meta])* $Type:ident = $code:literal, $bytes:literal, $name:literal;)+) => {
        /// The type of a tensor's elements. The discriminants travel in descriptors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DType {
            $($(#[$meaning])* $Type = $code,)+
        }

        impl DType {
            /// Every type, in the order of the discriminants.
            pub const ALL: [Self; 13] = [$(Self::$Type),+];

            /// The size of one element in bytes.
            #[must_use]
            pub const fn size_bytes(self) -> u64 {
                match self {
                    $(Self::$Type => $bytes,)+
                }
            }

            /// The name that configuration files and reports use, such as `float32`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Type => $name,)+
                }
            }
        }
    };
}

dtypes! {
    /// Unsigned 8-bit integer.
    U8 = 0, 1, "uint8";
    /// Signed 8-bit integer.
    I8 = 1, 1, "int8";
    /// Unsigned 16-bit integer.
    U16 = 2, 2, "uint16";
    /// Signed 16-bit integer.
    I16 = 3, 2, "int16";
    /// Signed 32-bit integer.
    I32 = 4, 4, "int32";
    /// Signed 64-bit integer.
    I64 = 5, 8, "int64";
    /// Unsigned 32-bit integer.
    U32 = 6, 4, "uint32";
    /// Unsigned 64-bit integer.
    U64 = 7, 8, "uint64";
    /// IEEE 754 half precision.
    F16 = 8, 2, "float16";
    /// The upper half of a single-precision number.
    BF16 = 9, 2, "bfloat16";
    /// IEEE 754 single precision.
    F32 = 10, 4, "float32";
    /// IEEE 754 double precision.
    F64 = 11, 8, "float64";
    /// One byte, 0 or 1.
    Bool = 12, 1, "bool";
}

impl DType {
    /// The type with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The type with this discriminant.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
