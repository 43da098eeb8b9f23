//! A TIFF file's samples as stored, in any number and of any type, without a meaning as colours: elevations, bands of
//! satellites, measurements.

use super::chunks::defect;
use super::stored::{Stored, not_read};
use super::{Placing, read_samples, unpacking_bytes};
use crate::array::{ArrayBuffer, ArrayType};
use crate::buffers::prepare;
use forebay_dataset::Defect;
use forebay_protocol::tensor::DType;

/// The order of an array's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RasterAxes {
    /// `[height, width]`: files with one sample per pixel.
    Plane,
    /// `[height, width, samples]`.
    SamplesLast,
    /// `[samples, height, width]`.
    SamplesFirst,
}

/// A TIFF file of which every sample is read.
#[derive(Debug)]
pub struct Raster<'f> {
    file: &'f [u8],
    stored: Stored<'f>,
    dtype: DType,
}

impl<'f> Raster<'f> {
    /// Reads the first directory.
    ///
    /// # Errors
    /// It is no TIFF file, a defective one, or of a kind that is not read.
    pub fn open(file: &'f [u8]) -> Result<Self, Defect> {
        if !(super::FORMAT.begins)(file) {
            let message = match file {
                [b'I', b'I', 43, ..] | [b'M', b'M', 0, 43, ..] => {
                    "it is a BigTIFF, which is not read; write it again with `BIGTIFF=NO`"
                }
                _ => "it is no TIFF file, and `decode-raster` reads no other",
            };
            return Err(Defect(message.to_owned()));
        }
        let stored = Stored::read(file)?;
        if stored.size.width == 0 || stored.size.height == 0 {
            return Err(defect("it has no pixels"));
        }
        let dtype = stored
            .dtype()
            .ok_or_else(|| not_read(&format!("of {} bits", stored.bits), "its samples are"))?;
        Ok(Self { file, stored, dtype })
    }

    /// The array's type and shape.
    pub fn array_type(&self, axes: RasterAxes) -> ArrayType {
        let (height, width) = (self.stored.size.height.into(), self.stored.size.width.into());
        let samples = self.stored.samples as u64;
        let shape = match axes {
            RasterAxes::SamplesFirst => vec![samples, height, width],
            RasterAxes::Plane if samples == 1 => vec![height, width],
            RasterAxes::Plane | RasterAxes::SamplesLast => vec![height, width, samples],
        };
        ArrayType { dtype: self.dtype, shape }
    }

    /// The memory of [`decode`](Self::decode) beside its result.
    pub fn decoding_bytes(&self) -> u64 {
        unpacking_bytes(self.file, &self.stored)
    }

    /// Decodes to an array of [`array_type`](Self::array_type), whose size the caller has checked.
    ///
    /// # Errors
    /// The file is truncated or defective.
    pub fn decode(&self, axes: RasterAxes, array: &mut ArrayBuffer) -> Result<(), Defect> {
        let ArrayType { dtype, shape } = self.array_type(axes);
        let (samples, size) = (self.stored.samples, self.stored.size);
        let pixels = size.width as usize * size.height as usize;
        let placing = match axes {
            RasterAxes::SamplesFirst => Placing { used: samples, pixel: 1, sample: pixels },
            RasterAxes::Plane | RasterAxes::SamplesLast => Placing::of_pixels(samples),
        };
        let bytes = pixels * samples * self.stored.element_bytes();
        prepare(&mut array.bytes, bytes);
        array.bytes.truncate(bytes);
        (array.dtype, array.shape) = (dtype, shape);
        read_samples(self.file, &self.stored, placing, &mut array.bytes)
    }
}
