//! The keys `order.balance` and `order.group`: the type of the second, and what neither can be combined with.

use std::num::NonZeroU32;

use forebay_keys::{ConfigError, Value, kinds};

use crate::config::Config;
use crate::model::Last;
use crate::single_keys::Shuffle;

const EXPECTED: &str =
    "a field of the samples such as \"label\", or a table such as { by = \"label\", size = 4 }";

/// The groups of which a batch has several samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupedBatches {
    /// The field whose values are the groups.
    pub by: String,
    /// The samples of a group in a batch; `None`: a batch is of one group.
    pub size: Option<NonZeroU32>,
}

kinds! {
    /// The groups of which a batch has several samples.
    [pub] GroupBy as GroupedBatches: EXPECTED, type "a field, or { by = …, size = … }";
    read(value) {
        let Value::Table(entries) = value else {
            return Some(GroupedBatches { by: String::read(value)?, size: None });
        };
        if entries.iter().any(|(key, _)| key != "by" && key != "size") {
            return None;
        }
        let find = |name: &str| entries.iter().find(|(key, _)| key == name).map(|(_, of)| &of.value);
        let size = match find("size") {
            Some(size) => Some(NonZeroU32::read(size)?),
            None => None,
        };
        Some(GroupedBatches { by: String::read(find("by")?)?, size })
    }
    write(out) {
        let by = Value::String(out.by.clone());
        match &out.size {
            None => by,
            Some(size) => Value::Table(vec![
                ("by".to_owned(), by.into()),
                ("size".to_owned(), NonZeroU32::write(size).into()),
            ]),
        }
    }
    schema { "anyOf": [{ "type": "string" }, {
        "type": "object", "required": ["by"], "additionalProperties": false,
        "properties": { "by": { "type": "string" }, "size": (NonZeroU32::schema()) }
    }] }
}

impl Config {
    /// The samples of a group in a batch, where batches are grouped.
    #[must_use]
    pub fn group_size(&self) -> Option<NonZeroU32> {
        self.order.group.as_ref().map(|group| group.size.unwrap_or(self.batch.size))
    }

