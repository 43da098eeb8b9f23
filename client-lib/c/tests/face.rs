//! The C library with real daemons: installed, compiled against, linked both ways, and used by C programs whose samples
//! are compared with the Rust client's. The programs are `face.c` and `../examples/epoch.c`.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use forebay_client::{Batch, Loader};
use forebay_tests::program::{Finished, run};
use forebay_tests::taken::{ids, take_epoch};
use forebay_tests::{Daemon, TestDir, data, test_dir};

/// The warnings with which every C file must compile.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Runs a tool that must succeed; returns its standard output.
fn done(command: &mut Command) -> String {
    let finished = run(command);
    assert!(finished.status.success(), "{command:?}: {finished:?}");
    finished.stdout
}

fn is_there(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The prefix into which `client-lib/c/install` has installed the current build.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-prefix");
        let _ = std::fs::remove_dir_all(&prefix);
        // target/PROFILE/deps/TEST
        let test = std::env::current_exe().unwrap();
        let built = test.ancestors().nth(2).unwrap();
        let profile = if built.ends_with("debug") { "dev" } else { "release" };
        let mut install = Command::new(source("install"));
        install.arg(&prefix).args(["--profile", profile]);
        // It builds the library first, which may take longer than a test's time limit.
        let status = install.env("CARGO_TARGET_DIR", built.parent().unwrap()).status().unwrap();
        assert!(status.success(), "{install:?}: {status}");
        prefix
    })
}

/// The values of a key in the installed pkg-config file, with variables expanded.
fn package_key(key: &str) -> Vec<String> {
    let text = std::fs::read_to_string(prefix().join("lib/pkgconfig/forebay.pc")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}: "))).unwrap();
    let folder = prefix().display();
    let line = line
        .replace("${libdir}", &format!("{folder}/lib"))
        .replace("${includedir}", &format!("{folder}/include"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// The flags for compiling programs: from pkg-config, or without it from its file.
fn package_flags() -> Vec<String> {
    if !is_there("pkg-config") {
        return [package_key("Cflags"), package_key("Libs")].concat();
    }
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "forebay"]);
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    done(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program against the shared library.
fn compile(dir: &TestDir, file: &str) -> PathBuf {
    let program = dir.path("shared");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").args(WARNINGS).arg(source(file)).args(package_flags());
    done(cc.args(["-lpthread", "-o"]).arg(&program));
    program
}

/// Runs a C program with the shared library until it exits.
fn run_shared(dir: &TestDir, program: &Path, arguments: &[&str]) -> Finished {
    let mut command = dir.command(program);
    run(command.args(arguments).env("LD_LIBRARY_PATH", prefix().join("lib")))
}

/// Runs a scenario of the tests' C program; returns its output.
fn scenario(dir: &TestDir, name: &str, target: &Path) -> String {
    let program = compile(dir, "tests/face.c");
    let finished = run_shared(dir, &program, &[name, target.to_str().unwrap()]);
    assert!(finished.status.success(), "{name}: {finished:?}");
    finished.stdout
}

fn numbers(text: &str) -> Vec<i64> {
    text.lines().map_while(|line| line.parse().ok()).collect()
}

/// Twelve batches of four arrays, twice, through four slots.
fn small_stream(dir: &TestDir) -> PathBuf {
    let folder = dir.path("data");
    data::stack(&folder, 48);
    dir.config("small.toml", &data::stack_config(&folder, "order.epochs = 2\nring.slots = 4"))
}

/// The ids of `epochs` epochs, from the Rust client.
fn expected_ids(config: &Path, epochs: usize) -> Vec<i64> {
    let mut loader = test_dir::loader(config, 0, 1).attach().unwrap();
    (0..epochs).flat_map(|_| ids(&take_epoch(&mut loader))).collect()
}

/// FNV-1a as in the example, over the contents of a batch.
fn add_to_checksum(mut checksum: u64, batch: &Batch) -> u64 {
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            checksum = (checksum ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211);
        }
    };
    for tensor in batch.tensors() {
        match tensor.ragged() {
            Some(rows) => (0..rows.len()).for_each(|row| add(rows.row_bytes(row).unwrap())),
            None => add(tensor.bytes()),
        }
    }
    checksum
}

/// The expected output of the example for the next epoch.
fn expected_of_example(loader: &mut Loader) -> String {
    let mut lines = String::new();
    let mut checksum = 14_695_981_039_346_656_037;
    while let Some(batch) = loader.next_batch().unwrap() {
        let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap();
        let labels = batch.tensor("label").map(|label| label.as_slice::<i64>().unwrap());
        for (row, id) in ids.iter().enumerate() {
            lines += &labels.map_or(format!("{id}\n"), |labels| format!("{id} {}\n", labels[row]));
        }
        checksum = add_to_checksum(checksum, &batch);
    }
    format!("{lines}checksum {checksum:016x}\n")
}

#[test]
fn example_reads_an_epoch_with_static_and_shared_library() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 40, 4);
    let images = dir.config("images.toml", &data::image_config(&dir.path("images"), ""));
    data::sentences(&dir.path("sentences"), 24);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 5\nbatch.last = \"short\"\n\
         output.tokens = {{ ragged = true, max_bytes = \"64B\" }}\nstage = [{{ name = \"copy\", operations = [] }}]\n",
        dir.path("sentences").display()
    );
    let sentences = dir.config("sentences.toml", &text);
    let shared = compile(&dir, "examples/epoch.c");
    let fixed = dir.path("static");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").args(WARNINGS).args(package_key("Cflags")).arg(source("examples/epoch.c"));
    cc.arg(prefix().join("lib/libforebay.a")).args(package_key("Libs.private"));
    done(cc.arg("-o").arg(&fixed));

    for config in [&images, &sentences] {
        let expected =
            expected_of_example(&mut test_dir::loader(&**config, 0, 1).attach().unwrap());
        // With a private daemon.
        let alone = run_shared(&dir, &shared, &[config.to_str().unwrap()]);
        assert_eq!(alone.stdout, expected, "{alone:?}");
        assert!(alone.status.success());
        // With a running daemon, and the library linked statically.
        let daemon = Daemon::serve(&dir, config);
        let served = run(dir.command(&fixed).arg(&daemon.socket));
        assert_eq!(served.stdout, expected, "{served:?}");
        drop(daemon);
        std::fs::remove_file(dir.path("daemon.sock")).unwrap();
    }
}

