//! The memory of one sample's row in its batch's slot.

use forebay_protocol::mix::Mix;

/// The memory of one sample's row in its batch's slot. Tensors are numbered as in
/// [`SamplePlan::row_tensors`](crate::SamplePlan::row_tensors).
pub trait Row {
    /// The row's bytes of a dense tensor. A stage only writes them. A client that violates the protocol may write there
    /// at any time: a batch operation, which reads them, must accept any bytes.
    fn dense(&mut self, tensor: usize) -> &mut [u8];

    /// Sets the length of a ragged tensor's row and returns its bytes; `None` if they exceed `max_row_bytes`.
    fn ragged(&mut self, tensor: usize, bytes: u64) -> Option<&mut [u8]>;

    /// The bytes of a ragged tensor's row, with the length that was set last. They may be any bytes, as above.
    fn ragged_bytes(&mut self, tensor: usize) -> &[u8];

    /// Sets one of the mixes that the client's GPU applies to a tensor of the batch. Any row of the batch may set it;
    /// it has no effect if the tensor is not in a slot.
    fn set_mix(&mut self, tensor: usize, number: u32, mix: &Mix) {
        let _ = (tensor, number, mix);
    }
}