    /// Checks `order.balance` and `order.group` against the other keys.
    pub(crate) fn check_classes(&self) -> Result<(), ConfigError> {
        let order = &self.order;
        let key = match (&order.balance, &order.group) {
            (None, None) => return Ok(()),
            (Some(_), None) => "balance",
            (_, Some(_)) => "group",
        };
        let fail = |rest: &str| {
            let location = self.location(&["order", key]);
            Err(ConfigError::new(&location, format!("`order.{key}` {rest}")))
        };
        if order.balance.is_some() && order.group.is_some() {
            return fail(
                "cannot be combined with `order.balance`: the groups of a batch differ and an epoch has each sample once at \
                 most; give one of them",
            );
        }
        if order.weights.is_some() {
            return fail(
                "cannot be combined with `order.weights`, which says how often each sample is drawn: give one of them",
            );
        }
        if !self.more_datasets.is_empty() {
            return fail(
                "is for one dataset; make one of them, such as a manifest of all samples, or leave it out",
            );
        }
        if self.dataset.repeat.is_some() || self.dataset.weight.is_some() {
            let own = if self.dataset.repeat.is_some() { "repeat" } else { "weight" };
            return fail(&format!(
                "cannot be combined with `dataset.{own}`: leave it out{}",
                if key == "balance" { ", and set `order.samples_per_epoch`" } else { "" }
            ));
        }
        match order.shuffle {
            Shuffle::Exact => {}
            Shuffle::Off => {
                return fail("draws at random: leave `order.shuffle` out, or set it to true");
            }
            Shuffle::Blocks => {
                return fail(
                    "cannot be combined with `order.shuffle = \"blocks\"`: set that to true",
                );
            }
        }
        let Some(size) = self.group_size() else { return Ok(()) };
        if order.samples_per_epoch.is_some() {
            return fail(
                "cannot be combined with `order.samples_per_epoch`: an epoch has each sample once at most; leave that out",
            );
        }
        if self.batch.budget.is_some() {
            return fail(
                "cannot be combined with `batch.budget`, with which lengths decide what is in a batch: give `batch.size`",
            );
        }
        if self.batch.buckets.is_some() {
            return fail(
                "cannot be combined with `batch.buckets`, with which shapes decide what is in a batch: leave one of them out",
            );
        }
        if size.get() == 1 {
            return fail(
                "has no effect with groups of 1: set `size` to 2 or more, or leave it out",
            );
        }
        if !self.batch.size.get().is_multiple_of(size.get()) {
            return fail(&format!(
                "has `size = {size}`, of which `batch.size` ({}) is no multiple: a batch consists of whole groups",
                self.batch.size
            ));
        }
        if self.batch.last == Last::Short {
            return fail(
                "cannot be combined with `batch.last = \"short\"`, which would divide groups among ranks: set that to \
                 \"drop\" or \"pad\"",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::DrawsConfig;
    use crate::testing::read;

    const ONE: &str = "dataset = { path = \"x\", format = \"npy\" }";

    fn order(dataset: &str, keys: &str) -> Result<Config, String> {
        let head = format!("{dataset}\nstage = [{{ name = \"copy\", operations = [] }}]\n");
        read(&format!("{head}{keys}\n")).map_err(|error| error.to_string())
    }

    #[test]
    fn classes_and_groups_are_fields() {
        let config = order(ONE, "batch.size = 8\norder.balance = \"label\"").unwrap();
        let by = || "label".to_owned();
        let balanced = DrawsConfig::Balanced { samples_per_epoch: None, by: by() };
        assert_eq!(config.draws(), balanced);
        let keys = "batch.size = 8\norder = { balance = \"label\", samples_per_epoch = 9 }";
        let balanced = DrawsConfig::Balanced { samples_per_epoch: Some(9), by: by() };
        assert_eq!(order(ONE, keys).unwrap().draws(), balanced);
        for (group, size) in [
            ("\"label\"", 8),
            ("{ by = \"label\" }", 8),
            ("{ by = \"label\", size = 4 }", 4),
            ("{ size = 2, by = \"label\" }", 2),
        ] {
            let config = order(ONE, &format!("batch.size = 8\norder.group = {group}")).unwrap();
            let size = NonZeroU32::new(size).unwrap();
            assert_eq!(config.draws(), DrawsConfig::Grouped { by: by(), size }, "{group}");
            let again = Config::from_resolved("x", "x.toml", &config.resolved_toml()).unwrap();
            assert_eq!(again.order, config.order);
        }
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        let two = "[[dataset]]\npath = \"x\"\n[[dataset]]\npath = \"y\"";
        let with = |key: &str| format!("dataset = {{ path = \"x\", {key} }}");
        let group = "group = { by = \"label\", size = 4 }";
        for (dataset, order_keys, batch, expected) in [
            (
                ONE,
                "balance = \"a\", group = \"a\"",
                "size = 8",
                "`order.group` cannot be combined with `order.balance`",
            ),
            (
                ONE,
                "balance = \"a\", weights = \"w.npy\", samples_per_epoch = 3",
                "size = 8",
                "`order.balance` cannot be combined with `order.weights`",
            ),
            (two, "balance = \"a\"", "size = 8", "`order.balance` is for one dataset"),
            (two, group, "size = 8", "`order.group` is for one dataset"),
            (
                &with("repeat = 2"),
                "balance = \"a\"",
                "size = 8",
                "cannot be combined with `dataset.repeat`: leave it out, and set `order.samples_per_epoch`",
            ),
            (
                &with("weight = 2"),
                "balance = \"a\", samples_per_epoch = 3",
                "size = 8",
                "cannot be combined with `dataset.weight`",
            ),
            (
                &with("repeat = 2"),
                group,
                "size = 8",
                "cannot be combined with `dataset.repeat`: leave it out",
            ),
            (
                ONE,
                "balance = \"a\", shuffle = false",
                "size = 8",
                "`order.balance` draws at random",
            ),
            (
                ONE,
                "balance = \"a\", shuffle = \"blocks\"",
                "size = 8",
                "`order.balance` cannot be combined with `order.shuffle = \"blocks\"`",
            ),
            (
                ONE,
                "group = \"a\", samples_per_epoch = 3",
                "size = 8",
                "`order.group` cannot be combined with `order.samples_per_epoch`",
            ),
            (
                ONE,
                group,
                "max_rows = 8, budget = { bytes = 9 }",
                "`order.group` cannot be combined with `batch.budget`",
            ),
            (
                ONE,
                group,
                "size = 8, buckets = [[64, 64]]",
                "`order.group` cannot be combined with `batch.buckets`",
            ),
            (ONE, "group = \"a\"", "size = 1", "`order.group` has no effect with groups of 1"),
            (ONE, group, "size = 10", "has `size = 4`, of which `batch.size` (10) is no multiple"),
            (
                ONE,
                group,
                "size = 8, last = \"short\"",
                "`order.group` cannot be combined with `batch.last = \"short\"`",
            ),
            (
                ONE,
                "group = { size = 4 }",
                "size = 8",
                "`order.group` must be a field of the samples",
            ),
            (ONE, "group = { by = \"a\", of = 4 }", "size = 8", "`order.group` must be a field"),
            (ONE, "group = { by = \"a\", size = 0 }", "size = 8", "`order.group` must be a field"),
            (ONE, "group = 4", "size = 8", "`order.group` must be a field of the samples"),
        ] {
            let head = "stage = [{ name = \"copy\", operations = [] }]\n";
            let text =
                format!("{head}order = {{ {order_keys} }}\nbatch = {{ {batch} }}\n{dataset}\n");
            let error = read(&text).unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains(":2:"),
                "{order_keys}\n{error}\n{expected}"
            );
        }
    }
}
