//! Batch operations: their changes of tensors, and their draws. Other tests are in the engine.

use super::*;
use crate::batch::{BatchOperation, BatchRow};
use forebay_keys::ConfigError;
use forebay_order::Draws;

/// Replaces the label by two numbers: the label and a draw.
#[derive(Debug)]
struct WithDraw;

impl BatchOperation for WithDraw {
    fn name(&self) -> &'static str {
        "with-draw"
    }

    fn arguments(&self) -> String {
        String::new()
    }

    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        tensors[0] = TensorSpec::dense("label", DType::U64, &[2]);
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], operation: u64) -> Result<(), Defect> {
        for row in rows {
            let draw = Draws::new(row.key, operation).next_u64();
            row.row.dense(0)[8..].copy_from_slice(&draw.to_ne_bytes());
        }
        Ok(())
    }
}

#[test]
fn batch_operation_changes_a_type_and_draws_by_the_samples_of_its_rows() {
    let dataset = mixed(&["label"]);
    let config = plain_config("[[stage]]\noperations = [{ op = \"delay\", milliseconds = 0 }]\n");
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    assert!(!plan.has_batch_operations());
    let plan = plan.with_batch_operation(Box::new(WithDraw)).unwrap();
    assert_eq!(plan.tensors(), [TensorSpec::dense("label", DType::U64, &[2])]);
    let mut batch = [20, 21, 22].map(|sample| (sample, Rows::of(&plan)));
    for (sample, rows) in &mut batch {
        let mut task = SampleTask::new(SampleId(*sample), key(*sample), Vec::new());
        plan.run(0, &mut task, &dataset, rows, &mut WorkerScratch::default()).unwrap();
    }
    let mut rows: Vec<BatchRow<'_>> =
        batch.iter_mut().map(|(sample, row)| BatchRow { key: key(*sample), row }).collect();
    plan.run_on_batch(&mut rows, &CALLER).unwrap();
    for (sample, rows) in batch {
        // The delay is operation 0.
        let draw = Draws::new(key(sample), 1).next_u64();
        assert_eq!(rows.rows[0], [sample - 5, draw].map(u64::to_ne_bytes).concat());
    }
}
