//! The interface of operations: how one is compiled against the fields before it, and how it runs on one sample.
//!
//! Fields have numbers: the dataset's fields first, then fields that operations add. A field keeps its number, and a
//! dropped one leaves its entry empty. When it is compiled, an operation changes a field's entry in [`FieldTypes`],
//! adds fields or drops them; when it runs, it does the same to [`Sample::fields`]. An operation on several fields
//! stores their numbers and applies its draws to each. Operations on a whole batch are in [`crate::batch`].

use std::fmt::Debug;

use super::bucket::Bucket;
use super::field::{FieldInProgress, Tools};
use super::image::{ImageTools, Normalization, PendingImage};
use super::needs::Reckoning;
use forebay_config::Limits;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Located, Section, SourceLocation, nearest};
use forebay_media::size::Size;
use forebay_order::Draws;
use forebay_protocol::tensor::{DType, MAX_NAME_BYTES};

/// An operation on samples. Shared by all work threads.
pub(crate) trait Operation: Debug + Send + Sync {
    /// Runs on one sample. `draws` are this operation's for this sample.
    ///
    /// # Errors
    /// The sample is bad.
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect>;

    /// Whether it only plans a part or a size of an image, so that several views can be planned before they are decoded
    /// together.
    fn is_planned(&self) -> bool {
        false
    }

    /// The digest of the file that determines its results, if any. Part of the stream's fingerprint in place of the file's
    /// path.
    fn file_digest(&self) -> Option<[u8; 32]> {
        None
    }

    /// Adds to the estimate the maximal memory that [`run`](Self::run) will need, and applies to its images the changes
    /// that `run` will make to the sample's images.
    fn reckon(&self, _reckoning: &mut Reckoning<'_>) {}
}

/// A sample during its operations.
#[derive(Debug)]
pub(crate) struct Sample<'s, 'a> {
    /// By number. A field that a later operation adds is [`FieldInProgress::Absent`].
    pub fields: &'s mut [FieldInProgress<'a>],
    /// The work thread's tools.
    pub tools: &'s mut Tools,
}

impl<'a> Sample<'_, 'a> {
    /// A size that was planned.
    pub(crate) fn planned(&self, size: PlannedSize) -> Result<Size, Defect> {
        size.of(self.tools.bucket)
    }

    /// The image in a field, and the tools to process it.
    pub(crate) fn image(
        &mut self,
        field: usize,
    ) -> Result<(&mut PendingImage<'a>, &mut ImageTools), Defect> {
        match self.fields.get_mut(field) {
            Some(FieldInProgress::Image(image)) => Ok((image, &mut self.tools.image)),
            _ => Err(Defect("an operation found no decoded image".to_owned())),
        }
    }
}

/// A size that images have in each batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannedSize {
    /// In all batches.
    Fixed(Size),
    /// The shape of the batch's bucket.
    Bucket,
}

impl PlannedSize {
    /// The size for a sample of this bucket.
    pub(crate) fn of(self, bucket: Option<Bucket>) -> Result<Size, Defect> {
        match self {
            Self::Fixed(size) => Ok(size),
            Self::Bucket => bucket
                .map(|bucket| bucket.size)
                .ok_or_else(|| Defect("the bucket of the sample is not known".to_owned())),
        }
    }

    /// The size, if it is the same in all batches.
    pub(crate) const fn fixed(self) -> Option<Size> {
        match self {
            Self::Fixed(size) => Some(size),
            Self::Bucket => None,
        }
    }

    /// Refuses the shape of a bucket if there are none.
    pub(crate) fn check(self, section: &Section, types: &FieldTypes) -> Result<Self, ConfigError> {
        if self == Self::Bucket && types.buckets.is_empty() {
            let path = section.key_path("size");
            return Err(section.error_at(
                "size",
                format!("`{path} = \"bucket\"` needs the shapes of `batch.buckets`; add them, or give a size in pixels"),
            ));
        }
        Ok(self)
    }
}

