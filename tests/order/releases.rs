//! What release 0.1 gave: the digests of ten streams, and what follows the states that it saved in them.
//!
//! `0.1.json` was written by `FOREBAY_TEST_RECORD=1 cargo test -p forebay-tests --test order releases` with the program and
//! the client of release 0.1. Who changes bytes for the same configuration raises the stream version and records anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_client::{Loader, State};
use forebay_synth::ArrayContainer;
use forebay_tests::taken::take_epoch;
use forebay_tests::{Taken, TestDir, data, test_dir};
use serde_json::{Value, json};

/// Batches of an epoch that a rank has taken when it saves its state.
const BEFORE_STATE: usize = 2;

/// A stream: its name, a configuration over data made for it, the world size, and the one at which its state goes on.
struct Stream {
    name: &'static str,
    config: fn(&Path) -> String,
    ranks: u32,
    ranks_after: u32,
}

const STREAMS: [Stream; 10] = [
    stream("images, train preset, drop", 1, 1, |folder| {
        data::images(folder, 45, 3);
        data::image_config(folder, "order.epochs = 2")
    }),
    stream("images, evaluation preset, short", 1, 1, |folder| {
        data::images(folder, 21, 3);
        preset(folder, "imagenet-eval", "order.epochs = 2\nbatch.size = 4\n")
    }),
    stream("images, two ranks, pad", 2, 2, |folder| {
        data::images(folder, 45, 3);
        data::image_config(folder, "order.epochs = 2\nbatch.last = \"pad\"")
    }),
    stream("images, three ranks that become two, drop", 3, 2, |folder| {
        data::images(folder, 100, 3);
        data::image_config(folder, "order.epochs = 1\norder.seed = 7")
    }),
    stream("images, broken files substituted", 1, 1, |folder| {
        data::images(folder, 48, 4);
        for number in [1, 17, 30] {
            let file = format!("class-{:03}/{number:08}.jpg", number % 4);
            fs::write(folder.join(file), "no picture").unwrap();
        }
        let errors = "errors.on_bad_sample = \"substitute\"\nerrors.budget = 6";
        data::image_config(folder, &format!("order.epochs = 2\n{errors}"))
    }),
    stream("images, scaled decoding", 1, 1, |folder| {
        data::images(folder, 40, 2);
        stage(
            folder,
            "{ op = \"decode-image\", scaled = \"auto\" }, { op = \"resize\", size = [14, 10] }, \
                 { op = \"random-crop\", size = 8 }, { op = \"random-vertical-flip\" }",
            "",
        )
    }),
    stream("images, normalised floats", 1, 1, |folder| {
        data::images(folder, 40, 2);
        stage(
            folder,
            "{ op = \"decode-image\" }, { op = \"random-resized-crop\", size = 16, interpolation = \"bicubic\" }",
            "[output.image]\ndtype = \"float32\"\nlayout = \"NCHW\"\nmean = [0.485, 0.456, 0.406]\n\
                 std = [0.229, 0.224, 0.225]",
        )
    }),
    stream("rows of one .npy, four ranks, short", 4, 3, |folder| {
        data::stack(folder, 75);
        data::stack_config(folder, "order.epochs = 2\nbatch.last = \"short\"")
    }),
    stream(".npz files, cast", 1, 1, |folder| {
        data::arrays(folder, ArrayContainer::NpzFiles, 30);
        copied(folder, "features = { dtype = \"float16\" }")
    }),
    stream(".npz files, ragged", 2, 1, |folder| {
        data::sentences(folder, 30);
        copied(folder, "tokens = { ragged = true, max_bytes = \"64B\" }")
    }),
];

/// The ranks before and after the state are the numbers.
const fn stream(
    name: &'static str,
    ranks: u32,
    ranks_after: u32,
    config: fn(&Path) -> String,
) -> Stream {
    Stream { name, config, ranks, ranks_after }
}

fn preset(folder: &Path, preset: &str, keys: &str) -> String {
    format!("dataset.path = {:?}\npreset = {preset:?}\n{keys}", folder.display())
}

/// Images through one stage.
fn stage(folder: &Path, operations: &str, output: &str) -> String {
    format!(
        "dataset.path = {:?}\ndataset.format = \"image-folder\"\nbatch.size = 8\norder.epochs = 2\n\
         stage = [{{ name = \"work\", operations = [{operations}] }}]\n{output}\n",
        folder.display()
    )
}

/// Archives whose arrays are copied as they are.
fn copied(folder: &Path, output: &str) -> String {
    format!(
        "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 4\norder.epochs = 2\n\
         stage = [{{ name = \"copy\", operations = [] }}]\n[output]\n{output}\n",
        folder.display()
    )
}

/// One digest over the epochs of all ranks that are left.
fn digest(loaders: &mut [Loader], epochs: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    for loader in loaders {
        for _ in 0..epochs {
            for Taken { epoch, ids, digest, .. } in take_epoch(loader) {
                hasher.update(format!("{epoch} {ids:?} {digest}\n").as_bytes());
            }
        }
    }
    hasher.finalize().to_hex().to_string()
}

fn attach(config: &Path, ranks: u32, state: Option<&State>) -> Vec<Loader> {
    let attach = |rank| {
        let mut loader = test_dir::loader(config, rank, ranks);
        if let Some(state) = state {
            loader = loader.state(state.clone(), false);
        }
        loader.attach().unwrap()
    };
    (0..ranks).map(attach).collect()
}

fn epochs(config: &Path) -> u32 {
    if fs::read_to_string(config).unwrap().contains("order.epochs = 2") { 2 } else { 1 }
}

/// What a stream gives: all of it, a state, and what follows the state.
fn record(stream: &Stream, config: &Path) -> Value {
    let all = digest(&mut attach(config, stream.ranks, None), epochs(config));
    let mut loaders = attach(config, stream.ranks, None);
    for loader in &mut loaders {
        for _ in 0..BEFORE_STATE {
            let _ = loader.next_batch().unwrap().expect("a batch");
        }
    }
    let state = loaders[0].state(0).unwrap();
    drop(loaders);
    let after = digest(&mut attach(config, stream.ranks_after, Some(&state)), epochs(config));
    json!({ "all": all, "state": state.to_json(), "after_the_state": after })
}

fn recorded() -> BTreeMap<String, Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("order/0.1.json");
    if std::env::var_os("FOREBAY_TEST_RECORD").is_some() {
        let mut found = BTreeMap::new();
        for stream in &STREAMS {
            let (_place, config) = prepare(stream);
            found.insert(stream.name.to_owned(), record(stream, &config));
        }
        fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&found).unwrap())).unwrap();
    }
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn prepare(stream: &Stream) -> (TestDir, PathBuf) {
    let dir = TestDir::new();
    let config = dir.config("stream.toml", &(stream.config)(&dir.path("data")));
    (dir, config)
}

#[test]
fn ten_streams_give_what_release_0_1_gave_also_from_its_states_on() {
    let recorded = recorded();
    for stream in &STREAMS {
        let (_place, config) = prepare(stream);
        let expected = &recorded[stream.name];
        let all = digest(&mut attach(&config, stream.ranks, None), epochs(&config));
        assert_eq!(expected["all"], all, "{}", stream.name);
        let state = State::from_json(expected["state"].as_str().unwrap()).unwrap();
        let after = digest(&mut attach(&config, stream.ranks_after, Some(&state)), epochs(&config));
        assert_eq!(expected["after_the_state"], after, "{}: after its state", stream.name);
    }
    println!("{} streams gave what release 0.1 gave", STREAMS.len());
}
