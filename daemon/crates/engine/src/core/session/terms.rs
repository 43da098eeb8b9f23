//! The data for a session's client: segments, the frame that describes them, faults and the reason of the end.

use std::os::fd::BorrowedFd;

use forebay_protocol::frames::{Attached, DaemonFrame, Fault, FaultKind};
use forebay_protocol::layout::{SlotLayout, TensorPlace};
use forebay_protocol::publish::TensorEntry;
use forebay_protocol::segment::{Segment, SegmentError};
use forebay_protocol::tensor::{Extent, MAX_RANK, TensorSpec};

use forebay_order::OrderError;

/// The reason for the end of a session.
#[derive(Debug, Clone)]
pub enum SessionEnd {
    /// The client said goodbye or its connection closed.
    ClientLeft,
    /// The client broke the protocol.
    Violation(String),
}

/// The result of an attach: the frame and the segments whose descriptors are sent with it.
#[derive(Debug)]
pub struct SessionTerms {
    /// `Attached` or `AttachedNamed`.
    pub frame: DaemonFrame,
    pub(super) segments: [Segment; 3],
}

impl SessionTerms {
    /// Descriptors of data, publish and return; empty for named segments, whose names are in the frame.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let unnamed = self.segments.iter().filter(|segment| segment.name().is_none());
        unnamed.map(Segment::descriptor).collect()
    }

    /// Whether the segments have names, which are removed when this is dropped.
    pub fn has_names(&self) -> bool {
        matches!(self.frame, DaemonFrame::AttachedNamed { .. })
    }

    /// Whether batches are by length, in pools.
    pub fn has_pools(&self) -> bool {
        match &self.frame {
            DaemonFrame::Attached(terms) | DaemonFrame::AttachedNamed { terms, .. } => {
                terms.pools.is_some()
            }
            _ => false,
        }
    }

    /// The answer to an attach with these segments.
    pub(super) fn new(terms: Attached, segments: [Segment; 3]) -> Self {
        let names = segments.each_ref().map(Segment::name);
        let terms = Box::new(terms);
        let frame = match names {
            [Some(data), Some(publish), Some(returns)] => DaemonFrame::AttachedNamed {
                terms,
                names: [data, publish, returns].map(str::to_owned),
            },
            _ => DaemonFrame::Attached(terms),
        };
        Self { frame, segments }
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

/// The descriptor's table for a batch of `rows` rows, with the number of elements of each compacted tensor, and the number
/// of the shape of each whose batches have one of several.
pub(super) fn tensor_entries(
    layout: &SlotLayout,
    rows: u32,
    compacted: &[u64],
) -> Vec<TensorEntry> {
    let rows = u64::from(rows);
    let entry = |(index, (tensor, place)): (usize, (&TensorSpec, &TensorPlace))| {
        let mut dims = [0; MAX_RANK];
        let size = tensor.dtype.size_bytes();
        let region = rows * place.row_pitch_bytes;
        let (ragged, rank, length_bytes) = match tensor.extent {
            Extent::Dense => {
                let number = compacted.get(index).and_then(|number| usize::try_from(*number).ok());
                let shape = number.and_then(|number| tensor.row_shapes.get(number));
                let shape = shape.unwrap_or(&tensor.row_shape);
                dims[0] = rows;
                dims[1..=shape.len()].copy_from_slice(shape);
                let length_bytes = tensor.shape_bytes(shape).map_or(region, |bytes| rows * bytes);
                (false, 1 + shape.len(), length_bytes)
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
