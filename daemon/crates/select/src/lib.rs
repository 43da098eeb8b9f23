//! Which samples of a dataset are used: conditions over columns ([`Expression`]), parts by a hash ([`Split`]), and the set of
//! the ids that are kept ([`Subset`]).
//!
//! Knows nothing of datasets, formats and files: it gets values and numbers.

#![forbid(unsafe_code)]

pub mod expression;
#[doc(hidden)]
pub mod fuzzing;
mod split;
mod subset;

pub use expression::{Condition, Expression, Fault, Mistake, Type, Value};
pub use split::{Split, SplitError};
pub use subset::{Subset, SubsetBuilder};
