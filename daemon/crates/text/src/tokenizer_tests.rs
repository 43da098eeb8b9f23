//! Ids against those of the Python package, which `fixtures/make.py` writes.

use std::collections::HashMap;
use std::path::PathBuf;

use super::*;

const KINDS: [&str; 7] =
    ["byte-level", "sentencepiece", "word-piece", "unigram", "unreachable", "clip", "patterns"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

fn opened(kind: &str) -> Tokenizer {
    Tokenizer::open(&fixture(&format!("{kind}.json"))).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str, options: &Options) -> Vec<u32> {
    let mut tokens = Tokens::default();
    tokenizer.encode(text, options, &mut tokens).unwrap();
    tokens.ids().to_vec()
}

/// The crate slices this text within a character.
#[test]
fn a_panic_of_the_crate_is_the_texts_defect() {
    let mut parts: serde_json::Value = json("byte-level.json");
    let token = serde_json::json!({
        "id": 506, "content": "é", "single_word": true, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false,
    });
    parts["added_tokens"].as_array_mut().unwrap().push(token);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, parts.to_string()).unwrap();
    let tokenizer = Tokenizer::open(&path).unwrap();
    let options = Options::new(false, true, None);
    let mut tokens = Tokens::default();
    let error = tokenizer.encode("éé", &options, &mut tokens).unwrap_err();
    assert!(error.to_string().contains("panics on this text"), "{error}");
    let plain = ids(&opened("byte-level"), "a text", &options);
    assert_eq!(ids(&tokenizer, "a text", &options), plain, "the next text is read");
}

/// Compares tokenizers of a folder with the ids that are stored beside them. Returns the number of comparisons.
fn compare(folder: &Path, kinds: impl Iterator<Item = String>) -> usize {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&read("texts.json")).unwrap();
    let how = [
        ("with", Options::new(true, true, None)),
        ("without", Options::new(false, true, None)),
        ("as text", Options::new(true, false, None)),
        ("cut right", Options::new(true, true, Some((7, Side::Right)))),
        ("cut left", Options::new(true, true, Some((7, Side::Left)))),
    ];
    let mut compared = 0;
    for kind in kinds {
        let tokenizer = Tokenizer::open(&folder.join(format!("{kind}.json"))).unwrap();
        let expected: HashMap<String, Vec<Vec<u32>>> =
            serde_json::from_slice(&read(&format!("{kind}.ids.json"))).unwrap();
        for (name, options) in &how {
            for (text, expected) in texts.iter().zip(&expected[*name]) {
                assert_eq!(ids(&tokenizer, text, options), *expected, "{kind}, {name}: {text:?}");
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn ids_are_those_of_the_python_package() {
    let kinds = KINDS.map(ToOwned::to_owned).into_iter();
    assert_eq!(compare(&fixture(""), kinds), 7 * 5 * 162);
    // Tokenizers of models, for which `fixtures/make.py` has stored ids.
    let Some(folder) = std::env::var_os("FOREBAY_TOKENIZERS").map(PathBuf::from) else { return };
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let kinds: Vec<String> = names
        .filter_map(|name| Some(name.into_string().ok()?.strip_suffix(".ids.json")?.to_owned()))
        .collect();
    let count = kinds.len();
    println!("{count} tokenizers, {} comparisons", compare(&folder, kinds.into_iter()));
    assert!(count > 0);
}

#[test]
fn threads_share_a_tokenizer() {
    let texts: Vec<String> = json("texts.json");
    let tokenizer = opened("byte-level");
    let options = Options::new(true, true, None);
    let alone: Vec<_> = texts.iter().map(|text| ids(&tokenizer, text, &options)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (text, expected) in texts.iter().zip(&alone).rev() {
                    assert_eq!(ids(&tokenizer, text, &options), *expected);
                }
            });
        }
    });
}

