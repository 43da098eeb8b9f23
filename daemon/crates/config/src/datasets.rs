//! Reads `[dataset]` or several `[[dataset]]`, and the keys that apply to all of them.

use crate::model::{CacheConfig, DatasetConfig, Limits};
use crate::single_keys::DatasetName;
use forebay_keys::ConfigError;
use forebay_keys::Keys;
use forebay_keys::Kind;
use forebay_keys::Section;
use forebay_keys::{Located, Value};

/// Reads `[dataset]` or `[[dataset]]`, and keys outside of it that apply to all datasets.
///
/// # Errors
/// There is no dataset, a name is repeated, or a value is not of its key's kind.
pub(super) fn read_datasets(
    root: &mut Section,
) -> Result<(DatasetConfig, Vec<DatasetConfig>), ConfigError> {
    let limits: Limits = root.table()?;
    let given = root.take_located("dataset");
    let storage = root.take_section("storage")?;
    let cache: CacheConfig = root.table()?;
    let read = |mut own: Section, storage: Section| {
        let mut dataset = DatasetConfig::take(&mut own)?;
        (dataset.limits, dataset.storage, dataset.cache) = (limits, storage, cache.clone());
        dataset.own = own;
        Ok(dataset)
    };
    let items = match given {
        Some(Located { value: Value::Array(items), location }) => {
            if items.is_empty() {
                return Err(ConfigError::new(
                    &location,
                    "`dataset` is required: at least one `[[dataset]]`",
                ));
            }
            items
        }
        given => {
            let nothing = || Located::new(Value::Table(Vec::new()), root.location());
            let own = root.nested("dataset", given.unwrap_or_else(nothing))?;
            return Ok((read(own, storage)?, Vec::new()));
        }
    };
    let mut datasets: Vec<DatasetConfig> = Vec::new();
    for (place, item) in items.into_iter().enumerate() {
        let given = item.get("name").and_then(|name| DatasetName::read(&name.value));
        let name = given.clone().unwrap_or_else(|| format!("dataset{place}"));
        let step = given.unwrap_or_else(|| place.to_string());
        let mut own = root.nested(format!("dataset.{step}"), item)?;
        let path = own.key_path("storage");
        let storage = match own.take_located("storage") {
            Some(located) => own.nested(path, located)?,
            None => storage.clone(),
        };
        let mut dataset = read(own, storage)?;
        if let Some(earlier) = datasets.iter().find(|dataset| dataset.name.as_ref() == Some(&name))
        {
            let message = format!(
                "two datasets are called `{name}`; the other one is at {}",
                earlier.own.location()
            );
            return Err(dataset.own.error_at("name", message));
        }
        dataset.name = Some(name);
        datasets.push(dataset);
    }
    hold_for_all(&mut datasets, "read_timeout", |dataset| &mut dataset.read_timeout)?;
    hold_for_all(&mut datasets, "outage_timeout", |dataset| &mut dataset.outage_timeout)?;
    hold_for_all(&mut datasets, "opening_memory", |dataset| &mut dataset.opening_memory)?;
    hold_for_all(&mut datasets, "jpeg_index", |dataset| &mut dataset.jpeg_index)?;
    hold_for_all(&mut datasets, "jpeg_index_bytes", |dataset| &mut dataset.jpeg_index_bytes)?;
    let first = datasets.remove(0);
    Ok((first, datasets))
}

/// A key that applies to the whole stream: it may be in any of the datasets.
fn hold_for_all<T: Copy + PartialEq>(
    datasets: &mut [DatasetConfig],
    key: &'static str,
    of: impl Fn(&mut DatasetConfig) -> &mut T,
) -> Result<(), ConfigError> {
    let mut given = None;
    for dataset in &mut *datasets {
        if dataset.own.location_of(key).is_none() {
            continue;
        }
        let value = *of(dataset);
        if given.is_some_and(|earlier| earlier != value) {
            let message = format!(
                "`{}` applies to all datasets and differs from an earlier one: give it once",
                dataset.own.key_path(key)
            );
            return Err(dataset.own.error_at(key, message));
        }
        given = Some(value);
    }
    if let Some(value) = given {
        datasets.iter_mut().for_each(|dataset| *of(dataset) = value);
    }
    Ok(())
}
