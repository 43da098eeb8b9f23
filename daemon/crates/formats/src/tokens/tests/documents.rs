//! Rows of documents: concatenated, packed, and their index.

use std::collections::BTreeMap;

use super::*;
use crate::tokens::index::{RowShape, TokenIndex};
use forebay_dataset::IndexBytes;

const END: u16 = 9;

/// Documents of 3 tokens and an end, and of one token and an end, so that each pair fills a row of 6.
fn make_pairs(folder: &Path, count: usize) -> PathBuf {
    let mut tokens = Vec::new();
    for number in (0..count).map(|number| 10 + u16::try_from(number).unwrap()) {
        tokens.extend([number, number + 1000, number + 2000, END, number + 3000, END]);
    }
    let path = folder.join("tokens.bin");
    fs::write(&path, raw(tokens)).unwrap();
    path
}

/// Documents of two tokens and an end, and a last one, so that there are `count` rows of 3.
fn make_documents(folder: &Path, count: usize) -> PathBuf {
    let numbers = (0..count).map(|number| 10 + u16::try_from(number).unwrap());
    let tokens = numbers.flat_map(|number| [number, number + 1000, END]).chain([1, 2]);
    let path = folder.join("tokens.bin");
    fs::write(&path, raw(tokens)).unwrap();
    path
}

fn open_packed(config: &DatasetConfig, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
    let boundaries = ("boundaries", list(&ALL_BOUNDARIES));
    open_with(config, options, &[length(6), end(), ("cut", text("pack")), boundaries])
}

fn open_concatenated(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    open_with(config, options, &[length(3), end(), ("cut", text("concatenate"))])
}

fn end() -> (&'static str, Value) {
    ("end", Value::Integer(END.into()))
}

#[test]
fn packed_rows_conform() {
    conformance::run(&Format {
        name: "tokens",
        open: open_packed,
        make: make_pairs,
        has_names: false,
        refuses_cuts: true,
    });
}

#[test]
fn concatenated_rows_conform_except_for_the_order_of_files() {
    conformance::run_permuted(&Format {
        name: "tokens",
        open: open_concatenated,
        make: make_documents,
        has_names: false,
        refuses_cuts: true,
    });
}

fn rows(opened: &Opened, name: &str) -> Vec<Vec<i64>> {
    (0..opened.dataset.sample_count()).map(|id| field(opened, id, name)).collect()
}

/// Documents of 1 to 40 tokens, each with different numbers.
fn documents(count: u16) -> Vec<Vec<u16>> {
    let mut next = 100;
    (0..count)
        .map(|number| {
            let tokens = 1 + number * 7 % 40;
            next += tokens;
            (next - tokens..next).collect()
        })
        .collect()
}

/// The same documents in Megatron's format and as raw tokens that end in `END`.
fn fixtures(documents: &[Vec<u16>]) -> [Fixture; 2] {
    let ended: Vec<Vec<u16>> =
        documents.iter().map(|document| [document.as_slice(), &[END]].concat()).collect();
    let sequences: Vec<[&[u16]; 1]> = ended.iter().map(|document| [document.as_slice()]).collect();
    let as_documents: Vec<&[&[u16]]> = sequences.iter().map(|document| &document[..]).collect();
    let (data, index) = megatron(&as_documents);
    [
        Fixture::new(&[("a.bin", raw(ended.concat()))]),
        Fixture::new(&[("a.bin", data), ("a.idx", index)]),
    ]
}

#[test]
fn concatenated_documents_occur_once_each_in_permuted_order() {
    let documents = documents(120);
    for fixture in fixtures(&documents) {
        let keys = [length(32), end(), ("cut", text("concatenate"))];
        let opened = fixture.open(&keys);
        let stream = rows(&opened, "tokens").concat();
        // Labels are the next token of the stream, across rows and documents.
        let labels = rows(&opened, "labels").concat();
        assert_eq!(stream[1..], labels[..labels.len() - 1]);
        let mut found: Vec<Vec<i64>> =
            stream.split(|token| *token == i64::from(END)).map(<[i64]>::to_vec).collect();
        let cut_off = found.pop().unwrap();
        let order: Vec<i64> = found.iter().map(|document| document[0]).collect();
        assert!(!order.is_sorted());
        let expected: Vec<Vec<i64>> = documents
            .iter()
            .map(|document| document.iter().copied().map(i64::from).collect())
            .filter(|document| found.contains(document))
            .collect();
        found.sort();
        assert_eq!(found, expected);
        // Missing tokens are after the last row.
        let missing: usize =
            documents.iter().map(|document| document.len() + 1).sum::<usize>() - stream.len();
        assert!(missing <= 32 && cut_off.len() <= 40, "{missing}");
        // If documents are distinguished, no label is another document's token.
        let mut keys = keys.to_vec();
        keys.push(("boundaries", list(&["segment_ids"])));
        let apart = fixture.open(&keys);
        assert_eq!(rows(&apart, "tokens").concat(), stream);
        let apart = rows(&apart, "labels").concat();
        for (place, token) in stream.iter().enumerate() {
            let expected = if *token == i64::from(END) { -100 } else { labels[place] };
            assert_eq!(apart[place], expected, "{place}");
        }
    }
}

