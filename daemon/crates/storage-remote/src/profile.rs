//! A profile of `~/.aws/credentials` and `~/.aws/config`: keys, region, endpoint.
//!
//! `object_store` reads neither file. The keys are read again after a file has changed, so renewed keys need no
//! restart. For a profile without keys the command in `credential_process` provides them (`process`). Sources that need
//! a service, such as SSO, are refused by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

/// Minimal time between two checks of the files.
const LOOK_PERIOD: Duration = Duration::from_secs(30);
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Entries for other sources of credentials.
const ELSEWHERE: [&str; 4] = ["sso_session", "sso_start_url", "role_arn", "login_session"];

/// The keys of one section.
type Entries = BTreeMap<String, String>;

/// Whether a profile has a source of credentials; a profile may have a region only.
pub(super) fn has_credentials(entries: &Entries) -> bool {
    ELSEWHERE
        .iter()
        .chain(&["credential_process", "aws_access_key_id"])
        .any(|key| entries.contains_key(*key))
}

/// One profile.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) name: String,
    files: [PathBuf; 2],
}

/// See `remote_files` of the crate `formats`.
pub fn needed_files() -> Vec<PathBuf> {
    const VARIABLES: [&str; 3] = [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ];
    let named = VARIABLES.iter().filter_map(std::env::var_os).filter(|path| !path.is_empty());
    let resolver = PathBuf::from("/run/systemd/resolve");
    // The folders of these files: renewing a file replaces it.
    let files = files().into_iter().chain(named.map(PathBuf::from));
    let folders = files.filter_map(|file| Some(file.parent()?.to_owned()));
    folders.chain([resolver]).filter(|path| path.is_absolute()).collect()
}

/// The files that contain profiles: credentials, then configuration.
pub(super) fn files() -> [PathBuf; 2] {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")].map(
        |(variable, name)| match std::env::var_os(variable) {
            Some(path) if !path.is_empty() => path.into(),
            _ => home.join(".aws").join(name),
        },
    )
}

impl Profile {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), files: files() }
    }

    /// The profile's entries of both files; the credentials' file takes precedence. `None`: neither has the profile.
    ///
    /// # Errors
    /// A file cannot be read; its contents are not repeated.
    pub(super) fn read(&self) -> Result<Option<Entries>, String> {
        let mut found = None;
        for (path, is_config) in self.files.iter().zip([false, true]).rev() {
            let too_large =
                std::fs::metadata(path).is_ok_and(|status| status.len() > MAX_FILE_BYTES);
            let text = match std::fs::read_to_string(path) {
                Ok(text) if !too_large => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
                Ok(_) => {
                    return Err(format!("{} is too large for a file of profiles", path.display()));
                }
            };
            if let Some(entries) = section(&text, &self.name, is_config) {
                found.get_or_insert_with(Entries::new).extend(entries);
            }
        }
        Ok(found)
    }

    /// The command that provides the keys, if the profile has no keys itself.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn command(&self) -> Result<Option<String>, String> {
        let Some(mut entries) = self.read()? else { return Ok(None) };
        let has_keys = entries.get("aws_access_key_id").is_some_and(|text| !text.is_empty());
        let command = entries.remove("credential_process").filter(|text| !text.is_empty());
        Ok(command.filter(|_| !has_keys))
    }

    /// The keys.
    ///
    /// # Errors
    /// There are none; the message names other sources of the profile.
    fn credential(&self) -> Result<AwsCredential, String> {
        let name = &self.name;
        let [credentials, config] = self.files.each_ref().map(|path| path.display());
        let entries = self.read()?.ok_or_else(|| {
            format!("no profile `{name}` in {credentials} or {config}; add it, or correct storage.profile")
        })?;
        let text = |key: &str| entries.get(key).filter(|text| !text.is_empty()).cloned();
        if let (Some(key_id), Some(secret_key)) =
            (text("aws_access_key_id"), text("aws_secret_access_key"))
        {
            return Ok(AwsCredential { key_id, secret_key, token: text("aws_session_token") });
        }
        Err(match ELSEWHERE.into_iter().find(|key| entries.contains_key(*key)) {
            Some(key) => format!(
                "profile `{name}` has its credentials from `{key}`, which is not supported; name a profile with \
                 `credential_process = aws configure export-credentials --profile {name}` instead"
            ),
            None => format!("profile `{name}` has no aws_access_key_id and aws_secret_access_key"),
        })
    }

    fn changed(&self) -> [Option<SystemTime>; 2] {
        self.files.each_ref().map(|path| std::fs::metadata(path).ok()?.modified().ok())
    }
}

