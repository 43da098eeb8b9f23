//! Helpers for tests of whole configurations.

use std::ffi::OsString;
use std::path::Path;

use super::config::{Origin, resolve};
use super::{Config, Override};
use forebay_keys::ConfigError;
use forebay_keys::parse_toml;

pub(super) fn environment(name: &str) -> Option<OsString> {
    (name == "DATA").then(|| OsString::from("/data"))
}

pub(super) fn read_with(text: &str, overrides: &[Override]) -> Result<Config, ConfigError> {
    let origin =
        Origin { name: "train".into(), source: "train.toml".into(), folder: Path::new("/project") };
    let tree = parse_toml("train.toml", text)?;
    resolve(origin, tree, overrides, &environment)
}

pub(super) fn read(text: &str) -> Result<Config, ConfigError> {
    read_with(text, &[])
}

pub(super) fn set(arguments: &[&str]) -> Vec<Override> {
    arguments.iter().map(|argument| Override::from_argument(argument).unwrap()).collect()
}

pub(super) const FOUR_LINES: &str =
    "preset = \"imagenet-train\"\ndataset.path = \"images\"\nbatch.size = 64\n";

pub(super) const NUMPY: &str = "[dataset]\nformat = \"npy\"\npath = \"/arrays\"\n[batch]\nsize = 8\n[[stage]]\nname = \"none\"\noperations = []\n";

/// `NUMPY` with a valid stage name and more lines.
pub(super) fn numpy(more: &str) -> String {
    format!("{}{more}", NUMPY.replace("\"none\"", "\"copy\""))
}