#[test]
fn hostile_texts_are_tokenized() {
    let mut hostile = vec!["a".repeat(1 << 20), "\u{fdfa}".repeat(1 << 14), "😀".repeat(1 << 16)];
    hostile.push((0..1 << 16).map(|code| char::from_u32(code % 32).unwrap()).collect());
    hostile.push("</s>".repeat(1 << 14));
    hostile.push(" \u{301}".repeat(1 << 15));
    let options = Options::new(true, true, None);
    // The time of the expressions of `patterns` grows with the square of the length.
    for kind in KINDS.into_iter().filter(|kind| *kind != "patterns") {
        let tokenizer = opened(kind);
        for text in &hostile {
            let found = ids(&tokenizer, text, &options);
            assert!(!found.is_empty() && found.len() <= 11 * text.len() + 8, "{kind}");
        }
    }
}

#[test]
fn patterns_are_compiled_when_the_file_is_read() {
    let whole = std::fs::read_to_string(fixture("clip.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, whole.replacen("'s|'t", "[[:punct:]]|'s|'t", 1)).unwrap();
    let message = Tokenizer::open(&path).unwrap_err().to_string();
    for part in ["tokenizer.json: not a usable", "[[:punct:]]|'s", "`Split`", "a Python stage"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_text_on_which_a_pattern_gives_up_is_an_error() {
    let whole = std::fs::read_to_string(fixture("clip.json")).unwrap();
    let hostile = whole.replacen("'s|'t", "(?:(?=a)a|a)*(?!.)b|'s|'t", 1);
    let tokenizer = Tokenizer::from_json(hostile.as_bytes()).unwrap();
    let options = Options::new(true, true, None);
    let error = tokenizer.encode(&"a".repeat(40), &options, &mut Tokens::default()).unwrap_err();
    assert!(error.to_string().contains("the pattern of `Split` gives up"), "{error}");
    assert_eq!(ids(&tokenizer, "it's", &options), ids(&opened("clip"), "it's", &options));
}

#[test]
fn names_of_tokens_give_their_ids() {
    let tokenizer = opened("byte-level");
    let file: Value = json("byte-level.json");
    let added = file["added_tokens"].as_array().unwrap();
    for token in added {
        let id = tokenizer.id_of(token["content"].as_str().unwrap()).unwrap();
        assert_eq!(u64::from(id), token["id"].as_u64().unwrap());
    }
    assert_eq!(tokenizer.id_of("two words"), None);
}

#[test]
fn digest_is_that_of_the_file() {
    let (one, other) = (opened("byte-level"), opened("unreachable"));
    assert_eq!(
        *one.digest(),
        *blake3::hash(&std::fs::read(fixture("byte-level.json")).unwrap()).as_bytes()
    );
    assert_ne!(one.digest(), other.digest());
}

#[test]
fn unusable_files_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let message = |contents: &str| {
        std::fs::write(&path, contents).unwrap();
        Tokenizer::open(&path).unwrap_err().to_string()
    };
    for contents in ["", "{", "[]", "{}", r#"{"model": {"type": "Other"}}"#, "\u{0}"] {
        let message = message(contents);
        assert!(message.contains("tokenizer.json: not a usable tokenizer.json: "), "{message}");
    }
    // A file in which one value has another type.
    let whole = std::fs::read_to_string(fixture("byte-level.json")).unwrap();
    for (from, to) in [
        (r#""merges":["#, r#""merges":[7,"#),
        (r#""vocab":{"#, r#""vocab":{"another":-1,"#),
        (r#""vocab":{"#, r#""vocab":{"another":4294967290,"#),
        (r#""type":"NFC""#, r#""type":"NFX""#),
        (r#""added_tokens":["#, r#""added_tokens":["a","#),
    ] {
        assert!(whole.contains(from), "{from}");
        let message = message(&whole.replacen(from, to, 1));
        assert!(message.contains("not a usable tokenizer.json"), "{message}");
    }
    std::fs::remove_file(&path).unwrap();
    let message = Tokenizer::open(&path).unwrap_err().to_string();
    assert!(message.contains("No such file"), "{message}");
}

/// Found by fuzzing: the crate `ptr_hash` finds no table for these six entries.
#[test]
fn file_on_which_the_crate_panics_is_refused() {
    let file = include_bytes!("../../../../fuzz/corpus/tokenizer/few-long-pieces");
    let reason = Tokenizer::from_json(file).unwrap_err();
    assert_eq!(reason, "the tokenizer's crate panics on it");
}
