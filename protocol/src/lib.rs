//! What a Forebay daemon and its clients must agree on, and nothing else.

pub mod ids;
pub mod mapped_file;
pub mod tensor;
