//! The entry points of fuzzers: a ticket, and a message of rows, out of any bytes.

use forebay_engine::RowColumn;
use forebay_protocol::tensor::{DType, Extent, TensorSpec};
use prost::Message as _;

use crate::ipc::Received;
use crate::messages::{Answer, FlightData};
use crate::ticket::Ticket;

/// A ticket: what is read is written as it was.
///
/// # Panics
/// It is not.
pub fn feed_ticket(bytes: &[u8]) {
    let Ok(ticket) = Ticket::read(bytes) else { return };
    assert_eq!(Ticket::read(&ticket.to_bytes()), Ok(ticket.clone()));
    assert_eq!(ticket.to_bytes().len(), bytes.len());
}

/// A message of rows with a dense and a ragged column.
///
/// # Panics
/// A row has another length than its column allows.
pub fn feed_answer(bytes: &[u8]) {
    let Ok(message) = FlightData::decode(bytes) else { return };
    let _ = Answer::decode(message.metadata);
    let extent = Extent::Ragged { max_row_bytes: 64, compact: false };
    let tensors = [
        TensorSpec::dense("image", DType::U8, &[2, 3]),
        TensorSpec { extent, ..TensorSpec::dense("boxes", DType::F32, &[4]) },
    ];
    let columns = tensors.each_ref().map(RowColumn::of_tensor);
    let Some(received) = Received::read(&message.header, message.body, &columns) else { return };
    for (number, column) in columns.iter().enumerate() {
        for row in 0..received.rows {
            let Some(found) = received.row(column, number, row) else { continue };
            assert!(column.max_row_bytes.is_some() || found.len() == 6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::three_rows;

    /// The messages from which the fuzzer starts.
    #[test]
    fn corpus_has_rows_that_are_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/feed_answer/rows");
        let batch = three_rows();
        let metadata = Answer { rows: vec![0, 1, 2], ..Answer::default() }.encode_to_vec();
        let message =
            FlightData { header: batch.header.into(), metadata: metadata.into(), body: batch.body };
        let bytes = message.encode_to_vec();
        feed_answer(&bytes);
        if std::env::var_os("FOREBAY_WRITE_CORPUS").is_some() {
            std::fs::write(file, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(file).unwrap(), bytes);
    }
}
