//! Gives up the rights over files that a daemon at work does not need (Landlock, Linux 5.13 and newer).
//!
//! A daemon reads files that strangers made, through libraries in C. Whatever such a file makes it do, it can then no
//! longer write a file, make one or start a program; under `"strict"` it reads nothing but its dataset either. The rights
//! of the calling thread, and of the threads that it starts from then on, are reduced for good: so this is called when
//! the streams are open and the socket is bound, before any work thread starts. Descriptors that are open keep theirs;
//! `docs/decisions/0010-landlock-not-seccomp.md` says why it goes no further by default.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

use crate::config::{Config, Confinement};

/// The newest rights known here; an older kernel restricts what it knows of them.
const KNOWN: ABI = ABI::V5;

/// What a strict daemon reads besides its dataset: the kernel's figures, name services and their libraries.
const SYSTEM: [&str; 7] = ["/proc", "/sys", "/etc", "/usr", "/lib", "/lib64", "/dev"];

/// What came of it, for a person.
pub(super) fn confine(configs: &[&Config], run_folder: Option<&Path>) -> &'static str {
    let wanted = configs.iter().map(|config| config.security.confine);
    // Several streams share a process: the least confined of them decides.
    let level = wanted.min_by_key(|level| match level {
        Confinement::Off => 0,
        Confinement::Auto => 1,
        Confinement::Strict => 2,
    });
    let Some(level) = level.filter(|level| *level != Confinement::Off) else {
        return "security.confine is \"off\": every right over files is kept";
    };
    match restrict(level, configs, run_folder) {
        Ok(RulesetStatus::NotEnforced) => {
            "this kernel has no Landlock: every right over files is kept"
        }
        Ok(_) if level == Confinement::Strict => {
            "reads its dataset and the system only; writes its run-time folder only; starts no program"
        }
        Ok(_) => "writes its run-time folder only; starts no program",
        Err(error) => {
            tracing::warn!(%error, "the rights over files could not be reduced");
            "the rights over files could not be reduced; the log says why"
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
    // Its own scheduling group and control group are mended through files.
    rules.add(Path::new("/proc/self"), reading | AccessFs::WriteFile);
    rules.add(Path::new("/sys/fs/cgroup"), reading | AccessFs::WriteFile);
    rules.add(Path::new("/dev/null"), reading | AccessFs::WriteFile);
    if level == Confinement::Strict {
        for path in SYSTEM {
            rules.add(Path::new(path), reading);
        }
        for config in configs {
            rules.add(&config.dataset.path, reading);
            let dataset = &config.dataset;
            for path in [&dataset.ids, &dataset.classes, &dataset.index].into_iter().flatten() {
                rules.add(path, reading);
            }
        }
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled)?
        .create()?;
    for (path, rights) in rules.0 {
        // What is not there needs no rule.
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
    use super::*;
    use crate::config::Override;

    fn config(folder: &Path, level: &str) -> Config {
        let dict = serde_json::json!({
            "dataset": { "path": folder.join("data"), "format": "npy" }, "batch": { "size": 2 }, "stage": [{ "name": "copy", "operations": [] }],
            "security": { "confine": level },
        });
        Config::from_json("test", folder, &dict, &[] as &[Override]).unwrap()
    }

    /// What a thread so confined may do: read the dataset, read elsewhere, write its folder, write elsewhere, start.
    fn rights(level: &str) -> [bool; 5] {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "run", "else"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("file"), name).unwrap();
        }
        let config = config(folder.path(), level);
        let path = |name: &str| folder.path().join(name);
        let tried = std::thread::scope(|scope| {
            let confined = scope.spawn(|| {
                let said = confine(&[&config], Some(&path("run")));
                if said.contains("no Landlock") {
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
        });
        let Some(tried) = tried else {
            eprintln!("this kernel has no Landlock: nothing is tested");
            return match level {
                "off" => [true; 5],
                "auto" => [true, true, true, false, false],
                _ => [true, false, true, false, false],
            };
        };
        // Other threads keep their rights.
        assert!(std::fs::read(path("else/file")).is_ok() || tried[3]);
        tried
    }

    #[test]
    fn a_confined_thread_has_no_rights_that_it_does_not_need() {
        assert_eq!(rights("off"), [true, true, true, true, true]);
        assert_eq!(rights("auto"), [true, true, true, false, false]);
        assert_eq!(rights("strict"), [true, false, true, false, false]);
    }
}
