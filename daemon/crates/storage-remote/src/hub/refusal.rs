//! What a refusal of the hub means, in one sentence with its remedy.
//!
//! The hub answers 401 for what an anonymous user may not see, which it does not distinguish from what does not exist; the
//! header `X-Error-Code` has the reason of most refusals.

use forebay_storage::error::RetryClass;
use http::StatusCode;

/// What is known of a refused request to the hub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused<'a> {
    pub(crate) status: StatusCode,
    /// `X-Error-Code`.
    pub(crate) code: &'a str,
    /// Where the token comes from; `None`: there is none.
    pub(crate) token: Option<&'a str>,
    /// "dataset" or "bucket".
    pub(crate) kind: &'a str,
    /// `OWNER/NAME`.
    pub(crate) id: &'a str,
    pub(crate) revision: &'a str,
    /// The repository's page, where conditions are accepted.
    pub(crate) page: &'a str,
}

impl Refused<'_> {
    /// The sentence, and whether the request is retried. `None`: the general words suffice.
    pub(crate) fn sentence(self) -> Option<(String, RetryClass)> {
        let Self { status, code, token, kind, id, revision, page } = self;
        let answer = match code {
            "" => format!("the hub answers {}", status.as_u16()),
            code => format!("the hub answers {} {code}", status.as_u16()),
        };
        let set_token = "set HF_TOKEN, or run `hf auth login`";
        let what = match (status.as_u16(), code, token) {
            (401 | 403, "GatedRepo", None) => format!(
                "the {kind} {id} is gated and there is no token: accept its conditions at {page} and {set_token}"
            ),
            (401 | 403, "GatedRepo", Some(token)) => format!(
                "the {kind} {id} is gated and the account of {token} has no access yet: accept its conditions at {page}"
            ),
            (401, _, None) => {
                format!(
                    "the {kind} {id} is private or does not exist, and there is no token: correct dataset.path, or {set_token}"
                )
            }
            (401, "RepoNotFound", Some(token)) => {
                format!(
                    "there is no {kind} {id} that the account of {token} may see: correct dataset.path, or the token"
                )
            }
            (401, _, Some(token)) => {
                format!(
                    "the token of {token} is not valid or has expired: renew it at https://huggingface.co/settings/tokens"
                )
            }
            (403, _, None) => {
                format!("the {kind} {id} may not be read without a token: {set_token}")
            }
            (403, _, Some(token)) => format!(
                "the token of {token} may not read the {kind} {id}: give it the right to, or ask for access at {page}"
            ),
            (404, "RepoNotFound", None) => {
                format!(
                    "there is no {kind} {id}, or it is private: correct dataset.path, or {set_token}"
                )
            }
            (404, "RepoNotFound", Some(token)) => {
                format!(
                    "there is no {kind} {id} that the account of {token} may see: correct dataset.path, or the token"
                )
            }
            (404, "RevisionNotFound", _) => {
                format!(
                    "the {kind} {id} has no revision {revision:?}: correct what follows `@` in dataset.path"
                )
            }
            _ => return None,
        };
        Some((format!("{answer}: {what}"), RetryClass::Never))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(status: u16, code: &str, token: Option<&str>) -> Option<String> {
        let refused = Refused {
            status: StatusCode::from_u16(status).unwrap(),
            code,
            token,
            kind: "dataset",
            id: "lab/cats",
            revision: "v9",
            page: "https://huggingface.co/datasets/lab/cats",
        };
        let (sentence, class) = refused.sentence()?;
        assert_eq!(class, RetryClass::Never);
        Some(sentence)
    }

    #[test]
    fn each_refusal_has_its_remedy() {
        let none = None;
        let some = Some("HF_TOKEN");
        for (status, code, token, words) in [
            (
                401,
                "GatedRepo",
                none,
                [
                    "accept its conditions at https://huggingface.co/datasets/lab/cats",
                    "set HF_TOKEN",
                ],
            ),
            (
                403,
                "GatedRepo",
                some,
                ["account of HF_TOKEN has no access", "accept its conditions at https"],
            ),
            (401, "RepoNotFound", none, ["private or does not exist", "set HF_TOKEN"]),
            (401, "", some, ["token of HF_TOKEN is not valid", "renew"]),
            (403, "", some, ["may not read the dataset lab/cats", "give it the right"]),
            (404, "RepoNotFound", some, ["no dataset lab/cats", "HF_TOKEN"]),
            (404, "RepoNotFound", none, ["no dataset lab/cats", "set HF_TOKEN"]),
            (404, "RevisionNotFound", none, ["no revision \"v9\"", "dataset.path"]),
        ] {
            let said = sentence(status, code, token).unwrap();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        for (status, code) in [(404, "EntryNotFound"), (404, ""), (429, ""), (500, "")] {
            assert_eq!(sentence(status, code, none), None);
        }
    }
}