#[test]
fn packed_documents_are_complete_and_padding_is_a_separate_segment() {
    let documents = documents(120);
    let fixtures = fixtures(&documents);
    let keys = [length(24), end(), ("cut", text("pack")), ("boundaries", list(&ALL_BOUNDARIES))];
    let [by_end, by_table] = fixtures.each_ref().map(|fixture| fixture.open(&keys));
    let mut seen = Vec::new();
    for id in 0..by_end.dataset.sample_count() {
        let row: BTreeMap<String, Vec<i64>> = row(&by_end, id).into_iter().collect();
        assert_eq!(row, super::row(&by_table, id).into_iter().collect());
        let [tokens, labels, cu_seqlens] =
            ["tokens", "labels", "cu_seqlens"].map(|name| &row[name]);
        assert_eq!((cu_seqlens.len(), cu_seqlens[0], cu_seqlens[24]), (25, 0, 24));
        for (segment, pair) in (1..).zip(cu_seqlens.windows(2)) {
            let [start, end] = [pair[0], pair[1]].map(|place| usize::try_from(place).unwrap());
            if start == 24 {
                break;
            }
            let is_padding = row["segment_ids"][start] == 0;
            let own = if is_padding { 0 } else { segment };
            assert!(row["segment_ids"][start..end].iter().all(|number| *number == own));
            assert!(row["position_ids"][start..end].iter().copied().eq(0..pair[1] - pair[0]));
            if is_padding {
                assert!(end == 24 && tokens[start..].iter().all(|token| *token == i64::from(END)));
                assert!(labels[start..].iter().all(|label| *label == -100));
                continue;
            }
            assert_eq!(labels[start..end - 1], tokens[start + 1..end]);
            let document = tokens[start..end].to_vec();
            let goes_on = *document.last().unwrap() != i64::from(END);
            // A document that continues fills the row, and its last label is in the next one.
            let last = labels[end - 1];
            let follows = last == document[end - start - 1] + 1 || last == i64::from(END);
            assert!(if goes_on { end == 24 && follows } else { last == -100 }, "{last}");
            seen.push(document);
        }
    }
    seen.sort();
    let all: i64 = seen.iter().map(|document| i64::try_from(document.len()).unwrap()).sum();
    assert_eq!(
        all,
        documents.iter().map(|document| i64::try_from(document.len() + 1).unwrap()).sum::<i64>()
    );
    // The numbers of a document increase, so its pieces are consecutive.
    let mut pieces = seen.concat();
    pieces.retain(|token| *token != i64::from(END));
    assert!(pieces.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    let notes = by_end.dataset.description().notes;
    assert!(
        notes.iter().any(|(name, text)| *name == "packing" && text.contains("% of the positions"))
    );
}

/// Normally distributed pseudorandom numbers (Box–Muller).
fn normal(seed: &mut u64) -> f64 {
    let mut uniform = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[expect(clippy::cast_precision_loss, reason = "53 bits")]
        let number = (*seed >> 11) as f64 / (1_u64 << 53) as f64;
        number.max(1e-12)
    };
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

#[test]
fn packing_leaves_less_than_one_percent_of_positions_without_labels() {
    let mut seed = 7;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length")]
    let lengths: Vec<usize> = (0..20_000)
        .map(|_| (6.2 + 1.1 * normal(&mut seed)).exp().clamp(2.0, 1e5) as usize)
        .collect();
    let mut tokens = Vec::new();
    for length in &lengths {
        tokens.resize(tokens.len() + length - 1, 1_u16);
        tokens.push(END);
    }
    let fixture = Fixture::new(&[("a.bin", raw(tokens))]);
    let opened = fixture.open(&[length(2048), end(), ("cut", text("pack"))]);
    let index =
        TokenIndex::open(IndexBytes::Owned(opened.dataset.index().unwrap().to_vec())).unwrap();
    assert_eq!(index.documents, 20_000);
    // The count that `check` prints equals the labels in the rows, for some of the rows.
    for id in (0..index.rows).step_by(97) {
        let labels = field(&opened, id, "labels");
        let shape = RowShape { length: 2048, looks_ahead: true, has_segments: true };
        let row = index.row(id, shape);
        let expected: u64 = row.segments.iter().map(|segment| segment.tokens - 1).sum();
        let expected = expected + u64::from(row.ahead.is_some());
        assert_eq!(labels.iter().filter(|label| **label != -100).count() as u64, expected);
    }
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = index.labelled as f64 / (index.rows * 2048) as f64;
    println!(
        "{share:.4} of the positions have labels; {}",
        opened.dataset.description().notes[2].1
    );
    assert!(share >= 0.99, "{share}");
}

#[test]
fn without_an_end_token_npy_files_are_documents_and_bin_files_are_refused() {
    let npy = |tokens: &[u16]| {
        npy_bytes("<u2", false, &format!("({},)", tokens.len()), &raw(tokens.iter().copied()))
    };
    let fixture = Fixture::new(&[("a.npy", npy(&[1, 2, 3])), ("b.npy", npy(&[4, 5]))]);
    let opened = fixture.open(&[length(8), ("cut", text("pack"))]);
    assert_eq!(field(&opened, 0, "tokens"), [1, 2, 3, 4, 5, 0, 0, 0]);
    assert_eq!(field(&opened, 0, "labels"), [2, 3, -100, 5, -100, -100, -100, -100]);
    let message = Fixture::new(&[("a.bin", raw(0..90))]).failure(&[("cut", text("pack"))]);
    assert!(message.contains("a.bin") && message.contains("set dataset.tokens.end"), "{message}");
}

#[test]
fn errors_name_inconsistent_tables() {
    let (data, index) = megatron(&[&[&[1, 2, 3], &[4]], &[&[5, 6, 7]]]);
    // 34 bytes of header, 3 lengths, 3 pointers, 3 documents.
    let change = |at: usize, bytes: &[u8]| {
        let mut index = index.clone();
        index[at..at + bytes.len()].copy_from_slice(bytes);
        index
    };
    let cases = [
        (change(34, &9_i32.to_le_bytes()), "its first 1 sequences have 9 tokens"),
        (change(34, &(-1_i32).to_le_bytes()), "its sequence 0 has the length None"),
        (change(42, &2_i32.to_le_bytes()), "have 6 tokens in 2 documents"),
        (
            change(54, &800_i64.to_le_bytes()),
            "its sequence 1 has the length Some(1) and lies at byte Some(800)",
        ),
        (change(54, &(-6_i64).to_le_bytes()), "lies at byte Some(-6)"),
        (change(70, &1_i64.to_le_bytes()), "its document 0 begins"),
        (change(78, &i64::MAX.to_le_bytes()), "its document 1 begins"),
        (change(78, &(-1_i64).to_le_bytes()), "its document 1 begins with the sequence below 0"),
        (change(86, &2_i64.to_le_bytes()), "have 7 tokens in 2 documents"),
        (change(86, &1_i64.to_le_bytes()), "its document 2 begins"),
    ];
    for (index, expected) in cases {
        for cut in ["concatenate", "pack"] {
            let fixture = Fixture::new(&[("a.bin", data.clone()), ("a.idx", index.clone())]);
            let message = fixture.failure(&[length(2), ("cut", text(cut))]);
            assert!(message.contains(expected) && message.contains("a.idx"), "{message}");
        }
    }
    // A correct table, with an empty document.
    let (data, index) = megatron(&[&[&[1, 2, 3], &[4]], &[], &[&[5, 6, 7]]]);
    let fixture = Fixture::new(&[("a.bin", data), ("a.idx", index)]);
    let opened = fixture.open(&[length(4), ("cut", text("pack"))]);
    assert_eq!(rows(&opened, "tokens"), [[1, 2, 3, 4], [5, 6, 7, 0]]);
}

#[test]
fn changed_megatron_index_beside_the_same_tokens_rebuilds_the_index() {
    let (data, first) = megatron(&[&[&[1, 2, 3, 4]], &[&[5, 6]]]);
    let (same, other) = megatron(&[&[&[1, 2]], &[&[3, 4, 5, 6]]]);
    assert_eq!(data, same);
    let fixture = Fixture::new(&[("a.bin", data), ("a.idx", first)]);
    let keys = [length(4), ("cut", text("pack"))];
    assert!(!fixture.open(&keys).report.reused && fixture.open(&keys).report.reused);
    let path = fixture.config.path.join("a.idx");
    fs::write(&path, other).unwrap();
    // Independent of the resolution of the file system's clock.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let opened = fixture.open(&keys);
    assert!(!opened.report.reused);
    assert_eq!(rows(&opened, "tokens"), [[1, 2, 0, 0], [3, 4, 5, 6]]);
}

#[test]
fn changed_file_rebuilds_the_index_and_changed_keys_change_rows() {
    let fixture = Fixture::new(&[("a.bin", raw([1, END, 2, 3, END, 4, 5, 6, END]))]);
    let keys = [length(4), end(), ("cut", text("pack"))];
    let first = fixture.open(&keys);
    assert!(!first.report.reused && fixture.open(&keys).report.reused);
    let print = |keys: &[(&str, Value)]| fixture.open(keys).dataset.fingerprint();
    let mut longer = keys.to_vec();
    longer[0] = length(5);
    assert_ne!(print(&longer), first.dataset.fingerprint());
    assert_eq!(print(&keys), first.dataset.fingerprint());
    let path = fixture.config.path.join("a.bin");
    fs::write(&path, raw([1, 2, END, 3, END, 4, 5, 6, END])).unwrap();
    // Independent of the resolution of the file system's clock.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let second = fixture.open(&keys);
    assert!(!second.report.reused);
    assert_ne!(second.dataset.fingerprint(), first.dataset.fingerprint());
}
