//! `errors.quarantine`: a file that lists every bad sample of a stream that was substituted, one JSON object per line.
//!
//! A thread of normal class owns the file. The engine passes lines through a bounded channel and never waits for it:
//! lines that do not fit are counted as lost. A line is one write to a file that is opened for appending; a line that
//! was cut by a crash or a full disk is terminated before the next one is written, so it damages only itself. A sample
//! is listed once per epoch; lines already in the file count, so a repeated run does not list samples again.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_protocol::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

use forebay_observe::QuarantineReport;

/// Maximal number of lines that wait to be written.
const WAITING_LINES: usize = 4096;
/// No line is added to a file of this size.
const MAX_BYTES: u64 = 64 << 20;
/// Maximal time for which an ending daemon waits until lines are written.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    pub epoch: u64,
    /// Its id.
    pub sample: u64,
    /// Its file; invalid UTF-8 in it is replaced.
    pub path: String,
    /// The bytes of a path that is not valid UTF-8, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Its offset in a file of many samples, in bytes.
    pub offset: Option<u64>,
    pub reason: String,
    /// Whether its file could not be read (`errors.on_unreadable`); otherwise its bytes are defective.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreadable: bool,
    /// The id of the substitute.
    pub substitute: u64,
}

/// The bytes of a path that cannot be stored as text in JSON.
pub(crate) fn hex_unless_text(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().as_bytes();
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    path.to_str().is_none().then(|| digits(bytes))
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    done: AtomicU64,
    lost: AtomicU64,
}

/// The list of one stream.
#[derive(Debug)]
pub struct Quarantine {
    path: PathBuf,
    lines: SyncSender<BadSample>,
    counts: Arc<Counts>,
    /// The parts of the thread, which is started at the first bad sample: by then the process has dropped its file
    /// permissions, and the thread inherits that.
    not_started: Mutex<Option<(Writer, Receiver<BadSample>)>>,
}

impl Quarantine {
    /// Opens or creates the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let (lines, received) = sync_channel(WAITING_LINES);
        let counts = Arc::new(Counts::default());
        let writer = Writer { path: path.to_owned(), file, counts: Arc::clone(&counts) };
        let not_started = Mutex::new(Some((writer, received)));
        Ok(Self { path: path.to_owned(), lines, counts, not_started })
    }

    /// Lists a sample asynchronously. Engine thread only.
    pub fn list(&self, sample: BadSample) {
        let mut not_started = self.not_started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((writer, lines)) = not_started.take() {
            let thread = thread::Builder::new().name("forebay-quarantine".to_owned());
            if let Err(error) = thread.spawn(move || writer.run(&lines)) {
                tracing::warn!(%error, "cannot start the thread that writes errors.quarantine");
            }
        }
        drop(not_started);
        // Relaxed, all counts: statistics; the channel orders the lines.
        match self.lines.try_send(sample) {
            Ok(()) => self.counts.sent.fetch_add(1, Ordering::Relaxed),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed)
            }
        };
    }

    /// Waits until all lines are written, for at most a second.
    pub fn finish(&self) {
        let begun = Instant::now();
        let counts = &self.counts;
        while counts.done.load(Ordering::Relaxed) < counts.sent.load(Ordering::Relaxed)
            && begun.elapsed() < LAST_WAIT
        {
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn report(&self) -> QuarantineReport {
        QuarantineReport {
            path: self.path.display().to_string(),
            samples_lost: self.counts.lost.load(Ordering::Relaxed),
        }
    }
}

/// NONBLOCK: a pipe in the file's place must not block the start.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    file: File,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self, lines: &Receiver<BadSample>) {
        let mut listed = self.read_listed();
        let mut has_warned = false;
        while let Ok(first) = lines.recv() {
            // A power failure may lose the lines of one burst; a crash of the daemon loses no line that was written.
            for sample in std::iter::once(first).chain(lines.try_iter()) {
                if listed.insert((sample.epoch, sample.sample))
                    && let Err(error) = self.append(&sample)
                {
                    listed.remove(&(sample.epoch, sample.sample));
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(path = %self.path.display(), %error, "cannot write a bad sample to errors.quarantine");
                    }
                }
                self.counts.done.fetch_add(1, Ordering::Relaxed);
            }
            // Some file systems cannot sync; the error is ignored.
            let _ = self.file.sync_data();
        }
    }

    /// The samples that the file lists already.
    fn read_listed(&mut self) -> HashSet<(u64, u64)> {
        #[derive(Deserialize)]
        struct Key {
            epoch: u64,
            sample: u64,
        }
        let lines = BufReader::new((&self.file).take(MAX_BYTES)).split(b'\n');
        // A line that was cut is skipped.
        lines
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_slice::<Key>(&line).ok())
            .map(|key| (key.epoch, key.sample))
            .collect()
    }

    fn append(&mut self, sample: &BadSample) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        let mut line = Vec::new();
        if bytes > 0 && !self.ends_with_a_line()? {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, sample)?;
        line.push(b'\n');
        if bytes + line.len() as u64 > MAX_BYTES {
            let most = MAX_BYTES >> 20;
            return Err(io::Error::other(format!(
                "the file has reached {most} MiB; move or delete it"
            )));
        }
        self.file.write_all(&line)
    }

    fn ends_with_a_line(&mut self) -> io::Result<bool> {
        self.file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        self.file.read_exact(&mut last)?;
        Ok(last == *b"\n")
    }
}