/// The known properties of an image field at some point of the plan.
#[derive(Debug, Clone)]
pub(crate) struct ImageType {
    /// 1, 3 or 4.
    pub channels: u8,
    /// Whether its levels have 16 bits: it can only be cropped, mirrored and resized.
    pub is_wide: bool,
    /// Set if all images of a batch have the same size.
    pub size: Option<PlannedSize>,
    /// Set if it is the pictures of a video: operations run on each of them, with the same draws.
    pub video: Option<VideoShape>,
    /// Set by `normalize`.
    pub normalization: Option<Normalization>,
    /// The location of the operation that made it.
    pub location: SourceLocation,
}

/// How many pictures a video has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VideoShape {
    /// The clips of a sample; `None`: one, without this dimension.
    pub clips: Option<u64>,
    /// The pictures of a clip.
    pub frames: u64,
}

impl VideoShape {
    /// The pictures of a sample.
    pub(crate) fn pictures(self) -> u64 {
        self.frames.saturating_mul(self.clips.unwrap_or(1))
    }

    /// The dimensions before those of a picture.
    pub(crate) fn dimensions(self) -> impl Iterator<Item = u64> {
        self.clips.into_iter().chain([self.frames])
    }
}

/// The type of a field at some point of the plan.
#[derive(Debug, Clone)]
pub(crate) enum FieldType {
    /// As provided by the dataset.
    Raw(FieldKind),
    /// A decoded image.
    Image(ImageType),
}

/// The known properties of a field at some point of the plan.
#[derive(Debug, Clone)]
pub(crate) struct FieldPlan {
    pub name: String,
    pub kind: FieldType,
    /// The last stage with an operation on it, at whose end its row is written; the first stage if there is none.
    pub last_stage: Option<usize>,
    /// Set by an operation that drops it: no later operation finds it and no tensor contains it.
    pub is_dropped: bool,
    /// The longest row of the dataset's bytes or text, if known.
    pub max_row_bytes: Option<u64>,
    /// Set by a Python stage if no operation has processed the field before: its type may then differ between samples.
    pub is_unchecked: bool,
    /// Set by a Python stage that returned it: it is no longer the dataset's value.
    pub is_returned: bool,
    /// The type in a batch of an array without a type in `[output]`; `None`: the array's own.
    pub output_dtype: Option<DType>,
    /// Of tokens: the least and the largest number.
    pub tokens: Option<(i64, i64)>,
    /// For a sound of the dataset: what is known of all of its samples.
    pub sound: Option<StoredSound>,
    /// For a view, the name that it shares with others, whose keys in `[output]` apply to it too.
    pub view_of: Option<String>,
    /// Set by `image-patches` for the field of its grids.
    pub image_grids: Option<ImageGrids>,
}

/// What is known of a dataset's sounds.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "sound"),
    expect(dead_code, reason = "read by operations on sounds alone")
)]
pub(crate) struct StoredSound {
    /// Samples per second; `None`: as in each file.
    pub rate: Option<u32>,
}

/// What the grids of images say of the tokens of a text.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "text"), expect(dead_code, reason = "read by operations on texts alone"))]
pub(crate) struct ImageGrids {
    /// How many patches become one token.
    pub patches_per_token: u64,
    /// The most tokens of a sample's images.
    pub most_tokens: u64,
}

