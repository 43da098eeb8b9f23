//! `image-patches`: a list of images becomes the patches and grids that a model of pictures and text reads, as the image
//! processor of Qwen2-VL in Transformers gives them.
//!
//! Each image keeps its proportions: [`size`] computes the sides that are whole numbers of patches within a budget of
//! pixels. What it has of alpha is put on white ([`background`]); it is resized bicubically as Pillow does, its levels become floats, and [`layout`] writes its patches behind
//! those of the image before it.

mod background;
mod layout;
mod size;

use self::background::on_white;
use self::layout::Levels;
use self::size::{PatchGrid, PixelBudget};
use crate::arguments::ScaledDecoding;
use crate::contract::{FieldType, FieldTypes, ImageGrids, Operation, Sample};
use crate::field::{FieldInProgress, Tools};
use crate::image::{PendingImage, check_normalization};
use crate::needs::Reckoning;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section};
use forebay_media::decode::{Decoders, ImageHeader, decoding_bytes};
use forebay_media::size::Size;
use forebay_order::Draws;
use forebay_protocol::tensor::DType;
use forebay_resample::PillowResampler;

/// Red, green and blue.
const CHANNELS: u8 = 3;
/// The same with alpha.
const WITH_ALPHA: u8 = 4;
/// Bytes of a grid: three of int64.
const GRID_BYTES: u64 = 24;
/// The largest `patch_size`, `merge_size` and `temporal_patch_size`.
const MAX_FACTOR: u64 = 1024;
/// The largest number of values of a patch.
const MAX_PATCH_VALUES: u64 = 1 << 20;

/// The means and deviations of CLIP, which these models use.
const MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];

forebay_keys::keys! {
    /// a list of images becomes their patches: float32, `[patches, 3 × temporal_patch_size × patch_size²]`, and the grid
    /// of each: int64, `[images, 3]`
    pub(crate) struct Arguments = "image-patches" {
        /// the field to work on, with `as = "images"`
        pub field: String, "", absent("the only list of images");
        /// the new name of the field
        pub to: String, "", default("pixel_values".to_owned());
        /// a new field with the grid of each image, in patches: 1, rows, columns
        pub grid: String, "", default("image_grid_thw".to_owned());
        /// the side of a patch
        pub patch_size: AtLeastOne, "pixels", default(14_u64);
        /// how many patches in each direction become one token
        pub merge_size: AtLeastOne, "patches", default(2_u64);
        /// how often each patch is repeated, as models of videos read an image
        pub temporal_patch_size: AtLeastOne, "", default(2_u64);
        /// a smaller image is enlarged to this many
        pub min_pixels: AtLeastOne, "pixels", default(3136_u64);
        /// a larger image is reduced to this many
        pub max_pixels: AtLeastOne, "pixels", default(1_003_520_u64);
        /// a sample with more images is a bad one; the length of rows is planned for as many
        pub max_images: AtLeastOne, "images", default(16_u64);
        /// one number a channel, for values from 0 to 1
        pub mean: Vec<f64>, "", default(MEAN.to_vec());
        /// one number a channel, above 0, for values from 0 to 1
        pub std: Vec<f64>, "", default(STD.to_vec());
        /// turn as the EXIF tag says, as `datasets` and Transformers do
        pub orientation: bool, "", default(true);
    }
}

