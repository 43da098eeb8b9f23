//! A stream's compiled operations, and their execution on one sample and on a complete batch.
//!
//! A field's row is written at the end of the last stage with an operation on it, and at the end of the first stage if
//! there is none: an image's decoding, crop, resize and conversion are then one pass into the row. Between two stages a
//! field is stored in the sample's task. A Python stage ([`call`]) takes all fields and returns the fields of its
//! function's result. Operations on complete batches ([`batch`]) come after all stages.

mod batch;
mod batch_step;
mod call;
mod compile;
mod reckon;
mod truncation;

pub use batch::BatchError;
pub use call::CalledRow;
pub use compile::{Foreground, PythonStart, SampleReader};

use std::sync::Arc;
use std::time::Duration;

use forebay_protocol::tensor::{DType, Extent, TensorSpec};

use self::batch_step::BatchStep;
use self::truncation::Truncation;
use super::bucket::{Bucket, Buckets};
use super::contract::{Operation, Sample};
use super::field::{CarriedField, FieldInProgress, Tools};
use super::output::FieldOutput;
use super::python::PythonBody;
use super::row::Row;
use super::row_tensors::{RowPlace, RowTensors};
use super::task::{SampleLists, SampleTask, WorkerScratch, emptied};
use super::video::{self, HelperPlan, StartedDecoders};
use forebay_dataset::{Dataset, Defect, FieldValue};
use forebay_jpeg_index::JpegIndex;
use forebay_media::array::{ArrayType, check_ragged_type, check_type, write_array};
use forebay_order::Draws;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::{SampleBytes, SharedBytes};

/// All work of a stream on a sample after its bytes were fetched, and on a batch before it is published; shared by all
/// threads.
#[derive(Debug)]
pub struct SamplePlan {
    stages: Vec<Stage>,
    /// By number: the dataset's fields, then fields that operations add.
    fields: Vec<PlannedField>,
    dataset_fields: usize,
    tensors: RowTensors,
    /// By tensor: the bytes of a dense tensor's row that the stages write.
    row_bytes: Vec<usize>,
    /// The bucket of each sample, if there are buckets.
    buckets: Option<Buckets>,
    batch_steps: Vec<BatchStep>,
    /// Maximal size of a decoded audio file, in bytes.
    most_sound_bytes: u64,
    /// Where samples above the budget of a batch are cut.
    truncation: Option<Truncation>,
    /// Number of stages of the whole stream: a plan that is being compiled has fewer.
    stage_count: usize,
    /// The index in which decoders record JPEG files.
    jpeg_index: Option<Arc<JpegIndex>>,
    /// The helper processes that decode videos and AAC.
    decoders: StartedDecoders,
}

#[derive(Debug)]
struct Stage {
    body: StageBody,
    operation_names: Vec<&'static str>,
    /// The number of its first operation, counted over all stages: the key of draws.
    first_operation: u64,
}

/// The implementation of a stage.
#[derive(Debug)]
enum StageBody {
    /// Operations of this crate, one after another on a work thread.
    Native(Vec<NativeOperation>),
    /// The user's function, in worker processes.
    Python(Box<PythonBody>),
}

/// An operation of this crate.
#[derive(Debug)]
struct NativeOperation {
    operation: Box<dyn Operation>,
    /// The decoded video on each of whose pictures it runs.
    video: Option<usize>,
}

#[derive(Debug)]
struct PlannedField {
    name: String,
    /// The array required of the dataset if operations process the field; other fields are checked when they are
    /// written.
    expected: Option<ExpectedArray>,
    /// The stage at whose end its row is written, or its value is dropped.
    last_stage: usize,
    /// The tensor and how its row is written; `None` for a dropped field.
    output: Option<(usize, FieldOutput)>,
    /// Whether a Python stage takes it: then it is never read directly into the row.
    is_called_with: bool,
}

/// The type required of every sample's array.
#[derive(Debug)]
enum ExpectedArray {
    /// With this type and shape.
    Fixed(ArrayType),
    /// With this type, and these dimensions after the first.
    Ragged(DType, Vec<u64>),
}

