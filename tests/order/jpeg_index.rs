//! What is learned of JPEG files changes no byte, whatever its file holds and whoever learns at the same time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use forebay_synth::{GenerateOptions, generate_images};
use forebay_tests::kills::Random;
use forebay_tests::{TestDir, data, program, wait_until};

const IMAGES: u64 = 40;

/// Of some 20 kB each.
fn images(folder: &Path) {
    let options = GenerateOptions {
        images: IMAGES,
        classes: 4,
        width: 240,
        height: 200,
        ..GenerateOptions::default()
    };
    generate_images(folder, &options, &|_, _| {}).unwrap();
}

fn config(dir: &TestDir, name: &str, folder: &Path) -> PathBuf {
    dir.config(&format!("{name}.toml"), &data::image_config(folder, "order.epochs = 2"))
}

/// The file of a configuration's index.
fn kept(dir: &TestDir, name: &str) -> PathBuf {
    dir.path(&format!("{name}.index.jpeg"))
}

fn digest(dir: &TestDir, config: &Path, settings: &[&str]) -> String {
    let mut command = dir.forebay(&["bench", "--json", "--digest"]);
    command.arg(config);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let digest = program::run(&mut command).json()["digest"].as_str().unwrap().to_owned();
    // The command may end before its daemon has written all that it has learned.
    wait_until("the run's daemon has ended", || dir.processes().is_empty());
    digest
}

/// How many images are known, by `check`.
fn known(dir: &TestDir, config: &Path) -> u64 {
    let checked = program::run(dir.forebay(&["check", "--json"]).arg(config)).json();
    checked["streams"][0]["jpeg_index"]["known"].as_u64().unwrap()
}

#[test]
fn digests_are_equal_whatever_the_index_holds() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    let config = config(&dir, "train", &folder);
    let path = kept(&dir, "train");
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off"]);
    assert!(!path.exists(), "nothing is kept");
    // Cold, and flushed at the end of a run of a moment.
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(known(&dir, &config), IMAGES);
    let whole = std::fs::read(&path).unwrap();
    let data_bytes: u64 = walk(&folder).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(whole.len() as u64 * 50 < data_bytes, "{} of {data_bytes}", whole.len());
    // Full: nothing is added.
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    // Half; cut off amid a record; damaged; another kind of file.
    let mut damaged = whole.clone();
    for at in (100..damaged.len()).step_by(997) {
        damaged[at] ^= 16;
    }
    for (content, known_after) in [
        (&whole[..whole.len() / 2], IMAGES),
        (&whole[..whole.len() - 3], IMAGES),
        (&damaged, IMAGES),
        (b"notes about something else, kept at an unlucky place", 0),
    ] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(digest(&dir, &config, &[]), expected);
        assert_eq!(known(&dir, &config), known_after, "{} bytes", content.len());
    }
    // A limit.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(digest(&dir, &config, &["dataset.jpeg_index_bytes=3kB"]), expected);
    let limited = std::fs::metadata(&path).unwrap().len();
    assert!((1000..=3000).contains(&limited), "{limited}");
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// A record belongs to the bytes of a file, wherever they lie.
#[test]
fn what_was_learned_of_files_serves_the_same_files_in_archives() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    let files = config(&dir, "files", &folder);
    digest(&dir, &files, &[]);
    let tars = dir.path("tars");
    forebay_synth::tar::pack_classes(&folder, &tars, 15).unwrap();
    let text = std::fs::read_to_string(&files).unwrap();
    let text = text.replace(&folder.display().to_string(), &tars.display().to_string());
    let text = text.replace("files.index", "tars.index");
    let text = format!("dataset.format = \"webdataset\"\n{text}");
    let config = dir.path("tars.toml");
    std::fs::write(&config, text).unwrap();
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off"]);
    std::fs::copy(kept(&dir, "files"), kept(&dir, "tars")).unwrap();
    let before = std::fs::read(kept(&dir, "tars")).unwrap();
    assert_eq!(known(&dir, &config), IMAGES);
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(std::fs::read(kept(&dir, "tars")).unwrap(), before, "nothing was left to learn");
    std::fs::remove_file(kept(&dir, "tars")).unwrap();
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(known(&dir, &config), IMAGES);
}

