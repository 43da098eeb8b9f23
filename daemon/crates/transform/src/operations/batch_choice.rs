//! `choice`, on complete batches: one of several operations for each batch.

use crate::batch::{BatchEntry, BatchOperation, BatchRow, CompileBatchEntry};
use crate::weighted::WeightedChoice;
use forebay_config::BatchOperations;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_protocol::tensor::TensorSpec;

forebay_keys::keys! {
    /// one of its operations for each batch
    pub(crate) struct Arguments = "choice" {
        /// as those of a batch; all must leave the same tensors
        pub operations: BatchOperations, "", required;
        /// one for each operation; they need not add up to 1
        pub probabilities: Vec<f64>, "", absent("all the same");
    }
}

#[derive(Debug)]
struct Choice {
    operations: Vec<Box<dyn BatchOperation>>,
    choice: WeightedChoice,
    section: Section,
}

pub(crate) fn compile(
    section: &mut Section,
    compile: CompileBatchEntry,
) -> Result<BatchEntry, ConfigError> {
    let Arguments { operations, probabilities } = Arguments::read(section)?;
    let choice = WeightedChoice::new(section, operations.len(), probabilities)?;
    let path = section.key_path("operations");
    let operations = operations
        .into_iter()
        .enumerate()
        .map(|(place, entry)| match compile(format!("{path}[{place}]"), entry)? {
            BatchEntry::Operation(operation) => Ok(operation),
            BatchEntry::Function(_) => Err(section.error_at(
                "operations",
                format!(
                    "`{path}[{place}]`: a function cannot be one of a choice; draw from `rng` in the function, and give \
                     it a place of its own in `batch.operations`"
                ),
            )),
        })
        .collect::<Result<_, _>>()?;
    Ok(BatchEntry::Operation(Box::new(Choice { operations, choice, section: section.clone() })))
}

/// Sets both to the larger number of mixes of each tensor: a choice may contain operations that mix different images.
fn raise_mixes(some: &mut [TensorSpec], others: &mut [TensorSpec]) {
    for (one, other) in some.iter_mut().zip(others) {
        if let (Some(one), Some(other)) = (&mut one.finish, &mut other.finish) {
            let most = one.mixes.max(other.mixes);
            (one.mixes, other.mixes) = (most, most);
        }
    }
}

impl BatchOperation for Choice {
    fn name(&self) -> &str {
        "choice"
    }

    fn arguments(&self) -> String {
        let operations = self.operations.iter();
        let listed: Vec<_> = operations.map(|each| (each.name(), each.arguments())).collect();
        format!("{listed:?} {}", self.choice)
    }

    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        let before = tensors.clone();
        let mut declared: Option<Vec<TensorSpec>> = None;
        for operation in &mut self.operations {
            let mut tensors = before.clone();
            operation.declare(&mut tensors)?;
            if let Some(declared) = &mut declared {
                raise_mixes(declared, &mut tensors);
            }
            if declared.as_ref().is_some_and(|declared| *declared != tensors) {
                return Err(self.section.error(
                    "`choice`: its operations leave different tensors; give all the same `classes`, or none",
                ));
            }
            declared = Some(tensors);
        }
        *tensors = declared.unwrap_or(before);
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], operation: u64) -> Result<(), Defect> {
        let Some(first) = rows.first() else { return Ok(()) };
        let mut draws = Draws::new(first.key, operation);
        let chosen = self.choice.draw(&mut draws);
        // Separate draws: later draws must not depend on the choice.
        self.operations[chosen].run(rows, draws.next_u64())
    }
}
