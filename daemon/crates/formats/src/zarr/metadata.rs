//! The metadata of an array: `.zarray` of format 2, `zarr.json` of format 3.

use forebay_protocol::tensor::{DType, MAX_RANK};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file of an array of format 2.
pub(crate) const V2: &str = ".zarray";
/// The file of an array, or a group, of format 3.
pub(crate) const V3: &str = "zarr.json";
/// The most chunks of a shard, each of which has a record in its index.
const MAX_SHARD_CHUNKS: u64 = 1 << 22;
/// The most chunks of an array: more than any store has, and far from an overflow.
const MAX_CHUNKS: u64 = 1 << 48;

/// How the bytes of a chunk are encoded, after their elements are put in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ByteCodec {
    Gzip,
    Zlib,
    Zstd,
    /// A block after its size.
    Lz4,
    Blosc,
    /// The checksum follows.
    Crc32c,
}

/// An array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZarrArray {
    pub(crate) shape: Vec<u64>,
    /// The shape of a chunk, which those at the ends have too.
    pub(crate) chunk: Vec<u64>,
    /// The axes in the order in which a chunk has them.
    pub(crate) order: Vec<usize>,
    pub(crate) dtype: String,
    pub(crate) big_endian: bool,
    /// An element of a chunk that does not exist, as stored.
    pub(crate) fill: Vec<u8>,
    /// In the order in which they were applied.
    pub(crate) codecs: Vec<ByteCodec>,
    /// Before the numbers in the name of a chunk.
    pub(crate) prefix: String,
    /// Between the numbers.
    pub(crate) separator: char,
    /// The files that chunks are in, if a file has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shards: Option<Box<Shards>>,
}

/// Files of several chunks each, with an index of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shards {
    /// The array whose chunks are the files.
    pub(crate) files: ZarrArray,
    /// Whether the index is at the start of a file, and not at its end.
    pub(crate) is_first: bool,
    /// Whether a checksum follows the index.
    pub(crate) has_checksum: bool,
}

#[derive(Deserialize)]
struct Of2 {
    zarr_format: u64,
    shape: Vec<u64>,
    chunks: Vec<u64>,
    dtype: Value,
    compressor: Option<Value>,
    #[serde(default)]
    fill_value: Value,
    order: String,
    #[serde(default)]
    filters: Option<Vec<Value>>,
    #[serde(default)]
    dimension_separator: Option<String>,
}

#[derive(Deserialize)]
struct Of3 {
    zarr_format: u64,
    node_type: String,
    #[serde(default)]
    shape: Vec<u64>,
    #[serde(default)]
    data_type: Value,
    #[serde(default)]
    chunk_grid: Named,
    #[serde(default)]
    chunk_key_encoding: Named,
    #[serde(default)]
    fill_value: Value,
    #[serde(default)]
    codecs: Vec<Named>,
}

/// An extension point of format 3: a name, or a name and its configuration.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(from = "Value")]
struct Named {
    name: String,
    configuration: Value,
}

impl From<Value> for Named {
    fn from(value: Value) -> Self {
        let name = value.as_str().or_else(|| value.get("name")?.as_str()).unwrap_or_default();
        let configuration = value.get("configuration").cloned().unwrap_or_default();
        Self { name: name.to_owned(), configuration }
    }
}

impl Named {
    fn text(&self, key: &str) -> Option<&str> {
        self.configuration.get(key)?.as_str()
    }
}

/// Whether a `zarr.json` is of a group.
pub(crate) fn is_group(json: &[u8]) -> bool {
    serde_json::from_slice::<Of3>(json).is_ok_and(|node| node.node_type == "group")
}

impl ZarrArray {
    /// Reads `.zarray`, or `zarr.json`.
    ///
    /// # Errors
    /// The text is malformed, or the array is not supported, with the reason.
    pub(crate) fn parse(json: &[u8], is_v3: bool) -> Result<Self, String> {
        let array = match is_v3 {
            true => Self::of_3(json),
            false => Self::of_2(json),
        }?;
        array.check()?;
        Ok(array)
    }

