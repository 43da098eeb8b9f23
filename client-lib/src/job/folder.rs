//! Compares ranks through a folder that all of them can access.
//!
//! ```text
//! FOREBAY_RANKS_FOLDER/forebay-JOB/GROUP.NUMBER.RANK.DIGEST      text: the rank's identity
//! ```
//!
//! A rank writes its file with a rename, and lists the folder until every rank of its world has a file. The names show
//! whether two ranks agree, so a listing is sufficient; only a file with another digest is read. Files are kept: a late
//! rank must find the files of ranks that have ended. JOB is new for each run and restart, so a run does not see files
//! of an earlier one, unless a scheduler restarts a job under the same name. Such a start has the same stream and
//! another state, so a difference of only the states is refused only after the wait: until then every rank may add the
//! matching file.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_protocol::identity::Identity;
use forebay_protocol::launcher::Environment;

use super::messages::find_differences;
use crate::error::Error;
use crate::link::Link;
use crate::patience::Patience;
use crate::rank::Placement;

/// The environment variable with the folder.
pub(super) const FOLDER_VARIABLE: &str = "FOREBAY_RANKS_FOLDER";
/// The environment variable with the run's name.
const JOB_VARIABLE: &str = "FOREBAY_JOB";
/// The variables in which launchers state the job's name: first those whose value is for a single start of a program.
/// Each entry also lists variables that distinguish the steps and restarts of a job with the same name.
const JOB_VARIABLES: &[(&str, &[&str])] = &[
    (JOB_VARIABLE, &[]),
    ("TORCHELASTIC_RUN_ID", &["TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"]),
    ("FLUX_JOB_ID", &[]),
    ("PALS_APID", &[]),
    ("PMIX_NAMESPACE", &["SLURM_RESTART_COUNT"]),
    ("SLURM_JOB_ID", &["SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"]),
    ("PBS_JOBID", &[]),
    ("LSB_JOBID", &[]),
    ("TRAINING_JOB_NAME", &[]),
];
/// The value that torchrun sets for a run without a name.
const NO_NAME: &str = "none";

const FIRST_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_millis(500);
/// The maximum length of a sleep between calls of the interrupt.
const SLICE: Duration = Duration::from_millis(50);

/// The files in which all ranks state their identity for one loader.
#[derive(Debug)]
pub(super) struct IdentityFiles {
    folder: PathBuf,
    prefix: String,
}

impl IdentityFiles {
    pub(super) fn open(
        path: &str,
        environment: &Environment,
        group: &str,
        number: u64,
    ) -> Result<Self, Error> {
        let named = |&(name, restarts): &(&str, &'static [&'static str])| {
            let value = environment.get(name).filter(|value| *value != NO_NAME)?;
            Some((value.to_owned(), restarts))
        };
        let (mut job, restarts) =
            JOB_VARIABLES.iter().find_map(named).ok_or_else(|| {
                Error::Config(format!(
                    "{FOLDER_VARIABLE} is set and no launcher names this run: set {JOB_VARIABLE} to the same text on every \
                     rank, another one for each run"
                ))
            })?;
        for name in restarts {
            if let Some(value) = environment.get(name) {
                job.push('.');
                job.push_str(value);
            }
        }
        let folder = Path::new(path).join(format!("forebay-{}", file_name(&job)));
        std::fs::create_dir_all(&folder).map_err(|error| failed("create", &folder, &error))?;
        Ok(Self { folder, prefix: format!("{}.{number}.", file_name(group)) })
    }

    /// Writes this rank's file and compares it with the files of the other ranks. Returns the ranks without a file.
    pub(super) fn compare(
        &self,
        placement: &Placement,
        own: &Identity,
        limit: Duration,
        link: &mut Link,
    ) -> Result<Vec<u32>, Error> {
        let text = own.to_string();
        let own_digest = digest(&text);
        self.write(&format!("{}{}.{own_digest}", self.prefix, placement.rank), &text)?;
        let mut patience = Patience::begin(Instant::now());
        let mut delay = FIRST_DELAY;
        loop {
            let found = self.list()?;
            let mut differing_states = None;
            if found.values().flatten().any(|digest| *digest != own_digest) {
                match self.differences(&found)? {
                    Some(error @ Error::StateMismatch(_)) => {
                        let all_agree = found.values().all(|digests| digests.contains(&own_digest));
                        differing_states = (!all_agree).then_some(error);
                    }
                    Some(error) => return Err(error),
                    None => {}
                }
            }
            let missing: Vec<u32> =
                (0..placement.world_size).filter(|rank| !found.contains_key(rank)).collect();
            let is_over = patience.look(Instant::now()) >= limit;
            match differing_states {
                Some(error) if is_over => return Err(error),
                None if is_over || missing.is_empty() => return Ok(missing),
                _ => {}
            }
            let mut left = delay;
            while !left.is_zero() {
                std::thread::sleep(left.min(SLICE));
                left = left.saturating_sub(SLICE);
                link.check_interrupt("the other ranks to state their stream")?;
            }
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// The digests of each rank that has a file.
    fn list(&self) -> Result<BTreeMap<u32, BTreeSet<String>>, Error> {
        let entries = std::fs::read_dir(&self.folder)
            .map_err(|error| failed("list", &self.folder, &error))?;
        let mut found: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let parts = name.to_str().and_then(|name| name.strip_prefix(&self.prefix));
            if let Some((rank, digest)) = parts.and_then(|rest| rest.split_once('.'))
                && let Ok(rank) = rank.parse()
            {
                found.entry(rank).or_default().insert(digest.to_owned());
            }
        }
        Ok(found)
    }

    /// Compares one file per digest.
    fn differences(&self, found: &BTreeMap<u32, BTreeSet<String>>) -> Result<Option<Error>, Error> {
        let mut known: BTreeMap<&str, Identity> = BTreeMap::new();
        let mut members = Vec::new();
        for (rank, digests) in found {
            for digest in digests {
                if !known.contains_key(digest.as_str()) {
                    let path = self.folder.join(format!("{}{rank}.{digest}", self.prefix));
                    let text = std::fs::read_to_string(&path)
                        .map_err(|error| failed("read", &path, &error))?;
                    let identity = text.parse().map_err(|error| {
                        Error::Config(format!("the file `{}`: {error}", path.display()))
                    })?;
                    known.insert(digest, identity);
                }
                members.extend(known.get(digest.as_str()).map(|known| (*rank, known.clone())));
            }
        }
        Ok(find_differences(&members))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        // Not a rank's file name: a listing ignores it.
        let temporary = self.folder.join(format!("new.{}.{name}", std::process::id()));
        let path = self.folder.join(name);
        std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, &path))
            .map_err(|error| failed("write", &path, &error))
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::Config(format!(
        "cannot {what} `{}`, through which the ranks compare their streams ({FOLDER_VARIABLE}): {error}",
        path.display()
    ))
}

/// Distinguishes identities within one release; a difference is confirmed by reading.
pub(super) fn digest(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    format!("{:016x}", hasher.finish())
}

/// A text as part of a file's name.
fn file_name(text: &str) -> String {
    let plain =
        |sign: char| if sign.is_ascii_alphanumeric() || "-_".contains(sign) { sign } else { '-' };
    text.chars().map(plain).take(100).collect()
}
