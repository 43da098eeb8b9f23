//! `forebay init`: what it writes passes `check` and runs, and what it says of a dataset is so.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use forebay_synth::ArrayContainer;
use forebay_synth::tfrecord::{Values, example, frame};
use forebay_tests::program::Finished;
use forebay_tests::{TestDir, data, program, signal};
use nix::sys::signal::Signal;
use rustix::fs::{FlockOperation, flock};

fn init(dir: &TestDir, arguments: &[&str]) -> Finished {
    program::run(dir.forebay(&["init"]).args(arguments))
}

/// What was printed, of an `init` that succeeds.
fn success(dir: &TestDir, arguments: &[&str]) -> String {
    let finished = init(dir, arguments);
    assert!(finished.status.success(), "{finished:?}");
    finished.stdout
}

fn read(dir: &TestDir, name: &str) -> String {
    std::fs::read_to_string(dir.path(name)).unwrap()
}

/// One file as of ImageNet's scripts: a picture, its class and the edges of none to two boxes.
fn boxed_pictures(pictures: &Path, target: &Path) {
    std::fs::create_dir(target).unwrap();
    let mut records = Vec::new();
    for (number, edges) in (0..40_i64).zip([&[][..], &[0.5], &[0.25, 0.5]].into_iter().cycle()) {
        let picture = pictures.join(format!("class-{:03}/{number:08}.jpg", number % 4));
        let picture = std::fs::read(picture).unwrap();
        let features = [
            ("image/encoded", Values::Bytes(&[&picture])),
            ("image/class/label", Values::Integers(&[number % 4])),
            ("image/object/bbox/xmin", Values::Floats(edges)),
        ];
        records.extend(frame(&example(&features)));
    }
    std::fs::write(target.join("train-00000-of-00001"), records).unwrap();
}

#[test]
fn what_it_writes_passes_check_and_runs_for_every_kind_of_data() {
    let dir = TestDir::new();
    data::images(&dir.path("my ${HOME} \"photos\""), 40, 4);
    data::arrays(&dir.path("arrays"), ArrayContainer::NpyFiles, 40);
    data::arrays(&dir.path("records"), ArrayContainer::NpzFiles, 40);
    data::sentences(&dir.path("sentences"), 40);
    data::boxes(&dir.path("boxes"), 40);
    data::stack(&dir.path("stack"), 40);
    data::image_tars(&dir.path("tars"), 40, 4);
    data::number_tars(&dir.path("numbers"), 40);
    data::sounds(&dir.path("sounds"), &dir.path("speech/0.tar"), 40);
    forebay_synth::tfrecord::pack_classes(
        &dir.path("my ${HOME} \"photos\""),
        &dir.path("examples"),
        15,
    )
    .unwrap();
    boxed_pictures(&dir.path("my ${HOME} \"photos\""), &dir.path("boxed"));
    let rows: String = (0..40).map(|row| format!("text {row},{row}\n")).collect();
    let table = dir.path("table");
    std::fs::create_dir(&table).unwrap();
    std::fs::write(table.join("metadata.csv"), format!("text,label\n{rows}")).unwrap();
    data::images(&dir.path("detection"), 40, 4);
    let list: Vec<_> = (0..40)
        .map(|n| format!("{{\"id\": {n}, \"file_name\": \"class-{:03}/{n:08}.jpg\"}}", n % 4))
        .collect();
    let list = format!("{{\"images\": [{}]}}", list.join(","));
    std::fs::write(dir.path("detection/_annotations.coco.json"), list).unwrap();
    for (path, keys) in [
        (
            "detection",
            "{ op = \"random-horizontal-flip\", fields = [\"image\", \"boxes\", \"labels\"] },",
        ),
        ("table", "label = { from = \"label\", as = \"integer\" }"),
        ("table/metadata.csv", "format = \"manifest\""),
        ("tars", "image = { from = [\"jpg\", \"jpeg\", \"png\", \"webp\"], as = \"image\" }"),
        ("numbers/{000..000}.tar", "label = { from = \"cls\", as = \"integer\" }"),
        ("numbers/000.tar", "format = \"webdataset\""),
        ("examples", "image = { from = \"image/encoded\", as = \"image\" }"),
        (
            "examples/train-{00000..00002}-of-00003",
            "label = { from = \"image/class/label\", as = \"integer\" }",
        ),
        ("boxed", "\"image/object/bbox/xmin\" = { ragged = true, max_bytes = \"64B\" }"),
        ("sounds", "audio = { ragged = true, max_bytes = \"1KiB\" }  # floats: 100 to 139 frames;"),
        ("speech", "wav = { from = \"wav\", as = \"audio\" }"),
        ("my ${HOME} \"photos\"", "preset = \"imagenet-train\""),
        ("arrays", "format = \"npy\""),
        ("records", "format = \"npz\""),
        ("sentences", "tokens = { ragged = true, max_bytes = \"64B\" }"),
        ("boxes", "boxes = { ragged = true, max_bytes = \"64B\" }"),
        ("stack/samples.npy", "format = \"npy\""),
    ] {
        let told = success(&dir, &[path, "--force"]);
        assert!(told.contains("40 samples") && told.contains("forebay check train.toml"), "{told}");
        let text = read(&dir, "train.toml");
        assert!(text.contains(keys) && text.contains("size = 8 "), "{path}: {text}");
        let plan = program::run(&mut dir.forebay(&["check", "train.toml"]));
        assert!(plan.status.success() && plan.stderr.is_empty(), "{path}: {plan:?}");
        let mut bench = dir.forebay(&["bench", "--json", "--batches", "2", "train.toml"]);
        let report = program::run(bench.args(["--set", "cpu.policy=normal"])).json();
        assert_eq!(report["samples"], 16, "{path}: {report}");
    }
}

