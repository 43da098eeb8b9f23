//! `decode-raster`: the samples of a TIFF file as they are stored, as an array: floats, signed and wide integers, any number
//! of bands.
//!
//! Images have levels of 8 or 16 bits and up to four channels; these values have neither. The size is an argument, so
//! that all arrays of a batch have one shape.

use crate::arguments::{ImageSize, RasterLayout};
use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section};
use forebay_media::array::ArrayType;
use forebay_media::decode::raster::{Raster, RasterAxes};
use forebay_media::size::Size;
use forebay_order::Draws;
use forebay_protocol::tensor::DType;

forebay_keys::keys! {
    /// a TIFF file becomes an array of its samples as stored: floats, integers of any width, any number of bands
    pub(crate) struct Arguments = "decode-raster" {
        /// the size of every file; one number for a square
        pub size: ImageSize, "pixels", required;
        /// the bands of every file
        pub samples: AtLeastOne, "per pixel", default(1_u64);
        /// the type of the samples in every file; `[output]` may cast it
        pub dtype: DType, "", default(DType::F32);
        /// `"chw"` or `"hwc"`: whether bands are the first or the last dimension
        pub layout: RasterLayout, "", absent("`[height, width]` for one band, else `\"chw\"`");
        /// the field to work on
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct DecodeRaster {
    field: usize,
    expected: ArrayType,
    axes: RasterAxes,
}

pub(crate) fn compile(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { size, samples, dtype, layout, field } = Arguments::read(section)?;
    let Size { width, height } = match size {
        ImageSize::Side(side) => Size { width: side, height: side },
        ImageSize::Exact(size) => size,
        ImageSize::Bucket => {
            let message = "`decode-raster` changes no size, so that it has none of a bucket; give the files' own";
            return Err(section.error_at("size", message.to_owned()));
        }
    };
    if matches!(dtype, DType::Bool | DType::BF16) {
        let message = format!(
            "`dtype = \"{}\"` is the type of no TIFF file's samples; give the files' own, and cast in `[output]`",
            dtype.name()
        );
        return Err(section.error_at("dtype", message));
    }
    let (width, height) = (u64::from(width), u64::from(height));
    if width * height > fields.limits.pixels {
        let message = format!("{height} × {width} pixels are more than limits.pixels");
        return Err(section.error_at("size", format!("{message}, {}", fields.limits.pixels)));
    }
    let (axes, shape) = match layout {
        None if samples == 1 => (RasterAxes::Plane, vec![height, width]),
        None | Some(RasterLayout::SamplesFirst) => {
            (RasterAxes::SamplesFirst, vec![samples, height, width])
        }
        Some(RasterLayout::SamplesLast) => (RasterAxes::SamplesLast, vec![height, width, samples]),
    };
    let field = fields.find("decode-raster", section, field, "image file", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::EncodedImage))
    })?;
    let expected = ArrayType { dtype, shape };
    fields.fields[field].kind =
        FieldType::Raw(FieldKind::Array { dtype, shape: expected.shape.clone() });
    Ok(Box::new(DecodeRaster { field, expected, axes }))
}

impl DecodeRaster {
    /// The file, of the expected size and type.
    fn open<'f>(&self, file: &'f [u8]) -> Result<Raster<'f>, Defect> {
        let raster = Raster::open(file)?;
        let found = raster.array_type(self.axes);
        if found == self.expected {
            return Ok(raster);
        }
        Err(Defect(format!(
            "the TIFF file is {found}, and `decode-raster` expects {}; change its `size`, `samples` or `dtype`",
            self.expected
        )))
    }

    fn array_bytes(&self) -> u64 {
        let bytes = self.expected.dtype.size_bytes();
        self.expected.shape.iter().fold(bytes, |bytes, side| bytes.saturating_mul(*side))
    }
}

impl Operation for DecodeRaster {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        // A file that is refused needs no memory.
        let Some(Ok(raster)) = reckoning.file(self.field).map(|file| self.open(file)) else {
            return;
        };
        let bytes = self.array_bytes();
        let all = raster.decoding_bytes().saturating_add(bytes);
        reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(all);
        reckoning.give(self.field, bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let FieldInProgress::File(file) = sample.fields[self.field] else {
            return Err(Defect("`decode-raster` found no image file".to_owned()));
        };
        let raster = self.open(file)?;
        let mut array = sample.tools.spare_array();
        raster.decode(self.axes, &mut array)?;
        sample.fields[self.field] = FieldInProgress::Buffer(array);
        Ok(())
    }
}
