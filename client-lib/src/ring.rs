//! The client's side of a session's shared memory, and the lease on one of its slots.
//!
//! [`Ring`] owns the data segment, which outlives the daemon that created it, and records which slots this process holds.
//! The loader and every lease share it, so views stay valid after the loader is closed and after the daemon is gone. The
//! publish and return rings belong to one daemon ([`DaemonRings`]) and are replaced with it. Only the loader reads the
//! publish ring. Any thread may drop a lease, so the writer of the return ring and the list of held slots are guarded by a
//! lock that is never held while waiting.
//!
//! After a fork the child's copies do nothing: [`ForkMark`] detects that without a system call. The data segment is not
//! mapped in the child, so the child must not unmap it either: the addresses may be in use for something else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::frames::{Attached, Leased};
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::publish::{Descriptor, PublishReader};
use forebay_protocol::returns::{ReturnWord, ReturnWriter, return_words};
use forebay_protocol::segment::{
    Access, ForkMark, Mapping, named, open_named_segment, open_segment,
};
use forebay_protocol::socket::Connection;
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_protocol::tensor::Extent;
use forebay_protocol::words::Words;

use crate::error::Error;
use crate::leases::{Leases, Returns};

/// The publish and return rings of one daemon.
#[derive(Debug)]
struct DaemonRings {
    returns: ReturnWriter<Mapping>,
    publish: Arc<PublishReader<Mapping>>,
    connection: Arc<Connection>,
}

impl Returns for DaemonRings {
    fn give_back(&mut self, word: ReturnWord) -> bool {
        self.returns.give_back(word, &self.publish)
    }

    fn ring_doorbell(&self) {
        // The loader detects a daemon that is gone at its next receive.
        let _ = self.connection.ring();
    }
}

/// The segments of a session as the daemon's answer carries them: data, publish and return.
#[derive(Debug)]
pub(crate) enum Segments {
    /// Sealed memory without a name.
    Descriptors(Vec<OwnedFd>),
    /// Names in /dev/shm.
    Names([String; 3]),
}

/// Removes the names, whether or not the segments could be mapped.
struct NamesRemoved<'a>(&'a [String; 3]);

impl Drop for NamesRemoved<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| named::unlink(name));
    }
}

/// The memory of a session.
#[derive(Debug)]
pub(crate) struct Ring {
    data: Option<Mapping>,
    /// Sent to the next daemon; a named segment has none.
    data_descriptor: Option<OwnedFd>,
    leases: Mutex<Leases<DaemonRings>>,
    fork_mark: Arc<ForkMark>,
    layout: SlotLayout,
    slots: u16,
    held: AtomicU64,
    /// A registration of the mapping with a GPU's driver.
    registration: Mutex<Option<Box<dyn Registration>>>,
}

/// A registration of a ring's mapping; it is dropped before the memory is unmapped.
pub(crate) trait Registration: std::fmt::Debug + Send + Sync {}

fn protocol_error(error: impl std::fmt::Display) -> Error {
    Error::Protocol(error.to_string())
}

/// Maps the publish and return rings by descriptor.
fn map_rings(
    terms: &Attached,
    publish: &OwnedFd,
    returns: &OwnedFd,
) -> Result<[Mapping; 2], Error> {
    let publish = open_segment(publish.as_fd(), "publish", terms.publish_bytes, Access::ReadOnly);
    let returns = open_segment(returns.as_fd(), "return", terms.return_bytes, Access::ReadWrite);
    Ok([publish.map_err(protocol_error)?, returns.map_err(protocol_error)?])
}

/// Maps a segment by name.
fn map_named(name: &str, what: &'static str, bytes: u64) -> Result<Mapping, Error> {
    open_named_segment(name, what, bytes).map_err(|error| {
        Error::Config(format!(
            "the segment {name} of the daemon cannot be opened: {error}; named segments need the same /dev/shm and the \
             same user on both sides"
        ))
    })
}

/// Checks the publish and return rings.
fn open_rings(
    terms: &Attached,
    [publish, returns]: [Mapping; 2],
    connection: Arc<Connection>,
) -> Result<DaemonRings, Error> {
    if returns.count() < return_words(terms.slots) {
        return Err(protocol_error("the return segment is too small for its ring"));
    }
    let publish = PublishReader::new(publish).map_err(|error| Error::Version(error.to_string()))?;
    Ok(DaemonRings {
        returns: ReturnWriter::new(returns, terms.slots),
        publish: Arc::new(publish),
        connection,
    })
}

/// The descriptors of an `Attached` frame: data, publish and return, in this order.
fn split_descriptors(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; 3], Error> {
    descriptors.try_into().map_err(|descriptors: Vec<OwnedFd>| {
        Error::Protocol(format!(
            "the daemon's answer has {} descriptors instead of 3",
            descriptors.len()
        ))
    })
}

