//! A stream's identity: the values that the ranks of a job must share, as short text by key.
//!
//! The daemon states it in `Attached`, and `forebay check` prints it; the client adds the world size. Its text,
//! `samples=1000,dataset=0f…,order.seed=7,…`, is compared between ranks and with a launcher's expectation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The key of an epoch's draws, unless an epoch has each sample of one dataset once.
pub const DRAWS_OF_AN_EPOCH: &str = "draws";

/// The key of the number of samples that are used, if not all are.
pub const SELECTED: &str = "selected";

/// The key of a trainer's Dataset object: its class, length and source.
pub const DATASET_OBJECT: &str = "object";

/// The keys and values, in the order of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(Vec<(String, String)>);

/// The reason why a text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form KEY=VALUE")]
pub struct IdentityError(String);

impl Identity {
    /// Adds an entry. `,` and `=` are replaced in both texts.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        let plain = |text: &str| text.replace([',', '='], "_");
        self.0.push((plain(key), plain(&value.to_string())));
        self
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(formatter, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let pairs = entries.map(|entry| {
            let (key, value) =
                entry.split_once('=').ok_or_else(|| IdentityError(entry.to_owned()))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::Identity;

    #[test]
    fn identity_round_trips_through_text() {
        let identity = Identity::default().with("samples", 1000).with("batch.last", "a=b,c");
        assert_eq!(identity.to_string(), "samples=1000,batch.last=a_b_c");
        assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
        assert_eq!(identity.get("samples"), Some("1000"));
        assert!("samples".parse::<Identity>().is_err());
        assert_eq!("".parse::<Identity>().unwrap(), Identity::default());
    }
}
