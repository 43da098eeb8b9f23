//! The user's function on complete batches: a batch is one row of a call, its columns are the row's fields.
//!
//! A column of fixed size is an array [rows, …] under the tensor's name. A ragged one has two parts: its elements, one
//! row after another, under the name with a word for their Python type, and the rows' lengths.

use std::sync::{Mutex, PoisonError};

use forebay_config::{Config, FinishedOn};
use forebay_dataset::Defect;
use forebay_keys::Value;
use forebay_order::Draws;
use forebay_protocol::tensor::DType;
use forebay_workers::{
    Arena, CallBuffer, FunctionTime, Outcome, Pool, ReplyKind, ReplyValue, RowSeed, RowTime, Source,
};

use super::columns::{Column, FoundColumns, found_columns, names_of, spec_of};
use super::pool::{FunctionFigures, figures_of};
use super::returned::{RETURNED_NONE, read_into};
use crate::batch::{BatchCaller, BatchFunction, BatchRow};
use crate::call_error::CallError;
use crate::needs::KEPT_BYTES;
use crate::output::without_preset;
use crate::row_tensors::RowTensors;

/// Rows up to this length are read together.
const SHORT_ROW_BYTES: usize = 4096;

/// The fields that a function makes and that `[output]` names.
pub(crate) type Made = Vec<String>;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct BatchBody {
    pool: Pool,
    arguments: String,
    inputs: Vec<Column>,
    input_names: Vec<String>,
    outputs: Vec<Column>,
    output_names: Vec<String>,
    /// Buffers of earlier calls, kept for reuse of their memory.
    buffers: Mutex<Vec<CallBuffer>>,
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl BatchBody {
    /// The function of these workers. Takes all tensors of the batch.
    pub(crate) fn new(
        pool: Pool,
        config: &Config,
        function: &BatchFunction,
        tensors: &RowTensors,
    ) -> Result<Self, String> {
        let inputs: Vec<Column> =
            tensors.numbers().iter().map(|number| Column::of(*number, tensors)).collect();
        if let Some(column) = inputs.iter().find(|column| column.dtype == DType::BF16) {
            return Err(format!(
                "`{name}` is bfloat16, which NumPy has not; set `output.{name}.dtype` to \"float32\" or \"float16\"",
                name = column.name
            ));
        }
        if let Some(output) = config.output.iter().find(|output| output.on == FinishedOn::Gpu) {
            return Err(format!(
                "`output.{name}.on = \"gpu\"` finishes images behind the function, which works on what they are then; leave \
                 the key out",
                name = output.field
            ));
        }
        let input_names = names_of(&inputs);
        let arguments = Value::Table(function.arguments.clone()).to_json();
        Ok(Self {
            pool,
            arguments: format!("{} {arguments}", function.target),
            inputs,
            input_names,
            outputs: Vec::new(),
            output_names: Vec::new(),
            buffers: Mutex::default(),
        })
    }

    /// Its path in the configuration.
    pub(crate) fn place(&self) -> &str {
        &self.pool.spec().stage
    }

    /// Its name in messages: the path and `module:function`.
    pub(crate) fn name(&self) -> String {
        format!("{}: {}", self.place(), self.pool.spec().target)
    }

    /// A text that differs if the function or its arguments differ.
    pub(crate) fn arguments(&self) -> String {
        self.arguments.clone()
    }

    /// `module:function`, and the module's file.
    pub(crate) fn source(&self) -> (&str, Source) {
        (&self.pool.spec().target, self.pool.source())
    }

    /// The cost of its calls so far.
    pub(crate) fn figures(&self) -> FunctionFigures<'_> {
        figures_of(&self.pool)
    }

    /// Number of workers, and a worker's memory limit.
    pub(crate) fn workers(&self) -> (u32, u64) {
        (self.pool.spec().workers, self.pool.spec().memory_bytes)
    }

    /// Maximal number of bytes that the daemon copies of a row for a call.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.inputs.iter().map(|column| column.element_bytes() as u64).sum()
    }

    /// Copies a batch for a call.
    fn copy_inputs(&self, rows: &mut [BatchRow<'_>], operation: u64, call: &mut CallBuffer) {
        let Some(first) = rows.first() else { return };
        let mut draws = Draws::new(first.key, operation);
        let words = std::array::from_fn(|_| draws.next_u64());
        call.clear();
        call.begin_row(RowSeed { id: first.key.sample, epoch: first.key.epoch, words });
        for column in &self.inputs {
            let (number, element_bytes) = (column.number, column.element_bytes());
            if column.list.is_none() {
                let shape = [&[rows.len() as u64], &column.row_shape[..]].concat();
                let mut to = call.array(column.dtype, &shape, rows.len() * element_bytes);
                for row in &mut *rows {
                    let (own, rest) = to.split_at_mut(element_bytes);
                    own.copy_from_slice(&row.row.dense(number)[..element_bytes]);
                    to = rest;
                }
                continue;
            }
            let lengths: Vec<usize> =
                rows.iter_mut().map(|row| row.row.ragged_bytes(number).len()).collect();
            let total = lengths.iter().sum();
            let elements = |bytes: usize| (bytes / element_bytes.max(1)) as u64;
            let shape = [&[elements(total)], &column.row_shape[..]].concat();
            let mut to = call.array(column.dtype, &shape, total);
            for (row, length) in rows.iter_mut().zip(&lengths) {
                let (own, rest) = to.split_at_mut(*length);
                own.copy_from_slice(&row.row.ragged_bytes(number)[..*length]);
                to = rest;
            }
            let to = call.array(DType::I64, &[rows.len() as u64], rows.len() * 8);
            for (to, length) in to.as_chunks_mut::<8>().0.iter_mut().zip(&lengths) {
                *to = elements(*length).to_ne_bytes();
            }
        }
    }

    /// Calls the function twice with a batch.
    ///
    /// # Errors
    /// It cannot be called, raised an exception, or its result is not a batch.
    pub(crate) fn probe(&self, rows: &mut [BatchRow<'_>]) -> Result<FoundColumns, String> {
        let mut call = CallBuffer::default();
        self.copy_inputs(rows, 0, &mut call);
        let names = as_strs(&self.input_names);
        let mut results = Vec::new();
        for _ in 0..2 {
            let mut probed = self.pool.probe(&call, &names)?;
            match probed.pop() {
                Some(Ok(found)) => results.push(found),
                Some(Err(raised)) => {
                    return Err(format!("{}\n\n{}", raised.summary, raised.traceback.trim_end()));
                }
                None => return Err(RETURNED_NONE.to_owned()),
            }
        }
        if results[0] != results[1] {
            tracing::warn!(
                operation = self.place(),
                "the function gives other bytes for the same batch and seed: batches will depend on timing. Draw from `rng`, \
                 `random`, `numpy.random` or torch's default generator, and keep nothing from call to call"
            );
        }
        found_columns(results.swap_remove(0).0, rows.len() as u64)
    }

    /// Changes the tensors of the batch to the function's results.
    pub(crate) fn declare(
        &mut self,
        found: &FoundColumns,
        config: &Config,
        tensors: &mut RowTensors,
        made: &mut Made,
    ) -> Result<(), String> {
        let mut numbers = Vec::new();
        for found in &found.0 {
            let known = self.inputs.iter().find(|input| input.name == found.name);
            let same = known.filter(|known| {
                (known.dtype, &known.row_shape, known.list)
                    == (found.dtype, &found.row_shape, found.list)
            });
            let number = match same {
                Some(same) => same.number,
                None => {
                    let output = config.output.iter().find(|output| output.field == found.name);
                    let before = known.map(|known| &tensors.all()[known.number]);
                    // A function's result is not a decoded image.
                    let own = output.map(|output| without_preset(config, output));
                    let spec = spec_of(found, before, own.as_deref())?;
                    if before.is_none() && output.is_some() {
                        made.push(found.name.clone());
                    }
                    tensors.add(spec, found.list)
                }
            };
            numbers.push(number);
            self.outputs.push(Column::of(number, tensors));
        }
        tensors.keep(numbers);
        self.output_names = names_of(&self.outputs);
        Ok(())
    }

    /// Calls the function with a batch and drops its result; returns the times.
    ///
    /// # Errors
    /// It cannot be called, or raised an exception.
    pub(crate) fn time(
        &self,
        rows: &mut [BatchRow<'_>],
        operation: u64,
    ) -> Result<FunctionTime, String> {
        let mut call = CallBuffer::default();
        self.copy_inputs(rows, operation, &mut call);
        self.pool.time(&call, &as_strs(&self.input_names))
    }

    /// Calls the function with a batch, and writes its result. Returns when it was called.
    ///
    /// # Errors
    /// The batch cannot be made.
    pub(crate) fn run(
        &self,
        rows: &mut [BatchRow<'_>],
        operation: u64,
        caller: &BatchCaller<'_>,
    ) -> Result<RowTime, CallError> {
        let buffers = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = buffers().pop();
        let mut call = kept.unwrap_or_default();
        self.copy_inputs(rows, operation, &mut call);
        let (inputs, outputs) = (as_strs(&self.input_names), as_strs(&self.output_names));
        let mut outcome = Err(CallError::Ending);
        let ran = self.pool.run(
            caller.thread,
            &call,
            (&inputs, &outputs),
            caller.is_ending,
            &mut |_, called| {
                outcome = match called {
                    Outcome::Done(values, arena) => {
                        self.write(rows, values, arena).map_err(CallError::of_result)
                    }
                    Outcome::Raised(raised) => Err(CallError::from(raised)),
                    Outcome::Crashes(how) => {
                        Err(CallError::of_result(Defect(format!("the batch {how}"))))
                    }
                    Outcome::Late(how) => Err(CallError::of_result(Defect(how.to_owned()))),
                };
            },
        );
        call.trim(KEPT_BYTES.max(usize::try_from(self.row_bytes()).unwrap_or(0) * rows.len()));
        buffers().push(call);
        let times = ran.map_err(CallError::from)?;
        outcome.map(|()| times.first().copied().unwrap_or_default())
    }

    fn write(
        &self,
        rows: &mut [BatchRow<'_>],
        values: &[ReplyValue],
        arena: &Arena,
    ) -> Result<(), Defect> {
        let mut values = values.iter();
        for column in &self.outputs {
            let value = values.next();
            match column.list {
                None => write_dense(column, value, arena, rows)?,
                Some(_) => write_ragged(column, (value, values.next()), arena, rows)?,
            }
        }
        Ok(())
    }
}

fn write_dense(
    column: &Column,
    value: Option<&ReplyValue>,
    arena: &Arena,
    rows: &mut [BatchRow<'_>],
) -> Result<(), Defect> {
    let expected = [&[rows.len() as u64], &column.row_shape[..]].concat();
    let value = array_of(column, value, column.dtype, |shape| *shape == expected)?;
    let (number, row_bytes) = (column.number, column.element_bytes());
    if row_bytes <= SHORT_ROW_BYTES {
        let mut bytes = Vec::new();
        read_into(&mut bytes, value, arena)?;
        for (row, bytes) in rows.iter_mut().zip(bytes.chunks_exact(row_bytes.max(1))) {
            row.row.dense(number)[..row_bytes].copy_from_slice(bytes);
        }
        return Ok(());
    }
    for (place, row) in (0..).zip(rows) {
        let to = &mut row.row.dense(number)[..row_bytes];
        let at = value.offset.saturating_add(place * row_bytes as u64);
        arena.read(to, at).map_err(|_| Defect(RETURNED_NONE.to_owned()))?;
    }
    Ok(())
}

fn write_ragged(
    column: &Column,
    (elements, lengths): (Option<&ReplyValue>, Option<&ReplyValue>),
    arena: &Arena,
    rows: &mut [BatchRow<'_>],
) -> Result<(), Defect> {
    let is_list = |shape: &[u64]| shape.get(1..) == Some(&column.row_shape[..]);
    let elements = array_of(column, elements, column.dtype, is_list)?;
    let lengths = array_of(column, lengths, DType::I64, |shape| *shape == [rows.len() as u64])?;
    let (mut bytes, mut counts) = (Vec::new(), Vec::new());
    read_into(&mut bytes, elements, arena)?;
    read_into(&mut counts, lengths, arena)?;
    let mut left = &bytes[..];
    for (row, count) in rows.iter_mut().zip(counts.as_chunks::<8>().0) {
        let count = usize::try_from(i64::from_ne_bytes(*count)).ok();
        let length = count.and_then(|count| count.checked_mul(column.element_bytes()));
        let own = length.and_then(|length| left.split_at_checked(length));
        let Some((own, rest)) = own else { return Err(Defect(RETURNED_NONE.to_owned())) };
        let bytes = own.len() as u64;
        let to = row.row.ragged(column.number, bytes);
        let to = to.ok_or_else(|| Defect::too_long(&column.name, bytes, None))?;
        to.copy_from_slice(own);
        left = rest;
    }
    Ok(())
}

/// A part of a column, if it has the type and shape of the probed one.
fn array_of<'v>(
    column: &Column,
    value: Option<&'v ReplyValue>,
    dtype: DType,
    is_shape: impl Fn(&[u64]) -> bool,
) -> Result<&'v ReplyValue, Defect> {
    let value = value.ok_or_else(|| Defect(RETURNED_NONE.to_owned()))?;
    match &value.kind {
        ReplyKind::Array(found, shape) if *found == dtype && is_shape(shape) => Ok(value),
        ReplyKind::Array(found, shape) => Err(Defect(format!(
            "`{name}` is {} {shape:?}, and {} {:?} a row for the first batch; return one type and shape each time, or, for \
             rows that differ in length, a list of them with `[output] {name} = {{ ragged = true, max_bytes = \"64KiB\" }}`, \
             which `batch[\"{name}\"].padded(0)` makes one array of",
            found.name(),
            column.dtype.name(),
            column.row_shape,
            name = column.name,
        ))),
        _ => Err(Defect(format!("`{}` is no array", column.name))),
    }
}
