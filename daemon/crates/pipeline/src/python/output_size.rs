//! How large a result of the user's function is, as far as it is known before the call.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::FieldType;
use crate::size::Size;
use forebay_source::dataset::FieldKind;

/// See the module's head.
#[derive(Debug)]
pub(crate) enum OutputSize {
    Bytes(u64),
    Pixels(Size),
    /// It differs from sample to sample. The largest so far; 0: none was seen.
    Any(AtomicU64),
}

impl OutputSize {
    /// `seen_bytes`: the largest of the first samples.
    pub(crate) fn of(kind: &FieldType, seen_bytes: u64) -> Self {
        Self::fixed(kind).unwrap_or_else(|| Self::Any(AtomicU64::new(seen_bytes)))
    }

    fn fixed(kind: &FieldType) -> Option<Self> {
        match kind {
            FieldType::Image(image) => image.size.map(Self::Pixels),
            FieldType::Raw(FieldKind::Array { dtype, shape }) => {
                let bytes =
                    shape.iter().fold(dtype.size_bytes(), |all, side| all.saturating_mul(*side));
                Some(Self::Bytes(bytes))
            }
            FieldType::Raw(FieldKind::Integer | FieldKind::Float) => Some(Self::Bytes(0)),
            FieldType::Raw(_) => None,
        }
    }

    /// Notes a result.
    pub(crate) fn note(&self, bytes: u64) {
        if let Self::Any(most) = self
            // Relaxed, here and where it is read: a figure.
            && most.load(Ordering::Relaxed) < bytes
        {
            most.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}
