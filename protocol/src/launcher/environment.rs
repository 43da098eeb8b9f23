//! The variables of a process, and their numeric values.

use std::collections::BTreeMap;

/// A rank, and the number of ranks.
pub type RankOf = (u32, u32);

/// The environment variables of a process that are valid Unicode.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self(pairs.collect())
    }

    /// A variable's value without surrounding space; `None` if it is not set or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// A variable's value as a whole number.
    ///
    /// # Errors
    /// [`LauncherError::NotANumber`].
    pub fn number(&self, name: &'static str) -> Result<Option<u32>, LauncherError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse();
        number.map(Some).map_err(|_| LauncherError::NotANumber { name, value: text.to_owned() })
    }

    /// All variables that are not empty.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.keys().filter_map(|name| Some((name.as_str(), self.get(name)?)))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The reason why a launcher's variables give no rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// Not a number.
    #[error("{name} = `{value}` is not a whole number of 0 or more")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// Only one of two related variables is set.
    #[error("{set} is set but {missing} is not; set both, or give `rank` and `world_size`")]
    Half {
        /// The variable that is set.
        set: &'static str,
        /// The other one.
        missing: &'static str,
    },
    /// The rank is not below the number of ranks.
    #[error("{name} = {rank} is not below {size_name} = {size}")]
    NotBelow {
        /// The rank's variable.
        name: &'static str,
        /// The rank.
        rank: u32,
        /// The size's variable.
        size_name: &'static str,
        /// The size.
        size: u32,
    },
    /// The list does not contain this node.
    #[error("{name} = `{value}` has no entry for {node}")]
    NotListed {
        /// The list's variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The node, and the variable that names it.
        node: String,
    },
}

/// A rank that is below the number of ranks.
pub(super) fn below(
    name: &'static str,
    rank: u32,
    size_name: &'static str,
    size: u32,
) -> Result<RankOf, LauncherError> {
    if rank < size {
        return Ok((rank, size));
    }
    Err(LauncherError::NotBelow { name, rank, size_name, size })
}
