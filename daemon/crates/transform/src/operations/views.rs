//! `views`: several fields of one image, each with separate operations and draws, for self-supervised training. With
//! `fields` each view also has its own masks and boxes, which share its draws.
//!
//! The file is decoded once. If the first operation of a view only plans a part or a size, as a crop does, it runs
//! before the decoding; then only the part that the views need together is decoded, at a scale that all of them permit.
//! A view's draws are keyed by its name and the index in its list, so that views are independent of each other.

use std::ops::Range;

use crate::contract::{FieldPlan, FieldType, FieldTypes, InView, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use crate::shared_fields::SharedFields;
use forebay_config::Operations;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Located, Section, Value, kinds, nearest};
use forebay_order::Draws;

/// Maximal number of views: each view is a tensor of the batch.
const MAX_VIEWS: i64 = 64;

/// A table's entries, sorted by name: the order of keys has no meaning.
fn sorted<T>(value: &Value, read: impl Fn(&Located) -> Option<T>) -> Option<Vec<(String, T)>> {
    let Value::Table(entries) = value else { return None };
    let read = |(name, entry): &(String, Located)| Some((name.clone(), read(entry)?));
    let mut read = entries.iter().map(read).collect::<Option<Vec<_>>>()?;
    read.sort_by(|(left, _), (right, _)| left.cmp(right));
    (!read.is_empty()).then_some(read)
}

fn write_table<T>(entries: &[(String, T)], write: impl Fn(&T) -> Value) -> Value {
    let write = |(name, entry): &(String, T)| (name.clone(), Located::from(write(entry)));
    Value::Table(entries.iter().map(write).collect())
}

kinds! {
    /// Number of views per name.
    [pub(crate)] ViewCounts as Vec<(String, i64)>: "a table of names and how many views each has (1 to 64), such as { global = 2, local = 6 }", type "a table of whole numbers from 1";
    read(value) {
        sorted(value, |entry| match entry.value {
            Value::Integer(count @ 1..=MAX_VIEWS) => Some(count),
            _ => None,
        })
    }
    write(out) { write_table(out, |count| Value::Integer(*count)) }
    schema {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": { "type": "integer", "minimum": 1, "maximum": MAX_VIEWS },
    }

    /// The operations of each name, or of a single view.
    [pub(crate)] ViewOperations as Vec<(String, Vec<Located>)>: "a table of names and the operations of each, such as { global = [{ op = \"random-resized-crop\", size = 224 }] }", type "a table of arrays of tables";
    read(value) { sorted(value, |entry| Operations::read(&entry.value)) }
    write(out) { write_table(out, Operations::write) }
    schema { "type": "object", "minProperties": 1, "additionalProperties": (Operations::schema()) }
}

forebay_keys::keys! {
    /// several fields of one image: `global_0`, `global_1`, `local_0`, …
    pub(crate) struct Arguments = "views" {
        /// how many views each name has, such as `{ global = 2, local = 6 }`
        pub outputs: ViewCounts, "", required;
        /// what is done to the views of a name, or to one view (`global_1`) in place of that: as the operations of a stage; `[]` for nothing
        pub operations: ViewOperations, "", required;
        /// the field to make views of, in whose place they come
        pub field: String, "", absent("the only image");
        /// instead of `field`: an image, masks of it, boxes and what belongs to each, of which each view has its own, such as
        /// `global_0`, `global_0_mask` and `global_0_boxes`; the view's operations know them by these names and change all
        /// alike
        pub fields: Vec<String>, "", absent("`field` alone");
    }
}

#[derive(Debug)]
struct Views {
    /// The picture and its masks.
    images: Vec<usize>,
    /// Boxes and arrays with a row for each box.
    arrays: Vec<usize>,
    views: Vec<View>,
}

#[derive(Debug)]
struct View {
    name: String,
    /// Its views of the images.
    images: Vec<usize>,
    /// Its copies of the arrays.
    arrays: Vec<usize>,
    operations: Vec<Box<dyn Operation>>,
}

impl View {
    /// Indices of its operations that run before the image is decoded.
    fn planned(&self) -> Range<usize> {
        0..usize::from(self.operations.first().is_some_and(|first| first.is_planned()))
    }

