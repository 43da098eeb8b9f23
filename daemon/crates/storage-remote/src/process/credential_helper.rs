//! The helper process that runs a profile's command: not confined, single-threaded, and unable to run anything else.
//!
//! Its standard input is the daemon's socket. The first line contains the command, as a list of words in JSON; each
//! further line requests one run of it, and is answered by a line. The helper ends, and the command with it, when the
//! daemon's end is closed, however the daemon ends. The command gets the daemon's environment, an empty standard input,
//! and a separate process group; its output goes to memory, not to a disk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::shown;

/// The hidden command of this program.
const COMMAND: &str = "credential-process";
/// Time limit of the command: one that waits for a user's input does not suit a loader.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of the helper's answer, with a margin.
const ANSWER_LIMIT: Duration = RUN_LIMIT.saturating_add(Duration::from_secs(10));
/// Time limit for the helper's exit: a command that hangs in the kernel cannot be killed.
const END_LIMIT: Duration = Duration::from_secs(2);
/// How often the running command is polled.
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Limit of the command's output.
const MAX_PRINTED_BYTES: u64 = 64 << 10;
/// Shorter values are not treated as secrets.
const MIN_SECRET_BYTES: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Printed(String),
    Failed(String),
}

/// The daemon's end.
#[derive(Debug)]
pub(super) struct CredentialHelper {
    stream: BufReader<UnixStream>,
    child: Child,
}

impl CredentialHelper {
    /// The command's output. Starts the helper if there is none, which a confined daemon cannot.
    ///
    /// # Errors
    /// A message that follows the command's name.
    pub(super) fn ask(helper: &mut Option<Self>, arguments: &[String]) -> Result<String, String> {
        let lost = |error: io::Error| format!("cannot be run: its helper process failed: {error}");
        let asked = match helper {
            Some(helper) => helper,
            None => helper.insert(Self::start(arguments).map_err(lost)?),
        };
        match asked.run() {
            Ok(Answer::Printed(text)) => Ok(text),
            Ok(Answer::Failed(why)) => Err(why),
            Err(error) => {
                *helper = None;
                Err(lost(error))
            }
        }
    }

    fn start(arguments: &[String]) -> io::Result<Self> {
        let (own, theirs) = UnixStream::pair()?;
        own.set_read_timeout(Some(ANSWER_LIMIT))?;
        // The program that runs, even if its file has been replaced since.
        let child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's signals are for the trainer or for `serve`.
            .process_group(0)
            .spawn()?;
        Self::told(own, child, arguments)
    }

    fn told(own: UnixStream, child: Child, arguments: &[String]) -> io::Result<Self> {
        let mut helper = Self { stream: BufReader::new(own), child };
        helper.tell(&serde_json::to_string(arguments)?)?;
        Ok(helper)
    }

    /// A helper whose other end a test's thread serves.
    #[cfg(test)]
    pub(super) fn over(own: UnixStream, arguments: &[String]) -> Self {
        let child = Command::new("true").spawn().unwrap();
        Self::told(own, child, arguments).unwrap()
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())
    }

    fn run(&mut self) -> io::Result<Answer> {
        self.tell("run")?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for CredentialHelper {
    fn drop(&mut self) {
        // The helper kills its command and ends.
        let _ = self.stream.get_ref().shutdown(std::net::Shutdown::Both);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END_LIMIT {
            std::thread::sleep(LOOK_PERIOD);
        }
    }
}

/// The helper process, whose standard input is the daemon's socket.
///
/// # Errors
/// The standard input is not a socket.
pub fn serve() -> io::Result<ExitCode> {
    serve_stream(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn serve_stream(stream: UnixStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let arguments: Vec<String> = serde_json::from_str(&line)?;
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let Some(answer) = run(&arguments, RUN_LIMIT, &stream)? else { return Ok(()) };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&stream).write_all(&text)?;
    }
}

/// Runs the command to its end; `None`: the daemon is gone.
fn run(arguments: &[String], limit: Duration, daemon: &UnixStream) -> io::Result<Option<Answer>> {
    let Some((program, rest)) = arguments.split_first() else {
        return Ok(Some(Answer::Failed("has no name".to_owned())));
    };
    let (mut printed, mut said) = (memory()?, memory()?);
    let spawned = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(said.try_clone()?)
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => Running(child),
        Err(error) => return Ok(Some(Answer::Failed(format!("cannot be started: {error}")))),
    };
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        // The daemon sends nothing while the command runs: readable means closed.
        if is_readable(daemon, LOOK_PERIOD)? {
            return Ok(None);
        }
        if begun.elapsed() > limit {
            let why = format!("did not end within {} s", limit.as_secs_f32());
            return Ok(Some(Answer::Failed(why)));
        }
        for file in [&printed, &said] {
            if file.metadata()?.len() > MAX_PRINTED_BYTES {
                let limit = MAX_PRINTED_BYTES >> 10;
                return Ok(Some(Answer::Failed(format!("prints more than {limit} KiB"))));
            }
        }
    };
    let printed = text_of(&mut printed)?;
    Ok(Some(match status.success() {
        true => Answer::Printed(printed),
        false => Answer::Failed(failure(status, &text_of(&mut said)?, &printed)),
    }))
}

