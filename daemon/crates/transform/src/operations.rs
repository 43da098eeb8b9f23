//! One file per operation, or per family of operations. Each is listed in the registry next to this folder.

pub(super) mod auto_augment;
pub(super) mod batch_choice;
pub(super) mod batch_mixes;
pub(super) mod batch_python;
#[cfg(feature = "text")]
pub(super) mod chat;
pub(super) mod color_jitter;
pub(super) mod crop;
pub(super) mod decode_image;
pub(super) mod decode_raster;
pub(super) mod decode_video;
pub(super) mod delay;
#[cfg(test)]
pub(super) mod for_tests;
pub(super) mod gaussian_blur;
pub(super) mod grayscale;
pub(super) mod image_patches;
pub(super) mod map_segments;
pub(super) mod normalize;
pub(super) mod pad;
pub(super) mod random_erasing;
pub(super) mod random_flip;
pub(super) mod random_levels;
pub(super) mod random_lists;
pub(super) mod random_resized_crop;
pub(super) mod resize;
#[cfg(feature = "sound")]
pub(super) mod spectrogram;
#[cfg(any(test, feature = "testing"))]
pub(super) mod spin;
#[cfg(feature = "text")]
pub(super) mod tokenize;
pub(super) mod views;
pub(super) mod warps;