#[test]
fn header_compiles_without_warnings_as_cpp_and_old_c() {
    let dir = TestDir::new();
    let text = "#include <forebay.h>\n#include <forebay.h>\nint main() { forebay_options options = FOREBAY_OPTIONS_INIT; \
                forebay_tensor tensor = FOREBAY_TENSOR_INIT; forebay_loader_info info = FOREBAY_LOADER_INFO_INIT; \
                forebay_batch_info batch = FOREBAY_BATCH_INFO_INIT; return options.force + (int)tensor.rank + \
                (int)info.rank + batch.is_last_of_epoch; }\n";
    for (compiler, standards, name) in [
        ("cc", &["-std=c99", "-std=c11"][..], "header.c"),
        ("c++", &["-std=c++11", "-std=c++17"][..], "header.cc"),
    ] {
        // A C compiler is required; one for C++ is not.
        if compiler == "c++" && !is_there(compiler) {
            continue;
        }
        std::fs::write(dir.path(name), text).unwrap();
        for standard in standards {
            let mut command = Command::new(compiler);
            command.arg(standard).args(WARNINGS).arg("-fsyntax-only").args(package_key("Cflags"));
            done(command.arg(dir.path(name)));
        }
    }
}

#[test]
fn shared_library_exports_the_declared_functions_and_has_its_soname() {
    let header = std::fs::read_to_string(prefix().join("include/forebay.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter_map(|line| line.strip_prefix("int ").or(line.strip_prefix("const char *")))
        .filter_map(|line| line.split_once('(').map(|(name, _)| name))
        .collect();
    assert!(declared.len() > 20 && declared.iter().all(|name| name.starts_with("forebay_")));
    let library = prefix().join("lib/libforebay.so");
    let symbols = done(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let exported: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(exported, declared);

    let dynamic = done(Command::new("readelf").arg("-d").arg(&library));
    let major = env!("CARGO_PKG_VERSION").split('.').next().unwrap();
    assert!(dynamic.contains(&format!("soname: [libforebay.so.{major}]")), "{dynamic}");
}

#[test]
fn state_resumes_at_the_saved_position() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    let expected = expected_ids(&config, 1);
    let printed = numbers(&scenario(&dir, "resume", &config));
    assert_eq!(printed[..48], expected);
    // The remaining samples again, after the state was loaded.
    assert_eq!(printed[48..], expected[12..]);
}

#[test]
fn epochs_can_be_begun_and_sought_manually() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    let expected = expected_ids(&config, 2);
    let text = scenario(&dir, "epochs", &config);
    let printed = numbers(&text);
    assert_eq!(printed[..48], expected[..48]);
    assert_eq!(printed[48..], expected[52..]);
    let figures: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(figures["client"]["batches"], 12 + 1 + 11);
    assert!(figures.get("sessions").is_some(), "{figures}");
}

#[test]
fn wrong_arguments_are_errors() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    scenario(&dir, "arguments", &config);
}