#[test]
fn two_daemons_learn_at_once() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    let config = config(&dir, "train", &folder);
    // Of an image that is cut out twice a second record may follow, with more marks, or one has all of them.
    let once = "order.epochs=1";
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off", once]);
    digest(&dir, &config, &[once]);
    let alone = std::fs::metadata(kept(&dir, "train")).unwrap().len();
    std::fs::remove_file(kept(&dir, "train")).unwrap();
    let found: Vec<String> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| digest(&dir, &config, &[once]))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(found, [expected.clone(), expected]);
    // Each record once.
    let together = std::fs::metadata(kept(&dir, "train")).unwrap().len();
    assert_eq!((known(&dir, &config), together), (IMAGES, alone));
}

#[test]
fn daemons_killed_while_they_learn_spoil_nothing() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    let config = config(&dir, "train", &folder);
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off"]);
    let mut random = Random::new(11);
    let mut most = 0;
    for kill in 0..12 {
        let mut command = dir.forebay(&["bench", "--json"]);
        command.arg(&config).args(["--set", "order.epochs=1000"]);
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(random.pause(Duration::from_millis(1200)));
        // The command first: it would replace its daemon.
        run.kill().unwrap();
        run.wait().unwrap();
        for process in dir.processes() {
            let pid = rustix::process::Pid::from_raw(process.parse().unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let known = known(&dir, &config);
        assert!(known >= most, "kill {kill}: {known} after {most}");
        most = known;
        if kill % 4 == 3 {
            // What a kill within a write leaves.
            let path = kept(&dir, "train");
            let length = std::fs::metadata(&path).map_or(0, |status| status.len());
            if length > 100 {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(length - random.below(60)).unwrap();
                most -= 1;
            }
        }
    }
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(known(&dir, &config), IMAGES);
}

#[test]
fn its_memory_is_planned_and_a_plan_without_room_leaves_it_out() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    let config = config(&dir, "train", &folder);
    let check = |settings: &[String]| {
        let mut command = dir.forebay(&["check", "--json"]);
        command.arg(&config);
        settings.iter().for_each(|setting| _ = command.args(["--set", setting]));
        program::run(&mut command).json()["streams"][0].clone()
    };
    let (with, without) = (check(&[]), check(&["dataset.jpeg_index=off".to_owned()]));
    let bytes = |stream: &serde_json::Value| stream["memory_bytes"].as_u64().unwrap();
    assert!(bytes(&with) > bytes(&without) + (1 << 20), "{with} {without}");
    assert_eq!(without["jpeg_index"]["off"], "dataset.jpeg_index is \"off\"");
    // As much as the rest needs.
    let tight = check(&[format!("ring.memory={}", bytes(&without))]);
    let off = tight["jpeg_index"]["off"].as_str().unwrap();
    assert!(off.contains("ring.memory has no room"), "{off}");
    let tight = format!("ring.memory={}", bytes(&without));
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off"]);
    assert_eq!(digest(&dir, &config, &[&tight]), expected);
    assert_eq!(known(&dir, &config), 0);
}

#[test]
fn a_dataset_can_be_learned_beforehand() {
    let dir = TestDir::new();
    let folder = dir.path("images");
    images(&folder);
    std::fs::write(folder.join("class-000/broken.jpg"), b"\xff\xd8\xff no picture").unwrap();
    let config = config(&dir, "train", &folder);
    let learn = || program::run(dir.forebay(&["index", "--jpeg"]).arg(&config));
    let said = learn();
    assert!(said.stdout.contains("40 of 41 images known (98 %)"), "{}{}", said.stdout, said.stderr);
    let before = std::fs::read(kept(&dir, "train")).unwrap();
    // All is known now.
    learn();
    assert_eq!(std::fs::read(kept(&dir, "train")).unwrap(), before);
    std::fs::remove_file(folder.join("class-000/broken.jpg")).unwrap();
    let expected = digest(&dir, &config, &["dataset.jpeg_index=off"]);
    assert_eq!(digest(&dir, &config, &[]), expected);
    assert_eq!(std::fs::read(kept(&dir, "train")).unwrap(), before);
    let mut refused = dir.forebay(&["index", "--jpeg", "--set", "dataset.jpeg_index=off"]);
    let refused = program::run(refused.arg(&config));
    assert!(
        !refused.status.success() && refused.stderr.contains("is \"off\""),
        "{}",
        refused.stderr
    );
}