impl Ring {
    /// Maps the segments of an `Attached` frame; also returns the publish ring's reader.
    pub(crate) fn open(
        terms: &Attached,
        segments: Segments,
        connection: Arc<Connection>,
        fork_mark: Arc<ForkMark>,
    ) -> Result<(Self, Arc<PublishReader<Mapping>>), Error> {
        let layout = SlotLayout::new(&terms.tensors, terms.batch_size).map_err(protocol_error)?;
        if layout.slot_bytes() != terms.slot_bytes || terms.slots == 0 {
            return Err(Error::Version(format!(
                "the daemon has {} bytes per slot and {} slots, and this client computes {} bytes per slot; daemon and \
                 client differ in version",
                terms.slot_bytes,
                terms.slots,
                layout.slot_bytes()
            )));
        }
        let data_bytes = terms.slot_bytes.checked_mul(terms.slots.into()).ok_or_else(|| {
            protocol_error("the data segment is larger than this machine can address")
        })?;
        let (data, rings, data_descriptor) = match segments {
            Segments::Descriptors(descriptors) => {
                let [data, publish, returns] = split_descriptors(descriptors)?;
                let mapping = open_segment(data.as_fd(), "data", data_bytes, Access::ReadWrite)
                    .map_err(protocol_error)?;
                (mapping, map_rings(terms, &publish, &returns)?, Some(data))
            }
            Segments::Names(names) => {
                let _removed = NamesRemoved(&names);
                let [data, publish, returns] = &names;
                let rings = [
                    map_named(publish, "publish", terms.publish_bytes)?,
                    map_named(returns, "return", terms.return_bytes)?,
                ];
                (map_named(data, "data", data_bytes)?, rings, None)
            }
        };
        data.exclude_from_fork().map_err(protocol_error)?;
        let rings = open_rings(terms, rings, connection)?;
        let reader = Arc::clone(&rings.publish);
        let ring = Self {
            data: Some(data),
            data_descriptor,
            leases: Mutex::new(Leases::new(rings, terms.slots)),
            fork_mark,
            layout,
            slots: terms.slots,
            held: AtomicU64::new(0),
            registration: Mutex::new(None),
        };
        Ok((ring, reader))
    }