/// Compiles one entry of a list of operations, at a path; returns the operation's name and the operation. Provided by
/// the registry.
pub(crate) type CompileEntry =
    fn(String, Located, &mut FieldTypes) -> Result<(&'static str, Box<dyn Operation>), ConfigError>;

/// The view whose operations are being compiled.
#[derive(Debug, Clone)]
pub(crate) struct InView {
    /// The number of its image, which operations process if they name no field.
    pub picture: usize,
    /// Its fields' names for operations: the image first.
    pub names: Vec<String>,
}

impl InView {
    /// Whether it has only its image.
    pub(crate) fn is_single(&self) -> bool {
        self.names.len() == 1
    }
}

/// The fields before the next operation; an operation changes them when it is compiled.
#[derive(Debug)]
pub(crate) struct FieldTypes {
    /// By number.
    pub fields: Vec<FieldPlan>,
    /// The stage that is being compiled.
    pub stage: usize,
    /// The limits for one sample.
    pub limits: Limits,
    /// The shapes of `batch.buckets`; empty without them.
    pub buckets: Vec<Size>,
    /// Compiles entries of operations that are lists of operations.
    pub compile: CompileEntry,
    /// Set while the operations of a view are compiled: only its fields exist for them.
    pub in_view: Option<InView>,
    /// The fields that `[output]` configures as `uint16`.
    pub wide: Vec<String>,
    /// The decoders of videos.
    pub decoders: crate::video::PlannedDecoders,
    /// The fields that the operation being compiled has found.
    pub found: Vec<usize>,
}

/// The error for an image of 16 bits.
pub(crate) fn wide_refusal(operation: &str) -> String {
    format!(
        "`{operation}` works on images of 8 bits; set `depth = 8` of `decode-image`, or leave the operation out: images of 16 \
         bits are cropped, flipped and resized"
    )
}

impl FieldTypes {
    /// The fields that are not dropped.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &FieldPlan)> {
        self.fields.iter().enumerate().filter(|(_, field)| !field.is_dropped)
    }

    /// Whether an image has levels of 16 bits.
    pub(crate) fn has_wide(&self) -> bool {
        let is_wide =
            |field: &FieldPlan| matches!(&field.kind, FieldType::Image(image) if image.is_wide);
        self.present().any(|(_, field)| is_wide(field))
    }

    /// Whether a field is a decoded video.
    pub(crate) fn is_video(&self, field: usize) -> bool {
        matches!(&self.fields[field].kind, FieldType::Image(image) if image.video.is_some())
    }

    /// The names of the present fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.present().map(|(_, field)| field.name.as_str())
    }

    /// A hint for an unknown field name.
    pub(crate) fn hint(&self, wanted: &str) -> String {
        nearest(wanted, self.names()).map_or_else(
            || format!("the fields are: {}", self.names().collect::<Vec<_>>().join(", ")),
            |name| format!("did you mean `{name}`?"),
        )
    }

    /// Adds a field and returns its number.
    pub(crate) fn add(&mut self, name: &str, kind: FieldType) -> Result<usize, String> {
        if self.names().any(|other| other == name) {
            return Err(format!("there is a field `{name}` already"));
        }
        let name = name.to_owned();
        self.fields.push(FieldPlan {
            name,
            kind,
            last_stage: None,
            is_dropped: false,
            max_row_bytes: None,
            is_unchecked: false,
            is_returned: false,
            sound: None,
            output_dtype: None,
            tokens: None,
            view_of: None,
            image_grids: None,
        });
        Ok(self.fields.len() - 1)
    }

    /// Gives a field another name.
    ///
    /// # Errors
    /// Another field has the name, or it is no name of a tensor.
    pub(crate) fn rename(&mut self, field: usize, name: String) -> Result<(), String> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(format!("a field's name has 1 to {MAX_NAME_BYTES} bytes"));
        }
        if self.present().any(|(other, plan)| other != field && plan.name == name) {
            return Err(format!("there is a field `{name}` already"));
        }
        self.fields[field].name = name;
        Ok(())
    }

    /// The number of the field that the argument `field` names, by default the only one that is `what` (such as
    /// "image"). Records that the operation processes it in this stage.
    ///
    /// # Errors
    /// There is no such field, none of that kind, or more than one.
    pub(crate) fn find(
        &mut self,
        operation: &str,
        arguments: &Section,
        field: Option<String>,
        what: &str,
        is_fit: impl Fn(&FieldType) -> bool,
    ) -> Result<usize, ConfigError> {
        let is_single = self.in_view.as_ref().is_some_and(InView::is_single);
        if is_single && field.is_some() {
            let message = format!("`{operation}` works on its view alone; leave `field` out");
            return Err(arguments.error_at("field", message));
        }
        let several = self.in_view.as_ref().filter(|view| !view.is_single());
        let field = field.or_else(|| several.map(|view| self.fields[view.picture].name.clone()));
        let article = if what.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        let found = if let Some(wanted) = field {
            let fail = |message: String| Err(arguments.error_at("field", message));
            match self.present().find(|(_, field)| field.name == wanted) {
                Some((index, field)) if is_fit(&field.kind) => index,
                Some(_) => {
                    return fail(format!(
                        "`{operation}` needs {article} {what}, but field `{wanted}` is not one"
                    ));
                }
                None => {
                    let (path, hint) = (arguments.key_path("field"), self.hint(&wanted));
                    return fail(format!(
                        "`{path}` names no field of the dataset: {wanted:?}; {hint}"
                    ));
                }
            }
        } else {
            let mut fit = self.present().filter(|(_, field)| is_fit(&field.kind));
            match (fit.next(), fit.next()) {
                (Some((index, _)), None) => index,
                (None, _) => {
                    return Err(arguments.error(format!(
                        "`{operation}` needs {article} {what}, and the dataset has none (its fields: {})",
                        self.names().collect::<Vec<_>>().join(", ")
                    )));
                }
                (Some((_, first)), Some((_, second))) => {
                    let (first, second) = (&first.name, &second.name);
                    return Err(arguments.error(format!(
                        "`{operation}` needs `field`: the dataset has several {what}s (`{first}`, `{second}`, …); add \
                         `field = \"{first}\"`"
                    )));
                }
            }
        };
        self.fields[found].last_stage = Some(self.stage);
        self.found.push(found);
        Ok(found)
    }

    /// As [`find`](Self::find), for an image file or a decoded image.
    pub(crate) fn image_field(
        &mut self,
        operation: &str,
        arguments: &Section,
        field: Option<String>,
    ) -> Result<usize, ConfigError> {
        self.find(operation, arguments, field, "image", |kind| {
            matches!(kind, FieldType::Image(_) | FieldType::Raw(FieldKind::EncodedImage))
        })
    }

    /// The decoded image in the field that the argument `field` names.
    pub(crate) fn decoded_image(
        &mut self,
        operation: &str,
        arguments: &Section,
        field: Option<String>,
    ) -> Result<(usize, &mut ImageType), ConfigError> {
        let index = self.image_field(operation, arguments, field)?;
        match &mut self.fields[index].kind {
            FieldType::Image(image) => Ok((index, image)),
            FieldType::Raw(_) => Err(arguments.error(format!(
                "`{operation}` needs a decoded image; put `decode-image` before it"
            ))),
        }
    }

    /// As [`decoded_image`](Self::decoded_image), for an operation that computes new pixels.
    pub(crate) fn image_of_bytes(
        &mut self,
        operation: &str,
        arguments: &Section,
        field: Option<String>,
    ) -> Result<(usize, &mut ImageType), ConfigError> {
        let (index, image) = self.decoded_image(operation, arguments, field)?;
        if image.is_wide {
            return Err(arguments.error(wide_refusal(operation)));
        }
        if image.normalization.is_some() {
            return Err(
                arguments.error(format!("`{operation}` works on bytes; put it before `normalize`"))
            );
        }
        Ok((index, image))
    }

    /// As [`image_of_bytes`](Self::image_of_bytes), for an operation on grey or RGB images without alpha.
    pub(crate) fn opaque_image(
        &mut self,
        operation: &str,
        arguments: &Section,
        field: Option<String>,
    ) -> Result<(usize, &mut ImageType), ConfigError> {
        let (index, image) = self.image_of_bytes(operation, arguments, field)?;
        if image.channels == 4 {
            return Err(arguments.error(format!(
                "`{operation}` works on images of 1 or 3 channels, and this one has 4; set `channels = 3` of \
                 `decode-image`"
            )));
        }
        Ok((index, image))
    }
}
