//! What is measured: times and queues by the names of DESIGN's section 9, and the sentence that they add up to.

mod histogram;
mod queue;
mod ring;
mod stage;

pub use histogram::TimeHistogram;
pub use queue::{QueueFigures, QueueReport};
pub use ring::RingFigures;
pub use stage::{StageFigures, StageReport};
