//! Promise P2, exactly once: every id once an epoch over all ranks; what is left out or repeated is counted.

#![forbid(unsafe_code)]

mod agreement;
mod launchers;
mod lengths;
mod ranks;
mod scripts;
mod states;
mod worlds;
