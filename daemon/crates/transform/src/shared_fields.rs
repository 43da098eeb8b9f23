//! The fields that one draw of a geometric operation changes together: an image, its masks, its boxes, and arrays with
//! a row for each box.
//!
//! The draw is made for the first image in `fields`; the others are masks, of which single pixels are picked. The
//! float32 [n, 4] array contains the boxes. Every other array has a row for each box, which is dropped together with
//! its box; the points of a float32 [n, k, 3] array move with the image.

use super::boxes::{Corners, clipped, stays};
use super::contract::{
    FieldPlan, FieldType, FieldTypes, ImageType, PlannedSize, Sample, wide_refusal,
};
use super::geometry::Sampling;
use super::image::{ImageTools, PendingImage};
use super::keypoints::{self, Place};
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Section};
use forebay_media::array::ArrayBuffer;
use forebay_media::size::Size;
use forebay_protocol::tensor::DType;

/// The role of an image among the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A picture, whose pixels may be mixed.
    Picture,
    /// Numbers of classes or of objects, which must not be mixed.
    Mask,
}

impl Part {
    /// The sampling for this part, given the picture's.
    pub(crate) fn sampling(self, picture: impl Into<Sampling>) -> Sampling {
        match self {
            Self::Picture => picture.into(),
            Self::Mask => Sampling::Mask,
        }
    }
}

/// See the module's head. An operation that names `field`, or neither `field` nor `fields`, has a single image.
#[derive(Debug)]
pub(crate) struct SharedFields {
    image: Named,
    masks: Vec<Named>,
    boxes: Option<Boxes>,
}

#[derive(Debug)]
struct Boxes {
    corners: Named,
    /// Each with a row for each box.
    others: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    number: usize,
    name: String,
}

impl Boxes {
    /// The arrays of keypoints, with the number of points of a box.
    fn keypoints<'t>(&'t self, types: &'t FieldTypes) -> impl Iterator<Item = (&'t Named, u64)> {
        self.others.iter().filter_map(|other| match &types.fields[other.number].kind {
            FieldType::Raw(kind) => Some((other, keypoints::points_of(kind)?)),
            FieldType::Image(_) => None,
        })
    }
}

/// The type of arrays that differ only in the number of rows; `None` for anything else.
pub(crate) fn of_any_length(kind: &FieldKind) -> Option<FieldKind> {
    match kind {
        FieldKind::Array { dtype, shape } => {
            let (_, row_shape) = shape.split_first()?;
            Some(FieldKind::RaggedArray { dtype: *dtype, row_shape: row_shape.to_vec() })
        }
        FieldKind::RaggedArray { .. } => Some(kind.clone()),
        _ => None,
    }
}

/// A field's type, for messages.
fn describe(kind: &FieldKind) -> String {
    match kind {
        FieldKind::Array { dtype, shape } => format!("{} {shape:?}", dtype.name()),
        FieldKind::RaggedArray { dtype, row_shape } => {
            let rest = row_shape.iter().map(|side| format!(", {side}")).collect::<String>();
            format!("{} [n{rest}]", dtype.name())
        }
        FieldKind::EncodedImage => "an image file".to_owned(),
        FieldKind::EncodedImages => "a list of image files".to_owned(),
        FieldKind::Sound { .. } => "a sound".to_owned(),
        FieldKind::Video { .. } => "a video".to_owned(),
        FieldKind::Bytes => "bytes".to_owned(),
        FieldKind::Text => "text".to_owned(),
        FieldKind::Integer | FieldKind::Float => "a number".to_owned(),
    }
}

fn are_boxes(kind: &FieldKind) -> bool {
    matches!(kind, FieldKind::RaggedArray { dtype: DType::F32, row_shape } if row_shape == &[4])
}

/// Maximal number of rows of a sample in a field of any length, if known.
fn most_rows(field: &FieldPlan) -> Option<u64> {
    let FieldType::Raw(FieldKind::RaggedArray { dtype, row_shape }) = &field.kind else {
        return None;
    };
    let row_bytes =
        row_shape.iter().try_fold(dtype.size_bytes(), |all, side| all.checked_mul(*side));
    field.max_row_bytes?.checked_div(row_bytes?)
}