#[test]
fn it_warns_of_a_wrong_root_of_hidden_files_and_of_samples_that_cannot_be_used() {
    let dir = TestDir::new();
    data::images(&dir.path("data/train"), 40, 4);
    data::images(&dir.path("data/val"), 20, 4);
    let hidden = dir.path("data/train/.ipynb_checkpoints");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::copy(dir.path("data/train/class-000/00000000.jpg"), hidden.join("0.jpg")).unwrap();
    std::fs::write(dir.path("data/train/class-001/00000001.jpg"), "").unwrap();
    let told = success(&dir, &["data"]);
    let train = dir.path("data/train").display().to_string();
    for part in [
        "classes: 4, class-000 to class-003, of 10 samples each",
        "only folders that do: \"train\", \"val\"",
        &format!("The configuration reads {train:?}"),
        "1 .ipynb_checkpoints",
        "1 of the 40 samples that were read cannot be used",
        "00000001.jpg: the file is empty",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(read(&dir, "train.toml").contains(&format!("path = {train:?}")));

    data::arrays(&dir.path("arrays"), ArrayContainer::NpyFiles, 8);
    data::stack(&dir.path("stack"), 5);
    std::fs::rename(dir.path("stack/samples.npy"), dir.path("arrays/class-000/zz.npy")).unwrap();
    let told = success(&dir, &["arrays", "--force"]);
    assert!(
        told.contains("array has the shape [2, 3] in the first sample and [5, 2, 3]"),
        "{told}"
    );
}

#[test]
fn a_configuration_that_is_there_stays_without_force_and_a_dash_prints_it_alone() {
    let dir = TestDir::new();
    data::images(&dir.path("photos"), 12, 3);
    std::fs::write(dir.path("train.toml"), "mine").unwrap();
    let refused = init(&dir, &["photos"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("train.toml is there already; replace it with --force"));
    assert_eq!(read(&dir, "train.toml"), "mine");
    let printed = init(&dir, &["photos", "-o", "-"]);
    assert!(printed.stderr.contains("12 samples"), "{printed:?}");
    success(&dir, &["photos", "--output", "other.toml"]);
    assert_eq!(printed.stdout, read(&dir, "other.toml"));
    success(&dir, &["photos", "--force"]);
    assert_eq!(printed.stdout, read(&dir, "train.toml"));
}

#[test]
fn a_full_disk_leaves_no_part_of_a_configuration_and_keeps_the_old_one() {
    let dir = TestDir::new();
    data::images(&dir.path("photos"), 12, 3);
    // Each write to a file fails.
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let full = |arguments: &[&str]| {
        let mut command = dir.command(Path::new("sh"));
        command.args(["-c", script, "sh"]).arg(program::forebay()).args(["init", "photos"]);
        program::run(command.args(arguments))
    };
    let refused = full(&[]);
    assert!(refused.stderr.contains("writing train.toml: "), "{refused:?}");
    assert!(!dir.path("train.toml").exists());
    std::fs::write(dir.path("train.toml"), "mine").unwrap();
    let refused = full(&["--force"]);
    assert!(refused.stderr.contains("writing train.toml: "), "{refused:?}");
    assert_eq!(read(&dir, "train.toml"), "mine");
    assert!(!dir.path("train.toml.new").exists());
}

#[test]
fn what_is_no_dataset_is_refused_with_what_is_there() {
    let dir = TestDir::new();
    data::images(&dir.path("photos"), 12, 3);
    std::fs::create_dir_all(dir.path("empty/below")).unwrap();
    std::fs::create_dir(dir.path("texts")).unwrap();
    std::fs::write(dir.path("texts/a.txt"), "").unwrap();
    std::fs::write(dir.path("texts/b.TXT"), "").unwrap();
    std::os::unix::fs::symlink("..", dir.path("texts/loop")).unwrap();
    std::fs::create_dir(dir.path("loop")).unwrap();
    std::os::unix::fs::symlink(".", dir.path("loop/again")).unwrap();
    for (path, reason) in [
        ("empty", "empty is a folder of folders without files; image-folder reads .jpg"),
        ("loop", "loop is a folder of folders without files"),
        ("texts/a.txt", "a.txt is a file that no format reads (1 .txt)"),
        ("photos/class-000/00000000.jpg", "is a file; image-folder expects a folder"),
        ("absent", "absent does not exist"),
        ("https://me:word@host/photos", "is a URL with a user or a password"),
    ] {
        let refused = init(&dir, &[path]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(reason), "{path}: {}", refused.stderr);
        assert!(!dir.path("train.toml").exists(), "{path}");
    }
}

#[test]
fn keys_of_windows_make_the_samples_windows_and_a_length_is_asked_for() {
    let dir = TestDir::new();
    data::stack(&dir.path("stack"), 40);
    let keys = ["--set", "dataset.windows.length=4", "--set", "dataset.windows.pad=repeat"];
    let said = success(&dir, &[&["stack/samples.npy"][..], &keys].concat());
    assert!(said.contains("10 samples"), "{said}");
    let text = read(&dir, "train.toml");
    assert!(text.contains("windows.length = 4\nwindows.pad = \"repeat\"\n"), "{text}");
    let plan = program::run(&mut dir.forebay(&["check", "train.toml"]));
    assert!(plan.status.success() && plan.stderr.is_empty(), "{plan:?}");
    // Nothing is read before the length is known.
    std::fs::write(dir.path("episodes.h5"), "").unwrap();
    let refused = init(&dir, &["episodes.h5", "--force"]);
    assert!(
        refused.stderr.contains("give it with `--set dataset.windows.length=16`"),
        "{refused:?}"
    );
    let keys = ["stack", "--force", "--set", "dataset.windows.pad=repeat"];
    let refused = init(&dir, &keys);
    assert!(refused.stderr.contains("`dataset.windows.length` is required"), "{refused:?}");
}

#[test]
fn a_folder_of_pictures_without_class_folders_is_proposed_without_labels() {
    let dir = TestDir::new();
    data::images(&dir.path("photos"), 12, 3);
    success(&dir, &["photos/class-000"]);
    let text = std::fs::read_to_string(dir.path("train.toml")).unwrap();
    assert!(text.contains("# There are no class folders: pictures have no label."), "{text}");
}

/// A `.npy` of so many rows of so many bytes, all zero: it takes no room on disk.
fn sparse_rows(path: &Path, rows: u64, row_bytes: u64) {
    let header =
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {row_bytes}), }}");
    let mut file = File::create(path).unwrap();
    file.write_all(b"\x93NUMPY\x01\x00\x76\x00").unwrap();
    file.write_all(format!("{header:<117}\n").as_bytes()).unwrap();
    file.set_len(128 + rows * row_bytes).unwrap();
}