    fn run(
        &self,
        entries: Range<usize>,
        sample: &mut Sample<'_, '_>,
        draws: &Draws,
    ) -> Result<(), Defect> {
        let draws = draws.of_part(&self.name);
        entries.into_iter().try_for_each(|place| {
            self.operations[place].run(sample, &mut draws.of_entry(place as u64))
        })
    }
}

/// The views' names, each with the name of its group, in order.
fn named(outputs: &[(String, i64)]) -> impl Iterator<Item = (String, &str)> {
    outputs.iter().flat_map(|(name, count)| {
        (0..*count).map(move |number| (format!("{name}_{number}"), name.as_str()))
    })
}

/// Checks that each list belongs to a view, and that names are unique.
fn check_names(
    section: &Section,
    outputs: &[(String, i64)],
    operations: &[(String, Vec<Located>)],
) -> Result<(), ConfigError> {
    let names = || outputs.iter().map(|(name, _)| name.as_str());
    let views: Vec<String> = named(outputs).map(|(view, _)| view).collect();
    if let Some(twice) = names().find(|name| views.iter().any(|view| view == name)) {
        let message = format!(
            "`{}`: `{twice}` is a view of another name already; choose another",
            section.key_path("outputs")
        );
        return Err(section.error_at("outputs", message));
    }
    for (name, _) in operations {
        let mut known = names().chain(views.iter().map(String::as_str));
        if known.all(|known| known != name) {
            let hint = nearest(name, names().chain(views.iter().map(String::as_str))).map_or_else(
                || format!("there are `{}`", names().collect::<Vec<_>>().join("`, `")),
                |name| format!("did you mean `{name}`?"),
            );
            let path = section.key_path("operations");
            let message = format!("`{path}.{name}` is for no view of `outputs`; {hint}");
            return Err(section.error_at("operations", message));
        }
    }
    Ok(())
}

/// Adds a view's fields, in the order of the original fields: the picture's field has the view's name, the others
/// append their own names.
fn add_view(
    types: &mut FieldTypes,
    of: &[usize],
    (view, name): (&str, &str),
) -> Result<Vec<usize>, String> {
    let add = |(place, of): (usize, &usize)| {
        let FieldPlan { name: part, kind, max_row_bytes, output_dtype, tokens, .. } =
            types.fields[*of].clone();
        let named = |name: &str| match place {
            0 => name.to_owned(),
            _ => format!("{name}_{part}"),
        };
        let number = types.add(&named(view), kind)?;
        let field = &mut types.fields[number];
        field.last_stage = Some(types.stage);
        field.view_of = Some(named(name));
        (field.max_row_bytes, field.output_dtype) = (max_row_bytes, output_dtype);
        field.tokens = tokens;
        Ok(number)
    };
    of.iter().enumerate().map(add).collect()
}

pub(crate) fn compile(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { outputs, operations, field, fields } = Arguments::read(section)?;
    if types.in_view.is_some() {
        return Err(section.error("`views` within `views`: make all of them in one"));
    }
    check_names(section, &outputs, &operations)?;
    let shared = SharedFields::of_decoded("views", section, types, (field, fields))?;
    let (images, arrays): (Vec<_>, Vec<_>) = (shared.images().collect(), shared.arrays().collect());
    for image in &images {
        if let FieldType::Image(image) = &mut types.fields[*image].kind {
            image.location = section.location().clone();
        }
    }
    let of = [&images[..], &arrays].concat();
    for number in &of {
        types.fields[*number].is_dropped = true;
    }
    let mut added = Vec::new();
    for (view, name) in named(&outputs) {
        let numbers = add_view(types, &of, (&view, name))
            .map_err(|reason| section.error_at("outputs", reason))?;
        added.push((numbers, view, name));
    }
    // An operation of a view finds no other fields, and refers to the view's fields by the original names.
    let is_dropped: Vec<bool> = types.fields.iter().map(|field| field.is_dropped).collect();
    let mut views = Vec::with_capacity(added.len());
    for (numbers, view, name) in added {
        let listed = |key: &str| operations.iter().find(|(listed, _)| listed == key);
        let path = section.key_path("operations");
        let Some((key, entries)) = listed(&view).or_else(|| listed(name)) else {
            let message =
                format!("`{path}.{name}` is required: what is done to `{view}`; [] for nothing");
            return Err(section.error_at("operations", message));
        };
        for (other, field) in types.fields.iter_mut().enumerate() {
            field.is_dropped = !numbers.contains(&other);
        }
        let own_names: Vec<String> =
            numbers.iter().map(|number| types.fields[*number].name.clone()).collect();
        if numbers.len() > 1 {
            for (number, of) in numbers.iter().zip(&of) {
                types.fields[*number].name = types.fields[*of].name.clone();
            }
        }
        let names = numbers.iter().map(|number| types.fields[*number].name.clone()).collect();
        types.in_view = Some(InView { picture: numbers[0], names });
        let entries = entries.iter().enumerate().map(|(place, entry)| {
            let path = format!("{path}.{key}[{place}]");
            Ok((types.compile)(path, entry.clone(), types)?.1)
        });
        let operations = entries.collect::<Result<_, ConfigError>>()?;
        for (number, name) in numbers.iter().zip(own_names) {
            types.fields[*number].name = name;
        }
        let (images, arrays) = numbers.split_at(images.len());
        let (images, arrays) = (images.to_vec(), arrays.to_vec());
        views.push(View { name: view, images, arrays, operations });
    }
    types.in_view = None;
    for (field, is_dropped) in types.fields.iter_mut().zip(is_dropped) {
        field.is_dropped = is_dropped;
    }
    Ok(Box::new(Views { images, arrays, views }))
}

