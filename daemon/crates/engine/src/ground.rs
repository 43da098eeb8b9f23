//! The engine's data with its atomics: streams, rows, slots, the byte gate and work parking. No thread runs here.

pub(crate) mod batch_run;
pub(crate) mod batch_shape;
pub(crate) mod budgets;
pub(crate) mod datasets;
pub(crate) mod gate;
pub(crate) mod identity;
pub(crate) mod jpeg_index;
pub(crate) mod lengths;
pub(crate) mod meter;
pub(crate) mod quarantine;
pub(crate) mod row_cells;
pub(crate) mod shared_rows;
pub(crate) mod slot_row;
pub(crate) mod spare_buffers;
pub(crate) mod stage_cost;
pub(crate) mod stream;
pub(crate) mod stream_error;
pub(crate) mod stream_version;
pub(crate) mod turns;
pub(crate) mod units;
pub(crate) mod waker;
pub(crate) mod watch;
pub(crate) mod work;
pub(crate) mod work_page;
pub(crate) mod work_parking;
pub(crate) mod worker_place;
