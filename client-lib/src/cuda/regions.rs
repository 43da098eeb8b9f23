//! The regions of a slot that are copied: each tensor's rows, and a ragged tensor's table.
//!
//! On the device each region has room for a full batch; only the batch's actual bytes are copied.

use std::sync::Arc;

use forebay_protocol::frames::Attached;
use forebay_protocol::tensor::{Extent, TensorSpec};

use crate::batch::Batch;
use crate::error::Error;
use crate::finish::FinishPlan;

/// The kind of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The rows of a tensor.
    Rows,
    /// A ragged tensor's u64 offsets, and [`Region::table_rows`] words later its u64 lengths, in elements.
    Table,
}

/// One region of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The tensor's index in the schema.
    pub tensor: usize,
    /// The kind of region.
    pub part: Part,
    /// The size of a full batch on the device.
    pub bytes: usize,
    /// The size of a full batch in the slot: smaller if the device finishes the field; includes the mixes before its
    /// rows.
    pub raw_bytes: usize,
    /// For a table: the number of its offsets.
    pub table_rows: usize,
    /// How the device finishes the field.
    pub(crate) finish: Option<Arc<FinishPlan>>,
}

/// The regions of a session's batches, in the order of the tensors; a ragged tensor's table follows its rows.
pub(crate) fn regions_of(terms: &Attached) -> Result<Vec<Region>, Error> {
    let too_large = || Error::Protocol("a batch is larger than this machine can address".into());
    let table_rows = usize::try_from(terms.batch_size).map_err(|_| too_large())?;
    let mut regions = Vec::new();
    for (tensor, spec) in terms.tensors.iter().enumerate() {
        let whole = |row_bytes: Option<u64>| {
            row_bytes
                .and_then(|bytes| usize::try_from(bytes).ok()?.checked_mul(table_rows))
                .ok_or_else(too_large)
        };
        if !spec.row_shapes.is_empty() {
            return Err(Error::Config(format!(
                "field `{}` has another shape in each batch (batch.buckets), which batches on a device do not have: leave \
                 `device` out, and move each batch yourself, as with `batch[\"{0}\"].to(device)`",
                spec.name
            )));
        }
        let finish = FinishPlan::of(spec)?.map(Arc::new);
        let mixes_bytes = finish.as_ref().map_or(0, |plan| plan.mixes_bytes());
        let raw_bytes = whole(spec.row_pitch_bytes())?;
        let raw_bytes = raw_bytes.checked_add(mixes_bytes).ok_or_else(too_large)?;
        let bytes = match &finish {
            Some(plan) => whole(Some(plan.finished_row_bytes()))?,
            None => raw_bytes,
        };
        let part = Part::Rows;
        regions.push(Region { tensor, part, bytes, raw_bytes, table_rows: 0, finish });
        if matches!(spec.extent, Extent::Ragged { .. }) {
            let bytes = table_rows.checked_mul(16).ok_or_else(too_large)?;
            let (part, finish) = (Part::Table, None);
            regions.push(Region { tensor, part, bytes, raw_bytes: bytes, table_rows, finish });
        }
    }
    Ok(regions)
}

/// The schema on the device.
pub(crate) fn finished_specs(terms: &Attached, regions: &[Region]) -> Vec<TensorSpec> {
    let mut specs = terms.tensors.clone();
    for region in regions {
        if let Some(plan) = &region.finish {
            specs[region.tensor] = plan.finished().clone();
        }
    }
    specs
}

impl Region {
    fn mixes_bytes(&self) -> usize {
        self.finish.as_ref().map_or(0, |plan| plan.mixes_bytes())
    }

    /// The address of the region in a batch's slot, and the number of bytes that the batch has.
    pub(crate) fn source(&self, batch: &Batch) -> Option<(*const u8, usize)> {
        let tensor = batch.tensors().nth(self.tensor)?;
        match self.part {
            Part::Rows => {
                // The mixes precede the rows.
                let mixes_bytes = self.mixes_bytes();
                let from = if mixes_bytes > 0 { tensor.table_pointer() } else { tensor.pointer() };
                let bytes = mixes_bytes + tensor.length_bytes();
                Some((from.cast_const(), bytes.min(self.raw_bytes)))
            }
            Part::Table => {
                let (table, rows) = tensor.ragged()?.table();
                let bytes = rows.checked_mul(16)?.min(self.bytes);
                Some((table.cast::<u8>().cast_const(), bytes))
            }
        }
    }
}
