//! A quiet neighbour (P5): what the daemon does to others, and what others may do to it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_tests::{Daemon, TestDir, program, skipped, wait_until};

/// Processes that end with the test.
struct Running(Vec<Child>);

impl Running {
    /// So many that keep some cores busy.
    fn spinners(count: usize, cores: &str) -> Self {
        let spin = || {
            let mut command = Command::new("taskset");
            command.args(["-c", cores, "sh", "-c", "while :; do :; done"]).spawn().unwrap()
        };
        Self((0..count).map(|_| spin()).collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(program::kill);
    }
}

/// How often the threads of a process have gone to sleep by themselves, all together.
fn voluntary_switches(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    threads
        .map(|thread| thread.unwrap().path().join("status"))
        .filter_map(|status| std::fs::read_to_string(status).ok())
        .map(of_thread)
        .sum()
}

/// How often a daemon's threads woke up in some seconds, and its processor time in hundredths of a second.
fn activity(daemon: &Daemon, seconds: u64) -> (u64, u64) {
    let (before, ticks) = (voluntary_switches(daemon.pid()), daemon.cpu_ticks());
    std::thread::sleep(Duration::from_secs(seconds));
    // The switches of a thread that has ended meanwhile are missing.
    let woken = voluntary_switches(daemon.pid()).saturating_sub(before);
    (woken, daemon.cpu_ticks().saturating_sub(ticks))
}

/// That a daemon's threads wake up no more often and take no more processor time in some seconds. Other work on the
/// machine may wake them during a measurement, not during each one.
fn assert_rests(daemon: &Daemon, seconds: u64, most_woken: u64, most_ticks: u64) {
    let mut found = Vec::new();
    for _ in 0..3 {
        let (woken, ticks) = activity(daemon, seconds);
        if woken <= most_woken && ticks <= most_ticks {
            return;
        }
        found.push((woken, ticks));
    }
    panic!("times woken and hundredths of a second in {seconds} s: {found:?}");
}

#[test]
fn a_daemon_with_nothing_to_do_does_not_wake_up() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let daemon = Daemon::serve_with(&dir, &[&config], &["--set", "cpu.policy=idle"]);
    let _loader = daemon.loader(0, 1).attach().unwrap();
    wait_until("the ring is full", || daemon.stats(&dir)["sessions"][0]["slots_ready"] == 8);
    // What is under way settles; a look at the figures is work too.
    std::thread::sleep(Duration::from_secs(1));
    // Nor does it stay awake all the time.
    assert_rests(&daemon, 5, 5, 5);
}

/// A stage that is full while rows wait for it and other threads have nothing to do.
#[test]
fn threads_that_wait_for_a_full_stage_sleep() {
    let dir = TestDir::new();
    let stages = "{ name = \"slow\", concurrency = 1, operations = [{ op = \"delay\", milliseconds = 2000 }] }, \
                  { name = \"rest\", concurrency = 3, operations = [] }";
    let config = dir.staged_stream(40, "", stages);
    let daemon = Daemon::serve(&dir, &config);
    let _loader = daemon.loader(0, 1).attach().unwrap();
    wait_until("rows wait", || daemon.stats(&dir)["stages"][0]["num_tasks"] == 32);
    std::thread::sleep(Duration::from_millis(500));
    // The engine's clock ticks four times a second; threads that polled woke a thousand times each.
    assert_rests(&daemon, 4, 60, 20);
}

/// Four on the daemon's two cores leave the idle class next to nothing: the threads of the next class take over.
#[test]
fn batches_arrive_beside_four_foreign_spinners() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let cores: Vec<String> = allowed.take(2).map(|core| core.to_string()).collect();
    let cores = cores.join(",");
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "");
    let set = format!("cpu.cores={cores:?}");
    let daemon = Daemon::serve_with(&dir, &[&config], &["--set", "cpu.policy=idle", "--set", &set]);
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let _ = loader.next_batch().unwrap();
    let spinners = Running::spinners(4, &cores);
    let begun = Instant::now();
    let (mut batches, mut has_taken_over) = (0, false);
    while batches < 20 || !has_taken_over {
        assert!(begun.elapsed() < Duration::from_secs(60), "{batches} batches, nobody took over");
        batches += u32::from(loader.next_batch().unwrap().is_some());
        has_taken_over |= daemon.stats(&dir)["fallback_pool"] == true;
    }
    drop(spinners);
    let stats = daemon.stats(&dir);
    let class = &stats["quiet"][0];
    assert_eq!((&class["name"], &class["in_force"]), (&"class".into(), &true.into()), "{stats}");
}