impl PlannedField {
    /// Whether the dataset's value must have the same shape in every sample.
    fn has_one_shape(&self) -> bool {
        let is_written = !self.is_called_with && self.expected.is_none();
        match (&self.expected, &self.output) {
            (Some(ExpectedArray::Fixed(_)), _) => true,
            (_, Some((_, FieldOutput::Array { .. }))) => is_written,
            _ => false,
        }
    }
}

impl SamplePlan {
    /// The same plan, whose decoders record JPEG files in an index. The pixels do not depend on it.
    #[must_use]
    pub fn with_jpeg_index(mut self, index: Option<Arc<JpegIndex>>) -> Self {
        self.jpeg_index = index;
        self
    }

    /// The helper processes that decode videos, if there are videos.
    pub fn helpers(&self) -> Option<&HelperPlan> {
        self.decoders.plan.as_ref()
    }

    /// What decides the samples of AAC, if there may be some.
    pub fn sounds(&self) -> Option<&str> {
        self.decoders.sounds.as_deref()
    }

    /// CPU time of the processes that decode videos and AAC.
    #[must_use]
    pub fn decoders_cpu_time(&self) -> Duration {
        self.decoders.pool.as_ref().map_or(Duration::ZERO, |pool| pool.cpu_time())
    }

    /// The bucket of a sample, if there are buckets.
    pub fn bucket_of(&self, sample: SampleId) -> Option<Bucket> {
        self.buckets.as_ref()?.of(sample)
    }

    /// The tensors of a batch without `index` and `valid`, in the order of the fields, then the tensors that batch
    /// operations add.
    pub fn tensors(&self) -> &[TensorSpec] {
        self.tensors.specs()
    }

    /// The names of a stage's operations (counted from 0 over `Config::stages`), in order; empty if there is no such
    /// stage.
    pub fn operation_names_of_stage(&self, stage: usize) -> &[&'static str] {
        self.stages.get(stage).map_or(&[], |stage| &stage.operation_names)
    }

    /// The digests of the files that operations on samples read, in the order of the operations.
    pub fn file_digests(&self) -> impl Iterator<Item = [u8; 32]> {
        let operations = self.stages.iter().filter_map(|stage| match &stage.body {
            StageBody::Native(operations) => Some(operations),
            StageBody::Python(_) => None,
        });
        operations.flatten().filter_map(|native| native.operation.file_digest())
    }

    /// The tensor of a batch whose elements can be read from a dataset's files directly into the row: no operation on
    /// samples processes them, and they are written unchanged.
    pub fn direct_tensor(&self, dataset: &dyn Dataset) -> Option<usize> {
        let field = &self.fields[dataset.direct_read()?.field];
        match &field.output {
            Some((tensor, FieldOutput::Array { expected, target }))
                if expected.dtype == *target
                    && field.expected.is_none()
                    && !field.is_called_with =>
            {
                match self.tensors.place(*tensor) {
                    RowPlace::Batch(tensor) => Some(tensor),
                    RowPlace::Beside(_) => None,
                }
            }
            _ => None,
        }
    }

    /// Runs one stage (counted from 0 over `Config::stages`) and writes the fields that no later stage processes. After
    /// all stages, every byte of the row's dense tensors that stages write is written.
    ///
    /// # Errors
    /// The sample is bad. The row may be partially written.
    pub fn run(
        &self,
        stage: usize,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        row: &mut dyn Row,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        scratch.tools.image.decoders.use_jpeg_index(self.jpeg_index.as_ref());
        scratch.tools.bucket = self.bucket_of(task.id);
        let result = match self.stages.get(stage).map(|stage| (&stage.body, stage.first_operation))
        {
            Some((StageBody::Native(operations), first)) => {
                self.run_native(stage, (operations, first), task, dataset, row, scratch)
            }
            Some((StageBody::Python(_), _)) => self.call_alone(stage, task, dataset, row, scratch),
            None => Err(Defect(format!("the plan has no stage {stage}"))),
        };
        scratch.tools.trim();
        result
    }

