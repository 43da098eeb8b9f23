//! One file an operation; the two crops share theirs, and the two flips. Each is listed in the registry beside this folder.

pub(super) mod crop;
pub(super) mod decode_image;
pub(super) mod delay;
#[cfg(test)]
pub(super) mod for_tests;
pub(super) mod normalize;
pub(super) mod random_flip;
pub(super) mod random_resized_crop;
pub(super) mod resize;
#[cfg(any(test, feature = "testing"))]
pub(super) mod spin;
