//! Parses a profile's command line and its output.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::aws::AwsCredential;
use serde_json::Value;

/// How long before their expiry keys are renewed; for keys with a shorter life, half of it.
const LEAD: Duration = Duration::from_secs(300);

/// Keys and their expiry.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) credential: Arc<AwsCredential>,
    /// The time from which new ones are requested.
    pub(super) due: Option<SystemTime>,
    pub(super) expires: Option<SystemTime>,
}

/// The words of a command line: split as by a shell, without substitutions. `None`: a quote is not closed.
pub(super) fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut has_word) = (Vec::new(), String::new(), false);
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            '\'' => loop {
                match chars.next()? {
                    '\'' => break,
                    inner => word.push(inner),
                }
            },
            '"' => loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => match chars.next()? {
                        escaped @ ('"' | '\\') => word.push(escaped),
                        other => word.extend(['\\', other]),
                    },
                    inner => word.push(inner),
                }
            },
            '\\' => word.push(chars.next()?),
            space if space.is_whitespace() => {
                if std::mem::take(&mut has_word) {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            other => word.push(other),
        }
        has_word = true;
    }
    if has_word {
        words.push(word);
    }
    Some(words)
}

/// The keys in a command's output.
///
/// # Errors
/// There are none; the message does not contain its values.
pub(super) fn keys_of(printed: &str, now: SystemTime) -> Result<Keys, String> {
    let found: Value = serde_json::from_str(printed).map_err(|error| {
        format!("prints invalid JSON (line {}, column {})", error.line(), error.column())
    })?;
    if found.get("Version").and_then(Value::as_u64) != Some(1) {
        return Err("prints no `\"Version\": 1`, the only version that is supported".to_owned());
    }
    let text = |name: &str| match found.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        // A value that a header cannot contain would fail within the request.
        Some(Value::String(text)) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Some(text.clone()))
        }
        Some(_) => Err(format!("prints a `{name}` that is not a word of visible ASCII characters")),
    };
    let needed = |name: &str| text(name)?.ok_or_else(|| format!("prints no `{name}`"));
    let credential = Arc::new(AwsCredential {
        key_id: needed("AccessKeyId")?,
        secret_key: needed("SecretAccessKey")?,
        token: text("SessionToken")?,
    });
    let Some(end) = text("Expiration")? else {
        return Ok(Keys { credential, due: None, expires: None });
    };
    let expires = chrono::DateTime::parse_from_rfc3339(&end).ok();
    let expires = expires.and_then(|end| u64::try_from(end.timestamp_millis()).ok());
    let expires = expires.ok_or_else(|| {
        "prints an `Expiration` that is not a time such as 2027-01-31T12:00:00Z".to_owned()
    })?;
    let expires = SystemTime::UNIX_EPOCH + Duration::from_millis(expires);
    let left = expires.duration_since(now).unwrap_or_default();
    if left.is_zero() {
        return Err(format!("prints keys that have expired, at {end}"));
    }
    Ok(Keys { credential, due: Some(expires - LEAD.min(left / 2)), expires: Some(expires) })
}