impl SharedFields {
    /// The fields that an operation's arguments `field` and `fields` name: decoded images whose pixels are bytes,
    /// boxes, and arrays with a row for each box.
    ///
    /// # Errors
    /// Both arguments are present, a name is unknown, or a field is none of these.
    pub(crate) fn of_bytes(
        operation: &str,
        section: &Section,
        types: &mut FieldTypes,
        arguments: (Option<String>, Option<Vec<String>>),
    ) -> Result<Self, ConfigError> {
        let shared = Self::of_pixels(operation, section, types, arguments)?;
        if shared.has_wide(types) {
            return Err(section.error(wide_refusal(operation)));
        }
        Ok(shared)
    }

    /// As [`of_bytes`](Self::of_bytes), for an operation that supports levels of 16 bits too.
    pub(crate) fn of_pixels(
        operation: &str,
        section: &Section,
        types: &mut FieldTypes,
        arguments: (Option<String>, Option<Vec<String>>),
    ) -> Result<Self, ConfigError> {
        let shared = Self::of_decoded(operation, section, types, arguments)?;
        for image in shared.images() {
            if image_type(types, image).is_some_and(|image| image.normalization.is_some()) {
                let message = format!("`{operation}` works on bytes; put it before `normalize`");
                return Err(section.error(message));
            }
        }
        Ok(shared)
    }

    /// As [`of_bytes`](Self::of_bytes), for an operation that may come after `normalize`.
    pub(crate) fn of_decoded(
        operation: &str,
        section: &Section,
        types: &mut FieldTypes,
        (field, fields): (Option<String>, Option<Vec<String>>),
    ) -> Result<Self, ConfigError> {
        let names = match (&types.in_view, fields) {
            (Some(view), Some(_)) if view.is_single() => {
                let message = format!(
                    "`{operation}` works on its view alone; for views with masks and boxes name these in `fields` of `views`"
                );
                return Err(section.error_at("fields", message));
            }
            // A view's fields have a common geometry, unless one of them is named.
            (Some(view), None) if field.is_none() && !view.is_single() => Some(view.names.clone()),
            (_, fields) => fields,
        };
        let Some(names) = names else {
            let (number, _) = types.decoded_image(operation, section, field)?;
            let image = Named { number, name: types.fields[number].name.clone() };
            return Ok(Self { image, masks: Vec::new(), boxes: None });
        };
        if field.is_some() {
            let message = format!("`{operation}` has `field` and `fields`; leave one of them out");
            return Err(section.error_at("fields", message));
        }
        Self::named(operation, section, types, names)
            .map_err(|message| section.error_at("fields", message))
    }

    /// The first field, an image.
    #[cfg(test)]
    pub(crate) fn of_one_image() -> Self {
        let image = Named { number: 0, name: "image".to_owned() };
        Self { image, masks: Vec::new(), boxes: None }
    }

    fn named(
        operation: &str,
        section: &Section,
        types: &mut FieldTypes,
        names: Vec<String>,
    ) -> Result<Self, String> {
        let (mut images, mut corners, mut others) = (Vec::new(), None, Vec::<Named>::new());
        let mut taken = Vec::new();
        for name in names {
            let Some((number, field)) = types.present().find(|(_, field)| field.name == name)
            else {
                let (path, hint) = (section.key_path("fields"), types.hint(&name));
                return Err(format!("`{path}` names no field of the dataset: {name:?}; {hint}"));
            };
            if taken.contains(&number) {
                return Err(format!("`{}` names `{name}` twice", section.key_path("fields")));
            }
            taken.push(number);
            let kind = match &field.kind {
                FieldType::Image(_) => {
                    images.push(Named { number, name });
                    continue;
                }
                FieldType::Raw(FieldKind::EncodedImage) => {
                    return Err(format!(
                        "`{operation}` needs a decoded image; put {{ op = \"decode-image\", field = \"{name}\" }} before it"
                    ));
                }
                FieldType::Raw(kind) => of_any_length(kind).ok_or_else(|| {
                    format!(
                        "`{operation}` changes images, boxes (float32 [n, 4]) and arrays with a row for each box; `{name}` \
                         is {}",
                        describe(kind)
                    )
                })?,
            };
            let are_boxes = are_boxes(&kind);
            types.fields[number].kind = FieldType::Raw(kind);
            let named = Named { number, name };
            if are_boxes && corners.is_none() { corners = Some(named) } else { others.push(named) }
        }
        for number in taken {
            types.fields[number].last_stage = Some(types.stage);
        }
        let mut images = images.into_iter();
        let Some(image) = images.next() else {
            return Err(format!("`{}` names no image", section.key_path("fields")));
        };
        let boxes = match (corners, others.first()) {
            (Some(corners), _) => Some(Boxes { corners, others }),
            (None, None) => None,
            (None, Some(Named { number, name })) => {
                let FieldType::Raw(kind) = &types.fields[*number].kind else {
                    return Err(format!("`{name}` is an image"));
                };
                return Err(format!(
                    "`{}` names `{name}`, which is {}, and no boxes: they are float32 [n, 4], the corners x1, y1, x2, y2 \
                     in pixels",
                    section.key_path("fields"),
                    describe(kind)
                ));
            }
        };
        let shared = Self { image, masks: images.collect(), boxes };
        shared.check_rows(types).map(|()| shared)
    }

