//! Parses and checks a worker's reply, which is untrusted.
//!
//! A reply is in the arena at the offset named in the call: for each row, u8 status; 0: a record for each output, as in
//! a call; 1: u32 bytes of JSON with the exception. After all rows: for each row, 2 × u64 times of the function's call
//! and return; the same for the whole call; u32 bytes of JSON with the sampled stacks (`_sampling.py`).

use std::time::Duration;

use forebay_protocol::tensor::{DType, MAX_RANK};

use crate::call::{KIND_ARRAY, KIND_BYTES, KIND_FLOAT, KIND_INTEGER, KIND_TEXT, Number};

/// Maximum size of a reply without its arrays.
pub(crate) const MAX_REPLY_BYTES: u64 = 16 << 20;

/// The function's result for one output.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyValue {
    /// Its type.
    pub kind: ReplyKind,
    /// Its offset in the arena.
    pub offset: u64,
    /// Its size there, in bytes.
    pub bytes: u64,
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyKind {
    /// An array in native byte order and C order.
    Array(DType, Vec<u64>),
    /// Bytes.
    Bytes,
    /// Text.
    Text,
    /// A scalar, which is not stored in the arena.
    Number(Number),
}

/// An exception of the user's function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    /// Its type and message, on one line.
    pub summary: String,
    /// The traceback as Python prints it.
    pub traceback: String,
}

/// A field that the function returned for a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: DeclaredKind,
}

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredKind {
    /// An array.
    Array(DType, Vec<u64>),
    /// Bytes.
    Bytes,
    /// Text.
    Text,
    /// An integer.
    Integer,
    /// A floating-point number.
    Float,
}

impl DeclaredKind {
    /// Size of an array in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Array(dtype, shape) => {
                shape.iter().fold(dtype.size_bytes(), |bytes, side| bytes.saturating_mul(*side))
            }
            Self::Bytes | Self::Text | Self::Integer | Self::Float => 0,
        }
    }
}

/// The reply is malformed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Bytes prefixed by their number.
    fn text(&mut self) -> Result<&'b [u8], Malformed> {
        let length = self.take(4)?.first_chunk().ok_or(Malformed)?;
        self.take(u32::from_le_bytes(*length) as usize)
    }

    fn word(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?.first_chunk().ok_or(Malformed)?;
        Ok(u64::from_le_bytes(*bytes))
    }
}

/// When the function was called for a row and when it returned, in nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowTime {
    /// Time of the call.
    pub begin_ns: u64,
    /// Time of the return.
    pub end_ns: u64,
    /// The place of the worker.
    pub worker: usize,
}

impl RowTime {
    /// The duration.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_nanos(self.end_ns.saturating_sub(self.begin_ns))
    }

    /// The part within another time.
    pub(crate) fn within(self, outer: Self) -> Self {
        let clamp = |at: u64| at.max(outer.begin_ns).min(outer.end_ns);
        Self { begin_ns: clamp(self.begin_ns), end_ns: clamp(self.end_ns), worker: outer.worker }
    }
}

/// A row of a reply.
pub(crate) type RowReply = Result<Vec<ReplyValue>, Raised>;

/// A reply to a call.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<RowReply>,
    /// The time of each row.
    pub(crate) times: Vec<RowTime>,
    /// The time of the whole call.
    pub(crate) time: RowTime,
    /// JSON, or empty.
    pub(crate) stacks: Vec<u8>,
}

impl Reply {
    /// Clamps all times to the call's: a worker's times are untrusted.
    pub(crate) fn cut_times(&mut self, call: RowTime) {
        self.time = self.time.within(call);
        self.times.iter_mut().for_each(|time| *time = time.within(call));
    }
}

