//! The client's side of a session's shared memory, and the lease on one of its slots.
//!
//! [`Ring`] owns the data segment, which outlives the daemon that made it, and knows which slots this process holds; the
//! loader and every lease hold it together, so views stay valid after the loader is closed and after the daemon is gone.
//! The two rings beside it are one daemon's ([`Wires`]) and are replaced with it. Only the loader reads the publish ring;
//! any thread may drop a lease, so the writer of the return ring and the list of what is held stand behind a small lock
//! that no one holds while it waits.
//!
//! After a fork the child's copies do nothing: [`ForkMark`] tells, without a system call. The data segment is not mapped
//! there at all, so the child must not unmap it either: the addresses may be something else's by then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_protocol::frames::{Attached, Leased};
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::publish::{Descriptor, PublishReader};
use forebay_protocol::returns::{ReturnWord, ReturnWriter, return_words};
use forebay_protocol::segment::{Access, ForkMark, Mapping, open_segment};
use forebay_protocol::socket::Connection;
use forebay_protocol::sync::{AtomicU64, Ordering};
use forebay_protocol::tensor::Extent;
use forebay_protocol::words::Words;

use crate::error::Error;
use crate::leases::{Leases, Returns};

/// The rings of one daemon.
#[derive(Debug)]
struct Wires {
    returns: ReturnWriter<Mapping>,
    publish: Arc<PublishReader<Mapping>>,
    connection: Arc<Connection>,
}

impl Returns for Wires {
    fn give_back(&mut self, word: ReturnWord) -> bool {
        self.returns.give_back(word, &self.publish)
    }

    fn ring(&self) {
        // A daemon that is gone is found out by the loader's next look at the socket.
        let _ = self.connection.ring();
    }
}

/// The memory of a session.
#[derive(Debug)]
pub(crate) struct Ring {
    data: Option<Mapping>,
    /// To be handed to the next daemon.
    data_descriptor: OwnedFd,
    leases: Mutex<Leases<Wires>>,
    fork_mark: Arc<ForkMark>,
    layout: SlotLayout,
    slots: u16,
    held: AtomicU64,
    /// What rests on the mapping and must go before it: a registration with a GPU's driver.
    registration: Mutex<Option<Box<dyn Registration>>>,
}

/// What rests on a ring's mapping; it is dropped before the memory is unmapped.
pub(crate) trait Registration: std::fmt::Debug + Send + Sync {}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Protocol(error.to_string())
}

/// Checks and maps the rings that came with `Attached`.
fn wires(
    terms: &Attached,
    publish: &OwnedFd,
    returns: &OwnedFd,
    connection: Arc<Connection>,
) -> Result<Wires, Error> {
    let publish = open_segment(publish.as_fd(), "publish", terms.publish_bytes, Access::ReadOnly)
        .map_err(broken)?;
    let returns = open_segment(returns.as_fd(), "return", terms.return_bytes, Access::ReadWrite)
        .map_err(broken)?;
    if returns.count() < return_words(terms.slots) {
        return Err(broken("the return segment is too small for its ring"));
    }
    let publish = PublishReader::new(publish).map_err(|error| Error::Version(error.to_string()))?;
    Ok(Wires {
        returns: ReturnWriter::new(returns, terms.slots),
        publish: Arc::new(publish),
        connection,
    })
}

/// What came with `Attached`: data, publish and return, in this order.
fn three(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; 3], Error> {
    descriptors.try_into().map_err(|descriptors: Vec<OwnedFd>| {
        Error::Protocol(format!(
            "the daemon sent {} descriptors with its answer instead of 3",
            descriptors.len()
        ))
    })
}

impl Ring {
    /// Maps what came with `Attached`; gives the publish ring's reader too.
    pub(crate) fn open(
        terms: &Attached,
        descriptors: Vec<OwnedFd>,
        connection: Arc<Connection>,
        fork_mark: Arc<ForkMark>,
    ) -> Result<(Self, Arc<PublishReader<Mapping>>), Error> {
        let [data_descriptor, publish, returns] = three(descriptors)?;
        let layout = SlotLayout::new(&terms.tensors, terms.batch_size).map_err(broken)?;
        if layout.slot_bytes() != terms.slot_bytes || terms.slots == 0 {
            return Err(Error::Version(format!(
                "the daemon says {} bytes a slot and {} slots, and this client computes {} bytes a slot; daemon and \
                 client differ in version",
                terms.slot_bytes,
                terms.slots,
                layout.slot_bytes()
            )));
        }
        let data_bytes = terms
            .slot_bytes
            .checked_mul(terms.slots.into())
            .ok_or_else(|| broken("the data segment is larger than this machine can address"))?;
        let data = open_segment(data_descriptor.as_fd(), "data", data_bytes, Access::ReadWrite)
            .map_err(broken)?;
        data.keep_from_children().map_err(broken)?;
        let wires = wires(terms, &publish, &returns, connection)?;
        let reader = Arc::clone(&wires.publish);
        let ring = Self {
            data: Some(data),
            data_descriptor,
            leases: Mutex::new(Leases::new(wires, terms.slots)),
            fork_mark,
            layout,
            slots: terms.slots,
            held: AtomicU64::new(0),
            registration: Mutex::new(None),
        };
        Ok((ring, reader))
    }