    fn of_2(json: &[u8]) -> Result<Self, String> {
        let of: Of2 = serde_json::from_slice(json).map_err(|error| malformed(&error))?;
        if of.zarr_format != 2 {
            return Err(format!("its zarr_format is {}, and a {V2} is of 2", of.zarr_format));
        }
        let descr = of.dtype.as_str().ok_or_else(|| {
            "its elements have several fields; store each as an array of numbers".to_owned()
        })?;
        let (dtype, big_endian) = element(descr)
            .ok_or_else(|| format!("its elements are {descr:?}; numbers and booleans are read"))?;
        if let Some(filter) = of.filters.iter().flatten().next() {
            return Err(format!(
                "it has the filter {:?}; arrays without filters are read",
                id_of(filter)
            ));
        }
        let compressor = of.compressor.filter(|value| !value.is_null());
        let codecs = compressor.map(|value| codec_of(&id_of(&value))).transpose()?;
        let order = match of.order.as_str() {
            "C" => (0..of.shape.len()).collect(),
            "F" => (0..of.shape.len()).rev().collect(),
            other => return Err(format!("its order is {other:?}, and C and F are known")),
        };
        let separator = separator(of.dimension_separator.as_deref().unwrap_or("."))?;
        let fill = fill_of(&of.fill_value, dtype, big_endian)?;
        let (prefix, codecs) = (String::new(), codecs.into_iter().collect());
        let (shape, chunk, dtype) = (of.shape, of.chunks, dtype.name().to_owned());
        let shards = None;
        Ok(Self { shape, chunk, order, dtype, big_endian, fill, codecs, prefix, separator, shards })
    }

    fn of_3(json: &[u8]) -> Result<Self, String> {
        let of: Of3 = serde_json::from_slice(json).map_err(|error| malformed(&error))?;
        if of.zarr_format != 3 || of.node_type != "array" {
            return Err(format!(
                "it is of zarr_format {} and a node of the type {:?}, not an array of format 3",
                of.zarr_format, of.node_type
            ));
        }
        let name = of.data_type.as_str().unwrap_or("an extension");
        let dtype = DType::from_name(name)
            .ok_or_else(|| format!("its elements are {name:?}; numbers and booleans are read"))?;
        if of.chunk_grid.name != "regular" {
            return Err(format!("its chunks are {:?}; regular ones are read", of.chunk_grid.name));
        }
        let chunk = numbers(of.chunk_grid.configuration.get("chunk_shape"))
            .ok_or("it does not have the shape of its chunks")?;
        let encoding = &of.chunk_key_encoding;
        let (prefix, usual) = match encoding.name.as_str() {
            "default" => ("c", "/"),
            "v2" => ("", "."),
            other => return Err(format!("its chunks are named by {other:?}, which is not known")),
        };
        let separator = separator(encoding.text("separator").unwrap_or(usual))?;
        let shape = of.shape;
        let axes = shape.len();
        let (inner, is_first, has_checksum) = match &of.codecs[..] {
            [only] if only.name == "sharding_indexed" => {
                let Sharding { chunk, codecs, is_first, has_checksum } = Sharding::of(only)?;
                (Some((chunk, codecs)), is_first, has_checksum)
            }
            _ => (None, false, false),
        };
        let codecs = inner.as_ref().map_or(&of.codecs[..], |(_, codecs)| codecs);
        let Encoding { order, codecs, big_endian } = Encoding::of(codecs, dtype, axes)?;
        let fill = fill_of(&of.fill_value, dtype, big_endian)?;
        let (prefix, dtype, shards) = (prefix.to_owned(), dtype.name().to_owned(), None);
        let mut array = Self {
            shape,
            chunk,
            order,
            dtype,
            big_endian,
            fill,
            codecs,
            prefix,
            separator,
            shards,
        };
        if let Some((chunk, _)) = inner {
            let sides = array.chunk.iter().zip(&chunk);
            if chunk.len() != array.chunk.len()
                || sides.clone().any(|(all, side)| *side == 0 || all % side != 0)
            {
                return Err(format!(
                    "chunks of {chunk:?} do not fill a shard of {:?}",
                    array.chunk
                ));
            }
            let each = sides.map(|(all, side)| all / side).fold(1, u64::saturating_mul);
            if each > MAX_SHARD_CHUNKS {
                return Err(format!(
                    "a shard has {each} chunks, and at most {MAX_SHARD_CHUNKS} are read"
                ));
            }
            array.check()?;
            let files = Self { chunk: std::mem::replace(&mut array.chunk, chunk), ..array.clone() };
            array.shards = Some(Box::new(Shards { files, is_first, has_checksum }));
        }
        Ok(array)
    }

