//! What an operation is: how it is compiled against the fields before it, and how it is run on one sample.
//!
//! The fields are numbered as the dataset's. What may come later fits without a change here: an operation on two
//! fields that share one draw (image and mask) takes both numbers and applies one draw to both; one that makes several
//! outputs of one input (views) adds fields to [`FieldTypes`] when it is compiled and to [`Sample::fields`] when it is
//! run; one on a whole batch after its rows (MixUp) is no `Operation` but a second list in the plan, run on the slot.

use std::fmt::Debug;

use super::geometry::Size;
use super::image::{ImageTools, Normalization, PendingImage};
use crate::config::{ConfigError, Limits, Place, Section, nearest};
use crate::dataset::{Defect, FieldKind};
use crate::order::Draws;

/// Something that is done to each sample. Shared by all work threads.
pub(crate) trait Operation: Debug + Send + Sync {
    /// Does it to one sample. The draws are this operation's own for this sample.
    ///
    /// # Errors
    /// The sample is bad.
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect>;
}

/// A sample while operations run on it.
#[derive(Debug)]
pub(crate) struct Sample<'s, 'a> {
    /// In the order of [`FieldTypes`].
    pub(crate) fields: &'s mut [FieldInProgress<'a>],
    /// The work thread's.
    pub(crate) tools: &'s mut ImageTools,
}

/// One field of a sample while operations run on it.
#[derive(Debug)]
pub(crate) enum FieldInProgress<'a> {
    /// In its row already: no operation touches it.
    Written,
    /// An image's file.
    File(&'a [u8]),
    /// An image.
    Image(PendingImage<'a>),
}

impl<'a> Sample<'_, 'a> {
    /// The image in a field, and the tools to work on it.
    ///
    /// # Errors
    /// When there is none, which compiling excludes.
    pub(crate) fn image(
        &mut self,
        field: usize,
    ) -> Result<(&mut PendingImage<'a>, &mut ImageTools), Defect> {
        match self.fields.get_mut(field) {
            Some(FieldInProgress::Image(image)) => Ok((image, self.tools)),
            _ => Err(Defect("an operation found no decoded image".to_owned())),
        }
    }
}

/// What is known of an image that a field holds at some point of the plan.
#[derive(Debug, Clone)]
pub(crate) struct ImageType {
    /// 1, 3 or 4.
    pub(crate) channels: u8,
    /// Where all images have the same.
    pub(crate) size: Option<Size>,
    /// Set by `normalize`.
    pub(crate) normalization: Option<Normalization>,
    /// Where `decode-image` stands.
    pub(crate) place: Place,
}

/// What a field holds at some point of the plan.
#[derive(Debug, Clone)]
pub(crate) enum FieldType {
    /// As the dataset gives it.
    Raw(FieldKind),
    /// A decoded image.
    Image(ImageType),
}

/// The fields before the next operation; an operation changes them when it is compiled.
#[derive(Debug)]
pub(crate) struct FieldTypes {
    /// Names and types, in order.
    pub(crate) fields: Vec<(String, FieldType)>,
    /// What one sample may take.
    pub(crate) limits: Limits,
}

impl FieldTypes {
    /// Takes the argument `field`: the number of the field to work on, by default the only image.
    ///
    /// # Errors
    /// There is no such field, no image, or more than one.
    pub(crate) fn image_field(
        &self,
        operation: &str,
        arguments: &mut Section,
    ) -> Result<usize, ConfigError> {
        let is_image = |kind: &FieldType| {
            matches!(kind, FieldType::Image(_) | FieldType::Raw(FieldKind::EncodedImage))
        };
        let names = || self.fields.iter().map(|(name, _)| name.as_str());
        if let Some((wanted, place)) = arguments.take_placed::<String>("field")? {
            let Some(index) = names().position(|name| name == wanted) else {
                let hint = nearest(&wanted, names()).map_or_else(
                    || format!("the fields are: {}", names().collect::<Vec<_>>().join(", ")),
                    |name| format!("did you mean `{name}`?"),
                );
                return Err(ConfigError::new(
                    &place,
                    format!(
                        "`{}` names no field of the dataset: {wanted:?}; {hint}",
                        arguments.key_path("field")
                    ),
                ));
            };
            if !is_image(&self.fields[index].1) {
                return Err(ConfigError::new(
                    &place,
                    format!("`{operation}` works on images, and the field `{wanted}` is none"),
                ));
            }
            return Ok(index);
        }
        let mut images = self.fields.iter().enumerate().filter(|(_, (_, kind))| is_image(kind));
        match (images.next(), images.next()) {
            (Some((index, _)), None) => Ok(index),
            (None, _) => Err(arguments.error(format!(
                "`{operation}` needs an image, and the dataset has none (its fields: {})",
                names().collect::<Vec<_>>().join(", ")
            ))),
            (Some((_, (first, _))), Some((_, (second, _)))) => Err(arguments.error(format!(
                "`{operation}` must say which image it works on (`{first}`, `{second}`, …): add `field = \"{first}\"`"
            ))),
        }
    }

    /// Takes the argument `field` and gives the decoded image there.
    ///
    /// # Errors
    /// As [`image_field`](Self::image_field), and when the image is not decoded.
    pub(crate) fn decoded_image(
        &mut self,
        operation: &str,
        arguments: &mut Section,
    ) -> Result<(usize, &mut ImageType), ConfigError> {
        let index = self.image_field(operation, arguments)?;
        match &mut self.fields[index].1 {
            FieldType::Image(image) => Ok((index, image)),
            FieldType::Raw(_) => Err(arguments.error(format!(
                "`{operation}` needs a decoded image; put `decode-image` before it"
            ))),
        }
    }

    /// Like [`decoded_image`](Self::decoded_image), for an operation that computes pixels anew.
    ///
    /// # Errors
    /// As [`decoded_image`](Self::decoded_image), and when the image is normalised already.
    pub(crate) fn image_of_bytes(
        &mut self,
        operation: &str,
        arguments: &mut Section,
    ) -> Result<(usize, &mut ImageType), ConfigError> {
        let place = arguments.place().clone();
        let (index, image) = self.decoded_image(operation, arguments)?;
        if image.normalization.is_some() {
            return Err(ConfigError::new(
                &place,
                format!("`{operation}` works on bytes; put it before `normalize`"),
            ));
        }
        Ok((index, image))
    }
}