#[derive(Debug)]
struct ImagePatches {
    field: usize,
    grid_field: usize,
    grid: PatchGrid,
    budget: PixelBudget,
    levels: Levels,
    most_images: usize,
    orientation: bool,
    most_pixels: u64,
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let arguments = Arguments::read(section)?;
    let field = fields.find("image-patches", section, arguments.field, "image list", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::EncodedImages))
    })?;
    let factor = |key: &str, value: u64| match u32::try_from(value) {
        Ok(narrow) if value <= MAX_FACTOR => Ok(narrow),
        _ => {
            let message = format!("`{}` is at most {MAX_FACTOR}", section.key_path(key));
            Err(section.error_at(key, message))
        }
    };
    let grid = PatchGrid {
        patch_size: factor("patch_size", arguments.patch_size)?,
        merge_size: factor("merge_size", arguments.merge_size)?,
        temporal_patch_size: factor("temporal_patch_size", arguments.temporal_patch_size)?,
    };
    if grid.patch_values() > MAX_PATCH_VALUES {
        let message = format!(
            "a patch has {} values, and at most {MAX_PATCH_VALUES} are made",
            grid.patch_values()
        );
        return Err(section.error_at("patch_size", message));
    }
    let budget = PixelBudget { least: arguments.min_pixels, most: arguments.max_pixels };
    if budget.least > budget.most {
        let message = format!(
            "`{}` is {}, more than `max_pixels`, {}",
            section.key_path("min_pixels"),
            budget.least,
            budget.most
        );
        return Err(section.error_at("min_pixels", message));
    }
    let largest_pixels = grid.largest_pixels(budget);
    if largest_pixels > fields.limits.pixels {
        let message = format!(
            "images may become {largest_pixels} pixels, and limits.pixels is {}; lower `max_pixels`, or raise the limit",
            fields.limits.pixels
        );
        return Err(section.error_at("max_pixels", message));
    }
    let normalization = check_normalization(arguments.mean, arguments.std, CHANNELS)
        .map_err(|reason| section.error(format!("`image-patches`: {reason}")))?;
    fields.rename(field, arguments.to).map_err(|message| section.error_at("to", message))?;
    let most_patches = arguments.max_images.saturating_mul(grid.patches(largest_pixels));
    let plan = &mut fields.fields[field];
    let row_shape = vec![grid.patch_values()];
    plan.kind = FieldType::Raw(FieldKind::RaggedArray { dtype: DType::F32, row_shape });
    plan.max_row_bytes = Some(most_patches.saturating_mul(grid.patch_bytes()));
    let grids = FieldType::Raw(FieldKind::RaggedArray { dtype: DType::I64, row_shape: vec![3] });
    let grid_field =
        fields.add(&arguments.grid, grids).map_err(|message| section.error_at("grid", message))?;
    let stage = fields.stage;
    let plan = &mut fields.fields[grid_field];
    plan.last_stage = Some(stage);
    plan.max_row_bytes = Some(arguments.max_images.saturating_mul(GRID_BYTES));
    let merged = u64::from(grid.merge_size).pow(2);
    plan.image_grids =
        Some(ImageGrids { patches_per_token: merged, most_tokens: most_patches / merged });
    Ok(Box::new(ImagePatches {
        field,
        grid_field,
        grid,
        budget,
        levels: Levels::new(&normalization),
        most_images: usize::try_from(arguments.max_images).unwrap_or(usize::MAX),
        orientation: arguments.orientation,
        most_pixels: fields.limits.pixels,
    }))
}

impl ImagePatches {
    /// An image's header, and the size to which it is resized.
    fn sizes(&self, decoders: &mut Decoders, file: &[u8]) -> Result<(ImageHeader, Size), Defect> {
        let header = decoders.read_header(file, self.orientation, self.most_pixels)?;
        let size = self.grid.fit(header.size(), self.budget).map_err(Defect)?;
        Ok((header, size))
    }
}