/// Parses a reply of `rows` rows with `outputs` outputs each, to a call at `start` in the arena.
pub(crate) fn parse(
    reply: &[u8],
    start: u64,
    rows: usize,
    outputs: usize,
) -> Result<Reply, Malformed> {
    let mut bytes = Bytes(reply);
    let parsed = (0..rows).map(|_| row(&mut bytes, start, outputs)).collect::<Result<_, _>>()?;
    let mut time = || Ok(RowTime { begin_ns: bytes.word()?, end_ns: bytes.word()?, worker: 0 });
    let times = (0..rows).map(|_| time()).collect::<Result<_, _>>()?;
    let time = time()?;
    let stacks = bytes.text()?.to_vec();
    if bytes.0.is_empty() {
        Ok(Reply { rows: parsed, times, time, stacks })
    } else {
        Err(Malformed)
    }
}

fn row(bytes: &mut Bytes<'_>, start: u64, outputs: usize) -> Result<RowReply, Malformed> {
    match bytes.take(1)? {
        [0] => (0..outputs).map(|_| value(bytes, start)).collect::<Result<_, _>>().map(Ok),
        [1] => raised(bytes.text()?).map(Err),
        _ => Err(Malformed),
    }
}

fn value(bytes: &mut Bytes<'_>, start: u64) -> Result<ReplyValue, Malformed> {
    let &[kind, dtype, dimensions, ..] = bytes.take(8)? else { return Err(Malformed) };
    let (offset, length) = (bytes.word()?, bytes.word()?);
    if usize::from(dimensions) > MAX_RANK {
        return Err(Malformed);
    }
    let shape: Vec<u64> = (0..dimensions).map(|_| bytes.word()).collect::<Result<_, _>>()?;
    let kind = match kind {
        KIND_ARRAY => {
            let dtype = *DType::ALL.get(usize::from(dtype)).ok_or(Malformed)?;
            let needed = shape
                .iter()
                .try_fold(dtype.size_bytes(), |bytes, side| bytes.checked_mul(*side))
                .ok_or(Malformed)?;
            if needed != length {
                return Err(Malformed);
            }
            ReplyKind::Array(dtype, shape)
        }
        KIND_BYTES => ReplyKind::Bytes,
        KIND_TEXT => ReplyKind::Text,
        KIND_INTEGER => ReplyKind::Number(Number::Integer(offset.cast_signed())),
        KIND_FLOAT => ReplyKind::Number(Number::Float(f64::from_bits(offset))),
        _ => return Err(Malformed),
    };
    Ok(ReplyValue { kind, offset: offset.saturating_add(start), bytes: length })
}

/// Parses an exception from JSON.
fn raised(text: &[u8]) -> Result<Raised, Malformed> {
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|_| Malformed)?;
    raised_of(&value).ok_or(Malformed)
}

pub(crate) fn raised_of(value: &serde_json::Value) -> Option<Raised> {
    let part = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
    Some(Raised { summary: part("summary")?, traceback: part("traceback")? })
}

/// Parses a probe's row: the fields and a digest of their bytes.
pub(crate) fn probed(value: &serde_json::Value) -> Option<Result<(Vec<Declared>, String), Raised>> {
    if let Some(raised) = value.get("raised") {
        return raised_of(raised).map(Err);
    }
    let fields = value.get("fields")?.as_array()?.iter().map(declared).collect::<Option<_>>()?;
    Some(Ok((fields, value.get("digest")?.as_str()?.to_owned())))
}