    /// Refuses shapes that are not of arrays of rows, and sizes that overflow.
    fn check(&self) -> Result<(), String> {
        let Self { shape, chunk, order, .. } = self;
        if shape.is_empty() {
            return Err("it holds a single number; the first axis must be the rows".to_owned());
        }
        if shape.len() >= MAX_RANK {
            return Err(format!(
                "it has {} dimensions, and a sample may have {}",
                shape.len(),
                MAX_RANK - 1
            ));
        }
        let is_whole = chunk.len() == shape.len() && order.len() == shape.len();
        if !is_whole || chunk.contains(&0) {
            return Err(format!("chunks of {chunk:?} do not fit its shape {shape:?}"));
        }
        let mut sides = shape.iter().zip(chunk).map(|(all, side)| all.div_ceil(*side));
        let chunks = sides.try_fold(1_u64, |all, side| all.checked_mul(side));
        let elements = |shape: &[u64]| {
            let all = shape.iter().try_fold(1_u64, |all, side| all.checked_mul(*side));
            all.filter(|all| *all <= 1 << 56)
        };
        let fits = chunks.is_some_and(|chunks| chunks <= MAX_CHUNKS)
            && elements(shape).is_some()
            && elements(chunk).is_some();
        if !fits {
            return Err(format!("its shape {shape:?} in chunks of {chunk:?} overflows"));
        }
        let is_packed = |codec: &&ByteCodec| **codec != ByteCodec::Crc32c;
        if self.codecs.iter().filter(is_packed).count() > 1 {
            return Err("its chunks are compressed twice; write it with one compressor".to_owned());
        }
        Ok(())
    }

    /// The type of the elements.
    pub(crate) fn element(&self) -> DType {
        DType::from_name(&self.dtype).unwrap_or(DType::U8)
    }

    /// The size of a chunk's elements.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        let elements: u64 = self.chunk.iter().fold(1, |all, side| all.saturating_mul(*side));
        elements.saturating_mul(self.element().size_bytes())
    }

    /// Whether a part of a chunk can be read from its file: it is not compressed, and its rows follow one another.
    pub(crate) fn is_plain(&self) -> bool {
        self.codecs.is_empty() && self.order.is_sorted() && self.shards.is_none()
    }

    /// The array whose chunks are files.
    pub(crate) fn files(&self) -> &Self {
        self.shards.as_ref().map_or(self, |shards| &shards.files)
    }
}

/// What the codecs of chunks do to their elements and bytes.
struct Encoding {
    order: Vec<usize>,
    codecs: Vec<ByteCodec>,
    big_endian: bool,
}

impl Encoding {
    fn of(list: &[Named], dtype: DType, axes: usize) -> Result<Self, String> {
        let mut order: Vec<usize> = (0..axes).collect();
        let (mut codecs, mut big_endian, mut is_bytes) = (Vec::new(), false, false);
        for codec in list {
            match codec.name.as_str() {
                "transpose" if !is_bytes => order = transposed(codec, &order)?,
                "bytes" | "endian" if !is_bytes => {
                    is_bytes = true;
                    big_endian = codec.text("endian") == Some("big") && dtype.size_bytes() > 1;
                }
                "sharding_indexed" => {
                    return Err("its shards are within another codec; write it with shards= alone"
                        .to_owned());
                }
                other if is_bytes => codecs.push(codec_of(other)?),
                other => return Err(format!("it has the codec {other:?}, which is not read")),
            }
        }
        match is_bytes {
            true => Ok(Self { order, codecs, big_endian }),
            false => Err("none of its codecs makes bytes of elements".to_owned()),
        }
    }
}

/// The configuration of `sharding_indexed`.
struct Sharding {
    chunk: Vec<u64>,
    codecs: Vec<Named>,
    is_first: bool,
    has_checksum: bool,
}

impl Sharding {
    fn of(codec: &Named) -> Result<Self, String> {
        let chunk = numbers(codec.configuration.get("chunk_shape"))
            .ok_or("its shards do not have the shape of their chunks")?;
        let list = |key: &str| {
            let value = codec.configuration.get(key).cloned().unwrap_or_default();
            serde_json::from_value::<Vec<Named>>(value).map_err(|error| malformed(&error))
        };
        let (codecs, index) = (list("codecs")?, list("index_codecs")?);
        let is_first = match codec.text("index_location").unwrap_or("end") {
            "start" => true,
            "end" => false,
            other => {
                return Err(format!(
                    "the index of its shards is at {other:?}; start and end are known"
                ));
            }
        };
        let names: Vec<_> = index.iter().map(|codec| codec.name.as_str()).collect();
        let has_checksum = match names[..] {
            ["bytes"] => false,
            ["bytes", "crc32c"] => true,
            _ => {
                return Err(format!(
                    "the index of its shards has the codecs {names:?}; bytes and crc32c are read"
                ));
            }
        };
        if index[0].text("endian") == Some("big") {
            return Err(
                "the index of its shards is big-endian; little-endian ones are read".to_owned()
            );
        }
        Ok(Self { chunk, codecs, is_first, has_checksum })
    }
}

fn malformed(error: &serde_json::Error) -> String {
    format!("its metadata are malformed: {error}")
}