impl Operation for ImagePatches {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        let files = reckoning.take_files(self.field);
        let mut decoders = Decoders::default();
        // One image is decoded at a time; the patches of all are held.
        let (mut largest, mut patches) = (0_u64, 0_u64);
        for file in files.iter().take(self.most_images) {
            // A file that is refused needs no memory, and ends the sample.
            let Ok((header, size)) = self.sizes(&mut decoders, file) else { break };
            let area = |width: u32, height: u32| {
                u64::from(CHANNELS) * u64::from(width) * u64::from(height)
            };
            let own = header.size();
            let decoded = match header.may_have_alpha() {
                true => decoding_bytes(file, &header, WITH_ALPHA)
                    .saturating_add(area(own.width, own.height)),
                false => decoding_bytes(file, &header, CHANNELS),
            };
            let resizing =
                PillowResampler::needed_bytes((own.width, own.height), (size.width, size.height));
            // The image before and after it is resized.
            let resized = area(own.width, own.height) + area(size.width, size.height);
            let image = decoded.saturating_add(resizing).saturating_add(resized);
            largest = largest.max(image);
            patches += self.grid.patches(u64::from(size.width) * u64::from(size.height));
        }
        let bytes = patches.saturating_mul(self.grid.patch_bytes());
        reckoning.scratch_bytes =
            reckoning.scratch_bytes.saturating_add(largest).saturating_add(bytes);
        reckoning.give(self.field, bytes);
        reckoning.give(self.grid_field, files.len() as u64 * GRID_BYTES);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let field = std::mem::replace(&mut sample.fields[self.field], FieldInProgress::Absent);
        let FieldInProgress::Files(files) = field else {
            return Err(Defect("`image-patches` found no list of image files".to_owned()));
        };
        if files.len() > self.most_images {
            return Err(Defect(format!(
                "the sample has {} images, more than `max_images` of `image-patches`, {}",
                files.len(),
                self.most_images
            )));
        }
        let mut patches = sample.tools.spare_array();
        let mut grids = sample.tools.spare_array();
        patches.bytes.clear();
        grids.bytes.clear();
        // A vector that grows would take up to twice what is planned.
        let decoders = &mut sample.tools.image.decoders;
        let sizes = files.iter().map_while(|file| self.sizes(decoders, file).ok());
        let areas = sizes.map(|(_, size)| u64::from(size.width) * u64::from(size.height));
        let patch_count = areas.map(|area| self.grid.patches(area)).fold(0, u64::saturating_add);
        let bytes = patch_count.saturating_mul(self.grid.patch_bytes());
        patches.bytes.reserve_exact(usize::try_from(bytes).unwrap_or(0));
        for (number, file) in files.iter().enumerate() {
            let named = |defect: Defect| {
                Defect(format!("image {} of {}: {}", number + 1, files.len(), defect.0))
            };
            let Tools { image: tools, pillow, .. } = &mut *sample.tools;
            let (header, size) = self.sizes(&mut tools.decoders, file).map_err(named)?;
            let channels = if header.may_have_alpha() { WITH_ALPHA } else { CHANNELS };
            let mut image = PendingImage::from_file(file, header, channels, ScaledDecoding::Off);
            if channels == WITH_ALPHA {
                let own = header.size();
                let remade =
                    image.remake(own, CHANNELS, tools, |rgba, rgb| on_white(rgba.bytes, rgb));
                remade.map_err(named)?;
            }
            let resized = image.remake(size, CHANNELS, tools, |from, to| {
                let sides = |size: Size| (size.width, size.height);
                pillow.resize(from.bytes, sides(from.size), sides(size), to);
            });
            resized.map_err(named)?;
            let pixels = image.pixels(tools).map_err(named)?;
            self.grid.write(pixels.bytes, size, &self.levels, &mut patches.bytes);
            let (rows, columns) = self.grid.sides(size);
            let grid = [1, rows.into(), columns.into()];
            grids.bytes.extend(grid.into_iter().flat_map(i64::to_ne_bytes));
            image.recycle(tools);
        }
        let rows = patches.bytes.len() as u64 / self.grid.patch_bytes();
        (patches.dtype, grids.dtype) = (DType::F32, DType::I64);
        patches.shape.clear();
        patches.shape.extend([rows, self.grid.patch_values()]);
        grids.shape.clear();
        grids.shape.extend([files.len() as u64, 3]);
        sample.fields[self.field] = FieldInProgress::Buffer(patches);
        sample.fields[self.grid_field] = FieldInProgress::Buffer(grids);
        Ok(())
    }
}