fn declared(value: &serde_json::Value) -> Option<Declared> {
    let name = value.get("name")?.as_str()?.to_owned();
    let kind = match value.get("kind")?.as_u64()?.try_into().ok()? {
        KIND_ARRAY => {
            let code = usize::try_from(value.get("dtype")?.as_u64()?).ok()?;
            let shape = value.get("shape")?.as_array()?.iter().map(serde_json::Value::as_u64);
            let shape: Vec<u64> = shape.collect::<Option<_>>()?;
            if shape.len() > MAX_RANK {
                return None;
            }
            DeclaredKind::Array(*DType::ALL.get(code)?, shape)
        }
        KIND_BYTES => DeclaredKind::Bytes,
        KIND_TEXT => DeclaredKind::Text,
        KIND_INTEGER => DeclaredKind::Integer,
        KIND_FLOAT => DeclaredKind::Float,
        _ => return None,
    };
    Some(Declared { name, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, dtype: u8, shape: &[u64], offset: u64, bytes: u64) -> Vec<u8> {
        let mut record = vec![kind, dtype, u8::try_from(shape.len()).unwrap(), 0, 0, 0, 0, 0];
        for word in [offset, bytes].iter().chain(shape) {
            record.extend_from_slice(&word.to_le_bytes());
        }
        record
    }

    #[test]
    fn reply_is_parsed() {
        let raised = br#"{"summary": "ValueError: no", "traceback": "Traceback"}"#;
        let mut reply = vec![0];
        reply.extend(record(KIND_ARRAY, 4, &[2, 3], 128, 24));
        reply.extend(record(KIND_INTEGER, 0, &[], 7, 0));
        reply.push(1);
        reply.extend(u32::try_from(raised.len()).unwrap().to_le_bytes());
        reply.extend(raised);
        for word in [10_u64, 15, 15, 18, 9, 20] {
            reply.extend(word.to_le_bytes());
        }
        reply.extend([2, 0, 0, 0, b'[', b']']);
        let Reply { rows, times, time, stacks } = parse(&reply, 4096, 2, 2).unwrap();
        assert_eq!(times[1], RowTime { begin_ns: 15, end_ns: 18, worker: 0 });
        assert_eq!((time.length().as_nanos(), stacks), (11, b"[]".to_vec()));
        let array = ReplyKind::Array(DType::I32, vec![2, 3]);
        assert_eq!(
            rows[0].as_ref().unwrap()[0],
            ReplyValue { kind: array, offset: 4096 + 128, bytes: 24 }
        );
        let number = ReplyKind::Number(Number::Integer(7));
        assert_eq!(rows[0].as_ref().unwrap()[1].kind, number);
        assert_eq!(rows[1].as_ref().unwrap_err().summary, "ValueError: no");
    }

    #[test]
    fn workers_times_are_clamped_to_the_call() {
        let time = |begin_ns, end_ns| RowTime { begin_ns, end_ns, worker: 0 };
        let call = RowTime { begin_ns: 100, end_ns: 200, worker: 3 };
        let within = |begin_ns, end_ns| {
            let found = time(begin_ns, end_ns).within(call);
            (found.begin_ns, found.end_ns, found.worker)
        };
        assert_eq!(within(110, 150), (110, 150, 3));
        assert_eq!(within(0, u64::MAX), (100, 200, 3));
        assert_eq!(within(300, 5), (200, 100, 3));
        assert_eq!(time(300, 5).within(call).length(), Duration::ZERO);
    }

    #[test]
    fn malformed_replies_are_refused() {
        let mut replies = vec![Vec::new(), vec![2], vec![0], vec![1, 255, 255, 255, 255]];
        for (kind, dtype, shape, bytes) in [
            (KIND_ARRAY, 200, &[1][..], 1),
            (KIND_ARRAY, 0, &[u64::MAX, 2], 2),
            (KIND_ARRAY, 0, &[4], 5),
            (KIND_ARRAY, 0, &[1; 100], 1),
            (99, 0, &[], 0),
        ] {
            let mut reply = vec![0];
            reply.extend(record(kind, dtype, shape, 0, bytes));
            replies.push(reply);
        }
        let mut whole = vec![0];
        whole.extend(record(KIND_BYTES, 0, &[], 64, 3));
        whole.extend([0; 4 * 8 + 4]);
        assert!(parse(&whole, 0, 1, 1).is_ok());
        (0..whole.len()).for_each(|length| replies.push(whole[..length].to_vec()));
        whole.push(0);
        replies.push(whole);
        for reply in replies {
            assert_eq!(parse(&reply, 0, 1, 1), Err(Malformed), "{reply:?}");
        }
    }
}
