//! The size of a result of the user's function, as far as it is known before the call.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::FieldType;
use forebay_dataset::FieldKind;
use forebay_media::size::Size;

/// See the module's head.
#[derive(Debug)]
pub(crate) enum OutputSize {
    Bytes(u64),
    Pixels(Size),
    /// It differs between samples. The largest so far; 0 before the first.
    Any(AtomicU64),
}

impl OutputSize {
    /// `seen_bytes`: the largest result of the first samples.
    pub(crate) fn of(kind: &FieldType, seen_bytes: u64) -> Self {
        Self::fixed(kind).unwrap_or_else(|| Self::Any(AtomicU64::new(seen_bytes)))
    }

    fn fixed(kind: &FieldType) -> Option<Self> {
        match kind {
            FieldType::Image(image) => image.size?.fixed().map(Self::Pixels),
            FieldType::Raw(FieldKind::Array { dtype, shape }) => {
                let bytes =
                    shape.iter().fold(dtype.size_bytes(), |all, side| all.saturating_mul(*side));
                Some(Self::Bytes(bytes))
            }
            FieldType::Raw(FieldKind::Integer | FieldKind::Float) => Some(Self::Bytes(0)),
            FieldType::Raw(_) => None,
        }
    }

    /// Records a result's size.
    pub(crate) fn note(&self, bytes: u64) {
        if let Self::Any(most) = self
            // Relaxed, here and where it is read: an estimate.
            && most.load(Ordering::Relaxed) < bytes
        {
            most.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}
