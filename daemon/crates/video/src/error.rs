//! Why bytes are refused.

/// Why a file, a table or a clip is refused. Lowercase, with the values, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// The result of a parser of this crate.
pub type Result<T, E = Refused> = std::result::Result<T, E>;

/// A refusal with a formatted reason.
macro_rules! refuse {
    ($($reason:tt)*) => { Err($crate::Refused(format!($($reason)*))) };
}

pub(crate) use refuse;