#[cfg(test)]
mod tests {
    use crate::ground::quarantine::*;

    fn bad(epoch: u64, sample: u64) -> BadSample {
        BadSample {
            epoch,
            sample,
            path: format!("/data/{sample}.jpg"),
            path_hex: None,
            offset: None,
            reason: "not \"whole\"\n".to_owned(),
            unreadable: false,
            substitute: 9,
        }
    }

    fn list(path: &Path, samples: &[BadSample]) -> u64 {
        let quarantine = Quarantine::open(path).unwrap();
        for sample in samples {
            quarantine.list(sample.clone());
        }
        let counts = &quarantine.counts;
        while counts.done.load(Ordering::Relaxed) < samples.len() as u64 {
            thread::yield_now();
        }
        quarantine.report().samples_lost
    }

    fn read(path: &Path) -> Vec<BadSample> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[test]
    fn sample_is_listed_once_per_epoch_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        assert_eq!(list(&path, &[bad(0, 1), bad(0, 2), bad(0, 1), bad(1, 1)]), 0);
        assert_eq!(list(&path, &[bad(1, 1), bad(0, 2), bad(2, 2)]), 0);
        assert_eq!(read(&path), [bad(0, 1), bad(0, 2), bad(1, 1), bad(2, 2)]);
    }

    #[test]
    fn path_that_is_not_text_is_stored_in_digits() {
        use std::ffi::OsStr;
        let path = Path::new(OsStr::from_bytes(b"/d/\xff\xe4 .jpg"));
        let digits = hex_unless_text(path).unwrap();
        assert_eq!(digits, "2f642fffe4202e6a7067");
        assert_eq!(hex_unless_text(Path::new("/d/\u{e4}.jpg")), None);
        let folder = tempfile::tempdir().unwrap();
        let listed = folder.path().join("bad.jsonl");
        let sample = BadSample { path_hex: Some(digits), ..bad(0, 1) };
        list(&listed, &[sample.clone(), bad(0, 2)]);
        assert_eq!(read(&listed), [sample, bad(0, 2)]);
        let text = std::fs::read_to_string(&listed).unwrap();
        assert_eq!(text.matches("path_hex").count(), 1, "{text}");
    }

    #[test]
    fn line_cut_by_a_crash_damages_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        list(&path, &[bad(0, 1), bad(0, 2)]);
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..30 {
            std::fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            list(&path, &[bad(0, 2), bad(0, 3)]);
            // If only the line break is cut off, the line is complete.
            assert_eq!(read(&path), [bad(0, 1), bad(0, 2), bad(0, 3)], "{cut}");
        }
    }

    #[test]
    fn full_file_and_wrong_file_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        File::create(&path).unwrap().set_len(MAX_BYTES - 5).unwrap();
        assert_eq!(list(&path, &[bad(0, 1)]), 1);
        assert!(Quarantine::open(folder.path()).is_err());
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Quarantine::open(&pipe).is_err());
    }
}
