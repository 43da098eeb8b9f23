//! Compiles a stream's operations: stage by stage, each against the fields that the earlier stages leave.

use super::truncation::Truncation;
use super::{
    ExpectedArray, NativeOperation, PlannedField, SamplePlan, Stage, StageBody, row_bytes,
};
use crate::batch::BatchEntry;
use crate::bucket::{Buckets, bucket_sizes};
use crate::contract::{FieldPlan, FieldType, FieldTypes, StoredSound, wide_refusal};
use crate::output::{self, FieldOutput};
use crate::padding;
use crate::python::{Found, Made, Pools, PythonBody, Returns};
use crate::registry;
use crate::row::Row;
use crate::row_tensors::{ListKind, RowTensors};
use crate::task::{SampleTask, WorkerScratch};
use crate::video::{self, PlannedDecoders};
use forebay_config::{Config, StageConfig};
use forebay_dataset::{Dataset, FieldKind};
use forebay_keys::ConfigError;
use forebay_media::array::ArrayType;
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_workers::WorkerStart;

/// Reads a sample's bytes into its task, for the probe call of a Python stage. The error is why it cannot be read.
pub type SampleReader<'r> = &'r dyn Fn(&mut SampleTask) -> Result<(), String>;

/// The parameters for the start of Python stages.
#[derive(Clone, Copy)]
pub struct PythonStart<'r> {
    /// Number of workers for `"auto"`.
    pub workers: u32,
    /// When they are started, and in which class they import.
    pub start: WorkerStart,
    /// The cores of workers that are started with the plan; empty: the cores of the thread that compiles it.
    pub cores: &'r [u32],
    /// Reads the samples of their probe calls.
    pub read: SampleReader<'r>,
    /// The buckets of the samples, if there are buckets.
    pub buckets: Option<&'r Buckets>,
    /// The sample that is run in the foreground, if any.
    pub foreground: Option<Foreground>,
}

/// A sample whose calls run in the foreground, with this process's standard input and output. All work of its plan must
/// be done by the thread that compiles it.
#[derive(Debug, Clone, Copy)]
pub struct Foreground {
    /// The sample.
    pub key: DrawKey,
    /// The only stage that runs in the foreground; `None`: all Python stages.
    pub stage: Option<usize>,
}

/// Number of samples in a function's probe.
pub(super) const PROBED: usize = 4;
/// Number of samples tried for it, since some may be bad.
pub(super) const TRIED: u64 = 16;

impl SamplePlan {
    /// Checks the operations against the dataset's fields and compiles them.
    ///
    /// # Errors
    /// An unknown operation or argument, an operation whose input is missing (names the operation that makes it), or an
    /// output that does not exist: each with its location in the configuration.
    pub fn compile(config: &Config, dataset: &dyn Dataset) -> Result<Self, ConfigError> {
        let read = &|_: &mut SampleTask| Err("nothing reads samples here".to_owned());
        let start = WorkerStart::WhenCalled;
        let (cores, buckets) = (&[][..], None);
        let start = PythonStart { workers: 1, start, cores, read, buckets, foreground: None };
        Self::compile_with(config, dataset, start)
    }