    /// The data segment, for the next daemon; `None` for a named one.
    pub(crate) fn data_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.data_descriptor.as_ref().map(AsFd::as_fd)
    }

    /// The daemon is gone: until the held slots are announced to the next one, a lease that ends frees its slot for it.
    pub(crate) fn detach(&self) {
        self.lock().detach();
    }

    /// The slots that this process holds, for the next daemon. Leases that end from now on are returned in its ring.
    pub(crate) fn announce_held(&self) -> Vec<Leased> {
        self.lock().announce_held()
    }

    /// Continues over the rings of the next daemon; returns the publish ring's reader.
    pub(crate) fn attach(
        &self,
        terms: &Attached,
        descriptors: Vec<OwnedFd>,
        connection: Arc<Connection>,
    ) -> Result<Arc<PublishReader<Mapping>>, Error> {
        let [_data, publish, returns] = split_descriptors(descriptors)?;
        let rings = open_rings(terms, map_rings(terms, &publish, &returns)?, connection)?;
        let reader = Arc::clone(&rings.publish);
        self.lock().attach(rings);
        Ok(reader)
    }

    /// The whole data segment.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn data(&self) -> Option<(*mut u8, usize)> {
        let data = self.data.as_ref()?;
        Some((data.base(), data.bytes()))
    }

    /// Keeps a registration until just before the memory is unmapped.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "of the GPU half"))]
    pub(crate) fn keep_registration(&self, registration: Box<dyn Registration>) {
        *self.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.fork_mark.is_own_process()
    }

    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// The number of batches that this process holds.
    pub(crate) fn held(&self) -> u64 {
        // Relaxed: a count; the return ring orders the memory of a lease.
        self.held.load(Ordering::Relaxed)
    }

    /// Announces that the client is about to sleep, and rings the doorbell if slots were returned without one.
    pub(crate) fn announce_sleep(&self) {
        self.with_rings(|rings| {
            if rings.returns.announce_sleep(&rings.publish) {
                rings.ring_doorbell();
            }
        });
    }

    pub(crate) fn announce_wake(&self) {
        self.with_rings(|rings| rings.returns.announce_wake());
    }

    pub(crate) fn show_taken(&self, taken: u64) {
        let now = forebay_protocol::clock::monotonic_ns();
        self.with_rings(|rings| rings.returns.show_taken(taken, now));
    }

    pub(crate) fn show_waited(&self, total: std::time::Duration) {
        let nanoseconds = u64::try_from(total.as_nanos()).unwrap_or(u64::MAX);
        self.with_rings(|rings| rings.returns.show_waited(nanoseconds));
    }

    fn with_rings(&self, work: impl FnOnce(&mut DaemonRings)) {
        if let Some(rings) = self.lock().returns() {
            work(rings);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Leases<DaemonRings>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the lease of a batch from its descriptor. The slot of a malformed descriptor is lost.
    pub(crate) fn lease(self: &Arc<Self>, descriptor: Descriptor) -> Result<Lease, Error> {
        self.check(&descriptor).map_err(|what| {
            Error::Protocol(format!(
                "batch {} of the session does not fit the stream's schema: {what}; daemon and client differ in version",
                descriptor.sequence.0
            ))
        })?;
        if !self.lock().begin(descriptor.slot, descriptor.generation) {
            return Err(Error::Protocol(format!(
                "batch {} of the session lies in slot {}, which this client still holds",
                descriptor.sequence.0, descriptor.slot.0
            )));
        }
        // Relaxed: a count.
        self.held.fetch_add(1, Ordering::Relaxed);
        Ok(Lease { ring: Arc::clone(self), descriptor })
    }

    /// Checks a descriptor against the layout that both sides compute: then every view is inside its slot.
    fn check(&self, batch: &Descriptor) -> Result<(), String> {
        let layout = &self.layout;
        if batch.slot.0 >= self.slots {
            return Err(format!("slot {} of {}", batch.slot.0, self.slots));
        }
        if batch.rows > u64::from(layout.rows()) {
            return Err(format!("{} rows of {}", batch.rows, layout.rows()));
        }
        if batch.tensors.len() != layout.tensors().len() {
            return Err(format!("{} tensors of {}", batch.tensors.len(), layout.tensors().len()));
        }
        let expected = layout.tensors().iter().zip(layout.places());
        for (entry, (spec, place)) in batch.tensors.iter().zip(expected) {
            let ragged = matches!(spec.extent, Extent::Ragged { .. });
            let rank = usize::from(entry.rank);
            let row_shape = entry.dims.get(1..rank).unwrap_or_default();
            let length_fits = if ragged {
                let most = batch.rows.checked_mul(place.row_pitch_bytes);
                most.is_some_and(|most| entry.length_bytes <= most)
                    && entry.length_bytes.is_multiple_of(spec.dtype.size_bytes())
            } else {
                // A dense tensor's rows follow each other without gaps.
                let row_bytes = spec.shape_bytes(row_shape);
                row_bytes.and_then(|bytes| bytes.checked_mul(batch.rows))
                    == Some(entry.length_bytes)
            };
            let elements = entry.length_bytes / spec.dtype.size_bytes();
            let shape_fits = entry.dims.get(..rank).is_some_and(|dims| match dims {
                // The shape of a ragged tensor is that of the region of its rows.
                [region] if ragged => *region == elements,
                [rows, row_shape @ ..] if !ragged => *rows == batch.rows && spec.allows(row_shape),
                _ => false,
            });
            let places_fit = entry.offset_bytes == place.offset_bytes
                && entry.table_offset_bytes == place.table_offset_bytes;
            if entry.dtype != spec.dtype
                || entry.ragged != ragged
                || !length_fits
                || !shape_fits
                || !places_fit
            {
                return Err(format!("tensor `{}` is described as {entry:?}", spec.name));
            }
        }
        Ok(())
    }

    fn give_back(&self, batch: &Descriptor) {
        if !self.is_own_process() {
            return;
        }
        // Relaxed: a count.
        self.held.fetch_sub(1, Ordering::Relaxed);
        self.lock().end(batch.slot, batch.generation);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let registration = self.registration.get_mut().unwrap_or_else(PoisonError::into_inner);
        let registration = registration.take();
        if self.is_own_process() {
            drop(registration);
        } else {
            // Neither mapped nor registered in a forked child; unmapping could hit other memory.
            std::mem::forget(registration);
            std::mem::forget(self.data.take());
        }
    }
}

/// The lease of one slot. Dropping it returns the slot.
#[derive(Debug)]
pub(crate) struct Lease {
    ring: Arc<Ring>,
    descriptor: Descriptor,
}

impl Lease {
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Adds the batches of previous daemons to the batch's number.
    pub(crate) fn add_to_number(&mut self, before: u64) {
        self.descriptor.sequence.0 += before;
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The data segment and the slot's offset in it.
    pub(crate) fn slot(&self) -> Option<(&Mapping, usize)> {
        let data = self.ring.data.as_ref()?;
        let slot_bytes = usize::try_from(self.ring.layout.slot_bytes()).ok()?;
        Some((data, slot_bytes * usize::from(self.descriptor.slot.0)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ring.give_back(&self.descriptor);
    }
}
