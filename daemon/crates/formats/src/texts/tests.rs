use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_config::DatasetConfig;
use forebay_keys::{Section, Value};
use forebay_protocol::ids::SampleId;
use forebay_text::{Options, Tokenizer, Tokens};

use crate::testing::{config_for, npy_bytes};
use crate::{conformance, open, resolve_keys};
use forebay_dataset::opening::read_sample;
use forebay_dataset::progress::ScanProgress;
use forebay_dataset::{DatasetError, FieldValue, OpenOptions, Opened};
use forebay_storage::location::SampleBytes;

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/fixtures/byte-level.json");
/// `</s>` in the tokenizer.
const END: u32 = 502;

fn text(number: usize) -> String {
    format!("text {number}: {}", "déjà vu, and more. ".repeat(number % 7))
}

/// A file of JSON lines, and a configuration with `[dataset.tokens]` for it.
fn fixture(folder: &Path, texts: usize, keys: &[(&str, Value)]) -> DatasetConfig {
    let path = folder.join("texts.jsonl");
    let line = |number| serde_json::json!({ "text": text(number), "n": number }).to_string() + "\n";
    fs::write(&path, (0..texts).map(line).collect::<String>()).unwrap();
    let mut config = config_for("manifest", &path);
    config.cache.path = Some(folder.join("cache"));
    config.own = own(keys);
    config
}

fn own(keys: &[(&str, Value)]) -> Section {
    own_of("text", keys)
}

/// As [`own`], with the text in another column or member.
fn own_of(from: &str, keys: &[(&str, Value)]) -> Section {
    let tokens = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into()));
    let rule = [("as", "text"), ("from", from)];
    let rule = rule.map(|(key, word)| (key.to_owned(), word_value(word).into())).to_vec();
    let fields = Value::Table(vec![("text".to_owned(), Value::Table(rule).into())]);
    let mut section = Section::default();
    section.put("fields", fields);
    section.put("tokens", Value::Table(tokens.collect()));
    section
}

fn word_value(word: &str) -> Value {
    Value::String(word.to_owned())
}

/// Rows of 7 tokens of all texts, one after the other.
fn in_windows() -> Vec<(&'static str, Value)> {
    vec![
        ("tokenizer", word_value(TOKENIZER)),
        ("end", word_value("</s>")),
        ("cut", word_value("windows")),
        ("length", Value::Integer(7)),
        ("labels", word_value("none")),
    ]
}

fn open_it(config: &DatasetConfig) -> Result<Opened, String> {
    open(config, OpenOptions::default()).map_err(|error| error.to_string())
}

fn tokens(opened: &Opened) -> Vec<u32> {
    let (mut bytes, mut ends, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for id in (0..opened.dataset.sample_count()).map(SampleId) {
        let (dataset, storage) = (opened.dataset.as_ref(), opened.storage.as_ref());
        read_sample(storage, dataset, id, u64::MAX, &mut bytes, &mut ends).unwrap();
        let mut values = Vec::new();
        dataset.read(id, SampleBytes::new(&bytes, &ends), &mut values).unwrap();
        let FieldValue::Array(row) = &values[0] else { panic!("{values:?}") };
        let ids = row.bytes.as_chunks::<2>().0.iter();
        found.extend(ids.map(|id| u32::from(u16::from_le_bytes(*id))));
    }
    found
}

/// What the tokenizer gives.
fn expected(texts: impl Iterator<Item = usize>) -> Vec<u32> {
    let tokenizer = Tokenizer::open(TOKENIZER.as_ref()).unwrap();
    let (options, mut ids) = (Options::new(true, true, None), Tokens::default());
    let mut all = Vec::new();
    for number in texts {
        tokenizer.encode(&text(number), &options, &mut ids).unwrap();
        all.extend_from_slice(ids.ids());
        all.push(END);
    }
    all.truncate(all.len() / 7 * 7);
    all
}

fn folders(config: &DatasetConfig) -> Vec<PathBuf> {
    let all = super::folder_of_all(config);
    fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Texts of one character, each of which is a token and a row.
fn make_characters(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join("texts.jsonl");
    let line =
        |character: char| serde_json::json!({ "text": character.to_string() }).to_string() + "\n";
    fs::write(&path, ('0'..='z').take(count).map(line).collect::<String>()).unwrap();
    path
}

#[test]
fn tokens_of_texts_conform() {
    conformance::run_permuted(&conformance::Format {
        name: "manifest",
        open: |config, options| {
            let keys = [
                ("tokenizer", word_value(TOKENIZER)),
                ("add_special_tokens", Value::Bool(false)),
                ("length", Value::Integer(1)),
                ("labels", word_value("none")),
                ("cut", word_value("concatenate")),
            ];
            let mut config = DatasetConfig { own: own(&keys), ..config.clone() };
            config.cache.path = config.index.as_ref().map(|index| index.with_file_name("cache"));
            open(&config, options)
        },
        make: make_characters,
        has_names: false,
        refuses_cuts: true,
    });
}

#[test]
fn texts_become_rows_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 500, &in_windows());
    let opened = open_it(&config).unwrap();
    assert!(tokens(&opened) == expected(0..500));
    // The second opening finds them, and other rows are made of the same tokens.
    let made = folders(&config);
    assert_eq!(made.len(), 1);
    let before = fs::metadata(made[0].join("texts.json")).unwrap().modified().unwrap();
    let again = open_it(&config).unwrap();
    assert_eq!(again.dataset.fingerprint(), opened.dataset.fingerprint());
    let mut keys = in_windows();
    keys[2] = ("cut", word_value("pack"));
    let packed = open_it(&DatasetConfig { own: own(&keys), ..config.clone() }).unwrap();
    assert_ne!(packed.dataset.fingerprint(), opened.dataset.fingerprint());
    assert_eq!(folders(&config), made);
    assert_eq!(fs::metadata(made[0].join("texts.json")).unwrap().modified().unwrap(), before);
    // Other tokens are made in another folder.
    keys.push(("parse_special_tokens", Value::Bool(false)));
    open_it(&DatasetConfig { own: own(&keys), ..config.clone() }).unwrap();
    assert_eq!(folders(&config).len(), 2);
}

