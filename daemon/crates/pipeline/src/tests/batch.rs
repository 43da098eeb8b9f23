//! Batch operations: they add and retype tensors, run in order, and name themselves when they fail.

use super::*;
use crate::batch::{BatchOperation, BatchRow};
use forebay_config::ConfigError;
use forebay_order::Draws;

/// The batch's mean label into a new field.
#[derive(Debug)]
struct Mean;

impl BatchOperation for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        tensors.push(TensorSpec::dense("mean", DType::F64, &[]));
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], _operation: u64) -> Result<(), Defect> {
        let label =
            |row: &mut BatchRow<'_>| i64::from_ne_bytes(*row.row.dense(0).first_chunk().unwrap());
        let sum: i64 = rows.iter_mut().map(label).sum();
        if sum > 100 {
            return Err(Defect(format!("a sum of {sum}")));
        }
        let mean = sum as f64 / rows.len() as f64;
        for row in rows {
            row.row.dense(1).copy_from_slice(&mean.to_ne_bytes());
        }
        Ok(())
    }
}

/// The label becomes two numbers: itself and a draw.
#[derive(Debug)]
struct WithDraw;

impl BatchOperation for WithDraw {
    fn name(&self) -> &'static str {
        "with-draw"
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

/// Three rows of the labels of samples from `first` on.
fn run_batch(plan: &SamplePlan, dataset: &Mixed, first: u64) -> Result<Vec<Rows>, Defect> {
    let mut batch: Vec<Rows> = (0..3).map(|_| Rows::of(plan)).collect();
    for (sample, rows) in (first..).zip(&mut batch) {
        let mut task = SampleTask::new(SampleId(sample), key(sample), Vec::new());
        plan.run(0, &mut task, dataset, rows, &mut WorkerScratch::default())?;
    }
    let mut rows: Vec<BatchRow<'_>> =
        (first..).zip(&mut batch).map(|(sample, row)| BatchRow { key: key(sample), row }).collect();
    plan.run_on_batch(&mut rows)?;
    drop(rows);
    Ok(batch)
}

#[test]
fn batch_operations_add_and_retype_tensors_in_order() {
    let dataset = Mixed::new(&["label"]);
    let config = plain_config("[[stage]]\noperations = [{ op = \"delay\", milliseconds = 0 }]\n");
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    assert!(!plan.has_batch_operations());
    let plan = plan.with_batch_operation(Box::new(Mean)).unwrap();
    let plan = plan.with_batch_operation(Box::new(WithDraw)).unwrap();
    let [label, mean] = plan.tensors() else { panic!("{:?}", plan.tensors()) };
    assert_eq!((label.dtype, &label.row_shape[..], mean.dtype), (DType::U64, &[2][..], DType::F64));
    for (sample, rows) in (20..).zip(run_batch(&plan, &dataset, 20).unwrap()) {
        let draw = Draws::new(key(sample), 2).next_u64();
        assert_eq!(rows.rows[0], [sample - 5, draw].map(u64::to_ne_bytes).concat());
        assert_eq!(rows.rows[1], 16_f64.to_ne_bytes());
    }
    assert_eq!(run_batch(&plan, &dataset, 90).unwrap_err().0, "`mean`: a sum of 258");
}