impl Views {
    /// Gives each view a copy of each array.
    fn copy_arrays(&self, sample: &mut Sample<'_, '_>) -> Result<(), Defect> {
        for (place, from) in self.arrays.iter().enumerate() {
            let mut taken = std::mem::replace(&mut sample.fields[*from], FieldInProgress::Absent);
            let array = taken.array(sample.tools)?;
            for view in &self.views {
                let mut copy = sample.tools.spare_array();
                copy.dtype = array.dtype;
                copy.shape.clone_from(&array.shape);
                copy.bytes.clone_from(&array.bytes);
                sample.fields[view.arrays[place]] = FieldInProgress::Buffer(copy);
            }
            taken.recycle(sample.tools);
        }
        Ok(())
    }
}

impl Operation for Views {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        // Pending operations may be executed first.
        self.images.iter().for_each(|image| reckoning.hold(*image));
        for view in &self.views {
            for (from, own) in self.images.iter().zip(&view.images) {
                reckoning.view(*from, *own);
            }
            for (from, own) in self.arrays.iter().zip(&view.arrays) {
                reckoning.copy(*from, *own);
            }
            view.operations.iter().for_each(|operation| operation.reckon(reckoning));
            view.images.iter().chain(&view.arrays).for_each(|own| reckoning.hold(*own));
        }
        self.images.iter().chain(&self.arrays).for_each(|from| reckoning.take(*from));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let no_image = || Defect("`views` found no decoded image".to_owned());
        for from in &self.images {
            let FieldInProgress::Image(image) = &mut sample.fields[*from] else {
                return Err(no_image());
            };
            image.settle(&mut sample.tools.image)?;
        }
        self.copy_arrays(sample)?;
        for view in &self.views {
            for (from, own) in self.images.iter().zip(&view.images) {
                let FieldInProgress::Image(image) = &sample.fields[*from] else {
                    return Err(no_image());
                };
                sample.fields[*own] = FieldInProgress::Image(image.clone());
            }
            view.run(view.planned(), sample, draws)?;
        }
        for (place, from) in self.images.iter().enumerate() {
            let taken = std::mem::replace(&mut sample.fields[*from], FieldInProgress::Absent);
            let FieldInProgress::Image(mut image) = taken else { return Err(no_image()) };
            let planned =
                self.views.iter().filter_map(|view| match &sample.fields[view.images[place]] {
                    FieldInProgress::Image(view) => Some(view.geometry),
                    _ => None,
                });
            image.decode_for(planned, &mut sample.tools.image)?;
            for view in &self.views {
                sample.image(view.images[place])?.0.share(&image);
            }
            image.recycle(&mut sample.tools.image);
        }
        for view in &self.views {
            view.run(view.planned().end..view.operations.len(), sample, draws)?;
        }
        Ok(())
    }
}