    fn run_native(
        &self,
        stage: usize,
        (operations, first_operation): (&[NativeOperation], u64),
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        row: &mut dyn Row,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        let SampleTask { id, key, bytes, part_ends, shared, in_place, carried: carried_on } = task;
        let fetched = fetched(bytes, part_ends, shared);
        let WorkerScratch { tools, lists, .. } = scratch;
        // If a defect ends this function early, these lists are dropped, and the next sample allocates new ones.
        let mut carried = std::mem::replace(carried_on, std::mem::take(&mut lists.carried));
        let mut fields = emptied(std::mem::take(&mut lists.fields));
        self.open(
            stage,
            (*id, key.of_sample(), *in_place),
            fetched,
            dataset,
            &mut carried,
            &mut fields,
            (lists, tools),
        )?;
        let mut sample = Sample { fields: &mut fields, tools };
        for (operation, number) in operations.iter().zip(first_operation..) {
            let NativeOperation { operation, video } = operation;
            let draws = || Draws::new(*key, number);
            match video {
                None => operation.run(&mut sample, &mut draws())?,
                Some(field) => video::run_on_each(operation.as_ref(), *field, &mut sample, draws)?,
            }
        }
        self.close(stage, &mut fields, fetched, carried_on, row, tools)?;
        lists.fields = emptied(fields);
        carried.clear();
        lists.carried = carried;
        Ok(())
    }