/// `ended with status 3: "no session"`.
fn failure(status: ExitStatus, said: &str, printed: &str) -> String {
    let mut text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    };
    let mut line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
    // Some commands print their keys and fail nevertheless, with the keys in the error's text.
    if let Ok(Value::Object(values)) = serde_json::from_str(printed) {
        for secret in values.values().filter_map(Value::as_str) {
            if secret.len() >= MIN_SECRET_BYTES {
                line = line.replace(secret, "…");
            }
        }
    }
    if !line.is_empty() {
        text = format!("{text}: {:?}", shown(&line));
    }
    text
}

/// A file in memory.
fn memory() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("forebay-command", MemfdFlags::CLOEXEC)?))
}

fn text_of(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_PRINTED_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_readable(stream: &UnixStream, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut polled, Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A running command. Dropped before its end, it is killed with all its children.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // If the command has exited, its remaining children are kept: one may be an agent.
        if let Ok(None) = self.0.try_wait()
            && let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_for(script: &str, limit: Duration) -> Option<Answer> {
        let (_own, theirs) = UnixStream::pair().unwrap();
        let arguments = ["sh", "-c", script].map(str::to_owned);
        run(&arguments, limit, &theirs).unwrap()
    }

    fn failed(script: &str, limit: Duration) -> String {
        match run_for(script, limit) {
            Some(Answer::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn result_is_the_output_or_the_status_and_first_line() {
        let found = run_for("echo '{}'; echo much >&2", LONG);
        assert!(matches!(&found, Some(Answer::Printed(text)) if text == "{}\n"), "{found:?}");
        let why = failed("echo; echo 'no session' >&2; echo more >&2; exit 3", LONG);
        assert_eq!(why, "ended with status 3: \"no session\"");
        assert_eq!(failed("exit 4", LONG), "ended with status 4");
        assert_eq!(failed("kill -9 $$", LONG), "was ended by signal 9");
        let (_own, theirs) = UnixStream::pair().unwrap();
        let found = run(&["/no/such/program".to_owned()], LONG, &theirs).unwrap();
        assert!(
            matches!(&found, Some(Answer::Failed(why)) if why.starts_with("cannot be started")),
            "{found:?}"
        );
    }

    #[test]
    fn output_of_a_failing_command_is_not_shown() {
        let script = r#"echo '{"SecretAccessKey": "wJalrXUtnFEMI"}'; echo "key wJalrXUtnFEMI is bad" >&2; exit 1"#;
        assert_eq!(failed(script, LONG), "ended with status 1: \"key … is bad\"");
    }

    #[test]
    fn hanging_or_flooding_command_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", path.display());
        assert_eq!(failed(&script, Duration::from_secs(5)), "did not end within 5 s");
        let child = std::fs::read_to_string(&path).unwrap();
        // A killed orphan may be a zombie until it is reaped.
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let begun = Instant::now();
        while !is_gone() {
            assert!(begun.elapsed() < LONG, "its child is alive");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(failed("exec yes", LONG), "prints more than 64 KiB");
    }

    #[test]
    fn command_ends_with_the_daemon() {
        let (own, theirs) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || serve_stream(theirs));
        let mut own = own;
        own.write_all(b"[\"sleep\", \"1000\"]\nrun\n").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        drop(own);
        served.join().unwrap().unwrap();
    }
}
