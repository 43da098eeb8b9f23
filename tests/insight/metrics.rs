//! What `stats` says. That its figures and the verdict are right is tested in `crates/engine`.

use forebay_observe::DaemonReport;
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, TestDir, program};
use serde_json::Value;

#[test]
fn stats_have_every_figure_and_print_for_a_person() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "order.epochs = 3");
    let daemon = Daemon::serve(&dir, &config);
    assert_eq!(daemon.stats(&dir)["verdict"]["limit"], "none");
    let mut loader = daemon.loader(0, 1).attach().unwrap();
    // By what the trainer took: the ring holds batches of the next epoch.
    let progress = |epoch: u64, samples: u64, left: u64| {
        let found = daemon.stats(&dir)["sessions"][0]["progress"].clone();
        let keys = ["epoch", "epochs", "samples", "samples_per_epoch", "batches_left"];
        let numbers = keys.map(|key| found[key].as_u64().unwrap());
        assert_eq!(numbers, [epoch, 3, samples, 40, left], "{found}");
    };
    progress(0, 0, 30);
    (0..5).for_each(|_| drop(loader.next_batch().unwrap().unwrap()));
    progress(0, 20, 25);
    assert_eq!(take_epoch(&mut loader).len(), 5);
    progress(1, 0, 20);
    assert_eq!(take_epoch(&mut loader).len(), 10);
    assert_eq!(take_epoch(&mut loader).len(), 10);
    progress(2, 40, 0);
    let stats = daemon.stats(&dir);
    let stages = stats["stages"].as_array().unwrap();
    assert_eq!(
        stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["fetch", "copy"]
    );
    assert!(stages.iter().all(|stage| stage["num_tasks"].as_u64().unwrap() >= 40), "{stages:?}");
    // A report lacks no figure that programs read.
    let report = serde_json::from_value::<DaemonReport>(stats.clone()).unwrap();
    let queues = report.stages.iter().map(|stage| stage.queue.as_ref().expect("a queue"));
    let mut occupancies = queues.map(|queue| queue.occupancy_rate);
    assert!(occupancies.all(|rate| (0.0..=1.0).contains(&rate)), "{stages:?}");
    let session = &stats["sessions"][0];
    assert_eq!((&session["stream"], &session["batches_taken"]), (&"train".into(), &30.into()));
    let slots: u64 = ["slots_free", "slots_filling", "slots_ready", "slots_leased"]
        .iter()
        .map(|state| session[*state].as_u64().unwrap())
        .sum();
    assert_eq!(slots, 8);
    for figure in ["cpu_seconds", "resident_bytes", "private_bytes"] {
        assert!(stats[figure].as_f64().unwrap() > 0.0, "{figure}");
    }
    let from_client: Value = serde_json::from_str(&loader.stats().unwrap()).unwrap();
    assert_eq!(from_client["pid"], stats["pid"]);
    let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket));
    for word in ["fetch", "copy", "occupancy", "slots:"] {
        assert!(shown.stdout.contains(word), "{}", shown.stdout);
    }
    // Several daemons come one after the other, each with its socket; one that is gone hides none.
    let other = TestDir::new();
    let second = Daemon::serve(&other, &other.stack_stream(8, ""));
    let both = || [&daemon.socket, &second.socket];
    let shown = program::run(dir.forebay(&["stats"]).args(both()));
    for one in both() {
        assert!(shown.stdout.contains(&format!("daemon at {}\n", one.display())), "{shown:?}");
    }
    let lines = program::run(dir.forebay(&["stats", "--json"]).args(both())).stdout;
    let pids =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["pid"].clone());
    assert_eq!(pids.collect::<Vec<_>>(), [daemon.pid(), second.pid()]);
    let gone = dir.path("gone.sock");
    let shown = program::run(dir.forebay(&["stats"]).args([&gone, &daemon.socket]));
    assert!(shown.stdout.contains("session 1") && shown.status.code() == Some(1), "{shown:?}");
    assert!(shown.stderr.contains("gone.sock"), "{shown:?}");
    // FOREBAY_SOCKET names the daemon too; without it none is found here.
    let asked = program::run(dir.forebay(&["stats"]).env("FOREBAY_SOCKET", &daemon.socket));
    assert!(asked.status.success() && asked.stdout.contains("session 1"), "{asked:?}");
    let lost = program::run(&mut dir.forebay_alone(&["stats"]));
    assert!(lost.status.code() == Some(1) && lost.stderr.contains("give its socket"), "{lost:?}");
}
