//! Encodes and decodes the messages of a gRPC call.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// The size of tonic's buffers: a message is written at once and grows its buffer once.
const BUFFER_BYTES: usize = 64 << 10;

/// Messages `Sent` out, messages `Received` in.
#[derive(Debug)]
pub(crate) struct Messages<Sent, Received>(PhantomData<(Sent, Received)>);

impl<Sent, Received> Default for Messages<Sent, Received> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Sent, Received> Codec for Messages<Sent, Received>
where
    Sent: Message + Send + 'static,
    Received: Message + Default + Send + 'static,
{
    type Encode = Sent;
    type Decode = Received;
    type Encoder = Side<Sent>;
    type Decoder = Side<Received>;

    fn encoder(&mut self) -> Self::Encoder {
        Side(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Side(PhantomData)
    }
}

#[derive(Debug)]
pub(crate) struct Side<M>(PhantomData<M>);

impl<M: Message + 'static> Encoder for Side<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, item: M, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // At once: a buffer that grows is copied each time.
        out.reserve(item.encoded_len());
        item.encode(out).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
    }
}

impl<M: Message + Default + 'static> Decoder for Side<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        M::decode(bytes).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
    }
}