    /// As [`compile`](Self::compile), with the parameters of Python stages. Starts a worker of each, and calls it. If
    /// all workers start at once, the workers of all stages are started before the first is waited for.
    ///
    /// # Errors
    /// As [`compile`](Self::compile), and a function that cannot be imported or called, or whose results differ in
    /// type.
    pub fn compile_with(
        config: &Config,
        dataset: &dyn Dataset,
        start: PythonStart<'_>,
    ) -> Result<Self, ConfigError> {
        let fail = |message| ConfigError::new(&config.location(&[]), message);
        let batch_operations = config.batch.operations.iter().enumerate();
        let batch_operations = batch_operations
            .map(|(index, entry)| {
                registry::compile_batch(format!("batch.operations[{index}]"), entry.clone())
            })
            .collect::<Result<Vec<_>, _>>()?;
        let functions = batch_operations.iter().filter_map(|entry| match entry {
            BatchEntry::Function(function) => Some(function),
            BatchEntry::Operation(_) => None,
        });
        let mut pools = Pools::start(config, functions, start)?;
        let truncation = Truncation::of(config, dataset)?;
        let mut fields = FieldTypes {
            fields: Vec::new(),
            stage: 0,
            limits: config.dataset.limits,
            buckets: bucket_sizes(config),
            compile: registry::compile,
            in_view: None,
            wide: wide_outputs(config),
            decoders: PlannedDecoders::new(config, start.workers),
            found: Vec::new(),
        };
        for (place, field) in dataset.fields().iter().enumerate() {
            // An audio file is decoded to an array before any operation.
            let (kind, sound) = match field.kind.clone() {
                FieldKind::Sound { row_shape, rate, may_be_aac } => {
                    if may_be_aac {
                        fields.decoders.start_for_sounds().map_err(fail)?;
                    }
                    let kind = FieldKind::RaggedArray { dtype: DType::F32, row_shape };
                    (kind, Some(StoredSound { rate }))
                }
                kind => (kind, None),
            };
            let stored = dataset.max_row_bytes(place);
            let max_row_bytes =
                truncation.map_or(stored, |cut| cut.max_row_bytes(place, &kind, stored));
            let number = fields.add(&field.name, FieldType::Raw(kind)).map_err(fail)?;
            fields.fields[number].max_row_bytes = max_row_bytes;
            fields.fields[number].sound = sound;
            fields.fields[number].output_dtype = dataset.output_dtype(place);
        }
        let mut stages = Vec::with_capacity(config.stages.len());
        let mut first_operation = 0;
        for (number, stage) in config.stages.iter().enumerate() {
            fields.stage = number;
            let (body, operation_names) = if stage.python.is_some() {
                let reason =
                    |reason: String| ConfigError::new(&config.location(&["stage"]), reason);
                if let Some(name) = video::any_of(&fields) {
                    return Err(reason(format!(
                        "a Python stage takes no videos such as `{name}`; use a function on batches, under `batch.operations`"
                    )));
                }
                if fields.has_wide() {
                    return Err(reason(wide_refusal("python")));
                }
                let foreground = start.foreground;
                let foreground = foreground.filter(|of| of.stage.is_none_or(|one| one == number));
                let mut body =
                    PythonBody::new(pools.take(&stage.name).map_err(reason)?, &mut fields);
                let target = stage.python.as_deref().unwrap_or_default();
                let stages_before = std::mem::take(&mut stages);
                let before = Self {
                    buckets: start.buckets.cloned(),
                    ..Self::part(config, dataset, &fields, (stages_before, truncation))
                };
                let place = (number, first_operation);
                let probed = match foreground {
                    None => before.probe(place, &body, dataset, start.read),
                    Some(Foreground { key, .. }) => before
                        .probe_in_foreground(place, &body, key, dataset, start.read)
                        // A run expects the fields found for the first samples. If the function fails for all of these,
                        // the fields of the foreground sample are taken.
                        .map(|own| before.probe(place, &body, dataset, start.read).unwrap_or(own)),
                };
                stages = before.stages;
                let returns = Returns {
                    is_ragged: &|name| {
                        config.output.iter().any(|output| output.field == name && output.ragged)
                    },
                    may_be_images: is_followed_by_operations(&config.stages[number + 1..]),
                    location: config.location(&["stage"]),
                };
                probed
                    .and_then(|probed| body.declare(&probed, &returns, &mut fields))
                    .map_err(|why| reason(format!("stage `{}` (`{target}`): {why}", stage.name)))?;
                (StageBody::Python(Box::new(body)), vec!["python"])
            } else {
                let mut operations = Vec::with_capacity(stage.operations.len());
                let mut operation_names = Vec::with_capacity(stage.operations.len());
                for (index, entry) in stage.operations.iter().enumerate() {
                    let path = format!("stage.{}.operations[{index}]", stage.name);
                    fields.found.clear();
                    let location = entry.location.clone();
                    let is_video: Vec<bool> =
                        (0..fields.fields.len()).map(|field| fields.is_video(field)).collect();
                    let (name, operation) = registry::compile(path, entry.clone(), &mut fields)?;
                    let video = video::worked_on(name, &fields.found, &is_video)
                        .map_err(|reason| ConfigError::new(&location, reason))?;
                    operations.push(NativeOperation { operation, video });
                    operation_names.push(name);
                }
                (StageBody::Native(operations), operation_names)
            };
            let count = operation_names.len() as u64;
            stages.push(Stage { body, operation_names, first_operation });
            first_operation += count;
        }
        // A function may make fields that `[output]` names.
        let is_function = |entry: &BatchEntry| matches!(entry, BatchEntry::Function(_));
        let has_functions = batch_operations.iter().any(is_function);
        if !has_functions {
            output::check_names(config, &fields, &[])?;
        }
        let (tensors, outputs) = output::compile(config, &fields)?;
        for sentence in output::left_out(config, &fields) {
            tracing::info!(stream = config.name, "{sentence}");
        }
        let lists = lists(&fields.fields, &outputs);
        let mut plan = Self {
            stages,
            fields: planned_fields(dataset, fields.fields.clone(), outputs),
            dataset_fields: dataset.fields().len(),
            row_bytes: tensors.iter().map(row_bytes).collect(),
            tensors: RowTensors::new(tensors, lists),
            batch_steps: Vec::new(),
            stage_count: config.stages.len(),
            buckets: start.buckets.cloned(),
            jpeg_index: None,
            most_sound_bytes: config.dataset.limits.inflated_bytes,
            truncation,
            decoders: fields.decoders.started(),
        };
        if let Some(truncation) = truncation {
            truncation.check(config, &plan.fields)?;
        }
        let mut made = Made::new();
        for entry in batch_operations {
            plan = match entry {
                BatchEntry::Operation(operation) => plan.with_batch_operation(operation)?,
                BatchEntry::Function(function) => {
                    let pool = pools.take(&function.path).map_err(fail)?;
                    plan.with_batch_function(config, (&function, pool), dataset, start, &mut made)?
                }
            };
        }
        if has_functions {
            output::check_names(config, &fields, &made)?;
        }
        padding::describe(config, &mut plan.tensors)?;
        Ok(plan)
    }

