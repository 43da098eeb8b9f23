//! What a session starts from: fresh memory, or that of a client whose daemon died.
//!
//! The client says which slots it holds and sends its data segment; nothing of it is believed. The segment is judged by
//! what the kernel says of it ([`Segment::take_back`]), the slots by the table that refuses what no daemon gives. A slot
//! that is not claimed may be filled at once, so a client that claims too little tears its own batches and nobody else's.

use std::os::fd::OwnedFd;

use forebay_protocol::frames::{Fault, FaultKind, Leased};
use forebay_protocol::lease::SlotTable;
use forebay_protocol::segment::{Access, Segment, SegmentError};

use super::terms::{SessionFault, ring_bytes};
use crate::stream::Stream;

/// The data segment and who holds which of its slots.
#[derive(Debug)]
pub(crate) struct Takeover {
    pub(super) data: Segment,
    pub(super) table: SlotTable,
    /// The client's last seek.
    pub(super) serial: u64,
    /// Slots held by the client.
    pub(super) held: u64,
    /// Whether the segments have names.
    pub(super) named: bool,
}

impl Takeover {
    /// Fresh memory, all of it free.
    pub(crate) fn fresh(stream: &Stream, named: bool) -> Result<Self, SessionFault> {
        let [data_bytes, ..] = ring_bytes(stream);
        let data = create_segment(named, "data", data_bytes)?;
        data.seal(Access::ReadWrite)?;
        let table = SlotTable::new(stream.config.ring.slots);
        Ok(Self { data, table, serial: 0, held: 0, named })
    }

    /// Memory that a client kept.
    ///
    /// # Errors
    /// A fault that says what does not fit.
    pub(crate) fn of_client(
        stream: &Stream,
        data: Vec<OwnedFd>,
        serial: u64,
        leased: &[Leased],
    ) -> Result<Self, Fault> {
        let fault = |kind, message: String| Fault { kind, message };
        let [data] = <[OwnedFd; 1]>::try_from(data).map_err(|data| {
            let message = format!("Reattach came with {} descriptors instead of 1", data.len());
            fault(FaultKind::Protocol, message)
        })?;
        let [data_bytes, ..] = ring_bytes(stream);
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

/// Creates a segment, under a name or sealed memory without one.
pub(super) fn create_segment(
    named: bool,
    what: &'static str,
    bytes: u64,
) -> Result<Segment, SegmentError> {
    if named { Segment::create_named(what, bytes) } else { Segment::create(what, bytes) }
}
