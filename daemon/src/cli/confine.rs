//! Drops the file access that a running daemon does not need (Landlock, Linux 5.13 and newer).
//!
//! A daemon parses untrusted files with C libraries. If such a file takes over the daemon, it cannot write or create
//! files or start programs; under `"strict"` it can read only its dataset. The rights of the calling thread, and of
//! threads that it starts later, are reduced permanently: so this is called after the streams are open and the socket
//! is bound, before any work thread starts. Open descriptors are not affected.
//! `docs/decisions/0010-landlock-not-seccomp.md` explains why the default is not stricter.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

use forebay_config::{Config, Confinement, DatasetConfig};
use forebay_formats::roots_of;
use forebay_keys::is_url;

/// The latest supported ABI; an older kernel enforces the part that it supports.
const KNOWN: ABI = ABI::V5;

/// What a strict daemon reads besides its dataset: the kernel's statistics, name services and their libraries.
const SYSTEM: [&str; 7] = ["/proc", "/sys", "/etc", "/usr", "/lib", "/lib64", "/dev"];

/// Restricts this thread and returns the result as text.
pub(super) fn confine(configs: &[&Config], run_folder: Option<&Path>) -> &'static str {
    let wanted = configs.iter().map(|config| config.security.confine);
    // Several streams share a process: the least strict setting applies.
    let level = wanted.min_by_key(|level| match level {
        Confinement::Off => 0,
        Confinement::Auto => 1,
        Confinement::Strict => 2,
    });
    let Some(level) = level.filter(|level| *level != Confinement::Off) else {
        return "security.confine is \"off\": file access is not restricted";
    };
    match restrict(level, configs, run_folder) {
        Ok(RulesetStatus::NotEnforced) => {
            "this kernel has no Landlock: file access is not restricted"
        }
        Ok(_) if level == Confinement::Strict => {
            "restricted to reading the dataset and system folders and writing the run-time folder; cannot start programs"
        }
        Ok(_) => "restricted to writing the run-time folder; cannot start programs",
        Err(error) => {
            tracing::warn!(%error, "cannot restrict file access (Landlock)");
            "cannot restrict file access (Landlock); see the log"
        }
    }
}

fn restrict(
    level: Confinement,
    configs: &[&Config],
    run_folder: Option<&Path>,
) -> Result<RulesetStatus, RulesetError> {
    let writing = AccessFs::from_write(KNOWN);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut handled = writing | AccessFs::Execute;
    if level == Confinement::Strict {
        handled |= reading;
    }
    let mut rules = Rules::default();
    if let Some(folder) = run_folder {
        rules.add(folder, writing | reading);
    }
    // The daemon changes its scheduling group and its control group through files.
    rules.add(Path::new("/proc/self"), reading | AccessFs::WriteFile);
    rules.add(Path::new("/sys/fs/cgroup"), reading | AccessFs::WriteFile);
    rules.add(Path::new("/dev/null"), reading | AccessFs::WriteFile);
    for cache in configs.iter().filter_map(|config| config.dataset.cache.path.as_ref()) {
        rules.add(cache, writing | reading);
    }
    if configs.iter().any(|config| config.listen.named_segments) {
        rules.add(Path::new("/dev/shm"), writing | reading);
    }
    if level == Confinement::Strict {
        for path in SYSTEM {
            rules.add(Path::new(path), reading);
        }
        let roots: Vec<_> =
            configs.iter().flat_map(|config| config.datasets().flat_map(roots_of)).collect();
        if roots.iter().any(|root| is_url(root)) {
            for path in forebay_formats::storages::remote_files() {
                rules.add(&path, reading);
            }
        }
        for root in &roots {
            rules.add(root, reading);
        }
        for config in configs {
            let tls = [&config.feeders.tls, &config.feed.tls].into_iter().flatten();
            let tls = tls.flat_map(|files| [&files.ca, &files.cert, &files.key]);
            for path in tls.chain(&config.feeders.file) {
                rules.add(path, reading);
            }
            for path in config.datasets().flat_map(DatasetConfig::files) {
                rules.add(path, reading);
            }
        }
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled)?
        .create()?;
    for (path, rights) in rules.0 {
        // A missing path needs no rule.
        let Ok(opened) = PathFd::new(&path) else { continue };
        let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(KNOWN) };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, rights & handled))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

#[derive(Default)]
struct Rules(Vec<(PathBuf, BitFlags<AccessFs>)>);

impl Rules {
    fn add(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        self.0.push((path.to_owned(), rights));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use forebay_config::Override;

    fn config(folder: &Path, level: &str) -> Config {
        let dict = serde_json::json!({
            "dataset": { "path": folder.join("data"), "format": "npy" }, "batch": { "size": 2 }, "stage": [{ "name": "copy", "operations": [] }],
            "security": { "confine": level },
        });
        Config::from_json("test", folder, &dict, &[] as &[Override]).unwrap()
    }

    /// What a confined thread can do: read the dataset, read elsewhere, write its folder, write elsewhere, start
    /// programs. `None` if the kernel cannot confine it.
    fn rights(level: &str) -> Option<[bool; 5]> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "run", "else"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("file"), name).unwrap();
        }
        let config = config(folder.path(), level);
        let path = |name: &str| folder.path().join(name);
        let tried = std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                if confine(&[&config], Some(&path("run"))).contains("no Landlock") {
                    return None;
                }
                Some([
                    std::fs::read(path("data/file")).is_ok(),
                    std::fs::read(path("else/file")).is_ok(),
                    std::fs::write(path("run/new"), "x").is_ok()
                        && std::fs::remove_file(path("run/new")).is_ok(),
                    std::fs::write(path("else/new"), "x").is_ok()
                        || std::fs::write(path("data/file"), "x").is_ok()
                        || std::fs::remove_file(path("else/file")).is_ok(),
                    std::process::Command::new("/bin/true")
                        .spawn()
                        .is_ok_and(|mut child| child.wait().is_ok()),
                ])
            });
            confined.join().unwrap()
        })?;
        // Other threads keep their rights.
        assert!(std::fs::read(path("else/file")).is_ok() || tried[3]);
        Some(tried)
    }

    #[test]
    fn confined_thread_has_only_the_rights_that_it_needs() {
        assert_eq!(rights("off"), Some([true, true, true, true, true]));
        let (Some(auto), Some(strict)) = (rights("auto"), rights("strict")) else {
            // Bypasses the test runner, which hides the output of a test that passes.
            let _ = std::io::stderr().write_all(b"skipped: this kernel has no Landlock\n");
            return;
        };
        assert_eq!(auto, [true, true, true, false, false]);
        assert_eq!(strict, [true, false, true, false, false]);
    }
}
