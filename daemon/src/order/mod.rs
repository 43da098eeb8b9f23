//! Turns a position into sample ids: a pure function, in constant time and memory.

mod draw;

pub use draw::{DrawKey, Draws};
