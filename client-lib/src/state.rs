//! A stream's state for a checkpoint: one line of JSON, the same on every rank.
//!
//! It has no rank, world size, time or host, so that any world size can resume from it. Two fingerprints identify the
//! stream; [`State::differences`] names the differences.

use std::collections::BTreeMap;

use forebay_protocol::cuts::Cut;
use forebay_protocol::frames::{Attached, CONFIG_PART_BYTES, CONFIG_PARTS, PythonSource};
use forebay_protocol::identity::{DATASET_OBJECT, DRAWS_OF_AN_EPOCH};
use forebay_protocol::ids::Position;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::supervisor::write_to_stderr;

/// The version of the state's layout that this release writes.
pub const STATE_LAYOUT: u64 = 1;

/// A position in a stream, and the stream's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Epoch and samples over all ranks, as handed over to the user.
    pub position: Position,
    /// Substitutes in that epoch so far.
    pub substitutes: u64,
    /// BLAKE3 of the dataset and of an epoch's draws from it, in hexadecimal digits.
    pub dataset: String,
    /// The fingerprint of the configuration's order and pixels, in hexadecimal digits, a part for each of [`CONFIG_PARTS`].
    pub config: String,
    /// The daemon's stream version.
    pub stream_version: u32,
    /// The digests of the sources of Python stages, by `module:function`. Empty in a state of a release that saved none.
    pub python: BTreeMap<String, String>,
    /// A description of an epoch's draws; empty if an epoch has each sample of one dataset once.
    pub draws: String,
    /// For a Dataset object: a description of its class, length and source; otherwise empty.
    pub object: String,
    /// With batches by length, and inside a pool: the cuts that led to the position.
    pub cuts: Vec<Cut>,
}

impl State {
    /// The state of a session at a position.
    #[must_use]
    pub fn of(terms: &Attached, position: Position, substitutes: u64) -> Self {
        Self {
            position,
            substitutes,
            dataset: hexadecimal(&terms.dataset_fingerprint),
            config: hexadecimal(&terms.config_fingerprint),
            stream_version: terms.stream_version,
            python: digests(terms).map(|(of, digest)| (of.target.clone(), digest)).collect(),
            draws: terms.identity.get(DRAWS_OF_AN_EPOCH).unwrap_or_default().to_owned(),
            object: terms.identity.get(DATASET_OBJECT).unwrap_or_default().to_owned(),
            cuts: Vec::new(),
        }
    }

