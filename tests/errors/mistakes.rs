//! Mistakes that are found before the first batch, through the program.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use forebay_tests::program::Finished;
use forebay_tests::{TestDir, data, program};

fn check(dir: &TestDir, config: &Path) -> Finished {
    program::run(dir.forebay(&["check"]).arg(config))
}

/// The program refuses with status 1 and one message that has all parts; its standard output stays empty.
fn assert_refused(finished: &Finished, parts: &[&str]) {
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    // Log lines may come before it.
    let message = finished.stderr.lines().find(|line| line.starts_with("forebay: "));
    assert!(message.is_some(), "{}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    for part in parts {
        assert!(finished.stderr.contains(part), "{part:?} is not in: {}", finished.stderr);
    }
}

/// All mistakes that need no data are tested in `crates/config`.
#[test]
fn mistakes_in_a_configuration_name_file_line_and_key() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 8, 2);
    let good = format!(
        "preset = \"imagenet-train\"\n\n[dataset]\npath = {:?}\n\n[batch]\nsize = 4\n",
        dir.path("images").display()
    );
    let path = dir.path("train.toml");
    for (text, line, parts) in [
        (good.replace("size = 4", "sise = 4"), 7, vec!["batch.sise", "batch.size"]),
        (
            format!(
                "{good}[[stage]]\nname = \"a\"\noperations = [{{ op = \"center-crop\", size = 8 }}]\n"
            ),
            10,
            vec!["center-crop", "decode-image"],
        ),
        (
            format!("{good}[output.image]\ndtype = \"float64\"\non = \"gpu\"\n"),
            10,
            vec!["output.image.on", "float64", "float32", "remove `on`"],
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let place_of_it = format!("train.toml:{line}");
        let mut expected = vec![place_of_it.as_str()];
        expected.extend(&parts);
        assert_refused(&check(&dir, &path), &expected);
    }
    std::fs::write(&path, &good).unwrap();
    let finished = check(&dir, &path);
    assert!(
        finished.status.success() && finished.stdout.contains("[4, 3, 224, 224]"),
        "{finished:?}"
    );
    let wrong = program::run(dir.forebay(&["check", "--set", "batch.sizes=3"]).arg(&path));
    assert_refused(&wrong, &["batch.sizes", "batch.size"]);
    assert_refused(&check(&dir, &dir.path("absent.toml")), &["absent.toml"]);
}

#[test]
fn data_that_cannot_be_used_is_named() {
    let dir = TestDir::new();
    let images = dir.path("images");
    let config = dir.image_stream(8, 2, "");
    assert!(check(&dir, &config).status.success());
    data::images(&dir.path("all/train"), 8, 2);
    let above = dir.config("above.toml", &data::image_config(&dir.path("all"), ""));
    let meant = format!("dataset.path = {:?}", dir.path("all/train"));
    assert_refused(&check(&dir, &above), &["above.toml:", &meant, "nested_classes"]);
    let few = program::run(dir.forebay(&["check", "--set", "batch.size=9"]).arg(&config));
    assert_refused(&few, &["batch.size", "8"]);
    let first = images.join("class-000/00000000.jpg");
    let bytes = std::fs::read(&first).unwrap();
    std::fs::rename(&images, dir.path("moved")).unwrap();
    assert_refused(&check(&dir, &config), &["dataset.path", "images", "does not exist"]);
    std::fs::write(&images, &bytes).unwrap();
    assert_refused(&check(&dir, &config), &["dataset.path", "image-folder"]);
    for (path, text) in
        [(dir.path("data/samples.npy"), "x = not an array"), (dir.path("data/other.npy"), "")]
    {
        std::fs::create_dir_all(dir.path("data")).unwrap();
        std::fs::write(&path, text).unwrap();
        let text = data::stack_config(&dir.path("data"), "")
            .replace("samples.npy", path.file_name().unwrap().to_str().unwrap());
        let config = dir.config("array.toml", &text);
        assert_refused(&check(&dir, &config), &[path.to_str().unwrap()]);
    }
}