#[test]
fn large_samples_get_a_smaller_batch_and_a_smaller_ring() {
    let dir = TestDir::new();
    sparse_rows(&dir.path("volumes.npy"), 64, 24 << 20);
    success(&dir, &["volumes.npy"]);
    let text = read(&dir, "train.toml");
    // 16 samples would be a quarter of an epoch; eight batches of them 3 GiB, four of 8 samples 768 MiB.
    assert!(text.contains("size = 8 ") && text.contains("slots = 4 "), "{text}");
}

#[test]
fn a_long_look_shows_that_it_goes_on_and_an_interrupt_leaves_nothing() {
    let dir = TestDir::new();
    data::images(&dir.path("photos"), 12, 3);
    success(&dir, &["photos", "-o", "first.toml"]);
    let cache = dir.path("cache/forebay/index");
    let index = forebay_tests::names_in(&cache).into_iter().find(|name| name.ends_with(".index"));
    let lock = File::create(cache.join(format!("{}.lock", index.unwrap()))).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    // The saved index is out of date, and somebody else makes the new one.
    std::fs::create_dir(dir.path("photos/class-003")).unwrap();
    // A test that runs in a shell's background ignores the signal, and its children would too.
    let mut command = dir.command(Path::new("env"));
    command.arg("--default-signal=INT").arg(program::forebay()).args(["init", "photos"]);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("another process scans it; waiting for its index"), "{line}");
    assert!(signal(child.id(), Signal::SIGINT));
    assert_eq!(program::wait(&mut child).signal(), Some(Signal::SIGINT as i32));
    assert!(!dir.path("train.toml").exists());
}