    /// As JSON: `{"forebay": 1, "epoch", "samples", "substitutes", "dataset", "config", "stream_version"}`, with
    /// `"python"` if there are Python stages, `"draws"` if there are mixtures, weights or batches by length, `"object"` if
    /// there is a Dataset object, and `"cuts"` inside a pool of batches by length: for each cut the samples of the epoch
    /// from which on it applied, the world size, the budget, `multiple_of` and `max_rows`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut map = Map::new();
        map.insert("forebay".into(), STATE_LAYOUT.into());
        map.insert("epoch".into(), self.position.epoch.into());
        map.insert("samples".into(), self.position.samples.into());
        map.insert("substitutes".into(), self.substitutes.into());
        map.insert("dataset".into(), self.dataset.clone().into());
        map.insert("config".into(), self.config.clone().into());
        map.insert("stream_version".into(), self.stream_version.into());
        if !self.draws.is_empty() {
            map.insert(DRAWS_OF_AN_EPOCH.into(), self.draws.clone().into());
        }
        if !self.object.is_empty() {
            map.insert(DATASET_OBJECT.into(), self.object.clone().into());
        }
        if !self.cuts.is_empty() {
            let cuts = self.cuts.iter().map(|cut| numbers(cut).to_vec().into());
            map.insert("cuts".into(), Value::Array(cuts.collect()));
        }
        if !self.python.is_empty() {
            let digests =
                self.python.iter().map(|(of, digest)| (of.clone(), digest.clone().into()));
            map.insert("python".into(), Value::Object(digests.collect()));
        }
        Value::Object(map).to_string()
    }

    /// Parses the text that [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::StateMismatch`] when the text is not a state of a layout that this release reads.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let wrong =
            |what: String| Error::StateMismatch(format!("this is not a saved state: {what}"));
        let value: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let number = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_u64)
                .ok_or_else(|| wrong(format!("`{key}` is not a whole number of 0 or more")))
        };
        let digits = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
                .ok_or_else(|| wrong(format!("`{key}` is not a string")))
        };
        let words = |key: &str| match value.get(key) {
            Some(_) => digits(key),
            None => Ok(String::new()),
        };
        let python = || -> Option<BTreeMap<String, String>> {
            let Some(saved) = value.get("python") else { return Some(BTreeMap::new()) };
            let text = |digest: &Value| digest.as_str().map(str::to_owned);
            saved
                .as_object()?
                .iter()
                .map(|(of, digest)| Some((of.clone(), text(digest)?)))
                .collect()
        };
        let cuts = || -> Option<Vec<Cut>> {
            let Some(saved) = value.get("cuts") else { return Some(Vec::new()) };
            saved.as_array()?.iter().map(cut).collect()
        };
        let layout = number("forebay")?;
        if layout != STATE_LAYOUT {
            return Err(Error::StateMismatch(format!(
                "the state has layout {layout} and this release reads layout {STATE_LAYOUT}"
            )));
        }
        Ok(Self {
            position: Position { epoch: number("epoch")?, samples: number("samples")? },
            substitutes: number("substitutes")?,
            dataset: digits("dataset")?,
            config: digits("config")?,
            stream_version: u32::try_from(number("stream_version")?)
                .map_err(|_| wrong("`stream_version` is too large".into()))?,
            python: python().ok_or_else(|| wrong("`python` is not a dict of strings".into()))?,
            draws: words(DRAWS_OF_AN_EPOCH)?,
            object: words(DATASET_OBJECT)?,
            cuts: cuts()
                .ok_or_else(|| wrong("`cuts` is not a list of lists of five numbers".into()))?,
        })
    }

    /// The differences between this saved state and the session's stream; `None` when they match.
    #[must_use]
    pub fn differences(&self, terms: &Attached) -> Option<String> {
        let present = Self::of(terms, self.position, 0);
        let mut found = Vec::new();
        if self.draws != present.draws {
            let shown = |draws: &str| match draws {
                "" => "each sample of one dataset once".to_owned(),
                draws => format!("`{draws}`"),
            };
            found.push(format!(
                "what an epoch draws differs (saved {}, present {}): names, repeats and weights of datasets, \
                 order.weights, order.samples_per_epoch, with order.balance or order.group the samples' classes (with groups \
                 also batch.size), and with batches by length the samples' lengths, batch.length and order.pool stay as \
                 they were",
                shown(&self.draws),
                shown(&present.draws)
            ));
        } else if self.object != present.object {
            let shown = |object: &str| match object {
                "" => "files".to_owned(),
                object => format!("`{object}`"),
            };
            found.push(format!(
                "the Dataset differs (saved {}, present {}): its class, its length and the file that defines the class stay \
                 as they were",
                shown(&self.object),
                shown(&present.object)
            ));
        } else if self.dataset != present.dataset {
            found.push(format!(
                "the dataset differs (saved {}, present {}): files were added, removed or renamed, other samples are \
                 selected (dataset.where, dataset.split and its part, dataset.ids, dataset.limit), the class list changed, \
                 hidden files count or no longer count (dataset.hidden), or samples are made otherwise (dataset.fields, \
                 dataset.windows, the frames and starts of clips)",
                short(&self.dataset),
                short(&present.dataset)
            ));
        }
        if self.config != present.config {
            found.push(format!(
                "the configuration differs in {}",
                differing_parts(&self.config, &present.config)
            ));
        }
        if self.stream_version != present.stream_version {
            found.push(format!(
                "the stream version differs (saved {}, present {}): {}",
                self.stream_version,
                present.stream_version,
                what_changed(self.stream_version, present.stream_version)
            ));
        }
        if found.is_empty() {
            return None;
        }
        Some(format!(
            "the saved state does not belong to this stream: {}; use the same data and configuration, or `force` to \
             continue at epoch {}, sample {} of the present stream",
            found.join("; "),
            self.position.epoch,
            self.position.samples
        ))
    }
}

impl State {
    /// Whether both are the same position of the same stream; the sources of Python stages may differ.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        *self == Self { python: self.python.clone(), ..other.clone() }
    }

    /// Warns of each Python stage whose source has changed since this state; `since` says when the state was saved. The
    /// session uses the present source.
    pub(crate) fn warn_of_changed_sources(&self, terms: &Attached, since: &str) {
        let changed = digests(terms).filter(|(of, digest)| {
            self.python.get(&of.target).is_some_and(|saved| saved != digest)
        });
        for (PythonSource { stage, target, file, .. }, _) in changed {
            let warning = format!(
                "forebay: the source of stage `{stage}` (`{target}`, {file}) has changed since {since}: samples may \
                 differ from those of an uninterrupted run\n"
            );
            write_to_stderr(warning.as_bytes());
        }
    }
}

/// The Python stages whose modules have a file, and its digest.
fn digests(terms: &Attached) -> impl Iterator<Item = (&PythonSource, String)> {
    let with_file = terms.python_sources.iter().filter(|of| !of.digest.is_empty());
    with_file.map(|of| (of, of.digest.clone()))
}

/// The change that a stream version made to this stream.
fn what_changed(saved: u32, present: u32) -> &'static str {
    match (saved, present) {
        (1, 2) => {
            "numbers keep their types since release 0.3, such as the float32 of a column or of a Python function, so \
             that batches have other bytes than before"
        }
        _ => "this release produces other bytes or another order",
    }
}

