//! The draws of an epoch: the keys of datasets and of `[order]` together.

use std::iter;
use std::num::NonZeroU32;
use std::path::PathBuf;

use crate::config::Config;
use crate::model::DatasetConfig;
use crate::single_keys::Shuffle;
use crate::weight_steps::WeightSteps;
use forebay_keys::Value;
use forebay_keys::{ConfigError, SourceLocation};

/// The configured draws of an epoch.
#[derive(Debug, Clone, PartialEq)]
pub enum DrawsConfig {
    /// Each sample of one dataset once.
    Once,
    /// Each sample of each dataset this many times.
    Repeats(Vec<f64>),
    /// This many samples in total, divided by the datasets' weights.
    Weights {
        /// `order.samples_per_epoch`.
        samples_per_epoch: u64,
        /// One per dataset.
        weights: Vec<WeightSteps>,
    },
    /// This many samples of one dataset, by the weights in a file, with replacement.
    WeightsOfSamples {
        /// `order.samples_per_epoch`.
        samples_per_epoch: u64,
        /// `order.weights`.
        path: PathBuf,
    },
    /// Samples of one dataset, each class equally often.
    Balanced {
        /// `order.samples_per_epoch`; `None`: as many as there are samples.
        samples_per_epoch: Option<u64>,
        /// `order.balance`: the field whose values are the classes.
        by: String,
    },
    /// Each sample of one dataset once at most, several samples of a group in a batch.
    Grouped {
        /// The field whose values are the groups.
        by: String,
        /// The samples of a group in a batch.
        size: NonZeroU32,
    },
}

impl Config {
    /// The datasets, in order.
    pub fn datasets(&self) -> impl Iterator<Item = &DatasetConfig> {
        iter::once(&self.dataset).chain(&self.more_datasets)
    }

    /// The datasets, mutable.
    pub fn datasets_mut(&mut self) -> impl Iterator<Item = &mut DatasetConfig> {
        iter::once(&mut self.dataset).chain(&mut self.more_datasets)
    }

    /// The location of a key of the dataset with this number, or of the nearest table above it.
    pub fn dataset_location(&self, place: usize, key: &str) -> SourceLocation {
        let item = match self.tree.get("dataset").map(|located| &located.value) {
            Some(Value::Array(items)) => items.get(place),
            _ => self.tree.get("dataset"),
        };
        let located = item.map(|item| item.get(key).unwrap_or(item));
        located.unwrap_or(&self.tree).location.clone()
    }

    /// The draws of an epoch.
    pub fn draws(&self) -> DrawsConfig {
        if let Some(by) = self.order.balance.clone() {
            return DrawsConfig::Balanced { samples_per_epoch: self.order.samples_per_epoch, by };
        }
        if let (Some(group), Some(size)) = (&self.order.group, self.group_size()) {
            return DrawsConfig::Grouped { by: group.by.clone(), size };
        }
        match (self.order.samples_per_epoch, &self.order.weights) {
            (Some(samples_per_epoch), Some(path)) => {
                DrawsConfig::WeightsOfSamples { samples_per_epoch, path: path.clone() }
            }
            (Some(samples_per_epoch), None) => {
                let once = || WeightSteps::constant(1.0);
                let weights =
                    self.datasets().map(|dataset| dataset.weight.clone().unwrap_or_else(once));
                DrawsConfig::Weights { samples_per_epoch, weights: weights.collect() }
            }
            (None, _) => {
                let repeat = |dataset: &DatasetConfig| dataset.repeat.unwrap_or(1.0);
                let repeats: Vec<f64> = self.datasets().map(repeat).collect();
                if repeats == [1.0] { DrawsConfig::Once } else { DrawsConfig::Repeats(repeats) }
            }
        }
    }

