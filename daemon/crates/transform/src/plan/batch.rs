//! A plan's operations on complete batches: adding and running them.

use forebay_config::Config;
use forebay_dataset::{Dataset, Defect};
use forebay_keys::ConfigError;
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::mix::Mix;
use forebay_protocol::tensor::{Extent, TensorSpec};
use forebay_workers::{FunctionTime, Pool};

use super::batch_step::BatchStep;
use super::compile::{PROBED, PythonStart, TRIED};
use super::{SamplePlan, row_bytes};
use crate::batch::{BatchCaller, BatchFunction, BatchOperation, BatchRow};
use crate::call_error::CallError;
use crate::memory_row::MemoryRow;
use crate::python::{BatchBody, Made};
use crate::row::Row;
use crate::row_tensors::RowPlace;
use crate::task::{SampleTask, WorkerScratch};

/// Why a batch cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchError {
    /// The operation's name; for a function its path and name.
    pub operation: String,
    /// The reason.
    pub error: CallError,
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "`{}`: {}", self.operation, self.error)
    }
}

impl SamplePlan {
    /// The same plan with a further operation on complete batches at the end.
    ///
    /// # Errors
    /// The operation does not fit the tensors.
    ///
    /// # Panics
    /// If it changes the tensors in a way that [`BatchOperation::declare`] excludes.
    pub fn with_batch_operation(
        mut self,
        mut operation: Box<dyn BatchOperation>,
    ) -> Result<Self, ConfigError> {
        let before = self.tensors.specs();
        let mut after = before.to_vec();
        operation.declare(&mut after)?;
        assert!(before.len() <= after.len(), "{}: a tensor less", operation.name());
        for (before, after) in before.iter().zip(&after) {
            let is_dense = before.extent == Extent::Dense;
            let grows =
                if is_dense { row_bytes(before) <= row_bytes(after) } else { before == after };
            assert!(
                before.name == after.name && before.extent == after.extent && grows,
                "{}: {before:?} cannot become {after:?}",
                operation.name()
            );
        }
        self.tensors.change(after);
        let numbers = self.tensors.numbers().to_vec();
        self.batch_steps.push(BatchStep::Native(operation, numbers));
        Ok(self)
    }

    /// The same plan with a user's function on complete batches: calls one of its workers with a small batch. Adds the
    /// fields that it makes and `[output]` names to `made`.
    ///
    /// # Errors
    /// The function cannot be imported or called, or its result cannot be stored in a batch.
    pub(super) fn with_batch_function(
        mut self,
        config: &Config,
        (function, pool): (&BatchFunction, Pool),
        dataset: &dyn Dataset,
        start: PythonStart<'_>,
        made: &mut Made,
    ) -> Result<Self, ConfigError> {
        let fail = |reason: String| {
            let message = format!("`{}` (`{}`): {reason}", function.path, function.target);
            ConfigError::new(&function.location, message)
        };
        let mut body = BatchBody::new(pool, config, function, &self.tensors).map_err(fail)?;
        let mut batch = self.probed_batch(config, dataset, start).map_err(fail)?;
        let mut rows = rows_of(&mut batch);
        let found = body.probe(&mut rows).map_err(fail)?;
        body.declare(&found, config, &mut self.tensors, made).map_err(fail)?;
        self.batch_steps.push(BatchStep::Python(Box::new(body)));
        Ok(self)
    }

    /// The first readable samples, as a batch after all stages and the operations so far.
    fn probed_batch(
        &self,
        config: &Config,
        dataset: &dyn Dataset,
        start: PythonStart<'_>,
    ) -> Result<Vec<(DrawKey, MemoryRow)>, String> {
        let wanted = PROBED.min(config.batch.size.get() as usize);
        let mut scratch = WorkerScratch::default();
        let mut why_not = String::from("the dataset has no samples");
        let mut batch = Vec::new();
        for number in 0..dataset.kept_count().min(TRIED) {
            let sample = dataset.kept_at(number).0;
            let key = DrawKey { seed: 0, epoch: 0, sample };
            let mut task = SampleTask::new(SampleId(sample), key, Vec::new());
            let mut row = MemoryRow::of(self.row_tensors());
            let made = (start.read)(&mut task).and_then(|()| {
                (0..self.stage_count).try_for_each(|stage| {
                    self.run(stage, &mut task, dataset, &mut row, &mut scratch)
                        .map_err(|defect| defect.0)
                })
            });
            match made {
                Ok(()) => batch.push((key, row)),
                Err(reason) => why_not = reason,
            }
            if batch.len() == wanted {
                break;
            }
        }
        if batch.is_empty() {
            return Err(why_not);
        }
        self.run_on_batch(&mut rows_of(&mut batch), &BatchCaller::plain(0))
            .map_err(|error| error.to_string())?;
        Ok(batch)
    }

    /// The tensors that stages and operations on batches write, by their numbers in a [`Row`].
    pub fn row_tensors(&self) -> &[TensorSpec] {
        self.tensors.all()
    }

    /// The tensors among them that are not part of a batch.
    pub fn beside_tensors(&self) -> &[TensorSpec] {
        self.tensors.beside()
    }

    /// The location of a tensor of a [`Row`].
    pub fn place_of(&self, number: usize) -> RowPlace {
        self.tensors.place(number)
    }

    /// Whether there are operations on complete batches.
    pub fn has_batch_operations(&self) -> bool {
        !self.batch_steps.is_empty()
    }