/// The names of the fingerprint's parts in which two configurations differ.
fn differing_parts(saved: &str, present: &str) -> String {
    let part = |text: &str, number: usize| {
        let digits = 2 * CONFIG_PART_BYTES;
        text.get(number * digits..(number + 1) * digits).map(str::to_owned)
    };
    let differing = (0..).zip(CONFIG_PARTS).filter(|(number, _)| {
        let saved = part(saved, *number);
        saved.is_none() || saved != part(present, *number)
    });
    differing.map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

/// A cut in a state.
fn numbers(cut: &Cut) -> [u64; 5] {
    let Cut { from, world_size, budget, multiple_of, max_rows } = *cut;
    [from, world_size.into(), budget, multiple_of.into(), max_rows.into()]
}

/// The cut of a state.
fn cut(saved: &Value) -> Option<Cut> {
    let saved: Vec<u64> = saved.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let [from, world_size, budget, multiple_of, max_rows] = saved[..] else { return None };
    let small = |number| u32::try_from(number).ok();
    Some(Cut {
        from,
        world_size: small(world_size)?,
        budget,
        multiple_of: small(multiple_of)?,
        max_rows: small(max_rows)?,
    })
}

/// The first digits of a fingerprint, for messages.
fn short(digits: &str) -> String {
    digits.chars().take(16).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            position: Position { epoch: 3, samples: 512 },
            substitutes: 2,
            dataset: "ab".repeat(32),
            config: "cd".repeat(32),
            stream_version: 1,
            python: BTreeMap::new(),
            draws: String::new(),
            object: String::new(),
            cuts: Vec::new(),
        }
    }

    #[test]
    fn dataset_object_is_saved_as_text() {
        assert!(!state().to_json().contains("object"));
        let with = State { object: "m:D of 5 items with the source 12ab".to_owned(), ..state() };
        assert!(with.to_json().contains(r#""object":"m:D of 5 items with the source 12ab""#));
        assert_eq!(State::from_json(&with.to_json()).unwrap(), with);
        assert!(!with.is_same_place(&state()));
    }

    #[test]
    fn cuts_are_saved_inside_a_pool() {
        assert!(!state().to_json().contains("cuts"));
        let cut = Cut { from: 8, world_size: 3, budget: 16_384, multiple_of: 64, max_rows: 32 };
        let with = State { cuts: vec![cut, cut.starting_at(200)], ..state() };
        assert!(with.to_json().contains(r#""cuts":[[8,3,16384,64,32],[200,3,16384,64,32]]"#));
        assert_eq!(State::from_json(&with.to_json()).unwrap(), with);
        for wrong in ["[8,3]", "[8,3,16384,64,-1]", "[8,5000000000,16384,64,32]", "7"] {
            let text = with.to_json().replace("[8,3,16384,64,32]", wrong);
            let error = State::from_json(&text).unwrap_err().to_string();
            assert!(error.contains("`cuts` is not a list of lists of five numbers"), "{error}");
        }
    }

    #[test]
    fn draws_are_saved_unless_each_sample_is_drawn_once() {
        assert!(!state().to_json().contains("draws"));
        let with = State { draws: "repeat web 1 / books 2.5".to_owned(), ..state() };
        assert!(with.to_json().contains(r#""draws":"repeat web 1 / books 2.5""#));
        assert_eq!(State::from_json(&with.to_json()).unwrap(), with);
        let error = State::from_json(&with.to_json().replace("\"repeat web 1 / books 2.5\"", "7"));
        assert!(error.unwrap_err().to_string().contains("`draws` is not a string"));
    }

    #[test]
    fn sources_of_python_stages_are_saved() {
        let plain = state().to_json();
        assert!(!plain.contains("python"), "{plain}");
        let python = BTreeMap::from([("m:f".to_owned(), "12ab".to_owned())]);
        let with = State { python, ..state() };
        assert!(with.to_json().ends_with(r#","python":{"m:f":"12ab"}}"#));
        assert_eq!(State::from_json(&with.to_json()).unwrap(), with);
        assert!(with.is_same_place(&state()) && state().is_same_place(&with));
        let other = State { substitutes: 3, ..state() };
        assert!(!with.is_same_place(&other));
        let error = State::from_json(&with.to_json().replace("\"12ab\"", "7")).unwrap_err();
        assert!(error.to_string().contains("`python` is not a dict of strings"), "{error}");
    }

    #[test]
    fn state_round_trips_through_one_line_of_json() {
        let text = state().to_json();
        assert!(!text.contains('\n') && text.starts_with("{\"forebay\":1,"));
        assert_eq!(State::from_json(&text).unwrap(), state());
    }

    #[test]
    fn differing_parts_of_a_configuration_are_named() {
        let one = "ab".repeat(32);
        let seed = format!("{}{}", "00".repeat(8), "ab".repeat(24));
        let output = format!("{}{}", "ab".repeat(24), "cd".repeat(8));
        assert_eq!(differing_parts(&one, &seed), "order.seed");
        assert_eq!(differing_parts(&seed, &output), "order.seed, output");
        assert_eq!(differing_parts("00ff", &one), "order.seed, order.shuffle, operations, output");
    }

    #[test]
    fn invalid_text_is_refused_with_the_key() {
        for (text, part) in [
            ("[]", "forebay"),
            ("{", "JSON"),
            ("{\"forebay\":2}", "layout 2"),
            ("{\"forebay\":1,\"epoch\":-1}", "epoch"),
        ] {
            let error = State::from_json(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