/// As many as there are cores, eight at most; beyond that they would have to share.
#[test]
fn the_ranks_of_a_host_get_disjoint_shares_of_its_cores() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let ranks = std::thread::available_parallelism().unwrap().get().min(8);
    for [local_rank, local_count] in
        [["LOCAL_RANK", "LOCAL_WORLD_SIZE"], ["SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]]
    {
        let mut taken = std::collections::BTreeSet::new();
        for rank in 0..ranks {
            let mut check = dir.forebay(&["check", "--json"]);
            check.env(local_rank, rank.to_string()).env(local_count, ranks.to_string());
            check.env("SLURM_STEP_NUM_TASKS", ranks.to_string());
            let json = program::run(check.arg(&config)).json();
            let state = json["quiet"][2]["state"].as_str().unwrap().to_owned();
            for core in cores_in(&state) {
                assert!(
                    taken.insert(core),
                    "rank {rank} of {ranks} has a core of another: {state}"
                );
            }
        }
        assert!(taken.len() >= ranks, "{taken:?} for {ranks} ranks");
    }
}

/// The cores of "work threads run on the cores 0-3,8".
fn cores_in(state: &str) -> Vec<u32> {
    let list = state.rsplit(' ').next().unwrap();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse::<u32>().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// The scheduling policy and the nice level of each thread of a process, by the thread's name, without those that end.
fn classes(pid: u32) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { continue };
        let (start, rest) = stat.rsplit_once(") ").unwrap();
        let name = start.split_once('(').unwrap().1.to_owned();
        // nice is field 19 and the policy field 41; the state, field 3, is the first of the rest.
        let fields: Vec<&str> = rest.split(' ').collect();
        found.push((name, fields[38].to_owned(), fields[16].to_owned()));
    }
    found
}

/// Also those that are started later: a stage that sleeps gets more threads.
#[test]
fn work_threads_alone_are_lowered_and_a_private_daemon_stays_in_its_trainers_session() {
    let dir = TestDir::new();
    let stage = "{ name = \"copy\", operations = [{ op = \"delay\", milliseconds = 20 }] }";
    let config = dir.staged_stream(40, "", stage);
    let builder = forebay_tests::test_dir::loader(config.as_path(), 0, 1);
    let mut loader = builder.override_key("cpu.policy", "\"idle\"").attach().unwrap();
    let daemon = loader.private_process().unwrap();
    let is_work = |name: &str| name.starts_with("forebay-work");
    let work_threads = || classes(daemon).iter().filter(|(name, ..)| is_work(name)).count();
    let at_first = work_threads();
    wait_until("there are more threads", || {
        let _ = loader.next_batch().unwrap();
        work_threads() > at_first
    });
    let own_nice = rustix::process::getpriority_process(None).unwrap().to_string();
    // What a thread is before it has said what it is: the next look has it.
    wait_until("all threads have their class", || {
        classes(daemon).iter().all(|(name, policy, _)| !is_work(name) || policy == "5")
    });
    for (name, policy, nice) in classes(daemon) {
        let expected = match name.as_str() {
            name if is_work(name) => "5",
            name if name.starts_with("fallback") => "3",
            _ => "0",
        };
        assert_eq!(policy, expected, "{name}");
        assert!(nice == own_nice || expected != "0", "{name}: nice {nice}");
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon).unwrap());
    assert_eq!(nix::unistd::getsid(Some(pid)), nix::unistd::getsid(None), "autogroup goes by it");
    assert_eq!(nix::unistd::getpgid(Some(pid)), Ok(pid), "Ctrl-C is the trainer's");
}

