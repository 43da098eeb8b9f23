//! CPU time: how much the daemon may use, on which cores, and how the trainer is kept from feeling it.

pub(crate) mod budget;
pub(crate) mod cgroups;
pub(crate) mod cores;
mod gpus;
pub(crate) mod isolation;
mod number_list;
pub(crate) mod quota;
pub(crate) mod starvation;