    /// Checks the keys of datasets and of `[order]` against each other.
    ///
    /// # Errors
    /// Keys contradict each other.
    pub(crate) fn check_draws(&self) -> Result<(), ConfigError> {
        let order = |key: &str, message: &str| {
            Err(ConfigError::new(&self.location(&["order", key]), message))
        };
        let (length, weights) = (self.order.samples_per_epoch, &self.order.weights);
        if weights.is_some() {
            if length.is_none() {
                return order(
                    "weights",
                    "`order.weights` needs `order.samples_per_epoch`: how many samples an epoch draws",
                );
            }
            if !self.more_datasets.is_empty() {
                return order(
                    "weights",
                    "`order.weights` is for one dataset; give each `[[dataset]]` a `weight` instead",
                );
            }
            if self.order.shuffle == Shuffle::Off {
                return order(
                    "weights",
                    "`order.weights` draws at random: leave `order.shuffle` out, or set it to true",
                );
            }
        }
        if self.order.shuffle == Shuffle::Blocks && self.draws() != DrawsConfig::Once {
            return order(
                "shuffle",
                "`order.shuffle = \"blocks\"` is for one dataset of which an epoch has each sample once; set it to true for \
                 mixtures, `repeat`, `weight` and `order.weights`, or leave these out",
            );
        }
        let has_weights = self.datasets().any(|dataset| dataset.weight.is_some());
        for dataset in self.datasets() {
            let own = &dataset.own;
            let fail = |key: &str, rest: &str| {
                Err(own.error_at(key, format!("`{}` {rest}", own.key_path(key))))
            };
            if dataset.weight.is_some() && dataset.repeat.is_some() {
                return fail("weight", "cannot be combined with `repeat`: give one of them");
            }
            if dataset.weight.is_some() && length.is_none() {
                return fail(
                    "weight",
                    "needs `order.samples_per_epoch`, which it is a share of; or give `repeat` instead",
                );
            }
            if dataset.weight.is_some() && weights.is_some() {
                return fail("weight", "cannot be combined with `order.weights`: give one of them");
            }
            if dataset.repeat.is_some() && length.is_some() {
                return fail(
                    "repeat",
                    "cannot be combined with `order.samples_per_epoch`, which sets the length of an epoch: give `weight`, or leave one of them out",
                );
            }
            let is_one_of_many = has_weights || !self.more_datasets.is_empty();
            if dataset.weight.is_none() && length.is_some() && is_one_of_many {
                return fail(
                    "weight",
                    "is required: `order.samples_per_epoch` is divided by the weights of all datasets",
                );
            }
        }
        let nothing = |key: &str, rest: String| {
            let own = &self.dataset.own;
            let message = format!("every dataset has `{key} = 0`{rest}: an epoch draws nothing");
            Err(own.error_at(key, message))
        };
        if self.datasets().all(|dataset| dataset.repeat == Some(0.0)) {
            return nothing("repeat", String::new());
        }
        if let DrawsConfig::Weights { weights, .. } = self.draws() {
            for from in weight_changes(&weights) {
                if weights.iter().all(|weight| weight.at(from) == 0.0) {
                    let rest = match from {
                        0 => String::new(),
                        from => format!(" from position {from}"),
                    };
                    return nothing("weight", rest);
                }
            }
        }
        Ok(())
    }
}

