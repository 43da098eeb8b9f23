//! The initial memory of a session: new memory, or the memory of a client whose daemon has died.
//!
//! The client sends its data segment and the slots that it holds; both are untrusted. The segment is checked by the
//! kernel's information about it ([`Segment::take_back`]), the slots by the slot table, which refuses states that no
//! daemon produces. A slot that is not claimed may be filled at once, so a client that claims too few slots corrupts
//! only its own batches.

use std::os::fd::OwnedFd;

use forebay_protocol::frames::{Fault, FaultKind, Leased};
use forebay_protocol::lease::SlotTable;
use forebay_protocol::segment::{Access, Segment, SegmentError};

use crate::core::session::terms::SessionFault;
use crate::ground::batch_shape::BatchShape;
use crate::ground::stream::Stream;

/// The data segment and the owners of its slots.
#[derive(Debug)]
pub(crate) struct Takeover {
    pub(super) data: Segment,
    pub(super) table: SlotTable,
    /// The serial of the client's last seek.
    pub(super) serial: u64,
    /// Number of slots held by the client.
    pub(super) held: u64,
    /// Whether the segments have names.
    pub(super) named: bool,
}

impl Takeover {
    /// New memory with free slots only.
    pub(crate) fn fresh(
        stream: &Stream,
        shape: &BatchShape,
        named: bool,
    ) -> Result<Self, SessionFault> {
        let [data_bytes, ..] = stream.ring_bytes(&shape.layout);
        let data = create_segment(named, "data", data_bytes)?;
        data.seal(Access::ReadWrite)?;
        let table = SlotTable::new(stream.config.ring.slots);
        Ok(Self { data, table, serial: 0, held: 0, named })
    }

    /// The memory that a client kept.
    ///
    /// # Errors
    /// A fault that names what does not fit.
    pub(crate) fn of_client(
        stream: &Stream,
        shape: &BatchShape,
        data: Vec<OwnedFd>,
        serial: u64,
        leased: &[Leased],
    ) -> Result<Self, Fault> {
        let fault = |kind, message: String| Fault { kind, message };
        let [data] = <[OwnedFd; 1]>::try_from(data).map_err(|data| {
            let message = format!("Reattach came with {} descriptors instead of 1", data.len());
            fault(FaultKind::Protocol, message)
        })?;
        let [data_bytes, ..] = stream.ring_bytes(&shape.layout);
        let data = Segment::take_back(data, "data", data_bytes).map_err(|error| {
            let kind = match error {
                SegmentError::Allocate { .. } => FaultKind::Memory,
                _ => FaultKind::Config,
            };
            fault(kind, format!("cannot use the previous session's memory: {error}"))
        })?;
        let table = SlotTable::with_held(stream.config.ring.slots, leased)
            .map_err(|violation| fault(FaultKind::Protocol, violation.to_string()))?;
        Ok(Self { data, table, serial, held: leased.len() as u64, named: false })
    }
}

/// Creates a segment, named or sealed without a name.
pub(super) fn create_segment(
    named: bool,
    what: &'static str,
    bytes: u64,
) -> Result<Segment, SegmentError> {
    if named { Segment::create_named(what, bytes) } else { Segment::create(what, bytes) }
}