    /// The stages before a Python stage, for its probe: they write no row.
    fn part(
        config: &Config,
        dataset: &dyn Dataset,
        fields: &FieldTypes,
        (stages, truncation): (Vec<Stage>, Option<Truncation>),
    ) -> Self {
        let decoders = fields.decoders.started();
        let fields = fields.fields.clone();
        let outputs = fields.iter().map(|_| None).collect();
        Self {
            stages,
            fields: planned_fields(dataset, fields, outputs),
            dataset_fields: dataset.fields().len(),
            tensors: RowTensors::default(),
            row_bytes: Vec::new(),
            batch_steps: Vec::new(),
            stage_count: config.stages.len(),
            buckets: None,
            jpeg_index: None,
            most_sound_bytes: config.dataset.limits.inflated_bytes,
            truncation,
            decoders,
        }
    }

    /// The function's result fields for the first readable samples.
    fn probe(
        &self,
        place: (usize, u64),
        body: &PythonBody,
        dataset: &dyn Dataset,
        read: SampleReader<'_>,
    ) -> Result<Found, String> {
        let mut scratch = WorkerScratch::default();
        let mut why_not = String::from("the dataset has no samples");
        let mut found = Found::default();
        for number in 0..dataset.kept_count().min(TRIED) {
            let id = dataset.kept_at(number).0;
            let key = DrawKey { seed: 0, epoch: 0, sample: id };
            let prepared = self.prepare_probe(place, body, key, dataset, read, &mut scratch);
            if let Err(reason) = prepared {
                why_not = reason;
                continue;
            }
            match body.probe(&scratch.call, &mut found) {
                Ok(true) if found.count() == PROBED => break,
                Ok(true) => {}
                // The function raised an exception: the sample may be the cause.
                Ok(false) => {}
                Err(reason) => {
                    why_not = reason;
                    // If no worker starts, other samples do not help.
                    if body.figures().calls.starts == 0 {
                        break;
                    }
                }
            }
        }
        if found.count() > 0 { Ok(found) } else { Err(found.raised.take().unwrap_or(why_not)) }
    }

    /// The function's result fields for one sample, called in the foreground.
    fn probe_in_foreground(
        &self,
        place: (usize, u64),
        body: &PythonBody,
        key: DrawKey,
        dataset: &dyn Dataset,
        read: SampleReader<'_>,
    ) -> Result<Found, String> {
        let mut scratch = WorkerScratch::default();
        self.prepare_probe(place, body, key, dataset, read, &mut scratch)
            .map_err(|why| format!("the sample does not come so far: {why}"))?;
        body.probe_in_foreground(&scratch.call)
    }

