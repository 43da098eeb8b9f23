//! An answer to a request for an object, whose body is still to be taken.

use std::ops::Range;

use object_store::{Attribute, GetResult, ObjectMeta};

use forebay_observe::RequestUnderWay;

use super::body::Body;
use super::wire::Answered;
use crate::location::ObjectStamp;

/// See the module's head.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) range: Range<u64>,
    /// The object's size and ETag, to be compared with the index's.
    pub(super) stamp: ObjectStamp,
    /// The same by [`tag_of`].
    pub(super) told: ObjectStamp,
    pub(super) request: RequestUnderWay,
}

impl Answer {
    /// `answered`: where the body is, if it is still on its connection.
    pub(super) fn new(
        result: GetResult,
        answered: Option<Answered>,
        request: RequestUnderWay,
    ) -> Self {
        let bytes = result.meta.size;
        let stamp = ObjectStamp::new(bytes, result.meta.e_tag.as_deref());
        let told = ObjectStamp::new(bytes, tag_of(&result.meta).as_deref());
        let range = result.range.clone();
        let body = match answered {
            Some(answered) => Body::OnWire(answered),
            None => Body::Stream(result.into_stream()),
        };
        Self { body, range, stamp, told, request }
    }
}

/// What tells an object from another of its name and size: its ETag, else when it changed.
pub(super) fn tag_of(meta: &ObjectMeta) -> Option<String> {
    // The crate has the beginning of time where a server says nothing.
    let changed = Some(meta.last_modified).filter(|changed| changed.timestamp() != 0);
    let tag = meta.e_tag.clone().filter(|tag| !tag.is_empty());
    tag.or_else(|| changed.map(|changed| format!("{} {changed}", meta.size)))
}

/// How the body is encoded, if it is.
pub(super) fn encoding(result: &GetResult) -> Option<&str> {
    let encoding = result.attributes.get(&Attribute::ContentEncoding)?;
    Some(encoding.as_ref()).filter(|name| *name != "identity")
}
