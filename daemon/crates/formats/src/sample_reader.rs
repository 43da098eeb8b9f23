//! Reads samples one after the other; what neighbours share is read once.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;

use forebay_dataset::{Dataset, FieldValue};
use forebay_storage::location::{Location, SampleBytes, SharedBytes, Unit};
use forebay_storage::{Opened, Storage, StorageError};

/// The reader of one thread.
#[derive(Debug)]
pub struct SampleReader<'a> {
    dataset: &'a dyn Dataset,
    storage: &'a dyn Storage,
    limit_bytes: u64,
    locations: Vec<Location>,
    opened: Vec<Opened>,
    buffer: Vec<u8>,
    ends: Vec<usize>,
    /// The shared parts of the previous sample.
    shared: Vec<(Location, Arc<[u8]>)>,
}

impl<'a> SampleReader<'a> {
    /// Reads samples of up to `limit_bytes`.
    pub const fn new(dataset: &'a dyn Dataset, storage: &'a dyn Storage, limit_bytes: u64) -> Self {
        Self {
            dataset,
            storage,
            limit_bytes,
            locations: Vec::new(),
            opened: Vec::new(),
            buffer: Vec::new(),
            ends: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// The storage that samples are read from.
    pub const fn storage(&self) -> &'a dyn Storage {
        self.storage
    }

    /// Reads a sample, and passes the values of its fields to `take`. The inner error is a defect of the sample.
    ///
    /// # Errors
    /// The storage's error.
    pub fn read<T>(
        &mut self,
        id: SampleId,
        take: impl FnOnce(&[FieldValue<'_>]) -> Result<T, String>,
    ) -> Result<Result<T, String>, StorageError> {
        self.locations.clear();
        self.dataset.locate(id, &mut self.locations);
        let mut parts = Vec::new();
        let bytes = if self.locations.iter().any(|place| matches!(place.unit, Unit::Block(_))) {
            self.read_shared()?;
            parts.extend(self.shared.iter().map(|(_, bytes)| SharedBytes::new(Arc::clone(bytes))));
            SampleBytes::shared(&parts)
        } else {
            let Self { storage, dataset, locations, opened, buffer, ends, .. } = self;
            storage.open_all(*dataset, locations, self.limit_bytes, opened)?;
            storage.read_all(*dataset, opened, buffer, ends)?;
            SampleBytes::new(buffer, ends)
        };
        let mut values = Vec::new();
        Ok(match self.dataset.read(id, bytes, &mut values) {
            Ok(()) => take(&values),
            Err(defect) => Err(defect.0),
        })
    }

    /// Reads the parts of a sample that the previous one did not have. Those of the previous one are forgotten.
    fn read_shared(&mut self) -> Result<(), StorageError> {
        let before = std::mem::take(&mut self.shared);
        for location in &self.locations {
            let known = before.iter().find(|(known, _)| known == location);
            let bytes = match known.filter(|_| matches!(location.unit, Unit::Block(_))) {
                Some((_, bytes)) => Arc::clone(bytes),
                None => {
                    self.storage.read(
                        self.dataset,
                        *location,
                        self.limit_bytes,
                        &mut self.buffer,
                    )?;
                    Arc::from(self.buffer.as_slice())
                }
            };
            self.shared.push((*location, bytes));
        }
        Ok(())
    }
}