#[test]
fn failed_open_is_reported_with_the_remedy() {
    let dir = TestDir::new();
    let socket = scenario(&dir, "refused", &dir.path("absent.sock"));
    assert!(socket.starts_with("daemon-lost: no daemon answers at "), "{socket}");
    assert!(socket.contains("absent.sock"), "{socket}");
    let wrong = dir.config(
        "wrong.toml",
        "dataset.path = \"/data\"\ndataset.format = \"npy\"\nbatch.siez = 4\n",
    );
    let config = scenario(&dir, "refused", &wrong);
    assert!(config.starts_with("config: ") && config.contains("wrong.toml:5"), "{config}");
    assert!(config.contains("did you mean `batch.size`?"), "{config}");
    let stream = scenario(&dir, "refused", Path::new("train"));
    assert!(stream.starts_with("config: ") && stream.contains("forebay run"), "{stream}");
}

#[test]
fn configuration_can_be_text_with_overrides() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    let mut loader = test_dir::loader(&*config, 1, 2).attach().unwrap();
    let expected = ids(&take_epoch(&mut loader));
    let folder = config.parent().unwrap();
    assert_eq!(numbers(&scenario(&dir, "json", folder)), expected);
}

#[test]
fn streams_of_a_running_daemon_are_found_by_name() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    let expected = expected_ids(&config, 1);
    let daemon = Daemon::serve(&dir, &config);
    assert_eq!(numbers(&scenario(&dir, "streams", &daemon.socket)), expected);
}

#[test]
fn wait_is_ended_by_the_callback_and_by_a_close() {
    let dir = TestDir::new();
    let slow = "{ name = \"slow\", operations = [{ op = \"delay\", milliseconds = 600000 }] }";
    let config = dir.staged_stream(8, "", slow);
    scenario(&dir, "waits", &config);
}

#[test]
fn lists_are_padded_into_the_callers_memory() {
    let dir = TestDir::new();
    let line = |id: usize| format!("{{\"tokens\": {:?}}}\n", vec![id; id % 5 + 1]);
    std::fs::write(dir.path("lists.jsonl"), (0..12).map(line).collect::<String>()).unwrap();
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"manifest\"\ndataset.fields.tokens.from = \"tokens\"\n\
         batch = {{ size = 4, pad = \"batch\", multiple_of = 8 }}\n\
         output.tokens = {{ ragged = true, max_bytes = \"64B\", pad = -1 }}\n\
         stage = [{{ name = \"copy\", operations = [] }}]\n",
        dir.path("lists.jsonl").display()
    );
    let config = dir.config("lists.toml", &text);
    assert_eq!(numbers(&scenario(&dir, "padded", &config)), expected_ids(&config, 1)[..4]);
}

#[test]
fn ragged_rows_have_their_other_dimensions() {
    let dir = TestDir::new();
    data::boxes(&dir.path("boxes"), 12);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 8\nstage = [{{ name = \"copy\", operations = [] }}]\n\
         output.boxes = {{ ragged = true, max_bytes = \"64B\" }}\n",
        dir.path("boxes").display()
    );
    let config = dir.config("boxes.toml", &text);
    assert_eq!(numbers(&scenario(&dir, "boxes", &config)), expected_ids(&config, 1)[..8]);
}

/// A batch outlives its loader; an epoch continues after the death of its daemon; a forked child can neither take nor
/// return batches.
#[test]
fn batch_outlives_its_loader_and_epoch_continues_after_its_daemon() {
    let dir = TestDir::new();
    let config = small_stream(&dir);
    let expected = expected_ids(&config, 1);
    for (name, count) in [("held", 4), ("killed", 48), ("forked", 48)] {
        assert_eq!(numbers(&scenario(&dir, name, &config)), expected[..count], "{name}");
    }
}
