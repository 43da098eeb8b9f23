//! What a sample takes of memory beside its fetched bytes and its row, reckoned from those bytes before anything is
//! unpacked: an image's header says how large it is, an archive's directory what its members are.
//!
//! The figures are the most that it may take. They follow from the bytes and the plan alone: what decoders are limited to
//! comes from the same headers and never from what is free.

use super::decode::{Decoders, ImageHeader, decoding_bytes};
use super::size::Size;
use forebay_source::dataset::Defect;

/// What a work thread keeps of all its buffers from sample to sample; what a sample took beyond it is given back.
pub const KEPT_BYTES: usize = 8 << 20;

/// See the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// What a work thread holds for it at most at a time.
    pub scratch_bytes: u64,
    /// What waits with it between two stages.
    pub carried_bytes: u64,
}

/// The sample while the operations add up what they will take.
#[derive(Debug)]
pub(crate) struct Reckoning<'a> {
    /// By field: the file of an image that is not decoded.
    pub(crate) files: Vec<Option<&'a [u8]>>,
    /// By field.
    images: Vec<Option<ImageNow>>,
    /// By field: what a Python stage returned, where that is no image.
    returned: Vec<Option<u64>>,
    /// What was fetched, and what reading unpacks of it.
    pub(crate) sample_bytes: u64,
    pub(crate) scratch_bytes: u64,
    /// What the largest augmentation takes.
    pub(crate) remade_bytes: u64,
}

/// What an augmentation has beside an image's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remade {
    /// Copies of them.
    Bytes,
    /// Copies, and elements in single precision.
    Floats,
}

/// An image as an operation finds it.
#[derive(Debug, Clone, Copy)]
struct ImageNow {
    size: Size,
    /// Bytes of a pixel.
    channels: u8,
}

impl ImageNow {
    fn bytes(self, size: Size) -> u64 {
        u64::from(size.width) * u64::from(size.height) * u64::from(self.channels)
    }
}

impl<'a> Reckoning<'a> {
    pub(crate) fn new(files: Vec<Option<&'a [u8]>>, sample_bytes: u64) -> Self {
        let (images, returned) = (vec![None; files.len()], vec![None; files.len()]);
        Self { files, images, returned, sample_bytes, scratch_bytes: 0, remade_bytes: 0 }
    }

    /// An image is decoded. A file that decoding refuses takes nothing.
    pub(crate) fn decode(
        &mut self,
        field: usize,
        channels: u8,
        header: impl FnOnce(&mut Decoders, &[u8]) -> Result<ImageHeader, Defect>,
    ) {
        let Some(file) = self.files.get(field).copied().flatten() else { return };
        let Ok(header) = header(&mut Decoders::default(), file) else { return };
        self.scratch_bytes += decoding_bytes(file, &header, channels);
        self.images[field] = Some(ImageNow { size: header.size(), channels });
    }

    /// An image becomes one of this size without being computed anew.
    pub(crate) fn crop(&mut self, field: usize, size: Size) {
        if let Some(Some(image)) = self.images.get_mut(field) {
            image.size = size;
        }
    }

    /// An image's pixels are made where they are not, and made anew in the size that `after` gives. Operations use the
    /// same buffers one after the other.
    pub(crate) fn remake(&mut self, field: usize, after: impl FnOnce(Size) -> Size, how: Remade) {
        let Some(Some(image)) = self.images.get_mut(field) else { return };
        let after = after(image.size);
        // `grayscale` may make three channels of one.
        let channels = image.channels.max(3);
        let of = |size| ImageNow { channels, ..*image }.bytes(size);
        let floats = if how == Remade::Floats { 6 * of(image.size) } else { 0 };
        self.remade_bytes = self.remade_bytes.max(of(image.size) + 2 * of(after) + floats);
        (image.size, image.channels) = (after, channels);
    }

    /// An image is resampled; `size` gives the result's size.
    pub(crate) fn resample(&mut self, field: usize, size: impl FnOnce(Size) -> Option<Size>) {
        let Some(Some(image)) = self.images.get_mut(field) else { return };
        let Some(after) = size(image.size) else { return };
        // Of two passes the first keeps the height; the result is made twice where it is carried on. With alpha the
        // source is multiplied by it first.
        let between = image.bytes(Size { width: after.width, height: image.size.height });
        let multiplied = if matches!(image.channels, 4 | 8) { image.bytes(image.size) } else { 0 };
        self.scratch_bytes += between + multiplied + 2 * image.bytes(after);
        image.size = after;
    }

    /// A field becomes a view of another's image.
    pub(crate) fn view(&mut self, of: usize, view: usize) {
        self.images[view] = self.images[of];
    }

    /// A field becomes a copy of another's array.
    pub(crate) fn copy(&mut self, of: usize, copy: usize) {
        // One of the dataset lies within the sample's bytes.
        let bytes = self.returned.get(of).copied().flatten().unwrap_or(self.sample_bytes);
        self.returned[copy] = Some(bytes);
    }

    /// A field's pixels are held beside those that operations work on.
    pub(crate) fn hold(&mut self, field: usize) {
        self.scratch_bytes = self.scratch_bytes.saturating_add(self.held_bytes(field));
    }

    /// The bytes of a field's image as it is now, or of what was returned for it; 0: it lies in the sample's bytes.
    pub(crate) fn held_bytes(&self, field: usize) -> u64 {
        let image = self.images.get(field).copied().flatten();
        let image = image.map(|image| image.bytes(image.size));
        image.or(self.returned.get(field).copied().flatten()).unwrap_or(0)
    }

    /// Whether a function has given the field.
    pub(crate) fn is_returned(&self, field: usize) -> bool {
        self.returned.get(field).is_some_and(Option::is_some)
    }

    /// A function takes a field.
    pub(crate) fn take(&mut self, field: usize) {
        (self.files[field], self.images[field], self.returned[field]) = (None, None, None);
    }

    /// A function gives a field of so many bytes.
    pub(crate) fn give(&mut self, field: usize, bytes: u64) {
        self.returned[field] = Some(bytes);
    }

    /// A function gives an image.
    pub(crate) fn give_image(&mut self, field: usize, size: Size, channels: u8) {
        self.images[field] = Some(ImageNow { size, channels });
        self.returned[field] = Some(0);
    }
}
