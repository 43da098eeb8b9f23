//! A Python stage of a plan: rows are prepared one by one, called together, and written when their results arrive.

use std::time::Duration;

use super::{SamplePlan, StageBody, fetched};
use crate::call_error::CallError;
use crate::field::{FieldInProgress, Tools};
use crate::needs::KEPT_BYTES;
use crate::output::FieldOutput;
use crate::python::{BatchBody, FunctionFigures, PythonBody, RETURNED_NONE};
use crate::row::Row;
use crate::task::{SampleLists, SampleTask, WorkerScratch, emptied};
use forebay_dataset::{ArrayValue, Dataset, Defect};
use forebay_media::array::{ArrayType, check_type};
use forebay_order::Draws;
use forebay_workers::{
    Arena, FunctionTime, Outcome, ReplyKind, ReplyValue, RowSeed, RowTime, Source,
};

/// A row of a bundle.
pub struct CalledRow<'r> {
    /// Its prepared sample.
    pub task: &'r mut SampleTask,
    /// Its memory.
    pub row: &'r mut dyn Row,
    /// Its result.
    pub outcome: Result<(), CallError>,
    /// When the function was called for it, if a worker answered.
    pub time: Option<RowTime>,
}

impl SamplePlan {
    /// Whether a stage is a user's function.
    pub fn is_python(&self, stage: usize) -> bool {
        self.python(stage).is_some()
    }

    /// The `module:function` of each Python stage and the module's file, by the stage's number.
    pub fn python_sources(&self) -> impl Iterator<Item = (usize, (&str, Source))> {
        (0..self.stages.len()).filter_map(|stage| Some((stage, self.python(stage)?.0.source())))
    }

    /// As [`python_sources`](Self::python_sources), for functions on complete batches: by the operation's path.
    pub fn batch_sources(&self) -> impl Iterator<Item = (&str, (&str, Source))> {
        self.batch_functions().map(|body| (body.place(), body.source()))
    }