#[test]
fn a_folder_without_permission_is_named() {
    let dir = TestDir::new();
    let images = dir.path("images");
    let config = dir.image_stream(8, 2, "");
    let locked = images.join("class-001");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o000)).unwrap();
    let readable = std::fs::read_dir(&locked).is_ok();
    if readable {
        forebay_tests::skipped("this user (root?) may read a folder of mode 000");
    } else {
        assert_refused(&check(&dir, &config), &["class-001", "permission"]);
    }
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_plan_that_does_not_fit_names_the_key_to_change() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    for command in ["check", "serve"] {
        let mut refused = dir.forebay(&[command]);
        refused.arg(&config).args(["--set", "ring.memory=16MiB"]);
        let keys = ["ring.memory", "ring.slots", "batch.size", "16 MiB"];
        assert_refused(&program::run(&mut refused), &keys);
    }
    let mut huge = dir.forebay(&["check"]);
    huge.arg(&config).args(["--set", "ring.memory=900TiB", "--set", "batch.size=40"]);
    huge.args(["--set", "ring.slots=60000"]);
    let finished = program::run(&mut huge);
    assert!(finished.status.success() || finished.stderr.contains("ring.slots"), "{finished:?}");
}

#[test]
fn a_socket_that_cannot_be_is_named() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    std::fs::write(dir.path("a-file"), "").unwrap();
    let long = format!("{}.sock", "s".repeat(120));
    for (name, parts) in [
        (&*long, ["107", "listen.socket"]),
        ("a-file", ["a-file", "not a socket"]),
        ("nowhere/daemon.sock", ["nowhere", "daemon.sock"]),
    ] {
        let mut serve = dir.forebay(&["serve"]);
        serve.arg(&config).arg("--socket").arg(dir.path(name));
        assert_refused(&program::run(&mut serve), &parts);
    }
}

#[test]
fn two_streams_of_one_name_and_an_unknown_stream_are_refused() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 40);
    let text = data::stack_config(&dir.path("data"), "");
    let one = dir.config("train.toml", &text);
    std::fs::create_dir(dir.path("other")).unwrap();
    let two = dir.config("other/train.toml", &text);
    let both = program::run(dir.forebay(&["check"]).args([&one, &two]));
    assert_refused(&both, &["`train`", "rename"]);
    let daemon = forebay_tests::Daemon::serve(&dir, &one);
    let error = daemon.loader_of("val").attach().unwrap_err().to_string();
    assert!(error.contains("`val`") && error.contains("train"), "{error}");
}

/// As `forebay check train.toml | head -1` does.
#[test]
fn a_closed_pipe_ends_a_command_without_a_message() {
    let dir = TestDir::new();
    let config = dir.image_stream(8, 2, "");
    let commands: [&[&str]; 3] = [&["check"], &["check", "--json"], &["index"]];
    for command in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut forebay = dir.forebay(command);
        forebay.arg(&config).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let child = forebay.spawn().unwrap();
        drop(forebay);
        let finished = program::finish(child);
        assert_eq!((finished.status.code(), &*finished.stderr), (Some(141), ""), "{command:?}");
    }
}

#[test]
fn check_shows_the_classes_and_warns_of_empty_ones_and_of_hidden_folders() {
    let dir = TestDir::new();
    let images = dir.path("images");
    let config = dir.image_stream(8, 2, "");
    let plan = |finished: &Finished, name: &str| {
        let mut lines = finished.stdout.lines().filter_map(|line| line.trim().strip_prefix(name));
        lines.next().map(|value| value.trim().to_owned())
    };
    let clean = check(&dir, &config);
    let classes = plan(&clean, "classes ");
    assert_eq!(classes.as_deref(), Some("2, class-000 to class-001, of 4 samples each"));
    assert_eq!((plan(&clean, "hidden, left out"), clean.stderr.as_str()), (None, ""));
    std::fs::create_dir(images.join("empty-class")).unwrap();
    std::fs::create_dir(images.join(".ipynb_checkpoints")).unwrap();
    let finished = check(&dir, &config);
    assert!(finished.status.success(), "{finished:?}");
    let classes = plan(&finished, "classes ");
    let expected = "3, class-000 to empty-class, of 0 (empty-class) to 4 (class-000) samples";
    assert_eq!(classes.as_deref(), Some(expected));
    assert_eq!(plan(&finished, "hidden, left out").as_deref(), Some("1 .ipynb_checkpoints"));
    for part in ["WARN", "class folder \"empty-class\"", "(1 .ipynb_checkpoints); dataset.hidden"] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
}