#[test]
fn a_configuration_without_a_format_takes_the_one_that_is_found() {
    let dir = TestDir::new();
    data::number_tars(&dir.path("numbers"), 40);
    data::stack(&dir.path("stack"), 40);
    std::fs::create_dir(dir.path("table")).unwrap();
    let rows: String = (0..40).map(|row| format!("{row}\n")).collect();
    std::fs::write(dir.path("table/metadata.csv"), format!("label\n{rows}")).unwrap();
    let bench = |path: &str, format: &str| {
        let text = format!(
            "dataset.path = {:?}\n{format}batch.size = 8\norder.epochs = 1\nstage = [{{ name = \"copy\", operations = [] }}]\n",
            dir.path(path).display()
        );
        let name = path.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-") + ".toml";
        dir.config(&name, &text);
        program::run(dir.forebay(&["bench", "--json", "--digest"]).arg(&name)).json()["digest"]
            .clone()
    };
    for (path, format) in [
        ("numbers", "webdataset"),
        ("numbers/{000..000}.tar", "webdataset"),
        ("stack/samples.npy", "npy"),
        ("table", "manifest"),
    ] {
        let named = bench(path, &format!("dataset.format = {format:?}\n"));
        assert!(named.is_string(), "{named}");
        assert_eq!(bench(path, ""), named, "{path}");
        assert_eq!(bench(path, "dataset.format = \"auto\"\n"), named, "{path}");
    }
}

