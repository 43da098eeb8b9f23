//! `views`: several fields of one image, each with operations and draws of its own, as self-supervised training takes them.
//!
//! The file is decoded once. The first operation of each view is run before that where it only plans, as a crop does:
//! what the views need together is then decoded, at a scale that all of them allow. What a view draws is keyed by its name
//! and by the place in its list, so that no view depends on another.

use std::ops::Range;

use crate::contract::{FieldType, FieldTypes, Operation, Sample};
use crate::field::FieldInProgress;
use crate::needs::Reckoning;
use forebay_config::{ConfigError, Keys, Located, Operations, Section, Value, kinds, nearest};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

/// More make no batch: each view is a tensor.
const MAX_VIEWS: i64 = 64;

/// A table's entries, sorted by their names: the order of keys means nothing.
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
    /// How many views there are of each name.
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

forebay_config::keys! {
    /// several fields of one image: `global_0`, `global_1`, `local_0`, …
    pub(crate) struct Arguments = "views" {
        /// how many views each name has, such as `{ global = 2, local = 6 }`
        pub outputs: ViewCounts, "", required;
        /// what is done to the views of a name, or to one view (`global_1`) in place of that: as the operations of a stage; `[]` for nothing
        pub operations: ViewOperations, "", required;
        /// the field to make views of, in whose place they come
        pub field: String, "", absent("the only image");
    }
}

#[derive(Debug)]
struct Views {
    from: usize,
    views: Vec<View>,
}

#[derive(Debug)]
struct View {
    name: String,
    field: usize,
    operations: Vec<Box<dyn Operation>>,
}

impl View {
    /// Those of its operations that run before the image is decoded.
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

/// The views' names with those that they share, in the order of both.
fn named(outputs: &[(String, i64)]) -> impl Iterator<Item = (String, &str)> {
    outputs.iter().flat_map(|(name, count)| {
        (0..*count).map(move |number| (format!("{name}_{number}"), name.as_str()))
    })
}

/// That each list is for a view, and each name for one thing.
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

pub(crate) fn compile(
    section: &mut Section,
    types: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { outputs, operations, field } = Arguments::read(section)?;
    if types.in_view {
        return Err(section.error("`views` within `views`: make all of them in one"));
    }
    check_names(section, &outputs, &operations)?;
    let (from, image) = types.decoded_image("views", section, field)?;
    image.location = section.location().clone();
    let kind = FieldType::Image(image.clone());
    types.fields[from].is_dropped = true;
    let mut added = Vec::new();
    for (view, name) in named(&outputs) {
        let add = types.add(&view, kind.clone());
        let number = add.map_err(|reason| section.error_at("outputs", reason))?;
        types.fields[number].last_stage = Some(types.stage);
        types.fields[number].view_of = Some(name.to_owned());
        added.push((number, view, name));
    }
    // An operation of a view finds no other field.
    let is_dropped: Vec<bool> = types.fields.iter().map(|field| field.is_dropped).collect();
    types.in_view = true;
    let mut views = Vec::with_capacity(added.len());
    for (number, view, name) in added {
        let of = |key: &str| operations.iter().find(|(listed, _)| listed == key);
        let path = section.key_path("operations");
        let Some((key, entries)) = of(&view).or_else(|| of(name)) else {
            let message =
                format!("`{path}.{name}` is required: what is done to `{view}`; [] for nothing");
            return Err(section.error_at("operations", message));
        };
        for (other, field) in types.fields.iter_mut().enumerate() {
            field.is_dropped = other != number;
        }
        let entries = entries.iter().enumerate().map(|(place, entry)| {
            let path = format!("{path}.{key}[{place}]");
            Ok((types.compile)(path, entry.clone(), types)?.1)
        });
        let operations = entries.collect::<Result<_, ConfigError>>()?;
        views.push(View { name: view, field: number, operations });
    }
    types.in_view = false;
    for (field, is_dropped) in types.fields.iter_mut().zip(is_dropped) {
        field.is_dropped = is_dropped;
    }
    Ok(Box::new(Views { from, views }))
}

impl Operation for Views {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        // What was pending may be carried out first.
        reckoning.hold(self.from);
        for view in &self.views {
            reckoning.view(self.from, view.field);
            view.operations.iter().for_each(|operation| operation.reckon(reckoning));
            reckoning.hold(view.field);
        }
        reckoning.take(self.from);
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let taken = std::mem::replace(&mut sample.fields[self.from], FieldInProgress::Absent);
        let FieldInProgress::Image(mut image) = taken else {
            return Err(Defect("`views` found no decoded image".to_owned()));
        };
        image.settle(&mut sample.tools.image)?;
        for view in &self.views {
            sample.fields[view.field] = FieldInProgress::Image(image.clone());
            view.run(view.planned(), sample, draws)?;
        }
        let planned = self.views.iter().filter_map(|view| match &sample.fields[view.field] {
            FieldInProgress::Image(view) => Some(view.geometry),
            _ => None,
        });
        image.decode_for(planned, &mut sample.tools.image)?;
        for view in &self.views {
            sample.image(view.field)?.0.share(&image);
        }
        image.recycle(&mut sample.tools.image);
        for view in &self.views {
            view.run(view.planned().end..view.operations.len(), sample, draws)?;
        }
        Ok(())
    }
}
