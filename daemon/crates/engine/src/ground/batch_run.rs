//! Runs the operations on one complete batch, on a work thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;

use crate::ground::row_cells::{RowCell, RowFailure};
use crate::ground::slot_row::SlotRow;
use crate::ground::stream::Stream;
use forebay_order::DrawKey;
use forebay_transform::batch::{BatchCaller, BatchRow};
use forebay_transform::{BatchError, CallError};

/// A panic in an operation ends the stream, not the thread.
pub(crate) fn run_batch_operations(
    stream: &Stream,
    cells: &mut [MutexGuard<'_, RowCell>],
    caller: &BatchCaller<'_>,
) -> Result<(), RowFailure> {
    let run = AssertUnwindSafe(|| {
        let keys: Vec<DrawKey> = cells.iter().map(|cell| cell.task.key).collect();
        let mut rows: Vec<SlotRow<'_>> = cells
            .iter_mut()
            .map(|cell| {
                let RowCell { writer, beside, .. } = &mut **cell;
                SlotRow::new(writer, beside, &stream.plan)
            })
            .collect();
        let mut rows: Vec<BatchRow<'_>> =
            rows.iter_mut().zip(keys).map(|(row, key)| BatchRow { key, row }).collect();
        stream.plan.run_on_batch(&mut rows, caller)
    });
    match catch_unwind(run) {
        Ok(outcome) => outcome.map_err(|BatchError { operation, error }| match error {
            CallError::Defect(reason) => RowFailure::Defect(format!("`{operation}`: {reason}")),
            CallError::Raised { summary, text } => {
                RowFailure::BatchRaised { operation, summary, text }
            }
            CallError::NoWorkers(reason) => RowFailure::NoWorkers(reason),
            CallError::Ending => RowFailure::Defect("the daemon ends".to_owned()),
        }),
        Err(_) => Err(RowFailure::Panic),
    }
}
