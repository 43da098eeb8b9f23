//! What a session is made of before it runs: its segments, and what a client is told of them.

use std::os::fd::BorrowedFd;

use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind};
use forebay_protocol::layout::TensorPlace;
use forebay_protocol::publish::{TensorEntry, publish_words};
use forebay_protocol::returns::return_words;
use forebay_protocol::segment::{Segment, SegmentError};
use forebay_protocol::tensor::{Extent, MAX_RANK, PAGE_BYTES, TensorSpec};

use crate::engine::stream::Stream;
use crate::order::OrderError;

/// What an attach yields: the frame and the segments whose descriptors go with it.
#[derive(Debug)]
pub(crate) struct SessionTerms {
    pub(crate) frame: DaemonFrame,
    pub(super) segments: [Segment; 3],
}

impl SessionTerms {
    /// Data, publish, return.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        self.segments.each_ref().map(Segment::descriptor)
    }
}

impl From<OrderError> for SessionFault {
    fn from(error: OrderError) -> Self {
        Self(Fault { kind: FaultKind::Position, message: error.to_string() })
    }
}

impl From<SegmentError> for SessionFault {
    fn from(error: SegmentError) -> Self {
        Self(Fault { kind: FaultKind::Memory, message: error.to_string() })
    }
}

/// A refused request.
#[derive(Debug)]
pub(crate) struct SessionFault(pub(crate) Fault);

/// The bytes of a stream's ring: data, publish and return.
pub(in crate::engine) fn ring_bytes(stream: &Stream) -> [u64; 3] {
    let slots = stream.config.ring.slots;
    let words = |count: usize| (count as u64 * 8).next_multiple_of(PAGE_BYTES);
    [
        stream.layout.slot_bytes() * u64::from(slots),
        words(publish_words(slots, stream.tensors().len())),
        words(return_words(slots)),
    ]
}

/// The descriptor's table for a batch of so many rows, with the elements of each tensor that was compacted.
pub(super) fn tensor_entries(stream: &Stream, rows: u32, compacted: &[u64]) -> Vec<TensorEntry> {
    let layout = &stream.layout;
    let rows = u64::from(rows);
    let entry = |(index, (tensor, place)): (usize, (&TensorSpec, &TensorPlace))| {
        let mut dims = [0; MAX_RANK];
        let size = tensor.dtype.size_bytes();
        let region = rows * place.row_pitch_bytes;
        let (ragged, rank, length_bytes) = match tensor.extent {
            Extent::Dense => {
                dims[0] = rows;
                dims[1..=tensor.row_shape.len()].copy_from_slice(&tensor.row_shape);
                (false, 1 + tensor.row_shape.len(), region)
            }
            Extent::Ragged { compact, .. } => {
                dims[0] = if compact { compacted[index] } else { region / size };
                (true, 1, dims[0] * size)
            }
        };
        TensorEntry {
            dtype: tensor.dtype,
            ragged,
            offset_bytes: place.offset_bytes,
            length_bytes,
            table_offset_bytes: place.table_offset_bytes,
            rank: u8::try_from(rank).unwrap_or(0),
            dims,
        }
    };
    layout.tensors().iter().zip(layout.places()).enumerate().map(entry).collect()
}
