//! `random-apply`, `random-choice` and `random-order`: lists of operations, of which all or none run, one runs, or all
//! in random order.
//!
//! The operations of a list use the list's draws, one after another.

use crate::arguments::Probability;
use crate::contract::{FieldPlan, FieldType, FieldTypes, Operation, Sample};
use crate::distribution::{happens, shuffle};
use crate::needs::Reckoning;
use crate::shared_fields::of_any_length;
use crate::weighted::WeightedChoice;
use forebay_config::Operations;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

forebay_keys::keys! {
    /// all of its operations, or none
    pub(crate) struct Apply = "random-apply" {
        /// as those of a stage; in this order
        pub operations: Operations, "", required;
        /// how often
        pub probability: Probability, "", default(0.5);
    }
}

forebay_keys::keys! {
    /// one of its operations
    pub(crate) struct Choice = "random-choice" {
        /// as those of a stage
        pub operations: Operations, "", required;
        /// one for each operation; they need not add up to 1
        pub probabilities: Vec<f64>, "", absent("all the same");
    }
}

forebay_keys::keys! {
    /// all of its operations, in random order
    pub(crate) struct Order = "random-order" {
        /// as those of a stage; none may change the image's size or channels
        pub operations: Operations, "", required;
    }
}

#[derive(Debug)]
struct RandomApply {
    operations: Vec<Box<dyn Operation>>,
    probability: f64,
}

#[derive(Debug)]
struct RandomChoice {
    operations: Vec<Box<dyn Operation>>,
    choice: WeightedChoice,
}

#[derive(Debug)]
struct RandomOrder {
    operations: Vec<Box<dyn Operation>>,
}

/// A list's entries with their paths.
fn entries(
    section: &Section,
    operations: <Operations as forebay_keys::Kind>::Out,
) -> Result<impl Iterator<Item = (String, forebay_keys::Located)> + use<>, ConfigError> {
    let path = section.key_path("operations");
    if operations.is_empty() {
        let message = format!("`{path}` needs at least one operation");
        return Err(section.error_at("operations", message));
    }
    Ok(operations
        .into_iter()
        .enumerate()
        .map(move |(place, entry)| (format!("{path}[{place}]"), entry)))
}

/// Merges the types of fields after two alternatives: properties that differ become unknown.
fn join(
    fields: &mut [FieldPlan],
    others: &[FieldPlan],
    section: &Section,
) -> Result<(), ConfigError> {
    let name = section.path();
    let differs = |what: &str| {
        Err(section.error(format!(
            "`{name}`: {what} in some samples and not in others; put the operation that does it outside of the list"
        )))
    };
    if fields.len() != others.len() {
        return differs("a field is added");
    }
    for (field, other) in fields.iter_mut().zip(others) {
        let name = &field.name;
        if field.is_dropped != other.is_dropped {
            return differs(&format!("`{name}` is dropped"));
        }
        match (&mut field.kind, &other.kind) {
            (FieldType::Image(image), FieldType::Image(other)) => {
                if image.channels != other.channels {
                    return differs(&format!("`{name}` changes its channels"));
                }
                if image.normalization != other.normalization {
                    return differs(&format!("`{name}` is normalised"));
                }
                if image.size != other.size {
                    image.size = None;
                }
            }
            (FieldType::Raw(kind), FieldType::Raw(other)) if kind == other => {}
            // If boxes may have been dropped, the number of rows is unknown.
            (FieldType::Raw(kind), FieldType::Raw(other))
                if of_any_length(kind).is_some_and(|kind| of_any_length(other) == Some(kind)) =>
            {
                if let Some(any) = of_any_length(kind) {
                    *kind = any;
                }
            }
            _ => return differs(&format!("`{name}` is decoded")),
        }
        field.last_stage = field.last_stage.max(other.last_stage);
    }
    Ok(())
}

pub(crate) fn compile_apply(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Apply { operations, probability } = Apply::read(section)?;
    let before = fields.fields.clone();
    let compiled = entries(section, operations)?
        .map(|(path, entry)| Ok((fields.compile)(path, entry, fields)?.1))
        .collect::<Result<_, _>>()?;
    join(&mut fields.fields, &before, section)?;
    Ok(Box::new(RandomApply { operations: compiled, probability }))
}

pub(crate) fn compile_choice(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Choice { operations, probabilities } = Choice::read(section)?;
    let choice = WeightedChoice::new(section, operations.len(), probabilities)?;
    let before = fields.fields.clone();
    let mut joined: Option<Vec<FieldPlan>> = None;
    let mut compiled = Vec::with_capacity(operations.len());
    for (path, entry) in entries(section, operations)? {
        fields.fields.clone_from(&before);
        compiled.push((fields.compile)(path, entry, fields)?.1);
        match &mut joined {
            Some(joined) => join(joined, &fields.fields, section)?,
            None => joined = Some(fields.fields.clone()),
        }
    }
    fields.fields = joined.unwrap_or(before);
    Ok(Box::new(RandomChoice { operations: compiled, choice }))
}

pub(crate) fn compile_order(
    section: &mut Section,
    fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Order { operations } = Order::read(section)?;
    let before = fields.fields.clone();
    let sizes = |fields: &[FieldPlan]| -> Vec<_> {
        let size = |field: &FieldPlan| match &field.kind {
            FieldType::Image(image) => image.size,
            FieldType::Raw(_) => None,
        };
        fields.iter().map(size).collect()
    };
    let mut compiled = Vec::with_capacity(operations.len());
    for (path, entry) in entries(section, operations)? {
        let location = entry.location.clone();
        compiled.push((fields.compile)(path.clone(), entry, fields)?.1);
        join(&mut fields.fields, &before, section)?;
        if sizes(&fields.fields) != sizes(&before) {
            let message = format!("`{path}` changes the image's size; put it outside of the list");
            return Err(ConfigError::new(&location, message));
        }
    }
    Ok(Box::new(RandomOrder { operations: compiled }))
}

impl Operation for RandomApply {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.operations.iter().for_each(|operation| operation.reckon(reckoning));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        if !happens(draws, self.probability) {
            return Ok(());
        }
        self.operations.iter().try_for_each(|operation| operation.run(sample, draws))
    }
}

impl Operation for RandomChoice {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.operations.iter().for_each(|operation| operation.reckon(reckoning));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        self.operations[self.choice.draw(draws)].run(sample, draws)
    }
}

impl Operation for RandomOrder {
    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        self.operations.iter().for_each(|operation| operation.reckon(reckoning));
    }

    fn run(&self, sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        let mut order: Vec<usize> = (0..self.operations.len()).collect();
        shuffle(draws, &mut order);
        order.into_iter().try_for_each(|place| self.operations[place].run(sample, draws))
    }
}
