//! A sample's memory in addition to its fetched bytes and its row, estimated from these bytes before anything is
//! decompressed: an image's header contains its size, an archive's directory the sizes of its members.
//!
//! The estimates are upper bounds. They depend only on the bytes and the plan: the decoders' limits come from the same
//! headers and not from free memory.

use std::collections::BTreeSet;

use crate::bucket::Bucket;
use forebay_dataset::Defect;
use forebay_media::decode::{Decoders, ImageHeader, decoding_bytes};
use forebay_media::size::Size;
use forebay_video::clip::Clip;
use forebay_video::codec::Codec;

/// Memory that a work thread keeps in all its buffers from sample to sample; memory beyond it is freed.
pub const KEPT_BYTES: usize = 8 << 20;

/// See the module's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Maximal memory that a work thread holds for it at a time.
    pub scratch_bytes: u64,
    /// Memory that it holds between two stages.
    pub carried_bytes: u64,
}

/// The estimate for a sample, to which operations add their memory.
#[derive(Debug)]
pub(crate) struct Reckoning<'a> {
    /// By field: the file of an image that is not decoded.
    pub(crate) files: Vec<Option<&'a [u8]>>,
    /// By field: the files of a list of images.
    lists: Vec<Vec<&'a [u8]>>,
    /// By field: the video that is not decoded.
    clips: Vec<Option<ClipSize>>,
    /// By field.
    images: Vec<Option<ImageNow>>,
    /// By field: size of a Python stage's result other than an image.
    returned: Vec<Option<u64>>,
    /// The fetched bytes, and the bytes that reading decompresses from them.
    pub(crate) sample_bytes: u64,
    /// The bytes of the sample's texts, or all of it if they are not known.
    pub(crate) text_bytes: u64,
    /// The sample's bucket, if there are buckets.
    pub(crate) bucket: Option<Bucket>,
    pub(crate) scratch_bytes: u64,
    /// Memory of the largest augmentation.
    pub(crate) remade_bytes: u64,
}

/// An augmentation's memory in addition to an image's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remade {
    /// Copies of them.
    Bytes,
    /// Copies, and elements in single precision.
    Floats,
}

/// An image before an operation.
#[derive(Debug, Clone, Copy)]
struct ImageNow {
    size: Size,
    /// Bytes per pixel.
    channels: u8,
    /// The pictures of a video; 1 for an image.
    pictures: u64,
    /// Whether operations may be pending that a resampling executes first, for all pictures.
    is_pending: bool,
}

/// A video that is not decoded.
#[derive(Debug, Clone, Copy)]
struct ClipSize {
    size: Size,
    /// The wanted pictures.
    pictures: u64,
    /// The bytes of the planes of the distinct ones.
    planes_bytes: u64,
    /// What a helper process that decodes it shares with this one: the packets, and the planes until they are copied.
    shared_bytes: u64,
    /// What it holds between two stages.
    held_bytes: u64,
}

impl ImageNow {
    const fn of(size: Size, channels: u8) -> Self {
        Self { size, channels, pictures: 1, is_pending: false }
    }

    /// The bytes of all pictures.
    fn all_bytes(self) -> u64 {
        self.bytes(self.size).saturating_mul(self.pictures)
    }

    /// The bytes of one picture of this size.
    fn bytes(self, size: Size) -> u64 {
        u64::from(size.width) * u64::from(size.height) * u64::from(self.channels)
    }
}

impl<'a> Reckoning<'a> {
    pub(crate) fn new(files: Vec<Option<&'a [u8]>>, sample_bytes: u64) -> Self {
        let (images, returned) = (vec![None; files.len()], vec![None; files.len()]);
        let (lists, clips) = (vec![Vec::new(); files.len()], vec![None; files.len()]);
        Self {
            files,
            lists,
            clips,
            images,
            returned,
            sample_bytes,
            text_bytes: sample_bytes,
            bucket: None,
            scratch_bytes: 0,
            remade_bytes: 0,
        }
    }

    /// Sets the files of a list of images.
    pub(crate) fn set_files(&mut self, field: usize, files: Vec<&'a [u8]>) {
        self.lists[field] = files;
    }

