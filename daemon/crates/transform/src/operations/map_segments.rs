//! `map-segments`: a picture of ids, as panoptic files have it (red + 256 · green + 65,536 · blue), becomes an image of
//! small numbers: the place of each id in a list, or the value that another list has there.

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::needs::{Reckoning, Remade};
use crate::shared_fields::of_any_length;
use forebay_dataset::{Defect, FieldKind};
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_protocol::tensor::DType;

#[derive(Debug)]
struct MapSegments {
    field: usize,
    ids: usize,
    values: Option<usize>,
}

forebay_keys::keys! {
    /// a picture of ids becomes an image of their numbers
    pub(crate) struct Arguments = "map-segments" {
        /// the picture of ids, decoded with `channels = 3`
        pub field: String, "", required;
        /// the field of the ids: int64 [n]
        pub ids: String, "", required;
        /// the field of what the ids' pixels become, less one: int64 [n], such as `labels`
        pub values: String, "", absent("the places of the ids, so that the first is 1");
    }
}

pub(crate) fn compile(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { field, ids, values } = Arguments::read(section)?;
    let (field, image) = types.image_of_bytes("map-segments", section, Some(field))?;
    if image.channels != 3 {
        let message =
            "`map-segments` needs all three bytes of an id; set `channels = 3` of `decode-image`";
        return Err(section.error_at("field", message.to_owned()));
    }
    image.channels = 1;
    let ids = list(section, types, "ids", &ids)?;
    let values = values.map(|values| list(section, types, "values", &values)).transpose()?;
    Ok(Box::new(MapSegments { field, ids, values }))
}

/// The number of a field that is a list of int64.
fn list(
    section: &Section,
    types: &mut FieldTypes,
    key: &str,
    name: &str,
) -> Result<usize, ConfigError> {
    let list = FieldKind::RaggedArray { dtype: DType::I64, row_shape: Vec::new() };
    let is_list = |kind: &FieldType| match kind {
        FieldType::Raw(kind) => of_any_length(kind).is_some_and(|kind| kind == list),
        FieldType::Image(_) => false,
    };
    let found = types.present().find(|(_, field)| field.name == name);
    let message = match found.map(|(number, field)| (number, is_list(&field.kind))) {
        Some((number, true)) => {
            types.fields[number].last_stage = Some(types.stage);
            return Ok(number);
        }
        Some((_, false)) => {
            format!("`map-segments` needs a list of int64 (int64 [n]), and `{name}` is not one")
        }
        None => format!(
            "`{}` names no field of the dataset: {name:?}; {}",
            section.key_path(key),
            types.hint(name)
        ),
    };
    Err(section.error_at(key, message))
}

fn numbers(sample: &mut Sample<'_, '_>, field: usize) -> Result<Vec<i64>, Defect> {
    let array = sample.fields[field].array(sample.tools)?;
    if array.dtype != DType::I64 {
        return Err(Defect("`map-segments` found no list of int64".to_owned()));
    }
    Ok(array.bytes.as_chunks().0.iter().map(|number| i64::from_ne_bytes(*number)).collect())
}

impl Operation for MapSegments {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.remake(self.field, |size| size, Remade::Bytes);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let ids = numbers(sample, self.ids)?;
        let values = match self.values {
            Some(values) => numbers(sample, values)?,
            None => (0..).take(ids.len()).collect(),
        };
        if values.len() != ids.len() {
            return Err(Defect(format!(
                "`map-segments` found {} ids and {} values: each id has one",
                ids.len(),
                values.len()
            )));
        }
        let mut table = Vec::with_capacity(ids.len());
        for (id, value) in ids.into_iter().zip(values) {
            let level = value.checked_add(1).and_then(|value| u8::try_from(value).ok());
            let level = level.ok_or_else(|| {
                Defect(format!("`map-segments` gives pixels of 8 bits, and the id {id} has the value {value} + 1"))
            })?;
            table.push((id, level));
        }
        table.sort_unstable();
        let (image, tools) = sample.image(self.field)?;
        image.remake(image.size(), 1, tools, |from, to| {
            let mut last = ([0; 3], level_of(&table, [0; 3]));
            for (pixel, level) in from.bytes.as_chunks::<3>().0.iter().zip(to) {
                if *pixel != last.0 {
                    last = (*pixel, level_of(&table, *pixel));
                }
                *level = last.1;
            }
        })
    }
}

/// The level of a pixel; 0: its id is not in the sorted table.
fn level_of(table: &[(i64, u8)], [red, green, blue]: [u8; 3]) -> u8 {
    let id = i64::from(u32::from_le_bytes([red, green, blue, 0]));
    table.binary_search_by_key(&id, |(id, _)| *id).map_or(0, |found| table[found].1)
}
