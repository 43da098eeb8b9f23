//! The memory of one sample's row in its batch's slot.

use forebay_protocol::mix::Mix;

/// The memory of one sample's row in its batch's slot. Tensors are numbered as in
/// [`SamplePlan::row_tensors`](crate::SamplePlan::row_tensors).
pub trait Row {
    /// The row's bytes of a dense tensor. A stage only writes them. A client that breaks the protocol may write there
    /// at any time: a batch operation, which reads them, must expect any bytes.
    fn dense(&mut self, tensor: usize) -> &mut [u8];

    /// Sets the length of a ragged tensor's row and gives its bytes; `None` when they exceed `max_row_bytes`.
    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]>;

    /// The bytes of a ragged tensor's row as its length was set last. Any bytes, as above.
    fn ragged_bytes(&mut self, tensor: usize) -> &[u8];

    /// Sets one of the mixes that the client's GPU does to the batch of a tensor. Any row of the batch may; nothing where
    /// the tensor lies in no slot.
    fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        let _ = (tensor, number, mix);
    }
}
