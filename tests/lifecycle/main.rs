//! Promise P7, nothing left behind: how daemons and commands begin and end, and what is left when they do not.

#![forbid(unsafe_code)]

mod private;
mod recovery;
mod restart;
mod run;
mod seclusion;
mod serve;
mod shared;
