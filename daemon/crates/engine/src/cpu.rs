//! CPU time: how much the daemon may use, on which cores, and how the trainer is kept from feeling it.

pub(crate) mod budget;
pub(crate) mod cgroups;
pub(crate) mod cores;
pub(crate) mod isolation;
pub(crate) mod quota;
pub(crate) mod starvation;
