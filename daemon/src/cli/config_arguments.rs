//! Arguments that commands share: configuration files and overrides of keys.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_config::{Config, Override};
use forebay_keys::ConfigError;

/// Configuration files and keys set over them.
#[derive(Debug, Args)]
pub(super) struct ConfigArguments {
    /// Configuration files (TOML); each is a stream named after its file.
    #[arg(required = true, value_name = "CONFIG")]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
pub(super) struct Settings {
    /// Override a key, such as `batch.size=128`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    pub(super) fn overrides(&self) -> Result<Vec<Override>, ConfigError> {
        self.set.iter().map(|argument| Override::from_argument(argument)).collect()
    }
}

/// Reads one configuration file and applies the overrides.
pub(super) fn read_one(path: &Path, settings: &Settings) -> anyhow::Result<Config> {
    let mut config = Config::from_file(path, &settings.overrides()?)?;
    config.datasets_mut().try_for_each(forebay_formats::resolve_keys)?;
    Ok(config)
}

impl ConfigArguments {
    pub(super) fn overrides(&self) -> Result<Vec<Override>, ConfigError> {
        self.settings.overrides()
    }

    pub(super) fn read(&self) -> anyhow::Result<Vec<Config>> {
        let mut configs: Vec<Config> = Vec::new();
        for path in &self.configs {
            let config = read_one(path, &self.settings)?;
            if let Some(same) = configs.iter().find(|earlier| earlier.name == config.name) {
                anyhow::bail!(
                    "{} and {} would both be the stream `{}`; rename one file",
                    same.source,
                    config.source,
                    config.name
                );
            }
            configs.push(config);
        }
        Ok(configs)
    }
}
