//! A Python stage between the fields before it and the fields that its function returns.
//!
//! Its function is called with all fields at that point. Its result fields are determined by calls at the start, and
//! keep their types from then on.

mod batch;
mod columns;
mod output_size;
mod pool;
mod reckon;
mod returned;
mod scalar;

use forebay_dataset::{Defect, FieldKind};
use forebay_keys::SourceLocation;
use forebay_protocol::tensor::DType;
use forebay_workers::{
    Arena, CallBuffer, Declared, DeclaredKind, FunctionTime, Lost, Number, Outcome, Pool, Raised,
    ReplyKind, ReplyValue, RowTime, Source,
};

pub(crate) use self::batch::{BatchBody, Made};
use self::output_size::OutputSize;
pub use self::pool::FunctionFigures;
pub(crate) use self::pool::Pools;
use self::pool::figures_of;
pub(crate) use self::returned::RETURNED_NONE;
use self::returned::read_into;
use super::contract::{FieldType, FieldTypes, ImageType, PlannedSize};
use super::field::{FieldInProgress, Tools};
use super::image::{PLAIN, PendingImage};
use forebay_media::array::{ArrayBuffer, write_array};
use forebay_media::size::Size;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct PythonBody {
    pool: Pool,
    inputs: Vec<(usize, InputKind)>,
    input_names: Vec<String>,
    outputs: Vec<Output>,
    output_names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputKind {
    Text,
    Other,
}

/// An output.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) field: usize,
    pub(crate) returned: Returned,
    pub(crate) size: OutputSize,
}

/// The type of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    /// An array, written unchanged.
    Array,
    /// A scalar with a NumPy type.
    Scalar(DType),
    /// Pixels for later operations: uint8, [height, width, channels].
    Image {
        channels: u8,
    },
    Bytes,
    Text,
    Integer,
    Float,
}

/// The configuration for a function's results.
pub(crate) struct Returns<'c> {
    /// Whether `[output]` declares a field as ragged.
    pub is_ragged: &'c dyn Fn(&str) -> bool,
    /// Whether operations on images follow.
    pub may_be_images: bool,
    /// For messages.
    pub location: SourceLocation,
}

/// The results of the probe.
#[derive(Debug, Default)]
pub(crate) struct Found {
    names: Vec<String>,
    kinds: Vec<Vec<DeclaredKind>>,
    /// The first exception.
    pub raised: Option<String>,
}

impl Found {
    /// Number of samples with a result.
    pub(crate) fn count(&self) -> usize {
        self.kinds.len()
    }

    fn note_raised(&mut self, raised: &Raised) {
        let text = || format!("{}\n\n{}", raised.summary, raised.traceback.trim_end());
        self.raised.get_or_insert_with(text);
    }

    /// Adds the result fields of a sample.
    fn note(&mut self, fields: Vec<Declared>) -> Result<(), String> {
        let (names, kinds): (Vec<_>, Vec<_>) =
            fields.into_iter().map(|field| (field.name, field.kind)).unzip();
        if self.kinds.is_empty() {
            self.names = names;
        } else if self.names != names {
            return Err(format!(
                "its function returns the fields {names:?} for one sample and {:?} for another; a batch needs the same \
                 fields of each",
                self.names
            ));
        }
        self.kinds.push(kinds);
        Ok(())
    }
}

impl PythonBody {
    /// The stage of these workers. Takes all fields.
    pub(crate) fn new(pool: Pool, fields: &mut FieldTypes) -> Self {
        let mut inputs = Vec::new();
        let mut input_names = Vec::new();
        let stage = fields.stage;
        for (number, field) in fields.fields.iter_mut().enumerate() {
            if field.is_dropped {
                continue;
            }
            let is_text = matches!(field.kind, FieldType::Raw(FieldKind::Text));
            inputs.push((number, if is_text { InputKind::Text } else { InputKind::Other }));
            input_names.push(field.name.clone());
            field.is_unchecked |= field.last_stage.is_none();
            field.last_stage = Some(stage);
        }
        Self { pool, inputs, input_names, outputs: Vec::new(), output_names: Vec::new() }
    }

    /// `module:function`, and the module's file.
    pub(crate) fn source(&self) -> (&str, Source) {
        (&self.pool.spec().target, self.pool.source())
    }