#[test]
fn the_daemon_keeps_to_its_cpu_limit_and_says_so() {
    let dir = TestDir::new();
    let config = dir.image_stream(61, 4, "");
    let set = ["--set", "cpu.limit=10%"];
    let daemon = Daemon::serve_with(&dir, &[&config], &set);
    let cores = std::thread::available_parallelism().unwrap().get();
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    let mut take = |seconds: u64| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(seconds) {
            let _ = loader.next_batch().unwrap();
        }
    };
    // The start is done.
    take(1);
    let (begin, before) = (Instant::now(), daemon.cpu_ticks());
    take(6);
    let ticks = daemon.cpu_ticks() - before;
    let allowed = 0.1 * f64::from(u32::try_from(cores).unwrap()) * begin.elapsed().as_secs_f64();
    let used = Duration::from_millis(ticks * 10).as_secs_f64();
    assert!(used <= 1.1 * allowed, "{used} of {allowed} CPU seconds");
    let mut stats = serde_json::Value::Null;
    wait_until("the verdict names the budget", || {
        take(1);
        stats = daemon.stats(&dir);
        stats["verdict"]["limit"] == "cpu-budget"
    });
    let limit = stats["quiet"].as_array().unwrap().iter().find(|item| item["name"] == "limit");
    assert!(limit.unwrap()["in_force"].as_bool().unwrap(), "{stats}");
}

/// The daemon in a session of its own beside a trainer in another: two scheduling groups. `user`: whose the daemon is.
fn look_at_a_daemon_in_another_session(user: Option<u32>) {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let mut forebay = program::forebay().to_owned();
    std::fs::create_dir(dir.path("user")).unwrap();
    if let Some(user) = user {
        let copy = dir.path("forebay");
        program::copy_forebay(&copy);
        for path in [&copy, &dir.path("")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::chown(dir.path("user"), Some(user), Some(user)).unwrap();
        forebay = copy;
    }
    let socket = dir.path("user/daemon.sock");
    let mut command = dir.command(Path::new("setsid"));
    command.arg(forebay).args(["serve", "--socket"]).arg(&socket).arg(&config);
    command.env_remove("FOREBAY_DUMPABLE");
    let own = nix::unistd::Uid::effective();
    command.args(["--set", &format!("listen.allow_uids=[{own}]")]);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let daemon = Running(vec![daemon]);
    wait_until("the daemon listens", || {
        forebay_protocol::socket::Connection::connect(&socket).is_ok()
    });
    let target = forebay_client::Target::Socket(socket.clone(), None);
    let loader = forebay_tests::test_dir::loader(target, 0, 1).attach().unwrap();
    let stats = program::run(dir.forebay(&["stats", "--json"]).arg(&socket)).json();
    let group = &stats["quiet"][1];
    assert_eq!(group["name"], "group");
    let own = std::fs::read_to_string(format!("/proc/{}/autogroup", daemon.0[0].id()));
    let in_force = group["in_force"].as_bool().unwrap();
    if group["state"].as_str().unwrap().contains("another session") {
        assert!(in_force && own.unwrap().contains("nice 19"), "{group}");
    } else {
        assert!(in_force || group["remedy"].is_string(), "{group}");
    }
    drop(loader);
}

#[test]
fn a_daemon_in_a_session_of_its_own_gives_its_group_the_least_weight() {
    look_at_a_daemon_in_another_session(None);
}

/// A process that cannot be dumped has files in /proc that are root's.
#[test]
fn so_does_the_daemon_of_an_ordinary_user() {
    if !nix::unistd::Uid::effective().is_root() {
        // The test above is about an ordinary user then.
        skipped("only root can be two users");
        return;
    }
    look_at_a_daemon_in_another_session(Some(65_533));
}

#[test]
fn check_says_what_will_be_in_force() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let json = program::run(dir.forebay(&["check", "--json"]).arg(&config)).json();
    let names: Vec<_> = json["quiet"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["class", "group", "cores", "quota", "fallback-pool", "huge-pages"]);
    let text = program::run(dir.forebay(&["check", "--plan-only"]).arg(&config)).stdout;
    assert!(text.contains("quiet") && text.contains("work threads run on the cores"), "{text}");
    let far = ["check", "--json", "--set", "cpu.cores=\"0,900\""];
    let json = program::run(dir.forebay(&far).arg(&config)).json();
    let cores = &json["quiet"][2];
    assert!(cores["in_force"] == false && cores["remedy"].is_string(), "{cores}");
    assert!(cores["state"].as_str().unwrap().contains("may not use 900"), "{cores}");
}