#[test]
fn a_changed_file_is_made_tokens_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 30, &in_windows());
    let before = open_it(&config).unwrap();
    let path = folder.path().join("texts.jsonl");
    let changed = fs::read_to_string(&path).unwrap().replace("text 3:", "TEXT 3:");
    fs::write(&path, changed).unwrap();
    let after = open_it(&config).unwrap();
    assert!(tokens(&before) != tokens(&after));
    assert_eq!(folders(&config).len(), 2);
}

/// The texts of an archive are not in its index, whose fingerprint stays the same.
#[test]
fn a_file_that_is_changed_in_place_is_made_tokens_again() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<_> = (0..30).map(|number| (format!("{number:03}.txt"), text(number))).collect();
    let members: Vec<_> =
        texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    fs::create_dir(folder.path().join("data")).unwrap();
    let path = folder.path().join("data/texts.tar");
    let bytes = forebay_synth::tar::archive(&members);
    fs::write(&path, &bytes).unwrap();
    let mut config = config_for("webdataset", &path);
    config.index = Some(folder.path().join("saved.index"));
    config.cache.path = Some(folder.path().join("cache"));
    config.own = own_of("txt", &in_windows());
    let before = open_it(&config).unwrap();
    assert!(tokens(&before) == expected(0..30));
    let place = bytes.windows(7).position(|part| part == b"text 3:").unwrap();
    let mut changed = bytes;
    changed[place..place + 4].copy_from_slice(b"TEXT");
    fs::write(&path, &changed).unwrap();
    assert!(tokens(&open_it(&config).unwrap()) != expected(0..30));
    assert_eq!(folders(&config).len(), 2);
}

#[test]
fn a_stopped_opening_is_continued_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 500, &in_windows());
    let stop = |seen: ScanProgress| match seen.texts {
        Some(texts) if texts.done > 0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = open(&config, OpenOptions { progress: &stop, ..OpenOptions::default() });
    assert!(matches!(stopped, Err(DatasetError::Cancelled)));
    assert!(!folders(&config)[0].join("texts.json").exists());
    assert!(tokens(&open_it(&config).unwrap()) == expected(0..500));
}

#[test]
fn of_two_that_open_one_makes_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 3000, &in_windows());
    let makers = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let has_made = AtomicU64::new(0);
                let note = |seen: ScanProgress| {
                    has_made.fetch_max(seen.texts.is_some().into(), Ordering::Relaxed);
                    ControlFlow::Continue(())
                };
                let options = OpenOptions { progress: &note, ..OpenOptions::default() };
                assert!(tokens(&open(&config, options).unwrap()) == expected(0..3000));
                makers.fetch_add(has_made.into_inner(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(makers.into_inner(), 1);
}

#[test]
fn unusable_texts_are_an_error_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = in_windows();
    keys.push(("max_bytes", word_value("100B")));
    let config = fixture(folder.path(), 14, &keys);
    let error = open_it(&config).unwrap_err();
    assert!(error.contains("texts.jsonl") && error.contains("bad_texts = \"skip\""), "{error}");
    keys.push(("bad_texts", word_value("skip")));
    let skipping = DatasetConfig { own: own(&keys), ..config };
    let is_short = |number: &usize| text(*number).len() <= 100;
    for _ in 0..2 {
        let opened = open_it(&skipping).unwrap();
        assert!(tokens(&opened) == expected((0..14).filter(is_short)));
        let warning = opened.report.warnings.concat();
        let left_out = (0..14).filter(|number| !is_short(number)).count();
        assert!(warning.contains(&format!("{left_out} of 14 texts")), "{warning}");
    }
}