/// The entries of one section of a file; both files have this form.
fn section(text: &str, profile: &str, is_config: bool) -> Option<Entries> {
    let mut entries = None;
    let mut is_inside = false;
    for line in text.lines() {
        if let Some(head) = line.trim().strip_prefix('[') {
            let head = head.split(']').next().unwrap_or_default().trim();
            let named = head.strip_prefix("profile ").filter(|_| is_config).map(str::trim);
            // In the configuration's file only `default` has no prefix `profile`.
            is_inside = match named {
                Some(name) => name == profile,
                None => head == profile && (!is_config || profile == "default"),
            };
            if is_inside {
                entries.get_or_insert_with(Entries::new);
            }
            continue;
        }
        // An indented line belongs to the key above it; comments are skipped.
        if !is_inside || line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let (Some((key, value)), Some(entries)) = (line.split_once('='), entries.as_mut()) {
            let value = value.split(" #").next().unwrap_or_default().trim();
            entries.insert(key.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    entries
}

/// A profile's keys for `object_store`.
#[derive(Debug)]
pub(super) struct ProfileCredentials {
    profile: Profile,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    credential: Arc<AwsCredential>,
    changed: [Option<SystemTime>; 2],
    looked: Instant,
}

impl ProfileCredentials {
    /// Reads the keys for the first time.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn new(profile: Profile) -> Result<Self, String> {
        let credentials = Self { profile, known: Mutex::default() };
        credentials.get().map(|_| ())?;
        Ok(credentials)
    }

    fn get(&self) -> Result<Arc<AwsCredential>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && (known.looked.elapsed() < LOOK_PERIOD || known.changed == self.profile.changed())
        {
            return Ok(Arc::clone(&known.credential));
        }
        let changed = self.profile.changed();
        match (self.profile.credential(), &mut *known) {
            (Ok(credential), _) => {
                let credential = Arc::new(credential);
                *known = Some(Known {
                    credential: Arc::clone(&credential),
                    changed,
                    looked: Instant::now(),
                });
                Ok(credential)
            }
            // The file is just being written.
            (Err(_), Some(known)) => Ok(Arc::clone(&known.credential)),
            (Err(error), None) => Err(error),
        }
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.get().map_err(|error| object_store::Error::Generic {
            store: "profile",
            source: error.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str, credentials: &str, config: &str) -> (tempfile::TempDir, Profile) {
        let folder = tempfile::tempdir().unwrap();
        let files = [("credentials", credentials), ("config", config)].map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        });
        (folder, Profile { name: name.to_owned(), files })
    }

    const CREDENTIALS: &str = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n[research] \n# no\n\
                               aws_access_key_id = C # note\naws_secret_access_key = D=+/\naws_session_token = E\n";
    const CONFIG: &str = "[default]\nregion = eu-north-1\n[profile research]\nregion=eu-west-1\ns3 =\n  x = y\n\
                          endpoint_url = https://minio\n[profile sso]\nsso_start_url = https://x\n[research]\nregion = no\n";

    #[test]
    fn a_profile_is_read_from_both_files() {
        let (_folder, research) = profile("research", CREDENTIALS, CONFIG);
        let entries = research.read().unwrap().unwrap();
        assert_eq!(
            (entries["region"].as_str(), entries["endpoint_url"].as_str()),
            ("eu-west-1", "https://minio")
        );
        let keys = research.credential().unwrap();
        assert_eq!((keys.key_id.as_str(), keys.secret_key.as_str()), ("C", "D=+/"));
        assert_eq!(keys.token.as_deref(), Some("E"));
        let (_folder, default) = profile("default", CREDENTIALS, CONFIG);
        assert_eq!(default.read().unwrap().unwrap()["region"], "eu-north-1");
        assert_eq!(default.credential().unwrap().key_id, "A");
    }

    #[test]
    fn missing_entries_of_a_profile_are_named() {
        let (_folder, sso) = profile("sso", CREDENTIALS, CONFIG);
        assert!(sso.credential().unwrap_err().contains("`sso_start_url`, which is not supported"));
        let (_folder, none) = profile("none", CREDENTIALS, CONFIG);
        assert!(none.credential().unwrap_err().contains("no profile `none`"));
    }

    #[test]
    fn command_is_used_without_keys() {
        let config = "[profile a]\ncredential_process = /bin/x \"y z\"\n[profile b]\nregion = us-east-1\n\
                      [profile research]\ncredential_process = no\n";
        let of = |name: &str| profile(name, CREDENTIALS, config);
        let (_folder, a) = of("a");
        assert_eq!(a.command().unwrap().as_deref(), Some("/bin/x \"y z\""));
        assert!(has_credentials(&a.read().unwrap().unwrap()));
        let (_folder, b) = of("b");
        assert_eq!(b.command().unwrap(), None);
        assert!(!has_credentials(&b.read().unwrap().unwrap()), "a region is not a credential");
        let (_folder, research) = of("research");
        assert_eq!(research.command().unwrap(), None);
    }

    #[test]
    fn renewed_keys_are_read_again() {
        let (_folder, research) = profile("research", CREDENTIALS, CONFIG);
        let path = research.files[0].clone();
        let credentials = ProfileCredentials::new(research).unwrap();
        std::fs::write(&path, CREDENTIALS.replace("= C", "= NEW")).unwrap();
        let later = SystemTime::now() + Duration::from_secs(5);
        std::fs::File::open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(credentials.get().unwrap().key_id, "C", "checked a moment ago");
        let long_ago = Instant::now().checked_sub(LOOK_PERIOD).unwrap();
        credentials.known.lock().unwrap().as_mut().unwrap().looked = long_ago;
        assert_eq!(credentials.get().unwrap().key_id, "NEW");
        std::fs::remove_file(&path).unwrap();
        credentials.known.lock().unwrap().as_mut().unwrap().looked = long_ago;
        assert_eq!(credentials.get().unwrap().key_id, "NEW", "a replaced file");
    }
}