    /// Refuses a list of fields that has boxes but lacks an array that probably has a row for each box: its rows would
    /// not be dropped with the boxes.
    fn check_rows(&self, types: &FieldTypes) -> Result<(), String> {
        let Some(boxes) = &self.boxes else { return Ok(()) };
        let corners = &boxes.corners;
        let is_named = |number: usize| {
            number == corners.number || boxes.others.iter().any(|other| other.number == number)
        };
        let rows = most_rows(&types.fields[corners.number]);
        let forgotten = types.present().find(|(number, field)| {
            rows.is_some() && most_rows(field) == rows && !is_named(*number)
        });
        forgotten.map_or(Ok(()), |(_, field)| {
            let (name, corners) = (&field.name, &corners.name);
            Err(format!(
                "`{name}` has as many rows as `{corners}`, and a row is dropped with its box: name `{name}` in `fields` too"
            ))
        })
    }

    /// Which points change places in a mirrored image.
    ///
    /// # Errors
    /// There are keypoints and `pairs` is absent, or there are none and it is not, or it has points that do not exist.
    pub(crate) fn mirrored_pairs(
        &self,
        operation: &str,
        section: &Section,
        types: &FieldTypes,
        pairs: Option<Vec<[u32; 2]>>,
    ) -> Result<Vec<[u32; 2]>, ConfigError> {
        let boxes = self.boxes.iter();
        let mut points = boxes.flat_map(|boxes| boxes.keypoints(types));
        let refuse = |message: String| Err(section.error_at("keypoint_pairs", message));
        match (points.next(), pairs) {
            (None, None) => Ok(Vec::new()),
            (None, Some(_)) => refuse(format!(
                "`{operation}` has `keypoint_pairs`, and `fields` names no keypoints (float32 [n, k, 3]); leave it out"
            )),
            (Some((named, _)), None) => refuse(format!(
                "`{operation}` mirrors `{}`: the left eye becomes the right one. Name the points that change places as \
                 `keypoint_pairs = [[1, 2], [3, 4]]`, or `[]` if none do",
                named.name
            )),
            (Some((named, count)), Some(pairs)) => match keypoints::check_pairs(&pairs, count) {
                Ok(()) => Ok(pairs),
                Err(reason) => refuse(format!("`keypoint_pairs` of `{}`: {reason}", named.name)),
            },
        }
    }

    /// The numbers of the image and its masks.
    pub(crate) fn images(&self) -> impl Iterator<Item = usize> {
        std::iter::once(&self.image).chain(&self.masks).map(|image| image.number)
    }

