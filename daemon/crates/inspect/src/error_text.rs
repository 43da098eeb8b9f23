//! Error messages for users.

/// An error with its causes, without repetitions: the text of many errors ends in the text of their cause.
#[must_use]
pub fn whole_reason(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_cause_is_omitted() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = anyhow::Error::new(full).context("/data/0.jpg: cannot write: no storage space");
        assert_eq!(whole_reason(&error), "/data/0.jpg: cannot write: no storage space");
        assert_eq!(
            whole_reason(&error.context("the demonstration's data")),
            "the demonstration's data: /data/0.jpg: cannot write: no storage space"
        );
    }
}
