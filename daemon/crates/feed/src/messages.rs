//! The messages of Arrow Flight that feeders and daemons exchange, as far as they use them: field numbers are those of
//! `Flight.proto`. And the messages of our own inside them.

use bytes::Bytes;
use prost::Message;

/// What a client wants to know of.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlightDescriptor {
    /// 1: a path, 2: a command.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) command: Bytes,
    #[prost(string, repeated, tag = "3")]
    pub(crate) path: Vec<String>,
}

/// A command.
pub(crate) const COMMAND: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ticket {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) ticket: Bytes,
}

/// Where rows can be had; without an address: where it was asked.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlightEndpoint {
    #[prost(message, optional, tag = "1")]
    pub(crate) ticket: Option<Ticket>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlightInfo {
    /// An encapsulated Arrow schema.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) schema: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) descriptor: Option<FlightDescriptor>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) endpoints: Vec<FlightEndpoint>,
    #[prost(int64, tag = "4")]
    pub(crate) total_records: i64,
    #[prost(int64, tag = "5")]
    pub(crate) total_bytes: i64,
    /// [`StreamInfo`] as JSON.
    #[prost(bytes = "bytes", tag = "7")]
    pub(crate) metadata: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FlightData {
    /// An Arrow message, not encapsulated.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) header: Bytes,
    /// [`Answer`].
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) metadata: Bytes,
    #[prost(bytes = "bytes", tag = "1000")]
    pub(crate) body: Bytes,
}

/// What comes with a message of rows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    /// The places in the ticket of this message's rows, in the order of the rows.
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) rows: Vec<u32>,
    /// The rows that were not made.
    #[prost(message, repeated, tag = "2")]
    pub(crate) failures: Vec<Failure>,
    /// Rows that the feeder has still to make, for whomever; in the last message.
    #[prost(uint64, tag = "3")]
    pub(crate) waiting: u64,
    /// Whether it is the last message.
    #[prost(bool, tag = "4")]
    pub(crate) is_last: bool,
}

/// A row that was not made.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Failure {
    /// Its place in the ticket.
    #[prost(uint32, tag = "1")]
    pub(crate) row: u32,
    #[prost(enumeration = "FailureKind", tag = "2")]
    pub(crate) kind: i32,
    /// One line.
    #[prost(string, tag = "3")]
    pub(crate) reason: String,
    /// A traceback.
    #[prost(string, tag = "4")]
    pub(crate) text: String,
    /// Of an exception: the stage's number.
    #[prost(uint32, tag = "5")]
    pub(crate) stage: u32,
}

/// Why a row was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum FailureKind {
    /// It may be made elsewhere.
    Elsewhere = 0,
    /// The sample's bytes are defective.
    Defect = 1,
    /// The user's function raised an exception.
    Raised = 2,
}

/// What a feeder says of a stream, as JSON in [`FlightInfo::metadata`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct StreamInfo {
    /// The stream's name there.
    pub(crate) stream: String,
    /// Forebay's release.
    pub(crate) release: String,
    /// The row identity.
    pub(crate) identity: String,
    /// Its digest, for tickets, in hexadecimal.
    pub(crate) digest: String,
    /// Work threads.
    pub(crate) cores: u32,
    /// The most rows of a ticket.
    pub(crate) rows: u32,
    /// The requests that it takes of one daemon at a time.
    pub(crate) requests: u32,
}