fn id_of(codec: &Value) -> String {
    codec.get("id").and_then(Value::as_str).unwrap_or("unknown").to_owned()
}

fn codec_of(name: &str) -> Result<ByteCodec, String> {
    Ok(match name.strip_prefix("numcodecs.").unwrap_or(name) {
        "gzip" => ByteCodec::Gzip,
        "zlib" => ByteCodec::Zlib,
        "zstd" => ByteCodec::Zstd,
        "lz4" => ByteCodec::Lz4,
        "blosc" => ByteCodec::Blosc,
        // The checksum of format 3 follows the bytes; numcodecs' own precedes them.
        "crc32c" if name == "crc32c" => ByteCodec::Crc32c,
        _ => {
            return Err(format!(
                "it has the codec {name:?}; those that are read are bytes, transpose, gzip, zlib, zstd, lz4, blosc and crc32c"
            ));
        }
    })
}

fn separator(text: &str) -> Result<char, String> {
    match text {
        "." => Ok('.'),
        "/" => Ok('/'),
        other => Err(format!("{other:?} separates the numbers of its chunks; . and / are known")),
    }
}

fn numbers(value: Option<&Value>) -> Option<Vec<u64>> {
    value?.as_array()?.iter().map(Value::as_u64).collect()
}

/// The order of axes after a transposition.
fn transposed(codec: &Named, before: &[usize]) -> Result<Vec<usize>, String> {
    let refuse = || "its codec transpose has no order of its axes".to_owned();
    let value = codec.configuration.get("order").ok_or_else(refuse)?;
    let axes: Vec<usize> = match value.as_str() {
        Some("C") => (0..before.len()).collect(),
        Some("F") => (0..before.len()).rev().collect(),
        _ => numbers(Some(value))
            .and_then(|axes| axes.into_iter().map(|axis| usize::try_from(axis).ok()).collect())
            .ok_or_else(refuse)?,
    };
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..before.len()) {
        return Err(refuse());
    }
    Ok(axes.into_iter().map(|axis| before[axis]).collect())
}

/// The type of a NumPy description such as `<f4`, and whether it is big-endian.
fn element(descr: &str) -> Option<(DType, bool)> {
    let (order, name) = descr.split_at_checked(1)?;
    let dtype = match name {
        "b1" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    };
    match order {
        "<" | "|" => Some((dtype, false)),
        ">" => Some((dtype, dtype.size_bytes() > 1)),
        _ => None,
    }
}

/// The bytes of a `fill_value`, as an element is stored.
fn fill_of(value: &Value, dtype: DType, big_endian: bool) -> Result<Vec<u8>, String> {
    let mut bytes = fill_bytes(value, dtype)
        .ok_or_else(|| format!("its fill_value is {value}, which no {} is", dtype.name()))?;
    if big_endian {
        bytes.reverse();
    }
    Ok(bytes)
}

/// The bytes of a fill value, the lowest first.
fn fill_bytes(value: &Value, dtype: DType) -> Option<Vec<u8>> {
    let size = usize::try_from(dtype.size_bytes()).ok()?;
    // The bits of a float, in hexadecimal digits.
    if let Some(digits) = value.as_str().and_then(|text| text.strip_prefix("0x")) {
        let bits = u64::from_str_radix(digits, 16).ok()?;
        let is_of_type = size == 8 || bits >> (8 * size) == 0;
        return is_of_type.then(|| bits.to_le_bytes()[..size].to_vec());
    }
    if value.is_null() {
        return Some(vec![0; size]);
    }
    let float = match value.as_str() {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        Some(_) => return None,
        None => value.as_f64().unwrap_or(0.0),
    };
    #[expect(clippy::cast_possible_truncation, reason = "floats are rounded")]
    Some(match dtype {
        DType::F16 => f16::from_f64(float).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(float).to_le_bytes().to_vec(),
        DType::F32 => (float as f32).to_le_bytes().to_vec(),
        DType::F64 => float.to_le_bytes().to_vec(),
        DType::Bool => {
            let bit = value.as_bool().or_else(|| Some(value.as_u64()? != 0))?;
            vec![bit.into()]
        }
        _ => {
            // Some writers have 0.0 for integers.
            let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
            let whole = whole.or_else(|| (float == 0.0 && value.is_number()).then_some(0))?;
            let bits = 8 * u32::try_from(size).ok()?;
            let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
            let (low, high) = match is_signed {
                true => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
                false => (0, (1_i128 << bits) - 1),
            };
            (low..=high).contains(&whole).then(|| whole.to_le_bytes()[..size].to_vec())?
        }
    })
}
