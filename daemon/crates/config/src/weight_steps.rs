//! A dataset's weight, which may change at positions.

use crate::single_keys::Amount;
use forebay_keys::Kind;
use forebay_keys::kinds;
use forebay_keys::{Located, Value};

const EXPECTED: &str =
    "a number, 0 or more, or a list such as [3, { from = 2_000_000, weight = 1 }]";

/// A dataset's weight from the run's start, and its changes. Positions are samples over all ranks from the run's start,
/// across epochs.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSteps {
    first: f64,
    /// The positions of changes, increasing, and the weights from there on.
    later: Vec<(u64, f64)>,
}

impl WeightSteps {
    /// A constant weight.
    pub const fn constant(weight: f64) -> Self {
        Self { first: weight, later: Vec::new() }
    }

    /// The weight at a position.
    pub fn at(&self, position: u64) -> f64 {
        let before = self.later.partition_point(|(from, _)| *from <= position);
        before.checked_sub(1).map_or(self.first, |last| self.later[last].1)
    }

    /// The positions at which it changes.
    pub fn changes(&self) -> impl Iterator<Item = u64> {
        self.later.iter().map(|(from, _)| *from)
    }
}

impl std::fmt::Display for WeightSteps {
    /// `3 then 1 from 2000000`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.first)?;
        self.later.iter().try_for_each(|(from, weight)| write!(f, " then {weight} from {from}"))
    }
}

/// The `from` and `weight` of a change, both required.
fn read_change(item: &Located) -> Option<(u64, f64)> {
    let Value::Table(keys) = &item.value else { return None };
    let from = item.get("from").and_then(|from| u64::read(&from.value))?;
    let weight = item.get("weight").and_then(|weight| Amount::read(&weight.value))?;
    (keys.len() == 2).then_some((from, weight))
}

/// The mistake in a list of changes.
fn mistake_in(items: &[Located]) -> Option<String> {
    let Some((first, later)) = items.split_first() else {
        return Some(format!(" is empty: give {EXPECTED}"));
    };
    if Amount::read(&first.value).is_none() {
        let found = first.value.describe();
        return Some(format!(
            " begins with {found}: the first of a list is the weight from the run's start, a number, 0 or more"
        ));
    }
    let mut last = 0;
    for (place, item) in later.iter().enumerate() {
        let Some((from, _)) = read_change(item) else {
            let mut found = item.value.to_toml();
            found.truncate(found.char_indices().nth(60).map_or(found.len(), |(end, _)| end));
            return Some(format!(
                ": entry {} of the list is {found}, not {{ from = a position, weight = a number, 0 or more }}",
                place + 2
            ));
        };
        if from <= last {
            return Some(format!(
                " changes at position {from} after {last}: each `from` has to be above the one before it, and above 0"
            ));
        }
        last = from;
    }
    None
}

kinds! {
    /// The share of a dataset in an epoch, relative to other datasets.
    [pub] Weight as WeightSteps: EXPECTED, type "a number from 0, or a list of changes";
    read(value) {
        let Value::Array(items) = value else {
            return Amount::read(value).map(WeightSteps::constant);
        };
        if mistake_in(items).is_some() {
            return None;
        }
        let (first, later) = items.split_first()?;
        let later = later.iter().map(read_change).collect::<Option<_>>()?;
        Some(WeightSteps { first: Amount::read(&first.value)?, later })
    }
    write(out) {
        if out.later.is_empty() {
            return Amount::write(&out.first);
        }
        let change = |(from, weight): &(u64, f64)| {
            let keys = [("from", u64::write(from)), ("weight", Amount::write(weight))];
            Value::Table(keys.map(|(key, value)| (key.to_owned(), value.into())).into())
        };
        let first = Located::from(Amount::write(&out.first));
        let later = out.later.iter().map(|step| Located::from(change(step)));
        Value::Array(std::iter::once(first).chain(later).collect())
    }
    refusal(value) {
        match value {
            Value::Array(items) => mistake_in(items),
            _ => None,
        }
    }
    schema { "anyOf": [
        (Amount::schema()),
        { "type": "array", "minItems": 1, "items": { "anyOf": [(Amount::schema()), {
            "type": "object",
            "properties": { "from": (u64::schema()), "weight": (Amount::schema()) },
            "required": ["from", "weight"],
            "additionalProperties": false,
        }] } },
    ] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_keys::parse_toml;

    fn value(text: &str) -> Value {
        let tree = parse_toml("train.toml", &format!("weight = {text}")).unwrap();
        tree.get("weight").unwrap().value.clone()
    }

    #[test]
    fn weight_is_a_number_or_changes_at_positions() {
        let plain = Weight::read(&value("3")).unwrap();
        assert_eq!((plain.at(0), plain.at(u64::MAX), plain.changes().count()), (3.0, 3.0, 0));
        assert_eq!(Weight::write(&plain).to_toml(), "3.0");
        let list = "[3, { from = 2_000, weight = 0 }, { weight = 0.5, from = 7_000 }]";
        let steps = Weight::read(&value(list)).unwrap();
        let at = [0, 1_999, 2_000, 6_999, 7_000, u64::MAX].map(|position| steps.at(position));
        assert_eq!(at, [3.0, 3.0, 0.0, 0.0, 0.5, 0.5]);
        assert_eq!(steps.changes().collect::<Vec<_>>(), [2_000, 7_000]);
        assert_eq!(steps.to_string(), "3 then 0 from 2000 then 0.5 from 7000");
        assert_eq!(Weight::read(&value(&Weight::write(&steps).to_toml())), Some(steps));
        assert_eq!(Weight::read(&value("[2]")), Some(WeightSteps::constant(2.0)));
    }

    #[test]
    fn mistakes_in_a_list_are_named() {
        for (list, expected) in [
            ("[]", " is empty: give a number"),
            ("[{ from = 1, weight = 1 }]", " begins with a table"),
            ("[-1]", " begins with -1: "),
            ("[1, 2]", ": entry 2 of the list is 2, not { from ="),
            ("[1, { from = 5 }]", ": entry 2 of the list is { from = 5 }"),
            ("[1, { from = 5, weight = -1 }]", ": entry 2"),
            ("[1, { from = 5, weight = 1, until = 9 }]", ": entry 2"),
            ("[1, { from = 5, weight = 1 }, { from = -5, weight = 1 }]", ": entry 3"),
            ("[1, { from = 0, weight = 2 }]", " changes at position 0 after 0: "),
            (
                "[1, { from = 5, weight = 1 }, { from = 5, weight = 2 }]",
                " changes at position 5 after 5: each `from` has to be above",
            ),
        ] {
            let value = value(list);
            assert_eq!(Weight::read(&value), None, "{list}");
            let refusal = Weight::refusal(&value).unwrap();
            assert!(refusal.starts_with(expected), "{list}: {refusal}");
        }
        assert_eq!(Weight::read(&value("\"3\"")), None);
    }
}
