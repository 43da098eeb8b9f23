//! A stream's operations, compiled, and how they run on one sample.
//!
//! Fields that no operation touches are written to the row in stage 0, straight from the dataset's bytes. Images are
//! carried from stage to stage, their pixels decoded; the last stage writes them.

use std::borrow::Cow;

use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use super::array::{check_type, write_array};
use super::contract::{FieldInProgress, FieldType, FieldTypes, Operation, Sample};
use super::image::{PendingImage, PlannedImage};
use super::output::{self, FieldOutput};
use super::{Row, SampleTask, WorkerScratch, registry};
use crate::config::{Config, ConfigError};
use crate::dataset::{ArrayValue, Dataset, Defect, FieldValue};
use crate::order::Draws;

/// Everything that a stream does to a sample after its bytes were fetched; shared by all threads.
#[derive(Debug)]
pub struct SamplePlan {
    stages: Vec<Stage>,
    tensors: Vec<TensorSpec>,
    /// As `tensors`, in the order of the dataset's fields.
    outputs: Vec<FieldOutput>,
    names: Vec<String>,
}

#[derive(Debug)]
struct Stage {
    operations: Vec<Box<dyn Operation>>,
    operation_names: Vec<&'static str>,
    /// The number of its first operation, counted over all stages: what draws are keyed by.
    first_operation: u64,
}

/// A field between two stages.
#[derive(Debug)]
pub(super) enum CarriedField {
    /// In its row.
    Written,
    /// An image file: the fetched bytes, all of them.
    WholeFile,
    /// An image file that is a part of the fetched bytes or was unpacked from them.
    File(Vec<u8>),
    /// Decoded.
    Image(PendingImage<'static>),
    /// An image that is not decoded before its first resampling is known, and its file where that is not all of the
    /// fetched bytes.
    Planned(PlannedImage, Option<Vec<u8>>),
}

impl CarriedField {
    /// The bytes that it holds beside the fetched ones.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Written | Self::WholeFile => 0,
            Self::File(file) => file.len(),
            Self::Image(image) => image.held_bytes(),
            Self::Planned(_, file) => file.as_ref().map_or(0, Vec::len),
        }
    }
}

/// Lists that are empty between samples and kept for their memory.
#[derive(Debug, Default)]
pub(super) struct SampleLists {
    values: Vec<FieldValue<'static>>,
    fields: Vec<FieldInProgress<'static>>,
    carried: Vec<CarriedField>,
}

/// An empty list for values of another lifetime, in the same memory: the standard library collects in place.
fn emptied<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

impl SamplePlan {
    /// Checks the operations against the dataset's fields and compiles them.
    ///
    /// # Errors
    /// An unknown operation or argument, an operation whose input is missing (names the operation that makes it), an
    /// output that does not exist: each with its place in the configuration.
    pub fn compile(config: &Config, dataset: &dyn Dataset) -> Result<Self, ConfigError> {
        let mut fields = FieldTypes {
            fields: dataset
                .fields()
                .iter()
                .map(|field| (field.name.clone(), FieldType::Raw(field.kind.clone())))
                .collect(),
            limits: config.dataset.limits,
        };
        let mut stages = Vec::with_capacity(config.stages.len());
        let mut first_operation = 0;
        for stage in &config.stages {
            let mut operations = Vec::with_capacity(stage.operations.len());
            let mut operation_names = Vec::with_capacity(stage.operations.len());
            for (index, entry) in stage.operations.iter().enumerate() {
                let path = format!("stage.{}.operations[{index}]", stage.name);
                let (name, operation) = registry::compile(path, entry.clone(), &mut fields)?;
                operations.push(operation);
                operation_names.push(name);
            }
            let count = operations.len() as u64;
            stages.push(Stage { operations, operation_names, first_operation });
            first_operation += count;
        }
        let (tensors, outputs) = output::compile(config, &fields)?;
        let names = fields.fields.into_iter().map(|(name, _)| name).collect();
        Ok(Self { stages, tensors, outputs, names })
    }