    /// Takes the files of a list of images, which an operation decodes.
    pub(crate) fn take_files(&mut self, field: usize) -> Vec<&'a [u8]> {
        self.lists.get_mut(field).map(std::mem::take).unwrap_or_default()
    }

    /// The file of an image that is not decoded.
    pub(crate) fn file(&self, field: usize) -> Option<&'a [u8]> {
        self.files.get(field).copied().flatten()
    }

    /// Adds the decoding of an image. A file that decoding refuses needs no memory.
    pub(crate) fn decode(
        &mut self,
        field: usize,
        channels: u8,
        header: impl FnOnce(&mut Decoders, &[u8]) -> Result<ImageHeader, Defect>,
    ) {
        let Some(file) = self.file(field) else { return };
        let Ok(header) = header(&mut Decoders::default(), file) else { return };
        self.scratch_bytes += decoding_bytes(file, &header, channels);
        self.images[field] = Some(ImageNow::of(header.size(), channels));
    }

    /// Sets the video of a field.
    pub(crate) fn set_clip(&mut self, field: usize, clip: &Clip<'_>) {
        let (width, height) = match clip.rotation.swaps_sides() {
            true => (clip.height, clip.width),
            false => (clip.width, clip.height),
        };
        let distinct: BTreeSet<i64> = clip.wanted.iter().copied().collect();
        let planes_bytes = crate::video::frame_bytes(clip).saturating_mul(distinct.len() as u64);
        let pictures = clip.wanted.len() as u64;
        let held_bytes = crate::video::held_bytes(clip) as u64;
        let shared_bytes = match clip.codec {
            // Decoded here.
            Codec::Mjpeg => 0,
            _ => planes_bytes.saturating_add(clip.data.len() as u64),
        };
        let size = Size { width, height };
        self.clips[field] =
            Some(ClipSize { size, pictures, planes_bytes, shared_bytes, held_bytes });
    }

    /// Adds the planes of a video, and the colours of one picture at a time.
    pub(crate) fn decode_video(&mut self, field: usize) {
        let Some(clip) = self.clips.get_mut(field).and_then(Option::take) else { return };
        let ClipSize { size, pictures, planes_bytes, shared_bytes, .. } = clip;
        let image = ImageNow { pictures, ..ImageNow::of(size, 3) };
        self.scratch_bytes = [planes_bytes, shared_bytes, 2 * image.bytes(size)]
            .into_iter()
            .fold(self.scratch_bytes, u64::saturating_add);
        self.images[field] = Some(image);
    }

    /// Changes the size of an image without computing new pixels.
    pub(crate) fn crop(&mut self, field: usize, size: Size) {
        if let Some(Some(image)) = self.images.get_mut(field) {
            // Zeros around it.
            image.is_pending |= size.width > image.size.width || size.height > image.size.height;
            image.size = size;
        }
    }

    /// Mirrors an image without computing new pixels. A resampling that picks single pixels executes it first.
    pub(crate) fn mirror(&mut self, field: usize) {
        if let Some(Some(image)) = self.images.get_mut(field) {
            image.is_pending |= image.pictures > 1;
        }
    }

    /// Adds the execution of pending operations, and the new pixels of an image in the size that `after` returns.
    /// Operations use the same buffers one after another.
    pub(crate) fn remake(&mut self, field: usize, after: impl FnOnce(Size) -> Size, how: Remade) {
        let Some(Some(image)) = self.images.get_mut(field) else { return };
        let after = after(image.size);
        // `grayscale` may convert one channel to three.
        let channels = image.channels.max(3);
        let of = |size| ImageNow { channels, ..*image }.bytes(size);
        let floats = if how == Remade::Floats { 6 * of(image.size) } else { 0 };
        self.remade_bytes = self.remade_bytes.max(of(image.size) + 2 * of(after) + floats);
        let of_others = (image.pictures - 1).saturating_mul(of(after));
        (image.size, image.channels, image.is_pending) = (after, channels, false);
        self.scratch_bytes = self.scratch_bytes.saturating_add(of_others);
    }

    /// Adds a resampling of an image; `size` returns the result's size.
    pub(crate) fn resample(&mut self, field: usize, size: impl FnOnce(Size) -> Option<Size>) {
        let Some(Some(image)) = self.images.get_mut(field) else { return };
        let Some(after) = size(image.size) else { return };
        // The first of two passes keeps the height; the result exists twice if it is carried on. With alpha the source
        // is multiplied by it first.
        let between = image.bytes(Size { width: after.width, height: image.size.height });
        let multiplied = if matches!(image.channels, 4 | 8) { image.bytes(image.size) } else { 0 };
        let executed = if image.is_pending { image.all_bytes() } else { 0 };
        let own = between + multiplied + 2 * image.bytes(after);
        self.scratch_bytes = self.scratch_bytes.saturating_add(own).saturating_add(executed);
        (image.size, image.is_pending) = (after, true);
    }

    /// Makes a field a view of another field's image.
    pub(crate) fn view(&mut self, of: usize, view: usize) {
        self.images[view] = self.images[of];
    }

    /// Makes a field a copy of another field's array.
    pub(crate) fn copy(&mut self, of: usize, copy: usize) {
        // An array of the dataset is within the sample's bytes.
        let bytes = self.returned.get(of).copied().flatten().unwrap_or(self.sample_bytes);
        self.returned[copy] = Some(bytes);
    }

    /// Adds a field's pixels, held in addition to the processed ones.
    pub(crate) fn hold(&mut self, field: usize) {
        self.scratch_bytes = self.scratch_bytes.saturating_add(self.held_bytes(field));
    }

    /// Bytes of a field's current image, of the result returned for it, or of its video that is not decoded; 0: it is
    /// within the sample's bytes.
    pub(crate) fn held_bytes(&self, field: usize) -> u64 {
        let image = self.images.get(field).copied().flatten();
        let image = image.map(ImageNow::all_bytes);
        let returned = self.returned.get(field).copied().flatten();
        let clip = self.clips.get(field).copied().flatten().map(|clip| clip.held_bytes);
        image.or(returned).or(clip).unwrap_or(0)
    }

    /// Whether a function has returned the field.
    pub(crate) fn is_returned(&self, field: usize) -> bool {
        self.returned.get(field).is_some_and(Option::is_some)
    }

    /// Removes a field that a function takes.
    pub(crate) fn take(&mut self, field: usize) {
        (self.files[field], self.images[field], self.returned[field]) = (None, None, None);
        self.clips[field] = None;
    }

    /// Adds a field of `bytes` bytes that a function returns.
    pub(crate) fn give(&mut self, field: usize, bytes: u64) {
        self.returned[field] = Some(bytes);
    }

    /// Adds an image that a function returns.
    pub(crate) fn give_image(&mut self, field: usize, size: Size, channels: u8) {
        self.images[field] = Some(ImageNow::of(size, channels));
        self.returned[field] = Some(0);
    }
}