    /// The segment that the next daemon takes over.
    pub(crate) fn data_descriptor(&self) -> BorrowedFd<'_> {
        self.data_descriptor.as_fd()
    }

    /// The daemon is gone: until another is told what is held, a lease that ends leaves its slot free for it.
    pub(crate) fn detach(&self) {
        self.lock().detach();
    }

    /// What this process holds, for the next daemon. From now on leases that end are kept for its ring.
    pub(crate) fn name_held(&self) -> Vec<Leased> {
        self.lock().name_held()
    }

    /// Goes on over the rings of the next daemon; gives the publish ring's reader.
    pub(crate) fn attach(
        &self,
        terms: &Attached,
        descriptors: Vec<OwnedFd>,
        connection: Arc<Connection>,
    ) -> Result<Arc<PublishReader<Mapping>>, Error> {
        let [_data, publish, returns] = three(descriptors)?;
        let wires = wires(terms, &publish, &returns, connection)?;
        let reader = Arc::clone(&wires.publish);
        self.lock().attach(wires);
        Ok(reader)
    }

    /// The whole data segment.
    pub(crate) fn data(&self) -> Option<(*mut u8, usize)> {
        let data = self.data.as_ref()?;
        Some((data.base(), data.bytes()))
    }

    /// Keeps what rests on the mapping until just before it goes.
    pub(crate) fn keep_registration(&self, registration: Box<dyn Registration>) {
        *self.registration.lock().unwrap_or_else(PoisonError::into_inner) = Some(registration);
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.fork_mark.is_own_process()
    }

    pub(crate) fn layout(&self) -> &SlotLayout {
        &self.layout
    }

    /// The batches that this process holds.
    pub(crate) fn held(&self) -> u64 {
        // Relaxed: a count; the memory behind a lease is ordered by the return ring.
        self.held.load(Ordering::Relaxed)
    }

    /// Says that this side is about to sleep, and rings when returns went without a doorbell.
    pub(crate) fn announce_sleep(&self) {
        self.with_wires(|wires| {
            if wires.returns.announce_sleep() {
                wires.ring();
            }
        });
    }

    pub(crate) fn announce_wake(&self) {
        self.with_wires(|wires| wires.returns.announce_wake());
    }

    pub(crate) fn show_taken(&self, taken: u64) {
        let now = forebay_protocol::clock::monotonic_ns();
        self.with_wires(|wires| wires.returns.show_taken(taken, now));
    }

    pub(crate) fn show_waited(&self, total: std::time::Duration) {
        let nanoseconds = u64::try_from(total.as_nanos()).unwrap_or(u64::MAX);
        self.with_wires(|wires| wires.returns.show_waited(nanoseconds));
    }

    fn with_wires(&self, tell: impl FnOnce(&mut Wires)) {
        if let Some(wires) = self.lock().returns() {
            tell(wires);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Leases<Wires>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a lease of a descriptor that was read from the publish ring. A malformed one gives its slot up for good.
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

    /// Compares a descriptor with the layout that both sides compute: after it every view lies inside its slot.
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
            // A dense tensor's rows fill their pitch, so this is its exact length and a ragged one's greatest.
            let room = batch.rows.checked_mul(place.row_pitch_bytes);
            let length_fits = match room {
                Some(room) if ragged => {
                    entry.length_bytes <= room
                        && entry.length_bytes.is_multiple_of(spec.dtype.size_bytes())
                }
                room => room == Some(entry.length_bytes),
            };
            let rank = usize::from(entry.rank);
            let elements = entry.length_bytes / spec.dtype.size_bytes();
            let shape_fits = entry.dims.get(..rank).is_some_and(|dims| match dims {
                // A ragged tensor is described by the region that its rows lie in.
                [region] if ragged => *region == elements,
                [rows, row_shape @ ..] if !ragged => {
                    *rows == batch.rows && *row_shape == spec.row_shape[..]
                }
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
            // Neither mapped nor registered in a forked child; unmapping would hit whatever lies there now.
            std::mem::forget(registration);
            std::mem::forget(self.data.take());
        }
    }
}

/// The hold on one slot. Dropping it gives the slot back.
#[derive(Debug)]
pub(crate) struct Lease {
    ring: Arc<Ring>,
    descriptor: Descriptor,
}

impl Lease {
    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Counts the batch over all daemons of the session.
    pub(crate) fn add_to_number(&mut self, before: u64) {
        self.descriptor.sequence.0 += before;
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The data segment and the slot's first byte in it.
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