#[test]
fn texts_above_the_limit_of_a_sample_are_left_out_too() {
    let folder = tempfile::tempdir().unwrap();
    // Larger than what neighbours share.
    let long = "a ".repeat(1 << 20);
    let mut texts: Vec<_> =
        (0..14).map(|number| (format!("{number:03}.txt"), text(number))).collect();
    texts.insert(7, ("006a.txt".to_owned(), long));
    let members: Vec<_> =
        texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    fs::create_dir(folder.path().join("data")).unwrap();
    let path = folder.path().join("data/texts.tar");
    fs::write(&path, forebay_synth::tar::archive(&members)).unwrap();
    let mut config = config_for("webdataset", &path);
    config.index = Some(folder.path().join("saved.index"));
    config.cache.path = Some(folder.path().join("cache"));
    config.limits.sample_bytes = 3 << 19;
    let mut keys = in_windows();
    config.own = own_of("txt", &keys);
    let error = open_it(&config).unwrap_err();
    assert!(error.contains("limits.sample_bytes") && error.contains("bad_texts"), "{error}");
    keys.push(("bad_texts", word_value("skip")));
    config.own = own_of("txt", &keys);
    let opened = open_it(&config).unwrap();
    assert!(tokens(&opened) == expected(0..14));
    let warning = opened.report.warnings.concat();
    assert!(
        warning.contains("1 of 15 texts") && warning.contains("limits.sample_bytes"),
        "{warning}"
    );
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 3, &in_windows());
    let all = super::folder_of_all(&config);
    fs::create_dir_all(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    let error = open_it(&config).unwrap_err();
    assert!(error.contains("not this user's alone") && error.contains("cache.path"), "{error}");
}

#[test]
fn formats_whose_changes_go_unnoticed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ids.npy");
    fs::write(&path, npy_bytes("<i4", false, "(3, 5)", &[0; 60])).unwrap();
    let mut config = config_for("npy", &path);
    config.own.put("tokens", Value::Table(vec![("field".to_owned(), word_value("array").into())]));
    let error = open_it(&config).unwrap_err();
    assert!(error.contains("version of each file") && error.contains("parquet"), "{error}");
}

#[test]
fn resolved_keys_resolve_to_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = fixture(folder.path(), 3, &in_windows());
    resolve_keys(&mut config).unwrap();
    let once = format!("{:?}", config.own.entries());
    assert!(once.contains("tokenizer") && once.contains("windows"), "{once}");
    resolve_keys(&mut config).unwrap();
    assert_eq!(format!("{:?}", config.own.entries()), once);
    assert!(config.files().any(|file| file == Path::new(TOKENIZER)));
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = fixture(folder.path(), 3, &[]);
    let tokenizer = ("tokenizer", word_value(TOKENIZER));
    let with = |keys: &[(&str, Value)]| {
        let mut config = DatasetConfig { own: own(keys), ..config.clone() };
        match resolve_keys(&mut config) {
            Ok(()) => open_it(&config).unwrap_err(),
            Err(error) => error.to_string(),
        }
    };
    for (keys, expected) in [
        (vec![("length", Value::Integer(4))], "give `dataset.tokens.tokenizer`"),
        (vec![("field", word_value("text"))], "not a list of whole numbers"),
        (vec![tokenizer.clone(), ("field", word_value("n"))], "the fields are `text`"),
        (vec![tokenizer.clone(), ("end", word_value("<x>"))], "no added token \"<x>\""),
        (vec![tokenizer.clone(), ("end", Value::Integer(99_999))], "largest token is"),
        (vec![("field", word_value("text")), ("end", word_value("</s>"))], "must be a number"),
        (vec![("tokenizer", word_value("/none.json"))], "/none.json"),
        (vec![("max_bytes", word_value("1B")), ("field", word_value("text"))], "no effect"),
        (vec![tokenizer, ("length", Value::Integer(1 << 20))], "there are not the 1048576 tokens"),
    ] {
        let error = with(&keys);
        assert!(error.contains(expected), "{keys:?}\n{error}");
    }
}
