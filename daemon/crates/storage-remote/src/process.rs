//! Keys from the command that a profile names in `credential_process`.
//!
//! A confined daemon cannot start programs. So a helper process of this program (`credential_helper`) is started when
//! the storage is opened, before the daemon gives up that right, and receives the command once. From then on the daemon
//! can only request another run of it. One helper serves all storages of this process that use the profile.
//!
//! The states of the keys. Any thread that reads moves them; one thread at a time talks to the helper:
//! ```text
//! None ──run──► Good ──Expiration less LEAD──► Due ──one thread runs it, the others use the old keys──► Good
//! │ fails      │                              │ fails: a warning, retried after PAUSE, still Due
//! ▼            │ the server reports           ▼ Expiration
//! the error      └── expired keys ───────────► Gone ──all wait for one run──► Good
//! │ fails: the error, retried as an outage; again after PAUSE
//! ```
//! Keys without an `Expiration` are good until the server refuses them. Keys are numbered, and a refused request is
//! matched by its keys' number, so a late response does not invalidate newer keys.
//!
//! The command's output is never shown: messages contain the profile, the exit status, and the first line of its
//! standard error without the values of its output.

mod answer;
mod credential_helper;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use self::answer::Keys;
use self::credential_helper::CredentialHelper;
pub use self::credential_helper::serve;
use super::trace::Trace;

/// Minimal time between two runs of the command.
const PAUSE: Duration = Duration::from_secs(2);

/// The keys of one profile's command.
#[derive(Debug)]
pub(super) struct ProcessCredentials {
    profile: String,
    arguments: Vec<String>,
    /// Held while the command runs.
    helper: Mutex<Option<CredentialHelper>>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: Option<Keys>,
    /// Number of the keys, from 1; incremented with each new ones.
    number: u64,
    /// The server has refused them.
    is_refused: bool,
    asked: Option<Instant>,
    /// Why the last run failed.
    failed: Option<String>,
}

/// The keys for a request.
#[derive(Debug)]
enum State {
    Good(Arc<AwsCredential>, u64),
    Due(Arc<AwsCredential>, u64),
    Gone,
    Failed(String),
}

impl Known {
    fn state(&self, now: SystemTime) -> State {
        let is_recent = self.asked.is_some_and(|asked| asked.elapsed() < PAUSE);
        let keys = self.keys.as_ref().filter(|keys| keys.expires.is_none_or(|end| now < end));
        match (keys, &self.failed) {
            (Some(keys), _) if !self.is_refused || is_recent => {
                let credential = Arc::clone(&keys.credential);
                match keys.due.is_some_and(|due| due <= now) && !is_recent {
                    true => State::Due(credential, self.number),
                    false => State::Good(credential, self.number),
                }
            }
            (_, Some(why)) if is_recent => State::Failed(why.clone()),
            _ => State::Gone,
        }
    }
}

impl ProcessCredentials {
    /// The keys of a profile's command, which is run for the first time; shared with other storages that use it
    /// already.
    ///
    /// # Errors
    /// The command is malformed, or prints no keys.
    pub(super) fn of(profile: &str, command: &str) -> Result<Arc<Self>, String> {
        static SHARED: Mutex<Option<HashMap<String, Arc<ProcessCredentials>>>> = Mutex::new(None);
        let arguments = answer::words(command).filter(|words| !words.is_empty());
        let arguments = arguments.ok_or_else(|| {
            format!("the `credential_process` of profile `{profile}` is not a command")
        })?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.get_or_insert_default();
        let found = shared.get(profile).filter(|found| found.arguments == arguments);
        let credentials = match found {
            Some(found) => Arc::clone(found),
            None => {
                let made = Arc::new(Self::new(profile, arguments));
                shared.insert(profile.to_owned(), Arc::clone(&made));
                made
            }
        };
        credentials.get()?;
        Ok(credentials)
    }

    fn new(profile: &str, arguments: Vec<String>) -> Self {
        let (helper, known) = (Mutex::default(), Mutex::default());
        Self { profile: profile.to_owned(), arguments, helper, known }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys that are good now, and their number.
    fn get(&self) -> Result<(Arc<AwsCredential>, u64), String> {
        let state = self.known().state(SystemTime::now());
        match state {
            State::Good(keys, number) => Ok((keys, number)),
            State::Failed(why) => Err(why),
            State::Due(keys, number) => {
                let mut helper = match self.helper.try_lock() {
                    Ok(helper) => helper,
                    Err(TryLockError::Poisoned(helper)) => helper.into_inner(),
                    // Another thread runs the command.
                    Err(TryLockError::WouldBlock) => return Ok((keys, number)),
                };
                Ok(self.renew(&mut helper).unwrap_or_else(|why| {
                    tracing::warn!("{why}; the earlier keys are used until they expire");
                    (keys, number)
                }))
            }
            State::Gone => {
                let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
                let state = self.known().state(SystemTime::now());
                match state {
                    State::Good(keys, number) | State::Due(keys, number) => Ok((keys, number)),
                    State::Failed(why) => Err(why),
                    State::Gone => self.renew(&mut helper),
                }
            }
        }
    }

    /// Runs the command.
    fn renew(
        &self,
        helper: &mut Option<CredentialHelper>,
    ) -> Result<(Arc<AwsCredential>, u64), String> {
        let printed = CredentialHelper::ask(helper, &self.arguments);
        let keys = printed.and_then(|text| answer::keys_of(&text, SystemTime::now()));
        let mut known = self.known();
        known.asked = Some(Instant::now());
        match keys {
            Ok(keys) => {
                let credential = Arc::clone(&keys.credential);
                known.number += 1;
                (known.keys, known.is_refused, known.failed) = (Some(keys), false, None);
                Ok((credential, known.number))
            }
            Err(why) => {
                let name = self.arguments.first().map_or("", String::as_str);
                let profile = &self.profile;
                let why = format!("the credential_process `{name}` of profile `{profile}` {why}");
                known.failed = Some(why.clone());
                Err(why)
            }
        }
    }

    /// The server reports that the keys with this number have expired.
    pub(super) fn refused(&self, number: u64) {
        let mut known = self.known();
        if known.number == number {
            known.is_refused = true;
        }
    }
}

#[async_trait]
impl CredentialProvider for ProcessCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        match self.get() {
            Ok((keys, number)) => {
                Trace::update(|trace| trace.keys_number = number);
                Ok(keys)
            }
            Err(why) => {
                Trace::update(|trace| trace.no_keys = Some(why.clone()));
                Err(object_store::Error::Generic { store: "profile", source: why.into() })
            }
        }
    }
}

#[cfg(test)]
mod tests;
