//! Compares the screens of simulated daemons with the text files in this folder. `FOREBAY_UPDATE_SCREENS=1` rewrites
//! the files; check the difference.

use std::path::Path;

use super::super::testing::Script;
use super::*;
use forebay_observe::{
    Certainty, DaemonReport, DatasetReport, HotSpotReport, IsolationItem, ProgressReport,
    PythonReport, StageReport, StallReport, Substitution,
};

fn compare(name: &str, screen: &Screen, columns: u16, rows: u16) {
    let text = as_text(screen, columns, rows);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screen").join(name);
    if std::env::var_os("FOREBAY_UPDATE_SCREENS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} is now\n{text}\nand was\n{expected}");
}

fn of(snapshots: Vec<Snapshot>) -> Screen {
    Screen { snapshots, ..Screen::default() }
}

fn at_work() -> Script {
    Script {
        seconds: 60.0,
        batches: 1200,
        waited: 0.6,
        rank: 3,
        world_size: 8,
        ..Script::default()
    }
}

fn missed(report: &mut DaemonReport) {
    let remedy = "they can be asked for with Linux 6.1 or newer";
    report.cpu_isolation = vec![
        IsolationItem::in_force("class", "work threads run in the class idle"),
        IsolationItem::unavailable(
            "huge-pages",
            "0 B of the rings' 600 MiB lie in huge pages",
            remedy,
        ),
    ];
}

fn substituted(report: &mut DaemonReport, count: u64) {
    report.sessions[0].substituted = (0..count)
        .map(|number| Substitution {
            epoch: 3,
            sample: 100 + number,
            substitute: 7,
            path: format!("/data/imagenet/train/n01440764/n01440764_{number}.JPEG"),
            reason: "the file ends in the middle of a scan".to_owned(),
            unreadable: false,
        })
        .collect();
}

#[test]
fn one_daemon_at_work() {
    let snapshots = at_work().snapshots(0, None, |_| {});
    compare("normal.txt", &of(snapshots), 80, 24);
}

#[test]
fn limiting_stage_stall_and_bad_samples() {
    let script = Script {
        batches: 300,
        waited: 27.0,
        stages: vec![("fetch", 16, 0.002, 0.99), ("preprocess", 2, 0.0061, 0.06)],
        limit: "preprocess",
        ..at_work()
    };
    let snapshots = script.snapshots(0, None, |report| {
        missed(report);
        substituted(report, 9);
        report.verdict.what = "the stage `preprocess` is the limit".to_owned();
        report.verdict.certainty = Some(Certainty::Certain);
        report.verdict.advice = "give the daemon more cores".to_owned();
        let progress = ProgressReport { epoch: 3, epochs: Some(90), ..ProgressReport::default() };
        report.sessions[0].progress = Some(ProgressReport { seconds_left: Some(18e3), ..progress });
        report.verdict.sentence = "the stage `preprocess` is the limit: 6.10 ms a sample keep 1.9 of 2 threads busy while \
                                   the trainer waits 45 % of the time; give the daemon more cores, or make the samples \
                                   cheaper (the daemon used 1.5 cores)"
            .to_owned();
        report.stalls = vec![StallReport {
            sentence: "sample 77 (/data/77.jpg) has been in the stage `fetch` for 31 s".to_owned(),
            ..StallReport::default()
        }];
    });
    compare("stalled.txt", &of(snapshots), 80, 24);
}

#[test]
fn python_stage_shows_its_hot_spot() {
    let stages = vec![("fetch", 16, 0.002, 0.97), ("augment", 2, 0.0041, 0.02)];
    let snapshots = Script { stages, limit: "augment", ..at_work() }.snapshots(0, None, |report| {
        let stage = &mut report.streams[0].stages[1];
        stage.python = Some(PythonReport {
            function: "own:augment".to_owned(),
            function_seconds: 0.1 * stage.busy_seconds,
            beside_seconds: 0.1 * stage.busy_seconds,
            hot_spot: Some(HotSpotReport { name: "albumentations.Blur".to_owned(), share: 0.62 }),
            ..PythonReport::default()
        });
    });
    let text = as_text(&of(snapshots), 80, 24);
    // 1,296 samples per second take 0.82 ms of a worker each.
    assert!(text.contains(" 62 % Blur ") && text.contains(" 1.1 of 2 busy "), "{text}");
}

#[test]
fn mixture_shows_the_rows_of_each_dataset() {
    let snapshots = at_work().snapshots(0, None, |report| {
        let dataset = |name: &str, rows_published| DatasetReport {
            name: name.to_owned(),
            rows_published,
            ..DatasetReport::default()
        };
        report.streams[0].datasets = vec![dataset("web", 57_600), dataset("books", 19_200)];
    });
    let text = as_text(&of(snapshots), 80, 24);
    assert!(text.contains(" datasets  web 57600 (75 %) · books 19200 (25 %)"), "{text}");
}

#[test]
fn no_trainer_is_attached() {
    let script =
        Script { has_session: false, limit: "none", batches: 0, seconds: 20.0, ..at_work() };
    let snapshots = script.snapshots(0, None, |report| {
        report.verdict.sentence = "no client is attached".to_owned();
    });
    compare("no_session.txt", &of(snapshots), 80, 24);
}

#[test]
fn lost_daemon_keeps_its_last_metrics() {
    let lost = ("asking the daemon at /run/x.sock: connect: ECONNREFUSED".to_owned(), 12.4);
    let snapshots = at_work().snapshots(0, Some(&lost), |_| {});
    compare("lost.txt", &of(snapshots), 80, 24);
}

