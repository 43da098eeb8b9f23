//! What Hugging Face's writers say of columns: `{"info": {"features": …}}` in a schema's metadata, under `huggingface`.

use serde_json::Value;

/// The key of a schema's metadata.
pub(in crate::dataset) const HUGGINGFACE: &str = "huggingface";
/// Names of classes that are kept.
const MAX_CLASSES: usize = 1 << 20;

/// The features of a table, or of a part of one.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::dataset) struct Features<'a>(Option<&'a Value>);

/// What a column is said to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dataset) enum Feature {
    /// Nothing is said.
    Plain,
    /// Pictures: a struct of `bytes` and `path`.
    Image,
    /// Numbers that stand for names.
    Classes(Vec<String>),
    /// Arrays of one shape.
    Array(Vec<u64>),
}

impl<'a> Features<'a> {
    /// Those that the metadata of a schema holds.
    pub(in crate::dataset) fn parse(text: &str) -> Option<Value> {
        let mut all: Value = serde_json::from_str(text).ok()?;
        Some(all.get_mut("info")?.get_mut("features")?.take())
    }

    pub(in crate::dataset) fn new(all: Option<&'a Value>) -> Self {
        Self(all)
    }

    /// Of a list's elements, however the version of `datasets` has written it.
    pub(in crate::dataset) fn element(self) -> Self {
        let inner = self.0.and_then(|value| match value {
            Value::Array(one) => one.first(),
            value => value.get("feature"),
        });
        Self(inner.or(self.0))
    }

    /// Of a column, or of a struct's.
    pub(in crate::dataset) fn child(self, name: &str) -> Self {
        let of = |value: &'a Value| value.get(name);
        // A sequence of a dict is a struct of lists.
        Self(self.0.and_then(|value| of(value).or_else(|| value.get("feature").and_then(of))))
    }

    pub(in crate::dataset) fn feature(self) -> Feature {
        let word = self.0.and_then(|value| value.get("_type")).and_then(Value::as_str);
        let list = |key: &str| self.0.and_then(|value| value.get(key)).and_then(Value::as_array);
        match word.unwrap_or_default() {
            "Image" => Feature::Image,
            "ClassLabel" => {
                let names = list("names").into_iter().flatten().take(MAX_CLASSES);
                Feature::Classes(
                    names.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
                )
            }
            "Array2D" | "Array3D" | "Array4D" | "Array5D" => {
                let shape = list("shape").into_iter().flatten().map(Value::as_u64);
                shape.collect::<Option<_>>().map_or(Feature::Plain, Feature::Array)
            }
            _ => Feature::Plain,
        }
    }
}