    /// The name and the arguments of each batch operation, in order.
    pub fn batch_operations(&self) -> impl Iterator<Item = (&str, String)> {
        self.batch_steps.iter().map(|step| match step {
            BatchStep::Native(operation, _) => (operation.name(), operation.arguments()),
            BatchStep::Python(body) => ("python", body.arguments()),
        })
    }

    pub(super) fn batch_functions(&self) -> impl Iterator<Item = &BatchBody> {
        self.batch_steps.iter().filter_map(|step| match step {
            BatchStep::Native(..) => None,
            BatchStep::Python(body) => Some(&**body),
        })
    }

    /// For each function on complete batches: its number of workers, a worker's memory limit, and the bytes that the
    /// daemon copies for a call with `rows` rows.
    pub fn batch_workers(&self, rows: u32) -> impl Iterator<Item = (u32, u64, u64)> {
        self.batch_functions().map(move |body| {
            let (workers, memory_bytes) = body.workers();
            (workers, memory_bytes, body.row_bytes().saturating_mul(rows.into()))
        })
    }

    /// Runs the batch operations, in order, on the rows of a complete batch, in their order.
    ///
    /// # Errors
    /// The operation's name and its reason.
    pub fn run_on_batch(
        &self,
        rows: &mut [BatchRow<'_>],
        caller: &BatchCaller<'_>,
    ) -> Result<(), BatchError> {
        self.run_steps(&self.batch_steps, rows, caller)
    }

    /// The draw key of the first operation on batches.
    fn first_batch_operation(&self) -> u64 {
        let last = self.stages.last();
        last.map_or(0, |stage| stage.first_operation + stage.operation_names.len() as u64)
    }

    /// Runs the operations before one of the user's functions on a batch that all stages have made, then calls the
    /// function and drops its result; returns the times.
    ///
    /// # Errors
    /// It cannot be called, or raised an exception.
    pub fn time_batch_function(
        &self,
        function: usize,
        rows: &mut [BatchRow<'_>],
    ) -> Result<FunctionTime, String> {
        let mut functions = (0..).zip(&self.batch_steps).filter_map(|(place, step)| match step {
            BatchStep::Native(..) => None,
            BatchStep::Python(body) => Some((place, body)),
        });
        let found = functions.nth(function);
        let (place, body) = found.ok_or_else(|| format!("there is no function {function}"))?;
        self.run_steps(&self.batch_steps[..place], rows, &BatchCaller::plain(0))
            .map_err(|error| error.to_string())?;
        body.time(rows, self.first_batch_operation() + place as u64)
    }

    fn run_steps(
        &self,
        steps: &[BatchStep],
        rows: &mut [BatchRow<'_>],
        caller: &BatchCaller<'_>,
    ) -> Result<(), BatchError> {
        self.clear_mixes(rows);
        let mut functions = 0..;
        for (step, number) in steps.iter().zip(self.first_batch_operation()..) {
            match step {
                BatchStep::Native(operation, numbers) => {
                    run_native(operation.as_ref(), numbers, rows, number).map_err(
                        |Defect(reason)| BatchError {
                            operation: operation.name().to_owned(),
                            error: CallError::Defect(reason),
                        },
                    )?;
                }
                BatchStep::Python(body) => {
                    let ran = body.run(rows, number, caller);
                    if let Some(function) = functions.next() {
                        (caller.called)(function, ran.as_ref().ok().copied());
                    }
                    ran.map_err(|error| BatchError { operation: body.name(), error })?;
                }
            }
        }
        Ok(())
    }
}

impl SamplePlan {
    /// Removes the mixes of the slot's previous batch: the chosen operation of a choice sets only its own.
    fn clear_mixes(&self, rows: &mut [BatchRow<'_>]) {
        let Some(first) = rows.first_mut() else { return };
        for (tensor, spec) in self.row_tensors().iter().enumerate() {
            for number in 0..spec.mixes() {
                first.row.set_mix(tensor, number, &Mix::Nothing);
            }
        }
    }
}

fn rows_of(batch: &mut [(DrawKey, MemoryRow)]) -> Vec<BatchRow<'_>> {
    batch.iter_mut().map(|(key, row)| BatchRow { key: *key, row }).collect()
}

fn run_native(
    operation: &dyn BatchOperation,
    numbers: &[usize],
    rows: &mut [BatchRow<'_>],
    number: u64,
) -> Result<(), Defect> {
    if numbers.iter().enumerate().all(|(own, of_row)| own == *of_row) {
        return operation.run(rows, number);
    }
    let mut numbered: Vec<(DrawKey, NumberedRow<'_>)> = rows
        .iter_mut()
        .map(|BatchRow { key, row }| (*key, NumberedRow { numbers, row: &mut **row }))
        .collect();
    let mut rows: Vec<BatchRow<'_>> =
        numbered.iter_mut().map(|(key, row)| BatchRow { key: *key, row }).collect();
    operation.run(&mut rows, number)
}

/// A row with an operation's numbering of the tensors.
struct NumberedRow<'r> {
    numbers: &'r [usize],
    row: &'r mut dyn Row,
}

impl Row for NumberedRow<'_> {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        self.row.dense(self.numbers[tensor])
    }

    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]> {
        self.row.ragged(self.numbers[tensor], bytes)
    }

    fn ragged_bytes(&mut self, tensor: usize) -> &[u8] {
        self.row.ragged_bytes(self.numbers[tensor])
    }

    fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        self.row.set_mix(self.numbers[tensor], number, mix);
    }
}
