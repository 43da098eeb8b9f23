//! A response to a request for an object, whose body is not yet read.

use std::ops::Range;

use object_store::{Attribute, GetResult, ObjectMeta};

use forebay_observe::RequestUnderWay;
use forebay_storage::version::ObjectStamp;

use super::body::Body;
use super::wire::Answered;

/// See the module's head.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) range: Range<u64>,
    /// The object's size and ETag, to be compared with the index's.
    pub(super) stamp: ObjectStamp,
    /// The object's size and its tag from [`tag_of`].
    pub(super) told: ObjectStamp,
    /// Whether the response came over a new connection.
    pub(super) is_first: bool,
    /// See [`Answered`].
    pub(super) repeats_last: bool,
    pub(super) request: RequestUnderWay,
}

impl Answer {
    /// `answered`: the body, if it is still on its connection.
    pub(super) fn new(
        result: GetResult,
        answered: Option<Answered>,
        request: RequestUnderWay,
    ) -> Self {
        let bytes = result.meta.size;
        let stamp = ObjectStamp::new(bytes, result.meta.e_tag.as_deref());
        let told = ObjectStamp::new(bytes, tag_of(&result.meta).as_deref());
        let range = result.range.clone();
        let is_first = answered.as_ref().is_some_and(|answered| answered.is_first);
        let repeats_last = answered.as_ref().is_some_and(|answered| answered.repeats_last);
        let body = match answered {
            Some(answered) => Body::OnWire(answered),
            None => Body::Stream(result.into_stream()),
        };
        Self { body, range, stamp, told, is_first, repeats_last, request }
    }
}

/// What distinguishes an object from another of the same name and size: its ETag, or else its modification time.
pub(super) fn tag_of(meta: &ObjectMeta) -> Option<String> {
    // `object_store` sets the Unix epoch if the server sends no time.
    let changed = Some(meta.last_modified).filter(|changed| changed.timestamp() != 0);
    let tag = meta.e_tag.clone().filter(|tag| !tag.is_empty());
    tag.or_else(|| changed.map(|changed| format!("{} {changed}", meta.size)))
}

/// The body's content encoding, if it has one.
pub(super) fn encoding(result: &GetResult) -> Option<&str> {
    let encoding = result.attributes.get(&Attribute::ContentEncoding)?;
    Some(encoding.as_ref()).filter(|name| *name != "identity")
}
