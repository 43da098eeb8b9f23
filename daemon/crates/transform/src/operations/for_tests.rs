//! Operations on several fields, for tests: `drop`, `two-views`, `mirror-together`.

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Section, Table};
use forebay_order::Draws;

/// A table without keys: these operations read `field` themselves.
pub(crate) const fn table(path: &'static str) -> Table {
    Table { path, words: "", keys: &[] }
}

/// Drops the field `field`.
#[derive(Debug)]
struct Drop;

pub(crate) fn compile_drop(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let field = arguments.take::<String>("field")?;
    let field = fields.find("drop", arguments, field, "item", |_| true)?;
    fields.fields[field].is_dropped = true;
    Ok(Box::new(Drop))
}

impl Operation for Drop {
    fn run(&self, _sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        Ok(())
    }
}

/// Makes two fields of the decoded image, `left` and `right`.
#[derive(Debug)]
struct TwoViews {
    from: usize,
    to: [usize; 2],
}

pub(crate) fn compile_two_views(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let (from, image) = fields.decoded_image("two-views", arguments, None)?;
    let image = image.clone();
    fields.fields[from].is_dropped = true;
    let stage = fields.stage;
    let mut add = |name| {
        let number = fields
            .add(name, FieldType::Image(image.clone()))
            .map_err(|reason| arguments.error(reason))?;
        fields.fields[number].last_stage = Some(stage);
        Ok(number)
    };
    Ok(Box::new(TwoViews { from, to: [add("left")?, add("right")?] }))
}

impl Operation for TwoViews {
    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let view = sample.image(self.from)?.0.clone();
        for number in self.to {
            sample.fields[number] = FieldInProgress::Image(view.clone());
        }
        Ok(())
    }
}

/// Mirrors all decoded images and the `[n, 4]` float32 boxes (x, y, x, y), or none of them.
#[derive(Debug)]
struct MirrorTogether {
    images: Vec<usize>,
    boxes: usize,
}

pub(crate) fn compile_mirror_together(
    arguments: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let boxes = fields.find("mirror-together", arguments, None, "array", |kind| {
        matches!(kind, FieldType::Raw(FieldKind::Array { shape, .. }) if shape.get(1) == Some(&4))
    })?;
    let stage = fields.stage;
    let mut images = Vec::new();
    for (number, field) in fields.fields.iter_mut().enumerate() {
        if let FieldType::Image(_) = field.kind {
            field.last_stage = Some(stage);
            images.push(number);
        }
    }
    Ok(Box::new(MirrorTogether { images, boxes }))
}

impl Operation for MirrorTogether {
    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let width = f64::from(sample.image(self.images[0])?.0.size().width);
        if draws.uniform() < 0.5 {
            return Ok(());
        }
        for image in &self.images {
            sample.image(*image)?.0.geometry.mirror_horizontally();
        }
        let boxes = sample.fields[self.boxes].array(sample.tools)?;
        #[expect(clippy::cast_possible_truncation, reason = "the width of a test's image")]
        let width = width as f32;
        for [left, _, right, _] in boxes.bytes.as_chunks_mut::<4>().0.as_chunks_mut::<4>().0 {
            let mirrored = |x: &[u8; 4]| (width - f32::from_ne_bytes(*x)).to_ne_bytes();
            (*left, *right) = (mirrored(right), mirrored(left));
        }
        Ok(())
    }
}
