//! `forebay keys`: makes certificates for feeders and trainers, and says what to write into their configurations.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use forebay_feed::keys::{DEFAULT_DAYS, FEEDER_NAME, KeysRequest, Name, TRAINER_NAME, make, renew};
use forebay_inspect::output::print_line;

/// Arguments of `forebay keys`.
#[derive(Debug, Args)]
pub(super) struct KeysArguments {
    /// The folder for the files; it is made, for its owner alone. Existing files are not overwritten.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Replace the certificates and keys of both sides; the authority in DIR stays, so hosts need the new files of their
    /// side only, in any order.
    #[arg(long)]
    renew: bool,
    /// A further name of the feeders: a DNS name, *.DOMAIN or an address. Without it, trainers set feeders.tls.name.
    #[arg(long, value_name = "NAME")]
    feeder: Vec<String>,
    /// A further name of the trainers, for feed.allow: a DNS name, an address or a URI.
    #[arg(long, value_name = "NAME")]
    trainer: Vec<String>,
    /// For how many days the certificates are valid, 1 to 365.
    #[arg(long, value_name = "DAYS", default_value_t = DEFAULT_DAYS, value_parser = clap::value_parser!(u16).range(1..=365))]
    days: u16,
}

/// `forebay keys`.
pub(super) fn keys(arguments: &KeysArguments) -> anyhow::Result<ExitCode> {
    let folder = std::path::absolute(&arguments.folder)
        .with_context(|| format!("the folder {}", arguments.folder.display()))?;
    let request = KeysRequest {
        folder: folder.clone(),
        feeder_names: arguments.feeder.clone(),
        trainer_names: arguments.trainer.clone(),
        days: arguments.days,
    };
    match arguments.renew {
        true => renew(&request)?,
        false => make(&request)?,
    }
    print_line(summary(&folder, arguments))?;
    Ok(ExitCode::SUCCESS)
}

/// What is where, and what to write into the configurations.
fn summary(folder: &Path, arguments: &KeysArguments) -> String {
    let (done, days) = (if arguments.renew { "renewed in" } else { "made in" }, arguments.days);
    let shown = folder.display();
    let file = |name: Name| toml_text(&folder.join(name.file()));
    let (ca, feeder_names) = (file(Name::CaCertificate), names(FEEDER_NAME, &arguments.feeder));
    let trainer_names = names(TRAINER_NAME, &arguments.trainer);
    let feeder = (file(Name::FeederCertificate), file(Name::FeederKey));
    let trainer = (file(Name::TrainerCertificate), file(Name::TrainerKey));
    format!(
        "\
{done} {shown}, valid for {days} days:
  feeder.crt, feeder.key    the feeders, named {feeder_names}
  trainer.crt, trainer.key  the trainers, named {trainer_names}
  ca.crt                    the authority, for all hosts
  ca.key                    the authority's key: keep it here, copy it to no host

On each feeder's host, ca.crt, feeder.crt and feeder.key; in its configuration:
  [feed]
  tls = {{ ca = {ca}, cert = {}, key = {} }}
  allow = [{:?}]

On each trainer's host, ca.crt, trainer.crt and trainer.key; in its configuration:
  [feeders]
  tls = {{ ca = {ca}, cert = {}, key = {}, name = {:?} }}

Before {days} days have passed, run `forebay keys --renew{} {shown}` and copy the new files: running feeders and
daemons read them again without a restart.",
        feeder.0,
        feeder.1,
        TRAINER_NAME,
        trainer.0,
        trainer.1,
        FEEDER_NAME,
        again(arguments),
    )
}

fn names(first: &str, more: &[String]) -> String {
    std::iter::once(first).chain(more.iter().map(String::as_str)).collect::<Vec<_>>().join(", ")
}

/// The options that a renewal needs for the same names.
fn again(arguments: &KeysArguments) -> String {
    let feeder = arguments.feeder.iter().map(|name| format!(" --feeder '{name}'"));
    let trainer = arguments.trainer.iter().map(|name| format!(" --trainer '{name}'"));
    let days = (arguments.days != DEFAULT_DAYS).then(|| format!(" --days {}", arguments.days));
    feeder.chain(trainer).chain(days).collect()
}

/// A path as a TOML string. JSON's escapes are TOML's, too.
fn toml_text(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_toml_that_names_the_files() {
        let arguments = KeysArguments {
            folder: "keys".into(),
            renew: false,
            feeder: vec!["*.feeders.svc".to_owned()],
            trainer: Vec::new(),
            days: 7,
        };
        let text = summary(Path::new("/a \"b\"/keys"), &arguments);
        let tables: String = text
            .lines()
            .filter(|line| {
                ["[feed", "tls =", "allow ="].iter().any(|begin| line.trim().starts_with(begin))
            })
            .map(|line| line.trim().to_owned() + "\n")
            .collect();
        let read: toml::Table = tables.parse().unwrap();
        assert_eq!(read["feed"]["tls"]["key"].as_str(), Some("/a \"b\"/keys/feeder.key"));
        assert_eq!(read["feed"]["allow"][0].as_str(), Some(TRAINER_NAME));
        assert_eq!(read["feeders"]["tls"]["cert"].as_str(), Some("/a \"b\"/keys/trainer.crt"));
        assert_eq!(read["feeders"]["tls"]["name"].as_str(), Some(FEEDER_NAME));
        assert!(!tables.contains("ca.key"));
        assert!(text.contains("--renew --feeder '*.feeders.svc' --days 7 /a"), "{text}");
    }
}