    /// Runs the stages before a Python stage on a sample, and makes it the only row of a call.
    fn prepare_probe(
        &self,
        (stage, first_operation): (usize, u64),
        body: &PythonBody,
        key: DrawKey,
        dataset: &dyn Dataset,
        read: SampleReader<'_>,
        scratch: &mut WorkerScratch,
    ) -> Result<(), String> {
        let mut task = SampleTask::new(SampleId(key.sample), key, Vec::new());
        read(&mut task)?;
        let run = |stage| self.run(stage, &mut task, dataset, &mut NoRow, scratch);
        (0..stage).try_for_each(run).map_err(|defect| defect.0)?;
        // The earlier stages may have made calls.
        self.begin_bundle(scratch);
        self.prepare((stage, first_operation), body, &mut task, dataset, scratch)
            .map_err(|defect| defect.0)
    }
}

/// The fields to decode with 16 bits, because `[output]` requests it. A Python stage may make such arrays of any field.
fn wide_outputs(config: &Config) -> Vec<String> {
    if config.stages.iter().any(|stage| stage.python.is_some()) {
        return Vec::new();
    }
    let wide = config.output.iter().filter(|output| output.dtype == Some(DType::U16));
    wide.map(|output| output.field.clone()).collect()
}

/// Whether operations of this crate come before the next Python stage.
fn is_followed_by_operations(stages: &[StageConfig]) -> bool {
    let mut native = stages.iter().take_while(|stage| stage.python.is_none());
    native.any(|stage| !stage.operations.is_empty())
}

/// By tensor: the element type of a ragged one.
fn lists(fields: &[FieldPlan], outputs: &[Option<FieldOutput>]) -> Vec<Option<ListKind>> {
    let written =
        fields.iter().zip(outputs).filter_map(|(field, output)| Some((field, output.as_ref()?)));
    let list = |(field, output): (&FieldPlan, &FieldOutput)| match output {
        FieldOutput::Image(_) | FieldOutput::Array { .. } => None,
        FieldOutput::RaggedArray { .. } => Some(ListKind::Array),
        FieldOutput::RaggedBytes if matches!(field.kind, FieldType::Raw(FieldKind::Text)) => {
            Some(ListKind::Text)
        }
        FieldOutput::RaggedBytes => Some(ListKind::Bytes),
    };
    written.map(list).collect()
}

fn planned_fields(
    dataset: &dyn Dataset,
    fields: Vec<FieldPlan>,
    outputs: Vec<Option<FieldOutput>>,
) -> Vec<PlannedField> {
    let mut kinds = dataset.fields().iter().map(|field| &field.kind);
    let mut tensor = 0..;
    let planned = |(field, output): (FieldPlan, Option<FieldOutput>)| {
        let kind = kinds.next();
        let worked_on = kind.filter(|_| field.last_stage.is_some() && !field.is_unchecked);
        // A function's result does not determine the dataset's type.
        let dataset_output = output.as_ref().filter(|_| !field.is_returned);
        PlannedField {
            expected: match (worked_on, dataset_output) {
                // An operation may give rows of another shape.
                (Some(FieldKind::RaggedArray { dtype, row_shape }), _) => {
                    Some(ExpectedArray::Ragged(*dtype, row_shape.clone()))
                }
                (
                    Some(FieldKind::Array { .. }),
                    Some(FieldOutput::RaggedArray { source, row_shape, .. }),
                ) => Some(ExpectedArray::Ragged(*source, row_shape.clone())),
                (Some(FieldKind::Array { dtype, shape }), _) => {
                    Some(ExpectedArray::Fixed(ArrayType { dtype: *dtype, shape: shape.clone() }))
                }
                _ => None,
            },
            is_called_with: field.is_unchecked || field.is_returned,
            name: field.name,
            last_stage: field.last_stage.unwrap_or(0),
            output: output.and_then(|output| Some((tensor.next()?, output))),
        }
    };
    fields.into_iter().zip(outputs).map(planned).collect()
}

/// The row of a sample that belongs to no batch.
struct NoRow;

impl Row for NoRow {
    fn dense(&mut self, _tensor: usize) -> &mut [u8] {
        &mut []
    }

    fn ragged(&mut self, _tensor: usize, _bytes: u64) -> Option<&mut [u8]> {
        None
    }

    fn ragged_bytes(&mut self, _tensor: usize) -> &[u8] {
        &[]
    }
}
