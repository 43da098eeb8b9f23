//! What a batch held, for comparison after it went back.

use forebay_client::{Batch, Error, Loader, Position, Tensor};

/// One batch's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its epoch.
    pub epoch: u64,
    /// The stream's position after it.
    pub position_after: Position,
    /// The sample ids of its rows.
    pub ids: Vec<i64>,
    /// The ids of the rows that are no padding.
    pub valid_ids: Vec<i64>,
    /// BLAKE3 over names, types, shapes and row bytes.
    pub digest: String,
}

impl Taken {
    /// Reads a batch.
    pub fn of(batch: &Batch) -> Self {
        let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
        assert_eq!(ids.len() as u64, batch.rows());
        let valid_ids = match batch.tensor("valid") {
            Some(valid) => {
                let valid = valid.as_slice::<u8>().unwrap();
                ids.iter().zip(valid).filter(|(_, valid)| **valid == 1).map(|(id, _)| *id).collect()
            }
            None => ids.clone(),
        };
        Self {
            epoch: batch.epoch(),
            position_after: batch.position_after(),
            ids,
            valid_ids,
            digest: digest(batch),
        }
    }
}

fn digest(batch: &Batch) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in batch.tensors() {
        hasher.update(tensor.name().as_bytes());
        hasher.update(tensor.dtype().name().as_bytes());
        add_content(&mut hasher, &tensor);
    }
    hasher.finalize().to_hex().to_string()
}

fn add_content(hasher: &mut blake3::Hasher, tensor: &Tensor<'_>) {
    let Some(ragged) = tensor.ragged() else {
        for dim in tensor.shape() {
            hasher.update(&dim.to_le_bytes());
        }
        hasher.update(tensor.bytes());
        return;
    };
    for row in 0..ragged.len() {
        let bytes = ragged.row_bytes(row).unwrap();
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
}

/// Takes the rest of an epoch, or of none the next epoch.
pub fn take_epoch(loader: &mut Loader) -> Vec<Taken> {
    std::iter::from_fn(|| loader.next_batch().unwrap().map(|batch| Taken::of(&batch))).collect()
}

/// Takes so many batches of an epoch.
pub fn take(loader: &mut Loader, count: usize) -> Vec<Taken> {
    (0..count).map(|_| Taken::of(&loader.next_batch().unwrap().expect("one more batch"))).collect()
}

/// The ids of all batches, in order.
pub fn ids(batches: &[Taken]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.ids.iter().copied()).collect()
}

/// What comes before an error, over the ends of epochs, and the error.
pub fn until_error(loader: &mut Loader) -> (Vec<Taken>, Error) {
    let mut batches = Vec::new();
    loop {
        match loader.next_batch() {
            Ok(batch) => batches.extend(batch.as_ref().map(Taken::of)),
            Err(error) => return (batches, error),
        }
    }
}

/// Ids in ascending order.
pub fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}