    /// The tensors of a batch without `index` and `valid`, in the order of the dataset's fields.
    #[must_use]
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// The names of a stage's operations (counted from 0 over `Config::stages`), in order; empty for no such stage.
    #[must_use]
    pub fn operation_names_of_stage(&self, stage: usize) -> &[&'static str] {
        self.stages.get(stage).map_or(&[], |stage| &stage.operation_names)
    }

    /// The tensor whose elements can be read from a dataset's files straight into the row: they reach it as they are.
    #[must_use]
    pub fn straight_tensor(&self, dataset: &dyn Dataset) -> Option<usize> {
        let straight = dataset.straight()?;
        let plain = matches!(
            &self.outputs[straight.field],
            FieldOutput::Array { expected, target } if expected.dtype == *target
        );
        plain.then_some(straight.field)
    }

    /// Runs one stage (counted from 0 over `Config::stages`). Stage 0 writes the fields that no operation touches, the
    /// last one writes the images. Every byte of the row's dense tensors is written once all stages have run.
    ///
    /// # Errors
    /// The sample is bad. The row may then be written in part.
    pub fn run(
        &self,
        stage: usize,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        row: &mut dyn Row,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        let result = self.run_stage(stage, task, dataset, row, scratch);
        scratch.trim();
        result
    }

    fn run_stage(
        &self,
        stage: usize,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        row: &mut dyn Row,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        let Some(work) = self.stages.get(stage) else {
            return Err(Defect(format!("the plan has no stage {stage}")));
        };
        let SampleTask { id, key, bytes, straight, carried: carried_on } = task;
        let WorkerScratch { tools, reordered, lists } = scratch;
        // A list that a defect takes along is missed by the next sample alone.
        let mut carried = std::mem::replace(carried_on, std::mem::take(&mut lists.carried));
        let mut fields = emptied(std::mem::take(&mut lists.fields));
        if stage == 0 {
            let mut values = emptied(std::mem::take(&mut lists.values));
            match straight {
                Some(tensor) => dataset.read_beside(*id, *tensor, &mut values),
                None => dataset.read(*id, bytes, &mut values)?,
            }
            self.begin(&mut values, row, reordered, &mut fields)?;
            lists.values = emptied(values);
        } else {
            fields.extend(carried.iter_mut().map(|field| pick_up(field, bytes)));
        }
        let mut sample = Sample { fields: &mut fields, tools };
        for (operation, number) in work.operations.iter().zip(work.first_operation..) {
            operation.run(&mut sample, &mut Draws::new(*key, number))?;
        }
        let is_last = stage + 1 == self.stages.len();
        for (tensor, (field, output)) in fields.drain(..).zip(&self.outputs).enumerate() {
            match (field, output) {
                (FieldInProgress::Image(image), FieldOutput::Image(format)) if is_last => {
                    image.write(format, row.dense(tensor), tools)?;
                    image.recycle(tools);
                }
                (FieldInProgress::Image(image), _) => carried_on.push(match image.planned() {
                    Some((planned, file)) => CarriedField::Planned(planned, own_file(file, bytes)),
                    None => CarriedField::Image(image.detach(tools)?),
                }),
                (FieldInProgress::File(file), _) => carried_on.push(
                    own_file(file, bytes).map_or(CarriedField::WholeFile, CarriedField::File),
                ),
                (FieldInProgress::Written, _) if !is_last => carried_on.push(CarriedField::Written),
                (FieldInProgress::Written, _) => {}
            }
        }
        lists.fields = emptied(fields);
        carried.clear();
        lists.carried = carried;
        Ok(())
    }

