//! Promise P1, pure order: the bytes of batch *k* depend on configuration, data and place in the stream alone, not on
//! thread counts, stages, restarts or where a client came in.

#![forbid(unsafe_code)]

mod digests;
mod feeders;
mod feeders_attacked;
mod finish;
mod jpeg_index;
mod places;
mod releases;
mod rows;
mod trainers;
