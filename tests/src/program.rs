//! Finds the `forebay` program that belongs to the running test, builds it where it is missing or older than its
//! sources, and runs it under a watchdog.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::DEADLINE;

/// A copy of the built `forebay`, made by a program: a process that another test starts meanwhile would hold this one's
/// descriptor open for writing, and what is open for writing cannot be started.
pub fn copy_forebay(to: &Path) {
    let status = Command::new("cp").arg(forebay()).arg(to).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Writes a script that can be executed at once: by a program, as [`copy_forebay`] does.
pub fn write_script(path: &Path, text: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 700 \"$0\"";
    let status = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap();
    assert!(status.success(), "{status}");
}

/// The built `forebay`: what `FOREBAY_PROGRAM` names, else the one in the target folder of the running test.
pub fn forebay() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("FOREBAY_PROGRAM").filter(|name| !name.is_empty()) {
            return named.into();
        }
        let test = std::env::current_exe().unwrap();
        // target/PROFILE/deps/TEST, or target/PROFILE/PROGRAM
        let folder = test.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
        let folder = folder.unwrap().to_path_buf();
        let program = folder.join("forebay");
        if is_stale(&program) {
            build(&folder);
        }
        program
    })
}

/// Whether the program is missing or one of the sources that cargo wrote down beside it is newer.
fn is_stale(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|status| status.modified()).ok();
    let sources = std::fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let Some((Some(built), (_, sources))) =
        changed(program).map(Some).zip(sources.split_once(": "))
    else {
        return true;
    };
    sources.split_whitespace().any(|source| changed(Path::new(source)).is_none_or(|at| at > built))
}

/// Builds it as the running test was built.
fn build(folder: &Path) {
    let target = folder.parent().unwrap();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "forebay", "--bin", "forebay"])
        .args(["--profile", profile, "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target)
        .status()
        .unwrap();
    assert!(status.success(), "the program could not be built");
}

/// What a finished process left.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Its output as JSON.
    pub fn json(&self) -> serde_json::Value {
        assert!(self.status.success(), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Its output, one JSON value a line.
    pub fn json_lines(&self) -> Vec<serde_json::Value> {
        let parse = |line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}: {self:?}"))
        };
        self.stdout.lines().map(parse).collect()
    }
}

/// Runs a program that is to fail, and returns what it said.
pub fn run_to_end(command: &mut Command) -> String {
    let finished = run(command);
    assert!(!finished.status.success(), "{finished:?}");
    finished.stderr
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Finished {
    run_within(command, DEADLINE)
}

/// The same for one that has more to do than others.
pub fn run_within(command: &mut Command, deadline: Duration) -> Finished {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish_within(command.spawn().unwrap(), deadline)
}

/// Waits for a child's end and collects what of its output was not read.
pub fn finish(child: Child) -> Finished {
    finish_within(child, DEADLINE)
}

fn finish_within(mut child: Child, deadline: Duration) -> Finished {
    let stdout = child.stdout.take().map(read_all);
    let stderr = child.stderr.take().map(read_all);
    let status = wait_within(&mut child, deadline);
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader.map_or_else(String::new, |reader| reader.join().unwrap())
    };
    Finished { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Reads on a thread of its own, so that a full pipe does not block the child.
pub(crate) fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Starts a trainer whose last step is `hang`, and reads what it prints before that.
pub fn start_until_it_hangs(command: &mut Command) -> (Child, Vec<serde_json::Value>) {
    let command = command.arg("hang").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let values = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let told = values.take_while(|value: &serde_json::Value| value["hangs"] != true).collect();
    (child, told)
}

/// Kills a child and waits for its end.
pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    wait(child);
}

/// Waits for a child's end.
pub fn wait(child: &mut Child) -> ExitStatus {
    wait_within(child, DEADLINE)
}

fn wait_within(child: &mut Child, deadline: Duration) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > deadline {
            let _ = child.kill();
            panic!("process {} did not end within {} s", child.id(), deadline.as_secs());
        }
        thread::sleep(Duration::from_millis(2));
    }
}
