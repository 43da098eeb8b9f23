//! The form of an image in its row: layout, and what a byte becomes.

pub(crate) use forebay_protocol::pixel_values::{Normalization, PixelValues};

use crate::config::ImageLayout;

/// The form of an image in its row.
#[derive(Debug)]
pub(crate) struct ImageFormat {
    pub(crate) layout: ImageLayout,
    pub(crate) values: PixelValues,
}