    /// The cost of its calls so far.
    pub(crate) fn figures(&self) -> FunctionFigures<'_> {
        figures_of(&self.pool)
    }

    /// The outputs' fields and types, in the order of a reply.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Output> {
        self.outputs.iter()
    }

    /// Copies a sample's fields for a call.
    pub(crate) fn copy_inputs(
        &self,
        fields: &mut [FieldInProgress<'_>],
        call: &mut CallBuffer,
        tools: &mut Tools,
    ) -> Result<(), Defect> {
        for (place, (number, kind)) in self.inputs.iter().enumerate() {
            let field = &mut fields[*number];
            match field {
                FieldInProgress::Image(image) => {
                    let (size, channels) = (image.size(), image.channels());
                    let shape = [size.height.into(), size.width.into(), u64::from(channels)];
                    let bytes = size.height as usize * size.width as usize * usize::from(channels);
                    image.write(&PLAIN, call.array(DType::U8, &shape, bytes), &mut tools.image)?;
                }
                FieldInProgress::File(bytes) => call.bytes(bytes),
                FieldInProgress::Bytes(bytes) if *kind == InputKind::Text => call.text(bytes),
                FieldInProgress::Bytes(bytes) => call.bytes(bytes),
                FieldInProgress::Number(DType::F64, bytes) => {
                    call.number(Number::Float(f64::from_ne_bytes(*bytes)));
                }
                FieldInProgress::Number(_, bytes) => {
                    call.number(Number::Integer(i64::from_ne_bytes(*bytes)));
                }
                FieldInProgress::Array(_) | FieldInProgress::Buffer(_) => {
                    let Some(array) = field.elements() else { continue };
                    let to = call.array(array.dtype, &array.shape, array.bytes.len());
                    write_array(
                        &self.input_names[place],
                        &array,
                        array.dtype,
                        &mut tools.reordered,
                        to,
                    )?;
                }
                FieldInProgress::Files(_) => {
                    return Err(Defect(
                        "a Python stage takes no list of image files; put `image-patches` before it".to_owned(),
                    ));
                }
                FieldInProgress::Absent
                | FieldInProgress::InPlace
                | FieldInProgress::Sound(_)
                | FieldInProgress::Clip(_)
                | FieldInProgress::Video(_) => {
                    return Err(Defect(format!("a Python stage found {}", field.describe())));
                }
            }
        }
        Ok(())
    }

    /// Calls the function with the prepared rows.
    pub(crate) fn call(
        &self,
        thread: usize,
        call: &CallBuffer,
        is_ending: &dyn Fn() -> bool,
        done: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<Vec<RowTime>, Lost> {
        let inputs = self.input_names();
        let outputs: Vec<&str> = self.output_names.iter().map(String::as_str).collect();
        self.pool.run(thread, call, (&inputs, &outputs), is_ending, done)
    }

    /// Calls the function with the prepared rows and drops its results.
    ///
    /// # Errors
    /// It cannot be called, or raised an exception.
    pub(crate) fn time(&self, call: &CallBuffer) -> Result<FunctionTime, String> {
        self.pool.time(call, &self.input_names())
    }

    /// Calls the function twice with one sample; false: it raised an exception.
    ///
    /// # Errors
    /// It cannot be called at all, or returns other fields than before.
    pub(crate) fn probe(&self, call: &CallBuffer, found: &mut Found) -> Result<bool, String> {
        let names = self.input_names();
        let mut digests = Vec::new();
        for attempt in 0..2 {
            for row in self.pool.probe(call, &names)? {
                match row {
                    Err(raised) => {
                        found.note_raised(&raised);
                        return Ok(false);
                    }
                    Ok((fields, digest)) => {
                        digests.push(digest);
                        if attempt == 0 {
                            found.note(fields)?;
                        }
                    }
                }
            }
        }
        if digests.windows(2).any(|pair| pair[0] != pair[1]) && found.count() == 1 {
            let stage = &self.pool.spec().stage;
            tracing::warn!(
                stage,
                "the function gives other bytes for the same sample and seed: batches will depend on timing. Draw from \
                 `rng`, `random`, `numpy.random` or torch's default generator, and keep nothing from call to call"
            );
        }
        Ok(true)
    }

    /// Calls the function with one sample in the foreground; the result is kept for the call of its row.
    ///
    /// # Errors
    /// It cannot be called, or raised an exception: its traceback.
    pub(crate) fn probe_in_foreground(&self, call: &CallBuffer) -> Result<Found, String> {
        let mut found = Found::default();
        for row in self.pool.probe_in_foreground(call, &self.input_names())? {
            match row {
                Err(raised) => found.note_raised(&raised),
                Ok((fields, _)) => found.note(fields)?,
            }
        }
        found.raised.take().map_or(Ok(found), Err)
    }

    fn input_names(&self) -> Vec<&str> {
        self.input_names.iter().map(String::as_str).collect()
    }

    /// Changes the fields to the function's results.
    pub(crate) fn declare(
        &mut self,
        found: &Found,
        returns: &Returns<'_>,
        fields: &mut FieldTypes,
    ) -> Result<(), String> {
        let stage = fields.stage;
        for (place, name) in found.names.iter().enumerate() {
            let kinds: Vec<&DeclaredKind> = found.kinds.iter().map(|kinds| &kinds[place]).collect();
            let (kind, returned) = merge(name, &kinds, returns)?;
            let known = fields.present().find(|(_, field)| field.name == *name);
            let known = known.map(|(number, _)| number);
            let number = match known {
                Some(number) => number,
                None => fields.add(name, kind.clone())?,
            };
            let seen_bytes = kinds.iter().map(|kind| kind.bytes()).max().unwrap_or(0);
            let size = OutputSize::of(&kind, seen_bytes);
            let field = &mut fields.fields[number];
            (field.kind, field.last_stage, field.is_returned) = (kind, Some(stage), true);
            field.output_dtype = None;
            field.max_row_bytes = None;
            field.tokens = None;
            field.image_grids = None;
            self.outputs.push(Output { field: number, returned, size });
            self.output_names.push(name.clone());
        }
        for (number, _) in &self.inputs {
            let field = &mut fields.fields[*number];
            field.is_dropped = !found.names.contains(&field.name);
        }
        Ok(())
    }
}

/// The type of a field, from its types for some samples.
fn merge(
    name: &str,
    kinds: &[&DeclaredKind],
    returns: &Returns<'_>,
) -> Result<(FieldType, Returned), String> {
    let raw = |kind| FieldType::Raw(kind);
    let is = |wanted: &[DeclaredKind]| kinds.iter().all(|kind| wanted.contains(kind));
    match scalar::merged(kinds) {
        Some(DeclaredKind::Integer) => return Ok((raw(FieldKind::Integer), Returned::Integer)),
        Some(_) => return Ok((raw(FieldKind::Float), Returned::Float)),
        None => {}
    }
    if is(&[DeclaredKind::Bytes]) {
        return Ok((raw(FieldKind::Bytes), Returned::Bytes));
    }
    if is(&[DeclaredKind::Text]) {
        return Ok((raw(FieldKind::Text), Returned::Text));
    }
    let arrays: Option<Vec<(DType, &[u64])>> = kinds
        .iter()
        .map(|kind| match kind {
            DeclaredKind::Array(dtype, shape) => Some((*dtype, shape.as_slice())),
            _ => None,
        })
        .collect();
    let (Some(arrays), Some(first)) = (arrays, kinds.first()) else {
        let other = kinds.iter().find(|kind| Some(*kind) != kinds.first());
        return Err(format!(
            "`{name}` is {} for one sample and {} for another",
            kinds.first().map_or_else(String::new, |kind| describe(kind)),
            other.map_or_else(String::new, |kind| describe(kind)),
        ));
    };
    let (dtype, shape) = arrays[0];
    let other = arrays.iter().find(|array| **array != arrays[0]);
    if returns.may_be_images && dtype == DType::U8 {
        let channels = |shape: &[u64]| match shape {
            [_, _, channels @ (1 | 3 | 4)] => u8::try_from(*channels).ok(),
            _ => None,
        };
        if let Some(channels) = channels(shape)
            && arrays.iter().all(|(kind, shape)| {
                *kind == DType::U8 && shape.last() == Some(&channels.into()) && shape.len() == 3
            })
        {
            let side = |side: u64| u32::try_from(side).unwrap_or(u32::MAX);
            let size = Size { width: side(shape[1]), height: side(shape[0]) };
            let size = other.is_none().then_some(PlannedSize::Fixed(size));
            let location = returns.location.clone();
            let image = ImageType {
                channels,
                is_wide: false,
                size,
                video: None,
                normalization: None,
                location,
            };
            return Ok((FieldType::Image(image), Returned::Image { channels }));
        }
    }
    let differs_in_length_alone = arrays.iter().all(|(kind, other)| {
        *kind == dtype && !other.is_empty() && other.get(1..) == shape.get(1..)
    });
    if differs_in_length_alone && ((returns.is_ragged)(name) || other.is_some()) {
        let row_shape = shape.get(1..).unwrap_or_default().to_vec();
        return Ok((raw(FieldKind::RaggedArray { dtype, row_shape }), Returned::Array));
    }
    if let Some((other_dtype, other_shape)) = other {
        return Err(format!(
            "`{name}` is {} for one sample and {} {other_shape:?} for another; only the first dimension may differ, with \
             `[output] {name} = {{ ragged = true, max_bytes = \"64KiB\" }}`",
            describe(first),
            other_dtype.name(),
        ));
    }
    let returned = if shape.is_empty() { Returned::Scalar(dtype) } else { Returned::Array };
    Ok((raw(FieldKind::Array { dtype, shape: shape.to_vec() }), returned))
}

fn describe(kind: &DeclaredKind) -> String {
    match kind {
        DeclaredKind::Array(dtype, shape) => format!("{} {shape:?}", dtype.name()),
        DeclaredKind::Bytes => "bytes".to_owned(),
        DeclaredKind::Text => "text".to_owned(),
        DeclaredKind::Integer => "a whole number".to_owned(),
        DeclaredKind::Float => "a number".to_owned(),
    }
}

impl Returned {
    /// Reads a result out of the arena.
    ///
    /// # Errors
    /// Its type differs from the type at the start.
    pub(crate) fn read(
        self,
        name: &str,
        value: &ReplyValue,
        arena: &Arena,
        tools: &mut Tools,
    ) -> Result<FieldInProgress<'static>, Defect> {
        Ok(match (self, &value.kind) {
            (Self::Scalar(dtype), ReplyKind::Number(number)) => {
                let mut buffer: ArrayBuffer = tools.spare_array();
                buffer.dtype = dtype;
                buffer.shape.clear();
                buffer.bytes = scalar::to_bytes(*number, dtype)
                    .ok_or_else(|| self.refusal(name, &describe_reply(&value.kind)))?;
                FieldInProgress::Buffer(buffer)
            }
            (Self::Array | Self::Scalar(_), ReplyKind::Array(dtype, shape)) => {
                let mut buffer: ArrayBuffer = tools.spare_array();
                buffer.dtype = *dtype;
                buffer.shape.clone_from(shape);
                read_into(&mut buffer.bytes, value, arena)?;
                FieldInProgress::Buffer(buffer)
            }
            (Self::Image { channels }, ReplyKind::Array(DType::U8, shape))
                if shape.len() == 3 && shape[2] == u64::from(channels) && value.bytes > 0 =>
            {
                let side = |side: u64| {
                    u32::try_from(side)
                        .map_err(|_| Defect(format!("`{name}` has {side} pixels a side")))
                };
                let size = Size { width: side(shape[1])?, height: side(shape[0])? };
                let mut pixels = Vec::new();
                read_into(&mut pixels, value, arena)?;
                FieldInProgress::Image(PendingImage::from_pixels(pixels, size, channels))
            }
            (Self::Bytes, ReplyKind::Bytes) | (Self::Text, ReplyKind::Text) => {
                let mut bytes = Vec::new();
                read_into(&mut bytes, value, arena)?;
                if self == Self::Text && std::str::from_utf8(&bytes).is_err() {
                    return Err(Defect(RETURNED_NONE.to_owned()));
                }
                FieldInProgress::Bytes(bytes.into())
            }
            (Self::Integer, ReplyKind::Number(Number::Integer(number))) => {
                FieldInProgress::Number(DType::I64, number.to_ne_bytes())
            }
            (Self::Float, ReplyKind::Number(number)) => float_field(*number),
            (Self::Float, ReplyKind::Array(dtype, shape)) if shape.is_empty() => {
                float_field(scalar::read(*dtype, value, arena)?)
            }
            (Self::Integer, ReplyKind::Array(dtype, shape)) if shape.is_empty() => {
                let Number::Integer(number) = scalar::read(*dtype, value, arena)? else {
                    return Err(self.refusal(name, &describe_reply(&value.kind)));
                };
                FieldInProgress::Number(DType::I64, number.to_ne_bytes())
            }
            (_, found) => return Err(self.refusal(name, &describe_reply(found))),
        })
    }

    /// Whether it may be copied from the arena to its row unchanged.
    pub(crate) const fn is_array(self) -> bool {
        !matches!(self, Self::Integer | Self::Float)
    }

    fn refusal(self, name: &str, found: &str) -> Defect {
        Defect(format!("`{name}` is {found}, and {} for the first samples", self.describe()))
    }

    fn describe(self) -> String {
        match self {
            Self::Array => "an array".to_owned(),
            Self::Scalar(dtype) => format!("{} []", dtype.name()),
            Self::Image { channels } => format!("uint8 [height, width, {channels}]"),
            Self::Bytes => "bytes".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Integer => "a whole number".to_owned(),
            Self::Float => "a number".to_owned(),
        }
    }
}

fn describe_reply(found: &ReplyKind) -> String {
    match found {
        ReplyKind::Array(dtype, shape) => format!("{} {shape:?}", dtype.name()),
        ReplyKind::Bytes => "bytes".to_owned(),
        ReplyKind::Text => "text".to_owned(),
        ReplyKind::Number(Number::Integer(number)) => format!("the whole number {number}"),
        ReplyKind::Number(Number::Float(number)) => format!("the number {number}"),
    }
}

fn float_field(number: Number) -> FieldInProgress<'static> {
    let number = match number {
        Number::Float(number) => number,
        #[expect(clippy::cast_precision_loss, reason = "as Python's float() of it")]
        Number::Integer(number) => number as f64,
    };
    FieldInProgress::Number(DType::F64, number.to_ne_bytes())
}