#[test]
fn tokens_of_32_bits_are_read_as_such_and_what_the_data_do_not_tell_is_asked() {
    let dir = TestDir::new();
    let tokens = |count: u32| -> Vec<u8> {
        (0..count).flat_map(|n| (n.wrapping_mul(2_654_435_761) % 128_000).to_le_bytes()).collect()
    };
    std::fs::write(dir.path("llama.bin"), tokens(50_000)).unwrap();
    let told = success(&dir, &["llama.bin"]);
    // 24 rows of 2,048 tokens and the one after.
    assert!(
        told.contains("24 samples") && told.contains("uint32: guessed from the data"),
        "{told}"
    );
    let text = read(&dir, "train.toml");
    assert!(text.contains("dtype = \"uint32\"        # guessed from the data: "), "{text}");
    assert!(text.contains("epochs = 1 "), "{text}");
    std::fs::write(dir.path("zeros.bin"), vec![0; 40_000]).unwrap();
    let refused = init(&dir, &["zeros.bin", "-o", "zeros.toml"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    for answer in
        ["dataset.tokens.dtype=uint16 (20000 tokens)", "dataset.tokens.dtype=uint32 (10000 tokens)"]
    {
        assert!(refused.stderr.contains(answer), "{refused:?}");
    }
    let given = ["zeros.bin", "-o", "zeros.toml", "--set", "dataset.tokens.dtype=uint32"];
    assert!(success(&dir, &given).contains("4 samples"));
    let plan = program::run(&mut dir.forebay(&["check", "zeros.toml"]));
    assert!(plan.status.success() && plan.stdout.contains("10000 of uint32"), "{plan:?}");
}

#[test]
fn a_coco_file_beside_its_pictures_runs_and_other_layouts_are_questions() {
    let dir = TestDir::new();
    data::images(&dir.path("coco/imgs"), 40, 1);
    let list: Vec<_> = (0..40)
        .map(|n| format!("{{\"id\": {n}, \"file_name\": \"class-000/{n:08}.jpg\"}}"))
        .collect();
    let list = format!("{{\"images\": [{}], \"annotations\": []}}", list.join(","));
    std::fs::write(dir.path("coco/instances_train.json"), list).unwrap();
    for path in ["coco", "coco/instances_train.json"] {
        success(&dir, &[path, "--force"]);
        let text = read(&dir, "train.toml");
        let root = format!("root = {:?}", dir.path("coco/imgs").display().to_string());
        assert!(text.contains("format = \"coco\"") && text.contains(&root), "{text}");
        let mut bench = dir.forebay(&["bench", "--json", "--batches", "2", "train.toml"]);
        let report = program::run(bench.args(["--set", "cpu.policy=normal"])).json();
        assert_eq!(report["samples"], 16, "{report}");
    }
    data::images(&dir.path("yolo/images"), 40, 2);
    std::fs::create_dir(dir.path("yolo/labels")).unwrap();
    std::fs::write(dir.path("yolo/labels/00000000.txt"), "0 0.5 0.5 1 1").unwrap();
    success(&dir, &["yolo", "-o", "yolo.toml"]);
    assert!(read(&dir, "yolo.toml").contains("format = \"yolo\""));
    success(&dir, &["yolo/images", "-o", "classes.toml", "--set", "dataset.format=image-folder"]);
}

#[test]
fn a_dataset_of_hugging_face_is_found_and_proposed() {
    let dir = TestDir::new();
    let pets = dir.path("pets");
    std::fs::create_dir(&pets).unwrap();
    let fixture = "../daemon/crates/formats/fixtures/hugging-face-pictures";
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, pets.join(path.file_name().unwrap())).unwrap();
    }
    let told = success(&dir, &["pets", "--force"]);
    assert!(told.contains("12 samples"), "{told}");
    let text = read(&dir, "train.toml");
    for line in [
        "preset = \"imagenet-train\"",
        "format = \"arrow\"",
        "image = { from = \"image\", as = \"image\" }",
        "label = { from = \"label\", as = \"integer\" }",
        "caption = { from = \"caption\", as = \"text\" }",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut bench = dir.forebay(&["bench", "--json", "--batches", "1", "train.toml"]);
    bench.args(["--set", "cpu.policy=normal", "--set", "batch.size=4"]);
    assert_eq!(program::run(&mut bench).json()["samples"], 4);
}