#[test]
fn five_stages_take_a_line_each() {
    let stages = vec![
        ("fetch", 16, 0.002, 0.97),
        ("decode", 8, 0.0004, 0.7),
        ("crop", 4, 0.0001, 0.4),
        ("mix", 1, 0.0002, 0.15),
        ("normalize", 1, 0.0001, 0.9),
    ];
    let snapshots = Script { stages, limit: "mix", ..at_work() }.snapshots(0, None, |_| {});
    compare("five_stages.txt", &of(snapshots), 80, 24);
}

fn eight_ranks() -> Screen {
    let mut snapshots = Vec::new();
    for rank in 0..8u32 {
        let number = 7 - rank as usize;
        let waited = if rank == 5 { 21.0 } else { 0.6 + f64::from(rank) * 0.05 };
        let script = Script { rank, pid: 5000 + rank, waited, ..at_work() };
        snapshots.extend(script.snapshots(number, None, |report| {
            if rank == 5 {
                report.verdict.limit = "storage".to_owned();
                report.verdict.sentence = "storage is the limit: a read takes 31.00 ms and 16 at once give 516 samples/s \
                                           while the trainer waits 35 % of the time"
                    .to_owned();
            }
        }));
    }
    let script = Script { pid: 6000, has_session: false, limit: "none", ..at_work() };
    snapshots.extend(script.snapshots(8, None, |_| {}));
    let lost = ("connect: ECONNREFUSED".to_owned(), 3.0);
    snapshots.extend(Script { pid: 6001, rank: 9, ..at_work() }.snapshots(9, Some(&lost), |_| {}));
    super::super::snapshot::sort(&mut snapshots);
    Screen { snapshots, is_overview: true, selected: 5, ..Screen::default() }
}

#[test]
fn eight_ranks_in_one_table() {
    compare("all.txt", &eight_ranks(), 80, 24);
}

#[test]
fn too_long_table_says_so_and_keeps_the_selection() {
    let screen = Screen { selected: 8, ..eight_ranks() };
    compare("all_short.txt", &screen, 80, 12);
}

#[test]
fn small_screen_shows_the_most_important_parts() {
    compare("narrow.txt", &of(at_work().snapshots(0, None, missed)), 40, 12);
    let text = as_text(&of(at_work().snapshots(0, None, missed)), 20, 4);
    assert!(text.contains("samples/s"), "{text}");
    // The smallest screens show what they can.
    for (columns, rows) in [(1, 1), (3, 2), (10, 3), (79, 17), (60, 18), (200, 5)] {
        as_text(&of(at_work().snapshots(0, None, missed)), columns, rows);
        as_text(&eight_ranks(), columns, rows);
        as_text(&Screen { has_help: true, ..eight_ranks() }, columns, rows);
    }
}

#[test]
fn a_large_screen_is_used() {
    let snapshots = at_work().snapshots(0, None, |report| {
        missed(report);
        substituted(report, 3);
    });
    compare("large.txt", &of(snapshots), 140, 44);
}

#[test]
fn help_covers_the_screen() {
    let screen = Screen { has_help: true, ..of(at_work().snapshots(0, None, |_| {})) };
    compare("help.txt", &screen, 80, 24);
}

#[test]
fn empty_screen_names_the_searched_sockets() {
    let screen = Screen { why_empty: "no daemon listens".to_owned(), ..Screen::default() };
    assert!(as_text(&screen, 80, 24).starts_with(" no daemon listens\n"));
}

#[test]
fn control_characters_do_not_reach_the_screen() {
    let mut report = at_work().report();
    report.verdict.sentence = "a\u{1b}[2Jb".to_owned();
    report.sessions[0].stream = "tr\u{1b}ain\u{9b}".to_owned();
    report.streams[0].name = report.sessions[0].stream.clone();
    substituted(&mut report, 1);
    report.sessions[0].substituted[0].path = "/data/\u{1b}]0;owned\u{7}\n.jpg".to_owned();
    let dirty = serde_json::to_string(&report).unwrap();
    let mut history = super::super::history::History::default();
    history.add(std::time::Duration::ZERO, crate::observer::read(&dirty).unwrap());
    let text = as_text(&of(Snapshot::of(0, "/run/x.sock", &history, None)), 120, 24);
    assert!(text.contains("a\\x1b[2Jb") && text.contains("tr\\x1bain\\x9b"), "{text}");
    assert!(text.contains("/data/\\x1b]0;owned\\x07\\x0a.jpg"), "{text}");
    assert!(text.chars().all(|character| character == '\n' || !character.is_control()), "{text}");
}

#[test]
fn function_on_batches_has_a_box_and_workers_have_a_line() {
    let script = Script { limit: "batch.operations[0]", ..at_work() };
    let snapshots = script.snapshots(0, None, |report| {
        let used = report.cpu_seconds;
        report.python_cpu_seconds = used * 0.5;
        report.streams[0].batch_functions = vec![StageReport {
            name: "batch.operations[0]".to_owned(),
            concurrency: 2,
            ave_time: 0.0041,
            p99_time: 0.0052,
            is_of_batches: true,
            python: Some(PythonReport { function_seconds: used, ..PythonReport::default() }),
            ..StageReport::default()
        }];
    });
    let text = as_text(&of(snapshots.clone()), 140, 30);
    for words in
        ["batch.operations[0]", "1.5 of 2 busy", "0.75 cores in workers, beside the daemon"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let small = as_text(&of(snapshots), 40, 16);
    assert!(
        small.contains("batch.opera… 1.5 of 2 busy") && small.contains("0.75 cores"),
        "{small}"
    );
    assert!(!as_text(&of(at_work().snapshots(0, None, |_| {})), 140, 30).contains("Python"));
}