    /// The cost of a Python stage's calls so far.
    pub fn python_figures(&self, stage: usize) -> Option<FunctionFigures<'_>> {
        Some(self.python(stage)?.0.figures())
    }

    /// The same for each function on complete batches.
    pub fn batch_function_figures(&self) -> impl Iterator<Item = FunctionFigures<'_>> {
        self.batch_functions().map(BatchBody::figures)
    }

    /// CPU time of all workers, and of the processes that decode videos.
    #[must_use]
    pub fn workers_cpu_time(&self) -> Duration {
        let stages = (0..self.stages.len()).filter_map(|stage| self.python_figures(stage));
        let functions = stages.chain(self.batch_function_figures());
        self.decoders_cpu_time() + functions.map(|figures| figures.calls.cpu).sum::<Duration>()
    }

    fn python(&self, stage: usize) -> Option<(&PythonBody, u64)> {
        match self.stages.get(stage) {
            Some(stage) => match &stage.body {
                StageBody::Python(body) => Some((body, stage.first_operation)),
                StageBody::Native(_) => None,
            },
            None => None,
        }
    }

    /// Starts a new bundle.
    pub fn begin_bundle(&self, scratch: &mut WorkerScratch) {
        scratch.call.clear();
    }

    /// Bytes of the bundle's fields so far.
    #[must_use]
    pub fn bundle_bytes(&self, scratch: &WorkerScratch) -> usize {
        scratch.call.input_bytes()
    }

    /// Adds a sample to the bundle: decodes its undecoded fields, and copies them.
    ///
    /// # Errors
    /// The sample is bad, and not in the bundle.
    pub fn prepare_row(
        &self,
        stage: usize,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        let Some((body, first_operation)) = self.python(stage) else {
            return Err(Defect(format!("stage {stage} is no Python stage")));
        };
        scratch.tools.image.decoders.use_jpeg_index(self.jpeg_index.as_ref());
        let prepared = self.prepare((stage, first_operation), body, task, dataset, scratch);
        scratch.tools.trim();
        prepared
    }

    /// See [`prepare_row`](Self::prepare_row).
    pub(super) fn prepare(
        &self,
        (stage, first_operation): (usize, u64),
        body: &PythonBody,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        let SampleTask { id, key, bytes, part_ends, shared, in_place, carried: carried_on } = task;
        let fetched = fetched(bytes, part_ends, shared);
        let WorkerScratch { tools, lists, call } = scratch;
        tools.bucket = self.bucket_of(*id);
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
        let mut draws = Draws::new(*key, first_operation);
        let words = std::array::from_fn(|_| draws.next_u64());
        call.begin_row(RowSeed { id: key.sample, epoch: key.epoch, words });
        let copied = body.copy_inputs(&mut fields, call, tools);
        if copied.is_err() {
            call.abandon_row();
        }
        for field in fields.drain(..) {
            field.recycle(tools);
        }
        lists.fields = emptied(fields);
        carried.clear();
        lists.carried = carried;
        copied
    }

    /// Calls the function with the rows of the bundle, which are those of `rows` in the same order, and writes the
    /// fields that no later stage processes. `thread` distinguishes the stage's threads, so that each keeps a worker.
    pub fn call_bundle(
        &self,
        stage: usize,
        rows: &mut [CalledRow<'_>],
        thread: usize,
        scratch: &mut WorkerScratch,
        is_ending: &dyn Fn() -> bool,
    ) {
        let Some((body, _)) = self.python(stage) else { return };
        let WorkerScratch { tools, lists, call } = scratch;
        let mut is_done = vec![false; rows.len()];
        let ran = body.call(thread, call, is_ending, &mut |number, outcome| {
            let Some(row) = rows.get_mut(number) else { return };
            is_done[number] = true;
            row.outcome = match outcome {
                Outcome::Done(values, arena) => {
                    self.take_results(stage, body, (values, arena), row, (tools, lists))
                }
                Outcome::Raised(raised) => Err(CallError::from(raised)),
                Outcome::Crashes(how) => Err(CallError::Defect(how.to_owned())),
                Outcome::Late(how) => Err(CallError::of_result(Defect(how.to_owned()))),
            };
        });
        match ran {
            Ok(times) => {
                for (row, time) in rows.iter_mut().zip(times) {
                    row.time = (time != RowTime::default()).then_some(time);
                }
            }
            Err(lost) => {
                let error = CallError::from(lost);
                for (row, _) in rows.iter_mut().zip(&is_done).filter(|(_, is_done)| !**is_done) {
                    row.outcome = Err(error.clone());
                }
            }
        }
        call.trim(KEPT_BYTES);
    }

    /// Calls the function with the rows of the bundle and drops its results; returns the times.
    ///
    /// # Errors
    /// It cannot be called, or raised an exception.
    pub fn time_bundle(
        &self,
        stage: usize,
        scratch: &WorkerScratch,
    ) -> Result<FunctionTime, String> {
        let Some((body, _)) = self.python(stage) else {
            return Err(format!("stage {stage} is no Python stage"));
        };
        body.time(&scratch.call)
    }

    /// Calls the function with a bundle of one row.
    pub(super) fn call_alone(
        &self,
        stage: usize,
        task: &mut SampleTask,
        dataset: &dyn Dataset,
        row: &mut dyn Row,
        scratch: &mut WorkerScratch,
    ) -> Result<(), Defect> {
        self.begin_bundle(scratch);
        self.prepare_row(stage, task, dataset, scratch)?;
        let mut rows = [CalledRow { task, row, outcome: Ok(()), time: None }];
        self.call_bundle(stage, &mut rows, 0, scratch, &|| false);
        let [row] = rows;
        row.outcome.map_err(|error| Defect(error.to_string()))
    }

    fn take_results(
        &self,
        stage: usize,
        body: &PythonBody,
        (values, arena): (&[ReplyValue], &Arena),
        called: &mut CalledRow<'_>,
        (tools, lists): (&mut Tools, &mut SampleLists),
    ) -> Result<(), CallError> {
        let mut fields: Vec<FieldInProgress<'_>> = emptied(std::mem::take(&mut lists.fields));
        fields.resize_with(self.fields.len(), || FieldInProgress::Absent);
        let taken = body.outputs().zip(values).try_for_each(|(output, value)| {
            let number = output.field;
            let name = &self.fields[number].name;
            let is_in_place = output.returned.is_array()
                && self.read_into_row(stage, number, value, arena, called.row)?;
            fields[number] = match is_in_place {
                true => FieldInProgress::InPlace,
                false => output.returned.read(name, value, arena, tools)?,
            };
            output.size.note(value.bytes);
            Ok::<_, Defect>(())
        });
        let SampleTask { id, bytes, part_ends, shared, carried, .. } = &mut *called.task;
        tools.bucket = self.bucket_of(*id);
        let fetched = fetched(bytes, part_ends, shared);
        // A row's results may arrive a second time.
        carried.clear();
        let closed = taken
            .and_then(|()| self.close(stage, &mut fields, fetched, carried, called.row, tools));
        fields.clear();
        lists.fields = emptied(fields);
        closed.map_err(CallError::of_result)
    }

    /// Copies an array from the arena directly into its row, if it is written unchanged; false: it must be converted.
    fn read_into_row(
        &self,
        stage: usize,
        field: usize,
        value: &ReplyValue,
        arena: &Arena,
        row: &mut dyn Row,
    ) -> Result<bool, Defect> {
        let planned = &self.fields[field];
        let (Some((tensor, FieldOutput::Array { expected, .. })), ReplyKind::Array(dtype, shape)) =
            (&planned.output, &value.kind)
        else {
            return Ok(false);
        };
        if !self.is_read_into_row(stage, field) {
            return Ok(false);
        }
        let found = ArrayType { dtype: *dtype, shape: shape.clone() };
        let found = ArrayValue {
            dtype: found.dtype,
            shape: found.shape.into(),
            fortran_order: false,
            big_endian: cfg!(target_endian = "big"),
            bytes: (&[]).into(),
        };
        check_type(&planned.name, &found, expected)?;
        let to = self.dense(row, *tensor, None)?;
        if arena.read(to, value.offset).is_err() {
            return Err(Defect(RETURNED_NONE.to_owned()));
        }
        Ok(true)
    }
}
