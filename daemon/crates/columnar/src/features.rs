//! Hugging Face's declarations of columns: `{"info": {"features": …}}` in a schema's metadata, under `huggingface`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// The key in a schema's metadata.
pub(crate) const HUGGINGFACE: &str = "huggingface";
/// The maximum number of class names that are kept.
const MAX_CLASSES: usize = 1 << 20;

/// The features of a table, or of a part of one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Features<'a>(Option<&'a Value>);

/// The declared type of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Feature<'a> {
    /// No type that matters here.
    Plain,
    /// Pictures: a struct of `bytes` and `path`.
    Image,
    /// Class numbers; [`SharedClasses`] copies the names.
    Classes(&'a [Value]),
    /// Arrays of one shape.
    Array(Vec<u64>),
}

impl<'a> Features<'a> {
    /// Parses the features from a schema's metadata.
    pub(crate) fn parse(text: &str) -> Option<Value> {
        let mut all: Value = serde_json::from_str(text).ok()?;
        Some(all.get_mut("info")?.get_mut("features")?.take())
    }

    pub(crate) fn new(all: Option<&'a Value>) -> Self {
        Self(all)
    }

    /// The features of a list's elements, in the notation of any version of `datasets`.
    pub(crate) fn element(self) -> Self {
        let inner = self.0.and_then(|value| match value {
            Value::Array(one) => one.first(),
            value => value.get("feature"),
        });
        Self(inner.or(self.0))
    }

    /// The features of a column, or of a struct's field.
    pub(crate) fn child(self, name: &str) -> Self {
        let of = |value: &'a Value| value.get(name);
        // A sequence of a dict is a struct of lists.
        Self(self.0.and_then(|value| of(value).or_else(|| value.get("feature").and_then(of))))
    }

    pub(crate) fn feature(self) -> Feature<'a> {
        let word = self.0.and_then(|value| value.get("_type")).and_then(Value::as_str);
        let list = |key: &str| self.0.and_then(|value| value.get(key)).and_then(Value::as_array);
        match word.unwrap_or_default() {
            "Image" => Feature::Image,
            "ClassLabel" => {
                let names = list("names").map_or(&[][..], Vec::as_slice);
                Feature::Classes(&names[..names.len().min(MAX_CLASSES)])
            }
            "Array2D" | "Array3D" | "Array4D" | "Array5D" => {
                let shape = list("shape").into_iter().flatten().map(Value::as_u64);
                shape.collect::<Option<_>>().map_or(Feature::Plain, Feature::Array)
            }
            _ => Feature::Plain,
        }
    }
}

/// Names of classes. Columns with the same declaration share one copy.
#[derive(Debug, Default)]
pub(crate) struct SharedClasses(HashMap<*const Value, Arc<[String]>>);

impl SharedClasses {
    /// The names that are strings. `names` must not move while these live.
    pub(crate) fn of(&mut self, names: &[Value]) -> Arc<[String]> {
        let copy = || names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Arc::clone(self.0.entry(names.as_ptr()).or_insert_with(copy))
    }
}
