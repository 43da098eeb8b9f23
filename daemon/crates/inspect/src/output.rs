//! Writes to the standard output.
//!
//! `println!` panics if the reader has closed the pipe, as `head` does. Here this is an error, which ends the command
//! without a message.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// The reader of the standard output has closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the standard output is closed")]
pub struct OutputClosed;

/// Prints a text without a newline.
///
/// # Errors
/// [`OutputClosed`]; the system's error for any other failure, such as a full disk.
pub fn print(text: impl Display) -> anyhow::Result<()> {
    write_text(&mut std::io::stdout().lock(), text)
}

/// Prints a text and ends the line.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}

fn write_text(output: &mut impl Write, text: impl Display) -> anyhow::Result<()> {
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("writing to the standard output")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_pipe_is_reported_as_closed_output() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        write_text(&mut writer, "text").unwrap();
        drop(reader);
        assert!(write_text(&mut writer, "text").unwrap_err().is::<OutputClosed>());
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let error = write_text(&mut full, "text").unwrap_err();
        assert!(!error.is::<OutputClosed>());
        assert_eq!(error.to_string(), "writing to the standard output");
    }
}