/// The positions at which any of the weights changes, in order, including the run's start.
pub fn weight_changes(weights: &[WeightSteps]) -> Vec<u64> {
    let mut all: Vec<u64> = weights.iter().flat_map(WeightSteps::changes).chain([0]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::{read, read_with, set};

    const HEAD: &str = "stage = [{ name = \"copy\", operations = [] }]\nbatch.size = 4\n";
    const TWO: &str =
        "[[dataset]]\nname = \"web\"\npath = \"a\"\nWEB\n[[dataset]]\npath = \"b\"\nOTHER\n";

    /// Two datasets with additional keys of each, and of `[order]`.
    fn two(web: &str, other: &str, order: &str) -> Result<Config, String> {
        let datasets = TWO.replace("WEB", web).replace("OTHER", other);
        read(&format!("{HEAD}order = {{ {order} }}\n{datasets}")).map_err(|error| error.to_string())
    }

    #[test]
    fn datasets_have_separate_names_and_keys() {
        let config = two("format = \"npy\"", "repeat = 2.5\nlimit = 7", "").unwrap();
        let names: Vec<_> =
            config.datasets().map(|dataset| dataset.name.clone().unwrap()).collect();
        assert_eq!(names, ["web", "dataset1"]);
        let all: Vec<_> =
            config.datasets().map(|of| (of.path.clone(), of.format.clone(), of.limit)).collect();
        assert_eq!(all[0], ("/project/a".into(), "npy".to_owned(), None));
        assert_eq!(all[1], ("/project/b".into(), "auto".to_owned(), Some(7)));
        assert_eq!(config.draws(), DrawsConfig::Repeats(vec![1.0, 2.5]));
        assert_eq!(config.dataset_location(1, "repeat").to_string(), "train.toml:10");
        assert_eq!(config.dataset_location(1, "format").to_string(), "train.toml:8");
    }

    #[test]
    fn list_of_one_dataset_equals_that_dataset() {
        let one = read(&format!("{HEAD}[[dataset]]\npath = \"a\"\n")).unwrap();
        let plain = read(&format!("{HEAD}[dataset]\npath = \"a\"\n")).unwrap();
        assert_eq!((one.draws(), plain.draws()), (DrawsConfig::Once, DrawsConfig::Once));
        assert_eq!(one.dataset.path, plain.dataset.path);
        let long = read(&format!("{HEAD}dataset = {{ path = \"a\", repeat = 3 }}\n")).unwrap();
        assert_eq!(long.draws(), DrawsConfig::Repeats(vec![3.0]));
    }

    #[test]
    fn weights_divide_an_epoch() {
        let config = two("weight = 3", "weight = 0.5", "samples_per_epoch = 100").unwrap();
        let weights = vec![WeightSteps::constant(3.0), WeightSteps::constant(0.5)];
        assert_eq!(config.draws(), DrawsConfig::Weights { samples_per_epoch: 100, weights });
        let order = "order = { samples_per_epoch = 9, weights = \"w.npy\" }";
        let config = read(&format!("{HEAD}{order}\ndataset.path = \"a\"\n")).unwrap();
        let path = "/project/w.npy".into();
        assert_eq!(config.draws(), DrawsConfig::WeightsOfSamples { samples_per_epoch: 9, path });
        let order = "order.samples_per_epoch = 9";
        let config = read(&format!("{HEAD}{order}\ndataset.path = \"a\"\n")).unwrap();
        let weights = vec![WeightSteps::constant(1.0)];
        assert_eq!(config.draws(), DrawsConfig::Weights { samples_per_epoch: 9, weights });
    }

    #[test]
    fn weights_change_at_positions_of_any_dataset() {
        let web = "weight = [3, { from = 500, weight = 0 }]";
        let other = "weight = [\n  0,\n  { from = 200, weight = 1 },\n]";
        let config = two(web, other, "samples_per_epoch = 100").unwrap();
        let DrawsConfig::Weights { weights, .. } = config.draws() else { panic!() };
        assert_eq!(weight_changes(&weights), [0, 200, 500]);
        assert_eq!([0, 200, 500].map(|at| weights[0].at(at)), [3.0, 3.0, 0.0]);
        assert_eq!([0, 200, 500].map(|at| weights[1].at(at)), [0.0, 1.0, 1.0]);
        let text = config.resolved_toml();
        let again = Config::from_resolved("train", "train.toml", &text).unwrap();
        assert_eq!(again.draws(), config.draws());
        let overrides =
            set(&["order.samples_per_epoch=9", "dataset.weight=[1, {from = 4, weight = 2}]"]);
        let config = read_with(&format!("{HEAD}dataset.path = \"a\"\n"), &overrides).unwrap();
        let DrawsConfig::Weights { weights, .. } = config.draws() else { panic!() };
        assert_eq!(weights[0].to_string(), "1 then 2 from 4");
    }

    #[test]
    fn contradictions_are_named_with_their_lines() {
        for (web, other, order, expected) in [
            (
                "weight = 1",
                "weight = 1",
                "",
                ":7: `dataset.web.weight` needs `order.samples_per_epoch`",
            ),
            ("weight = 1", "", "samples_per_epoch = 9", ":8: `dataset.1.weight` is required"),
            ("", "", "samples_per_epoch = 9", ":4: `dataset.web.weight` is required"),
            (
                "weight = 1\nrepeat = 2",
                "weight = 1",
                "samples_per_epoch = 9",
                ":7: `dataset.web.weight` cannot be combined with `repeat`",
            ),
            (
                "weight = 1",
                "repeat = 2",
                "samples_per_epoch = 9",
                ":10: `dataset.1.repeat` cannot be combined with `order.samples_per_epoch`",
            ),
            ("weight = 0", "weight = 0", "samples_per_epoch = 9", "every dataset has `weight = 0`"),
            (
                "weight = [0, { from = 5, weight = 1 }]",
                "weight = 0",
                "samples_per_epoch = 9",
                ":7: every dataset has `weight = 0`: an epoch",
            ),
            (
                "weight = [1, { from = 5, weight = 0 }]",
                "weight = [1, { from = 7, weight = 0 }]",
                "samples_per_epoch = 9",
                ":7: every dataset has `weight = 0` from position 7: an epoch draws nothing",
            ),
            (
                "weight = [1, { from = 5, weight = 2 }, { from = 5, weight = 3 }]",
                "weight = 1",
                "samples_per_epoch = 9",
                ":7: `dataset.web.weight` changes at position 5 after 5",
            ),
            ("repeat = 0", "repeat = 0", "", "every dataset has `repeat = 0`"),
            ("repeat = -1", "", "", ":7: `dataset.web.repeat` must be a number, 0 or more"),
            ("repeat = nan", "", "", ":7: `dataset.web.repeat` must be a number, 0 or more"),
            (
                "",
                "name = \"web\"",
                "",
                "two datasets are called `web`; the other one is at train.toml:4",
            ),
            ("", "name = \"a b\"", "", ":10: `dataset.1.name` must be 1 to 64 letters"),
            ("", "", "weights = \"w.npy\"", ":3: `order.weights` needs `order.samples_per_epoch`"),
            (
                "",
                "",
                "weights = \"w.npy\", samples_per_epoch = 9",
                ":3: `order.weights` is for one dataset",
            ),
            (
                "read_timeout = \"3s\"",
                "read_timeout = \"4s\"",
                "",
                ":10: `dataset.1.read_timeout` applies to all",
            ),
        ] {
            let error = two(web, other, order).unwrap_err();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
        for (datasets, order) in [
            (TWO.replace("WEB", "").replace("OTHER", ""), "shuffle = \"blocks\""),
            ("dataset = { path = \"a\", repeat = 2 }\n".to_owned(), "shuffle = \"blocks\""),
            ("dataset.path = \"a\"\n".to_owned(), "samples_per_epoch = 9, shuffle = \"blocks\""),
        ] {
            let error = read(&format!("{HEAD}order = {{ {order} }}\n{datasets}")).unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains(":3: `order.shuffle = \"blocks\"` is for one dataset"),
                "{message}"
            );
        }
        let error = read(&format!("{HEAD}dataset = []\n")).unwrap_err().to_string();
        assert!(error.contains("at least one `[[dataset]]`"), "{error}");
        let order = "order = { samples_per_epoch = 9, weights = \"w.npy\", shuffle = false }";
        let error =
            read(&format!("{HEAD}{order}\ndataset.path = \"a\"\n")).unwrap_err().to_string();
        assert!(error.contains("`order.weights` draws at random"), "{error}");
    }

    #[test]
    fn keys_for_all_datasets_may_be_in_any() {
        let config = two("", "read_timeout = \"3s\"", "").unwrap();
        assert!(config.datasets().all(|dataset| dataset.read_timeout.as_secs() == 3));
    }

    #[test]
    fn dataset_may_have_a_separate_storage() {
        let text = format!(
            "{HEAD}storage.region = \"x\"\n{}",
            TWO.replace("WEB", "[dataset.storage]\nregion = \"y\"").replace("OTHER", "")
        );
        let config = read(&text).unwrap();
        let region = |dataset: &DatasetConfig| dataset.storage.entries()[0].1.value.clone();
        let regions: Vec<_> = config.datasets().map(region).collect();
        assert_eq!(regions, ["y", "x"].map(|text| Value::String(text.to_owned())));
    }

    #[test]
    fn presets_and_overrides_apply_to_each_dataset() {
        let text = "preset = \"imagenet-train\"\nbatch.size = 4\n[[dataset]]\nname = \"web\"\npath = \"a\"\n[[dataset]]\npath = \"b\"\nformat = \"webdataset\"\n";
        let overrides = set(&["dataset.web.repeat=2", "dataset.1.path=/c"]);
        let config = read_with(text, &overrides).unwrap();
        let formats: Vec<_> = config.datasets().map(|dataset| dataset.format.as_str()).collect();
        assert_eq!(formats, ["image-folder", "webdataset"]);
        assert_eq!(config.draws(), DrawsConfig::Repeats(vec![2.0, 1.0]));
        assert_eq!(config.more_datasets[0].path, Path::new("/c"));
    }

    #[test]
    fn resolved_list_of_datasets_round_trips() {
        let config = two(
            "repeat = 0.5\nfields = { x = { from = \"a\" } }",
            "[dataset.storage]\nregion = \"y\"",
            "",
        )
        .unwrap();
        let text = config.resolved_toml();
        let again = Config::from_resolved("train", "train.toml", &text).unwrap();
        assert_eq!(again.resolved_toml(), text);
        assert_eq!(again.draws(), config.draws());
        assert!(
            text.contains("[dataset.storage]\nregion = \"y\"")
                && text.contains("name = \"dataset1\""),
            "{text}"
        );
    }
}