    /// The numbers of the boxes and of the arrays with a row for each box.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = usize> {
        let boxes = self.boxes.iter();
        boxes
            .flat_map(|boxes| std::iter::once(&boxes.corners).chain(&boxes.others))
            .map(|one| one.number)
    }

    /// Whether there are boxes.
    pub(crate) const fn has_boxes(&self) -> bool {
        self.boxes.is_some()
    }

    /// The type of the image.
    pub(crate) fn image<'t>(&self, types: &'t FieldTypes) -> Option<&'t ImageType> {
        image_type(types, self.image.number)
    }

    /// Changes the images' size; a size remains known only if `after` returns it, which gets one that all batches have.
    pub(crate) fn set_size(
        &self,
        types: &mut FieldTypes,
        after: impl Fn(Option<Size>) -> Option<PlannedSize>,
    ) {
        for number in self.images() {
            if let FieldType::Image(image) = &mut types.fields[number].kind {
                image.size = after(image.size.and_then(PlannedSize::fixed));
            }
        }
    }

    /// The image's size, which its masks must have too.
    ///
    /// # Errors
    /// A mask has another size.
    pub(crate) fn size(&self, sample: &mut Sample<'_, '_>) -> Result<Size, Defect> {
        let size = sample.image(self.image.number)?.0.size();
        for mask in &self.masks {
            let other = sample.image(mask.number)?.0.size();
            if other != size {
                return Err(Defect(format!(
                    "`{}` is {}x{} pixels and `{}` {}x{}: a mask has the size of its image",
                    self.image.name, size.width, size.height, mask.name, other.width, other.height
                )));
            }
        }
        Ok(size)
    }

    /// Whether an image has levels of 16 bits.
    pub(crate) fn has_wide(&self, types: &FieldTypes) -> bool {
        let mut images = self.images().filter_map(|image| image_type(types, image));
        images.any(|image| image.is_wide)
    }

    /// Applies `change` to the image and to each mask.
    pub(crate) fn each_image(
        &self,
        sample: &mut Sample<'_, '_>,
        mut change: impl FnMut(&mut PendingImage<'_>, Part, &mut ImageTools) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let (image, tools) = sample.image(self.image.number)?;
        change(image, Part::Picture, tools)?;
        for mask in &self.masks {
            let (image, tools) = sample.image(mask.number)?;
            change(image, Part::Mask, tools)?;
        }
        Ok(())
    }

    /// Moves the boxes to their positions in the changed image of this size; clips them, and drops boxes that are too
    /// small. Keypoints move as a box without an area would.
    ///
    /// # Errors
    /// The boxes' array is invalid, or an array lacks a row for each box.
    pub(crate) fn each_box(
        &self,
        sample: &mut Sample<'_, '_>,
        size: Size,
        change: impl Fn(Corners) -> Corners,
    ) -> Result<(), Defect> {
        let place = |[x, y]: Place| {
            let [x, y, ..] = change([x, y, x, y]);
            [x, y]
        };
        self.each_box_and_point(sample, size, &change, place, &[])
    }

    /// As [`each_box`](Self::each_box); keypoints move as `place` does, and those of a pair change places.
    ///
    /// # Errors
    /// As [`each_box`](Self::each_box).
    pub(crate) fn each_box_and_point(
        &self,
        sample: &mut Sample<'_, '_>,
        size: Size,
        change: impl Fn(Corners) -> Corners,
        place: impl Fn(Place) -> Place,
        pairs: &[[u32; 2]],
    ) -> Result<(), Defect> {
        let Some(Boxes { corners, others }) = &self.boxes else { return Ok(()) };
        let tools = &mut *sample.tools;
        let mut kept = std::mem::take(&mut tools.kept);
        kept.clear();
        let array = sample.fields[corners.number].array(tools)?;
        if array.dtype != DType::F32 || array.shape.get(1..) != Some(&[4]) {
            let name = &corners.name;
            return Err(Defect(format!("`{name}` is no float32 [n, 4], and boxes are")));
        }
        for corners in array.bytes.as_chunks_mut::<4>().0.as_chunks_mut::<4>().0 {
            let changed = clipped(change(corners.map(f32::from_ne_bytes)), size);
            kept.push(stays(changed));
            *corners = changed.map(f32::to_ne_bytes);
        }
        keep_rows(array, &kept);
        for other in others {
            let array = sample.fields[other.number].array(tools)?;
            if array.shape.first() != Some(&(kept.len() as u64)) {
                return Err(Defect(format!(
                    "`{}` has {} rows and `{}` {}: each box has one",
                    other.name,
                    array.shape.first().copied().unwrap_or(0),
                    corners.name,
                    kept.len()
                )));
            }
            keep_rows(array, &kept);
            keypoints::move_points(array, size, &place, pairs);
        }
        tools.kept = kept;
        Ok(())
    }
}

fn image_type(types: &FieldTypes, number: usize) -> Option<&ImageType> {
    match &types.fields[number].kind {
        FieldType::Image(image) => Some(image),
        FieldType::Raw(_) => None,
    }
}

/// Removes the rows that are not in `kept` from an array.
fn keep_rows(array: &mut ArrayBuffer, kept: &[bool]) {
    let row_bytes = array.bytes.len().checked_div(kept.len()).unwrap_or(0);
    let mut rows = 0;
    for (row, _) in kept.iter().enumerate().filter(|(_, stays)| **stays) {
        array.bytes.copy_within(row * row_bytes..(row + 1) * row_bytes, rows * row_bytes);
        rows += 1;
    }
    array.bytes.truncate(rows * row_bytes);
    if let Some(first) = array.shape.first_mut() {
        *first = rows as u64;
    }
}