    /// Writes what no operation touches; leaves the image files to be decoded.
    fn begin<'a>(
        &self,
        values: &mut Vec<FieldValue<'a>>,
        row: &mut dyn Row,
        reordered: &mut Vec<u8>,
        fields: &mut Vec<FieldInProgress<'a>>,
    ) -> Result<(), Defect> {
        if values.len() != self.outputs.len() {
            return Err(Defect(format!(
                "the sample has {} fields, and {} are expected",
                values.len(),
                self.outputs.len()
            )));
        }
        for (tensor, (value, output)) in values.drain(..).zip(&self.outputs).enumerate() {
            let name = &self.names[tensor];
            let integer;
            let array = match (value, output) {
                (FieldValue::Encoded(file), FieldOutput::Image(_)) => {
                    fields.push(FieldInProgress::File(file));
                    continue;
                }
                (FieldValue::Encoded(file), FieldOutput::RaggedFile) => {
                    ragged(name, row, tensor, file.len() as u64, &self.tensors)?
                        .copy_from_slice(file);
                    fields.push(FieldInProgress::Written);
                    continue;
                }
                (FieldValue::InItsRow, FieldOutput::Array { .. }) => {
                    fields.push(FieldInProgress::Written);
                    continue;
                }
                (FieldValue::InItsRow, _) => {
                    return Err(Defect(format!("`{name}` cannot have been read into its row")));
                }
                (FieldValue::Integer(value), _) => {
                    integer = value.to_ne_bytes();
                    scalar(&integer)
                }
                (FieldValue::Array(array), _) => array,
                (FieldValue::Encoded(_), _) => {
                    return Err(Defect(format!(
                        "`{name}` is an image file, and an array is expected"
                    )));
                }
            };
            match output {
                FieldOutput::Array { expected, target } => {
                    check_type(name, &array, expected)?;
                    write_array(name, &array, *target, reordered, row.dense(tensor))?;
                }
                FieldOutput::RaggedArray { source, target } => {
                    let [length] = array.shape[..] else {
                        return Err(Defect(format!(
                            "`{name}` has the shape {:?}, and one dimension is expected",
                            array.shape
                        )));
                    };
                    if array.dtype != *source {
                        return Err(Defect(format!(
                            "`{name}` is {}, and the first sample's is {}",
                            array.dtype.name(),
                            source.name()
                        )));
                    }
                    let row_bytes = length.saturating_mul(target.size_bytes());
                    let row = ragged(name, row, tensor, row_bytes, &self.tensors)?;
                    write_array(name, &array, *target, reordered, row)?;
                }
                FieldOutput::Image(_) | FieldOutput::RaggedFile => {
                    return Err(Defect(format!(
                        "`{name}` is an array, and an image file is expected"
                    )));
                }
            }
            fields.push(FieldInProgress::Written);
        }
        Ok(())
    }
}

/// A field as the stage before left it.
fn pick_up<'a>(field: &'a mut CarriedField, bytes: &'a [u8]) -> FieldInProgress<'a> {
    match field {
        CarriedField::Written => FieldInProgress::Written,
        CarriedField::WholeFile => FieldInProgress::File(bytes),
        CarriedField::File(file) => FieldInProgress::File(file),
        CarriedField::Planned(planned, file) => {
            FieldInProgress::Image(planned.with_file(file.as_deref().unwrap_or(bytes)))
        }
        CarriedField::Image(_) => match std::mem::replace(field, CarriedField::Written) {
            CarriedField::Image(image) => FieldInProgress::Image(image),
            _ => FieldInProgress::Written,
        },
    }
}

/// A copy of an image file for the next stage; `None` where it is all of the fetched bytes, which stay.
fn own_file(file: &[u8], fetched: &[u8]) -> Option<Vec<u8>> {
    let is_whole = file.as_ptr() == fetched.as_ptr() && file.len() == fetched.len();
    (!is_whole).then(|| file.to_vec())
}

/// A single i64 as an array.
fn scalar(bytes: &[u8; 8]) -> ArrayValue<'_> {
    ArrayValue {
        dtype: DType::I64,
        shape: Cow::Borrowed(&[]),
        fortran_order: false,
        big_endian: cfg!(target_endian = "big"),
        bytes: Cow::Borrowed(bytes),
    }
}

/// A ragged tensor's row of so many bytes.
fn ragged<'r>(
    name: &str,
    row: &'r mut dyn Row,
    tensor: usize,
    bytes: u64,
    tensors: &[TensorSpec],
) -> Result<&'r mut [u8], Defect> {
    row.ragged(tensor, bytes).ok_or_else(|| {
        let limit = match tensors[tensor].extent {
            Extent::Ragged { max_row_bytes, .. } => max_row_bytes,
            Extent::Dense => 0,
        };
        Defect(format!("`{name}` has {bytes} bytes, more than its `max_bytes` of {limit}"))
    })
}
