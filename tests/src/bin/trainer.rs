//! Plays the trainer: attaches to streams and does what its arguments say, one JSON line for each thing that happens.
//!
//! - `use=WORD` attaches to a configuration, a socket or a stream of `forebay run` (`default`: its first), or goes back to it
//! - `share=NAME` comes before `use` and stays: the loaders of a configuration and a name share a daemon
//! - `trainer=NAME` and `batch=SIZE` come before `use` and stay: the trainer's name among several, and its batches
//! - `epoch` begins an epoch and takes all of it; `take=N` begins one and takes N batches
//! - `state=JSON` comes before `use` and says where it goes on; `timeout=SECONDS` too, and stays
//! - `epoch=rest` takes what is left of the epoch
//! - `starve=MILLISECONDS` leaves the process without a free descriptor for so long
//! - `train` takes batches without end, each with the state after it: a checkpoint
//! - `daemon` prints the private daemon's process; `kill-daemon` kills it
//! - `children` leaves a child behind for each of its sockets, which has a copy of it, and prints their processes
//! - `pause=MILLISECONDS` does nothing for so long
//! - `hang` says so and does nothing any more; `exit=N` ends with this status
//!
//! It ends with status 3 and the error when a loader has one.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_client::{Error, Loader, State, Target};
use forebay_tests::{DEADLINE, Taken};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};
use serde_json::{Value, json};

fn main() {
    if let Err(error) = play() {
        say(&json!({ "error": error.to_string() }));
        std::process::exit(3);
    }
}

fn play() -> Result<(), Error> {
    let mut loaders: BTreeMap<String, Loader> = BTreeMap::new();
    let mut current = String::new();
    let mut state = None;
    let mut timeout = DEADLINE;
    let mut sharing = Sharing::default();
    for argument in std::env::args().skip(1) {
        let (verb, value) = argument.split_once('=').unwrap_or((&argument, ""));
        if verb == "use" {
            current = value.to_owned();
            if !loaders.contains_key(value) {
                let loader = attach(value, state.take(), timeout, &sharing)?;
                loaders.insert(current.clone(), loader);
            }
            continue;
        }
        match verb {
            "epoch" if value == "rest" => {
                take_rest(&current, loaders.get_mut(&current).expect("`use` comes first"))?;
            }
            "share" => sharing.daemon = Some(value.to_owned()),
            "trainer" => value.clone_into(&mut sharing.trainer),
            "batch" => sharing.batch_size = u32::try_from(number(value)).ok(),
            "timeout" => timeout = Duration::from_secs(number(value) as u64),
            "starve" => starve(Duration::from_millis(number(value) as u64)),
            "epoch" => take(&current, &mut loaders, usize::MAX)?,
            "take" => take(&current, &mut loaders, number(value))?,
            "daemon" => {
                say(&json!({ "daemon": loaders.get(&current).and_then(Loader::private_process) }));
            }
            "kill-daemon" => {
                let daemon = loaders.get(&current).and_then(Loader::private_process);
                let daemon = daemon.and_then(|daemon| i32::try_from(daemon).ok());
                let daemon = Pid::from_raw(daemon.expect("a private daemon"));
                kill(daemon, Signal::SIGKILL).expect("it lives");
            }
            "state" => state = Some(State::from_json(value)?),
            "train" => train(loaders.get_mut(&current).expect("`use` comes first"))?,
            "pause" => std::thread::sleep(Duration::from_millis(number(value) as u64)),
            "children" => leave_children(),
            "hang" => {
                let restarts: u64 = loaders.values().map(Loader::restarts).sum();
                say(&json!({ "hangs": true, "restarts": restarts }));
                loop {
                    std::thread::park();
                }
            }
            "exit" => {
                drop(loaders);
                std::process::exit(i32::try_from(number(value)).unwrap_or(1));
            }
            other => panic!("unknown step {other}"),
        }
    }
    Ok(())
}

/// What a loader shares with others.
#[derive(Default)]
struct Sharing {
    daemon: Option<String>,
    trainer: String,
    batch_size: Option<u32>,
}

fn attach(
    word: &str,
    state: Option<State>,
    timeout: Duration,
    sharing: &Sharing,
) -> Result<Loader, Error> {
    let target = if word == "default" { Target::Stream(None) } else { Target::parse(word) };
    let mut builder = Loader::builder(target).timeout(timeout).trainer(&sharing.trainer);
    if let Some(size) = sharing.batch_size {
        builder = builder.batch_size(size);
    }
    if let Some(state) = state {
        builder = builder.state(state, false);
    }
    if let Some(name) = &sharing.daemon {
        builder = builder.shared(name);
    }
    let loader = builder.attach()?;
    let placement = loader.placement();
    say(&json!({
        "attached": loader.terms().stream, "rank": placement.rank, "world_size": placement.world_size,
        "source": placement.source.to_string(),
    }));
    Ok(loader)
}

fn take(name: &str, loaders: &mut BTreeMap<String, Loader>, count: usize) -> Result<(), Error> {
    let loader = loaders.get_mut(name).expect("`use` comes first");
    loader.begin_epoch()?;
    for _ in 0..count {
        let Some(batch) = loader.next_batch()? else { break };
        say_batch(name, &Taken::of(&batch));
    }
    Ok(())
}

fn take_rest(name: &str, loader: &mut Loader) -> Result<(), Error> {
    while let Some(batch) = loader.next_batch()? {
        say_batch(name, &Taken::of(&batch));
    }
    Ok(())
}

fn say_batch(name: &str, taken: &Taken) {
    say(&json!({
        "stream": name, "epoch": taken.epoch, "ids": taken.ids, "valid_ids": taken.valid_ids, "digest": taken.digest,
    }));
}

/// Opens files until none can be opened, once all that starts beside has what it opens.
fn starve(time: Duration) {
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let mut before = 0;
    while std::mem::replace(&mut before, open()) != before {
        std::thread::sleep(Duration::from_millis(300));
    }
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit { current: Some(128), maximum: limit.maximum };
    setrlimit(Resource::Nofile, few).expect("a lower limit");
    let files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        drop(files);
    });
}

fn train(loader: &mut Loader) -> Result<(), Error> {
    say(&json!({ "daemon": loader.private_process() }));
    loop {
        let Some(batch) = loader.next_batch()? else { continue };
        let taken = Taken::of(&batch);
        drop(batch);
        say(&json!({
            "epoch": taken.epoch, "ids": taken.ids, "digest": taken.digest,
            "state": loader.state(0)?.to_json(),
        }));
        // A step of training; without it the pipe would be all that holds it back.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// As a forked worker of a data pipeline does that outlives its trainer. Forking itself takes `unsafe`.
fn leave_children() {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).expect("a pidfd");
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("the own descriptors").flatten() {
        let kind = std::fs::read_link(entry.path()).unwrap_or_default();
        if !kind.to_string_lossy().starts_with("socket:") {
            continue;
        }
        let descriptor = entry.file_name().to_string_lossy().parse().expect("a number");
        let copy = pidfd_getfd(&own, descriptor, PidfdGetfdFlags::empty()).expect("a copy");
        let mut child = Command::new("sleep");
        child.arg("600").stdin(copy).stdout(Stdio::null()).stderr(Stdio::null());
        children.push(child.spawn().expect("a child").id());
    }
    say(&json!({ "children": children }));
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn say(value: &Value) {
    let mut stdout = std::io::stdout().lock();
    // A test that stopped listening has ended.
    let _ = writeln!(stdout, "{value}").and_then(|()| stdout.flush());
}
