//! The size of a session's batches, which each trainer may choose, and what follows from it.

use std::sync::Arc;

use forebay_order::Selection;
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::publish::publish_words;
use forebay_protocol::returns::return_words;
use forebay_protocol::tensor::PAGE_BYTES;

use crate::ground::stream::Stream;
use crate::ground::work::row_bytes;

/// See the module's head.
#[derive(Debug, Clone)]
pub(crate) struct BatchShape {
    /// The maximal number of rows.
    pub(crate) size: u32,
    /// The positions of the tensors in a slot.
    pub(crate) layout: Arc<SlotLayout>,
}

impl Stream {
    /// The batches of a session that asks for this size; `None`: for the configured one.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub(crate) fn batch_shape(&self, size: Option<u32>) -> Result<BatchShape, String> {
        let configured = self.config.batch.size.get();
        let size = size.unwrap_or(configured);
        if size == configured {
            return Ok(BatchShape { size, layout: Arc::clone(&self.layout) });
        }
        if self.config.batch.buckets.is_some() {
            return Err(format!(
                "batches of this stream are of one shape (batch.buckets) and have {configured} rows; a trainer cannot choose \
                 another size"
            ));
        }
        if self.by_length.is_some() {
            return Err(format!(
                "batches of this stream are by length (batch.budget) and have at most {configured} rows (batch.max_rows); a \
                 trainer cannot choose another size"
            ));
        }
        if let Selection::Grouped(grouped) = self.selection() {
            return Err(format!(
                "batches of this stream consist of {} samples of each of their groups (order.group) and have {configured} \
                 samples (batch.size); a trainer cannot choose another size",
                grouped.size()
            ));
        }
        if size == 0 {
            return Err("a batch has at least one sample".to_owned());
        }
        if size > configured && self.plan.batch_workers(size).next().is_some() {
            return Err(format!(
                "a batch of {size} samples is larger than batch.size ({configured}), for which the memory of a function on \
                 batches is planned; raise batch.size"
            ));
        }
        let layout = SlotLayout::new(self.tensors(), size)
            .map_err(|error| format!("a batch of {size} samples: {error}"))?;
        Ok(BatchShape { size, layout: Arc::new(layout) })
    }

    /// The sizes of the data, publish and return segments of a session, in bytes.
    pub(crate) fn ring_bytes(&self, layout: &SlotLayout) -> [u64; 3] {
        let slots = self.config.ring.slots;
        let words = |count: usize| (count as u64 * 8).next_multiple_of(PAGE_BYTES);
        [
            layout.slot_bytes().saturating_mul(slots.into()),
            words(publish_words(slots, self.tensors().len())),
            words(return_words(slots)),
        ]
    }

    /// The memory for the rows of a session's ring in addition to their data.
    pub(crate) fn rows_bytes(&self, batch_size: u32) -> u64 {
        row_bytes(self)
            .saturating_mul(u64::from(batch_size))
            .saturating_mul(self.config.ring.slots.into())
    }

    /// The memory of a session with these batches.
    pub(crate) fn session_bytes(&self, shape: &BatchShape) -> u64 {
        let ring = self.ring_bytes(&shape.layout);
        ring.into_iter().fold(self.rows_bytes(shape.size), u64::saturating_add)
    }
}