    /// A sample's fields at a stage's start: the dataset's, or as left by the previous stage.
    #[expect(clippy::too_many_arguments, reason = "parts of a task and of a thread's scratch")]
    fn open<'a>(
        &self,
        stage: usize,
        (id, draw, in_place): (SampleId, u64, Option<usize>),
        fetched: SampleBytes<'a>,
        dataset: &'a dyn Dataset,
        carried: &'a mut [CarriedField],
        fields: &mut Vec<FieldInProgress<'a>>,
        (lists, tools): (&mut SampleLists, &mut Tools),
    ) -> Result<(), Defect> {
        if stage > 0 {
            fields.extend(carried.iter_mut().map(|field| FieldInProgress::pick_up(field, fetched)));
            return Ok(());
        }
        let mut values = emptied(std::mem::take(&mut lists.values));
        match in_place {
            Some(_) => dataset.read_in_place(id, &mut values),
            None => dataset.read_drawn(id, draw, fetched, &mut values)?,
        }
        self.begin(&mut values, fields)?;
        for (field, planned) in fields.iter_mut().zip(&self.fields) {
            field
                .decode_sound(self.most_sound_bytes, self.decoders.pool.as_deref(), tools)
                .map_err(|defect| Defect(format!("`{}`: {}", planned.name, defect.0)))?;
        }
        if let Some(truncation) = self.truncation {
            truncation.apply(fields, &self.fields, tools)?;
        }
        lists.values = emptied(values);
        Ok(())
    }

    /// Writes the fields that no later stage processes, and keeps the others for the next stage.
    fn close<'a>(
        &self,
        stage: usize,
        fields: &mut Vec<FieldInProgress<'a>>,
        fetched: SampleBytes<'_>,
        carried_on: &mut Vec<CarriedField>,
        row: &mut dyn Row,
        tools: &mut Tools,
    ) -> Result<(), Defect> {
        let is_last = stage + 1 == self.stage_count;
        for (field, planned) in fields.drain(..).zip(&self.fields) {
            let left = if stage < planned.last_stage {
                field.carry(fetched, tools)?
            } else {
                if let (Some((tensor, output)), true) =
                    (&planned.output, stage == planned.last_stage)
                {
                    self.write(&planned.name, &field, *tensor, output, row, tools)?;
                }
                field.recycle(tools);
                CarriedField::Absent
            };
            if !is_last {
                carried_on.push(left);
            }
        }
        Ok(())
    }

    /// The dataset's values as fields, and an entry for each field that operations add.
    fn begin<'a>(
        &self,
        values: &mut Vec<FieldValue<'a>>,
        fields: &mut Vec<FieldInProgress<'a>>,
    ) -> Result<(), Defect> {
        if values.len() != self.dataset_fields {
            return Err(Defect(format!(
                "the sample has {} fields, and {} are expected",
                values.len(),
                self.dataset_fields
            )));
        }
        fields.extend(values.drain(..).map(FieldInProgress::from));
        for (field, planned) in fields.iter().zip(&self.fields) {
            let (Some(expected), Some(array)) = (&planned.expected, field.elements()) else {
                continue;
            };
            match expected {
                ExpectedArray::Fixed(expected) => check_type(&planned.name, &array, expected)?,
                ExpectedArray::Ragged(dtype, row_shape) => {
                    check_ragged_type(&planned.name, &array, *dtype, row_shape)?;
                }
            }
        }
        fields.resize_with(self.fields.len(), || FieldInProgress::Absent);
        Ok(())
    }

    /// Writes one field's row.
    fn write(
        &self,
        name: &str,
        field: &FieldInProgress<'_>,
        tensor: usize,
        output: &FieldOutput,
        row: &mut dyn Row,
        tools: &mut Tools,
    ) -> Result<(), Defect> {
        let array = field.elements();
        match (output, field, array) {
            (FieldOutput::Image(format), FieldInProgress::Image(image), _) => {
                image.write(format, self.dense(row, tensor, tools.bucket)?, &mut tools.image)
            }
            (FieldOutput::Image(format), FieldInProgress::Video(pictures), _) => {
                let row = self.dense(row, tensor, tools.bucket)?;
                video::write(name, pictures, format, row, &mut tools.image)
            }
            (FieldOutput::RaggedBytes, FieldInProgress::File(bytes), _) => {
                self.ragged(name, row, tensor, bytes.len() as u64)?.copy_from_slice(bytes);
                Ok(())
            }
            (FieldOutput::RaggedBytes, FieldInProgress::Bytes(bytes), _) => {
                self.ragged(name, row, tensor, bytes.len() as u64)?.copy_from_slice(bytes);
                Ok(())
            }
            (FieldOutput::Array { .. }, FieldInProgress::InPlace, _) => Ok(()),
            (FieldOutput::Array { expected, target }, _, Some(array)) => {
                check_type(name, &array, expected)?;
                let row = self.dense(row, tensor, None)?;
                write_array(name, &array, *target, &mut tools.reordered, row)
            }
            (FieldOutput::RaggedArray { source, row_shape, target }, _, Some(array)) => {
                check_ragged_type(name, &array, *source, row_shape)?;
                let elements = array.bytes.len() as u64 / source.size_bytes();
                let row_bytes = elements.saturating_mul(target.size_bytes());
                let row = self.ragged(name, row, tensor, row_bytes)?;
                write_array(name, &array, *target, &mut tools.reordered, row)
            }
            (_, field, _) => Err(Defect(format!(
                "`{name}` holds {}, and {} is expected",
                field.describe(),
                output.describe()
            ))),
        }
    }

    /// The part of a dense tensor's row that stages write: of a batch's shape, and all of it unless a batch operation makes
    /// it longer.
    fn dense<'r>(
        &self,
        row: &'r mut dyn Row,
        tensor: usize,
        bucket: Option<Bucket>,
    ) -> Result<&'r mut [u8], Defect> {
        let spec = &self.tensors.all()[tensor];
        let shape = bucket.and_then(|bucket| spec.row_shapes.get(bucket.number));
        let of_shape = shape.and_then(|shape| usize::try_from(spec.shape_bytes(shape)?).ok());
        row.dense(tensor)
            .get_mut(..of_shape.unwrap_or(self.row_bytes[tensor]))
            .ok_or_else(|| Defect("the row is shorter than planned".to_owned()))
    }

    /// A ragged tensor's row of `bytes` bytes.
    fn ragged<'r>(
        &self,
        name: &str,
        row: &'r mut dyn Row,
        tensor: usize,
        bytes: u64,
    ) -> Result<&'r mut [u8], Defect> {
        row.ragged(tensor, bytes).ok_or_else(|| {
            let limit = match self.tensors.all()[tensor].extent {
                Extent::Ragged { max_row_bytes, .. } => Some(max_row_bytes),
                Extent::Dense => None,
            };
            Defect::too_long(name, bytes, limit)
        })
    }
}

/// A task's bytes.
fn fetched<'a>(
    bytes: &'a [u8],
    part_ends: &'a [usize],
    shared: &'a [SharedBytes],
) -> SampleBytes<'a> {
    if shared.is_empty() { SampleBytes::new(bytes, part_ends) } else { SampleBytes::shared(shared) }
}

/// The size of a dense tensor's row; 0 for a ragged one.
fn row_bytes(tensor: &TensorSpec) -> usize {
    match tensor.extent {
        Extent::Dense => {
            tensor.row_pitch_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
        }
        Extent::Ragged { .. } => 0,
    }
}
