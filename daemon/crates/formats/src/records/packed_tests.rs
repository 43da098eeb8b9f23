use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_protocol::ids::SampleId;

use super::tests::{litdata, open_with, written};
use crate::conformance::{self, Format};
use crate::testing::{
    CACHED_EVERYWHERE, EVERYWHERE, IN_BLOCKS_EVERYWHERE, compress_files, config_for, names, sample,
    write_aged,
};
use crate::{fuzzing, open, recognize};
use forebay_dataset::OpenOptions;
use forebay_storage::location::{Transform, Unit};

/// A zstd frame with its unpacked size, in uncompressed blocks.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0xA0];
    frame.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
    let blocks: Vec<_> = bytes.chunks(1 << 16).collect();
    for (place, block) in blocks.iter().enumerate() {
        let head = (block.len() << 3) | usize::from(place + 1 == blocks.len());
        frame.extend_from_slice(&head.to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

fn numbers(bytes: &[u8]) -> Vec<usize> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect()
}

/// The records of a plain chunk.
fn records(chunk: &[u8]) -> Vec<&[u8]> {
    let ends = numbers(&chunk[4..4 * (numbers(chunk)[0] + 2)]);
    ends.windows(2).map(|ends| &chunk[ends[0]..ends[1]]).collect()
}

fn put(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
}

/// A chunk with a frame per record.
fn by_record(plain: &[u8]) -> Vec<u8> {
    let frames: Vec<_> = records(plain).into_iter().map(zstd).collect();
    chunk(&frames)
}

/// A chunk with frames of `rows` records.
fn by_frame(chunk: &[u8], rows: usize) -> Vec<u8> {
    let all = records(chunk);
    let frames: Vec<_> = all.chunks(rows).map(|records| zstd(&records.concat())).collect();
    let mut packed = b"LDFZ01\0\0\x01\0\0\0".to_vec();
    for number in [all.len(), rows, frames.len(), 0] {
        put(&mut packed, number);
    }
    let mut end = 0;
    for record in &all {
        end += record.len();
        put(&mut packed, end);
    }
    let mut at = packed.len() + 24 * frames.len();
    for (place, (frame, records)) in frames.iter().zip(all.chunks(rows)).enumerate() {
        put(&mut packed, place * rows);
        put(&mut packed, records.len());
        packed.extend_from_slice(&(at as u64).to_le_bytes());
        put(&mut packed, frame.len());
        put(&mut packed, records.concat().len());
        at += frame.len();
    }
    packed.extend(frames.concat());
    packed
}

fn compressed(root: &Path, level: &str, pack: impl Fn(&[u8]) -> Vec<u8>) -> PathBuf {
    let text = fs::read_to_string(root.join("index.json")).unwrap();
    let levels = format!("\"compression\": \"zstd\", \"compression_level\": {level:?}");
    let text = text.replace("\"compression\": null", &levels);
    write_aged(&root.join("index.json"), text.as_bytes());
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            write_aged(&path, &pack(&fs::read(&path).unwrap()));
        }
    }
    root.to_owned()
}

fn each_packed(root: &Path, count: usize) -> PathBuf {
    compressed(&litdata(root, count), "sample", by_record)
}

fn packed_together(root: &Path, count: usize) -> PathBuf {
    compressed(&litdata(root, count), "batch", |chunk| by_frame(chunk, 5))
}

#[test]
fn records_compressed_one_by_one_conform() {
    for open in EVERYWHERE.into_iter().chain(CACHED_EVERYWHERE) {
        let (name, make, has_names, refuses_cuts) = ("litdata", each_packed as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

#[test]
fn records_compressed_in_frames_conform_one_by_one_and_in_blocks() {
    for open in EVERYWHERE.into_iter().chain(CACHED_EVERYWHERE).chain(IN_BLOCKS_EVERYWHERE) {
        let (name, make, has_names, refuses_cuts) = ("litdata", packed_together as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

#[test]
fn chunks_compressed_by_litdata_give_the_samples_of_plain_chunks() {
    let plain = written("litdata");
    let plain = open_with("litdata", &plain.1, Section::default()).unwrap();
    for name in ["litdata-batch", "litdata-sample"] {
        let (_folder, data) = written(name);
        let opened = open_with("litdata", &data, Section::default()).unwrap();
        assert_eq!(opened.dataset.fields(), plain.dataset.fields());
        assert_eq!(opened.dataset.sample_count(), 7);
        for number in 0..7 {
            assert_eq!(sample(&opened, number).unwrap(), sample(&plain, number).unwrap(), "{name}");
        }
        assert_eq!(names(&opened)[5], "chunk-0-1.bin/0");
        for field in 0..plain.dataset.fields().len() {
            let longest = opened.dataset.max_row_bytes(field);
            assert_eq!(longest, plain.dataset.max_row_bytes(field), "{name}: {field}");
        }
        assert!(open_with("litdata", &data, Section::default()).unwrap().report.reused);
        let mut config = config_for("litdata", &data);
        config.index = Some(data.with_extension("blocks"));
        let options = OpenOptions { by_blocks: true, ..OpenOptions::default() };
        let in_blocks = open(&config, options).unwrap();
        assert_eq!(in_blocks.dataset.shares_units(), name == "litdata-batch");
        assert_eq!(in_blocks.dataset.blocks().is_some(), name == "litdata-batch");
        assert_eq!(in_blocks.dataset.fields(), plain.dataset.fields());
        for number in 0..7 {
            assert_eq!(sample(&in_blocks, number).unwrap(), sample(&plain, number).unwrap());
        }
    }
}

#[test]
fn memory_of_the_largest_frame_is_planned_and_frames_are_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let data = packed_together(&folder.path().join("data"), 37);
    let mut config = config_for("litdata", &data);
    config.index = Some(folder.path().join("saved.index"));
    let opened = [false, true].map(|by_blocks| {
        open(&config, OpenOptions { by_blocks, ..OpenOptions::default() }).unwrap()
    });
    let mut frames = Vec::new();
    let mut locations = Vec::new();
    for id in 0..37 {
        locations.clear();
        opened[1].dataset.locate(SampleId(id), &mut locations);
        let Unit::Block(Transform::Unpacked { bytes, .. }) = locations[0].unit else {
            panic!("{locations:?}");
        };
        frames.push((locations[0].range.length.unwrap(), u64::from(bytes)));
    }
    // A frame has 12 bytes of headers.
    let most = frames.iter().map(|(packed, bytes)| packed + 2 * bytes).max();
    assert!(frames.iter().all(|(packed, bytes)| *packed == bytes + 12));
    let blocks = opened[1].dataset.blocks().unwrap();
    for opened in &opened {
        assert_eq!(opened.dataset.page_bytes(), most);
    }
    // 13, 13 and 11 records in frames of 5.
    assert_eq!(blocks.firsts, [0, 5, 10, 13, 18, 23, 26, 31, 36]);
    assert_eq!(blocks.most_bytes, frames.iter().map(|frame| frame.1).max().unwrap());
    assert_eq!(blocks.alone.unpacked, frames.iter().map(|frame| frame.1).sum::<u64>());
    // A warning says that reading samples one by one is expensive.
    let warnings = &opened[0].report.warnings;
    assert!(
        warnings.iter().any(|text| text.contains("order.shuffle = \"blocks\"")),
        "{warnings:?}"
    );
    assert!(opened[1].report.reused && opened[1].report.warnings.is_empty());
}

/// A chunk of these records.
fn chunk(records: &[Vec<u8>]) -> Vec<u8> {
    let mut chunk = Vec::new();
    let mut end = 4 * (records.len() + 2);
    put(&mut chunk, records.len());
    put(&mut chunk, end);
    for record in records {
        end += record.len();
        put(&mut chunk, end);
    }
    chunk.extend(records.concat());
    chunk
}

#[test]
fn frame_above_the_size_limit_is_refused_by_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    each_packed(&data, 37);
    let path = data.join("chunk-0-0.bin");
    let whole: Vec<_> =
        records(&fs::read(&path).unwrap()).into_iter().map(<[u8]>::to_vec).collect();
    let head = [0x28, 0xB5, 0x2F, 0xFD];
    for (frame, reason) in [
        ([&head[..], &[0xA0], &[0xff; 4], &[1, 0, 0]].concat(), "unpacks to 4294967295 bytes, and"),
        ([&head[..], &[0xE0], &[0xff; 8]].concat(), "unpacks to 18446744073709551615 bytes, and"),
        ([&head[..], &[0x00, 0x58, 1, 0, 0]].concat(), "is not a zstd frame that says"),
        (b"LDFZ01".to_vec(), "is not a zstd frame that says"),
        (Vec::new(), "is not a zstd frame that says"),
        ([&head[..], &[0xA0], &[0; 4], &[1; 2048]].concat(), "unpacks to 0: it is damaged"),
    ] {
        let mut bent = whole.clone();
        bent[3] = frame;
        write_aged(&path, &chunk(&bent));
        let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains("chunk-0-0.bin: ") && message.contains(reason), "{message}");
    }
}

#[test]
fn frame_with_a_wrong_unpacked_size_is_a_bad_sample() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for make in [each_packed, packed_together] {
        let _ = fs::remove_file(folder.path().join("data.index"));
        make(&data, 37);
        let path = data.join("chunk-0-0.bin");
        let mut chunk = fs::read(&path).unwrap();
        // The block of the last frame gets another length.
        let heads = chunk.windows(4).enumerate();
        let heads = heads.filter(|(_, bytes)| *bytes == [0x28, 0xB5, 0x2F, 0xFD]);
        let last = heads.map(|(place, _)| place).next_back().unwrap();
        chunk[last + 9] ^= 0xf8;
        write_aged(&path, &chunk);
        let opened = open_with("litdata", &data, Section::default()).unwrap();
        assert_eq!(opened.dataset.sample_count(), 37);
        let (mut locations, mut bytes) = (Vec::new(), Vec::new());
        opened.dataset.locate(SampleId(12), &mut locations);
        let storage = opened.storage.as_ref();
        let read = storage.read(opened.dataset.as_ref(), locations[0], u64::MAX, &mut bytes);
        assert!(read.unwrap_err().to_string().contains("damaged"));
        for number in [0, 13] {
            assert_eq!(sample(&opened, number).unwrap()[1], number.to_string());
        }
    }
}

#[test]
fn frame_tables_that_do_not_match_the_samples_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    packed_together(&data, 37);
    let path = data.join("chunk-0-0.bin");
    let whole = fs::read(&path).unwrap();
    // 13 records: the frames' table begins after 14 offsets.
    let table = 24 + 4 * 14;
    for (place, number, reason) in [
        (0, 0, "does not begin as a chunk of compression_level \"batch\""),
        (8, 2, "its frames are of version 2, and 1 is read"),
        (12, 14, "it has 14 samples, and 13 by index.json"),
        (20, 2, "is to begin at byte"),
        (20, u32::MAX, "is less than the table of its 13 samples"),
        (28, 0x7fff_ffff, "lies from byte 0 to 2147483647"),
        (32, 0, "lies from byte"),
        (table, 1, "is to have 5 samples from 1 on"),
        (table + 4, 0, "is to have 0 samples from 0 on"),
        (table + 4, 14, "is to have 14 samples from 0 on"),
        (table + 4, 4, "bytes, and its samples have"),
        (table + 8, 24, "is to begin at byte 24 and not at"),
        (table + 12, u32::MAX, "is to begin at byte"),
        (table + 16, u32::MAX, "is to begin at byte"),
        (table + 20, u32::MAX, "unpacks to 4294967295 bytes, and at most 67108864 are read"),
        (table + 20, 1, "lies from byte 0 to"),
    ] {
        let mut bent = whole.clone();
        bent[place..place + 4].copy_from_slice(&number.to_le_bytes());
        write_aged(&path, &bent);
        let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
        let is_named = message.contains("chunk-0-0.bin: ") && message.contains(reason);
        assert!(is_named, "{place}: {message}");
    }
    for length in [0, 23, 24, table, whole.len() - 1] {
        write_aged(&path, &whole[..length]);
        let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains("cut off"), "{length}: {message}");
    }
    write_aged(&path, &[&whole[..], b"more"].concat());
    let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
    assert!(message.contains("its frames end at byte"), "{message}");
}

#[test]
fn whole_chunk_with_a_zstd_level_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let data = litdata(&folder.path().join("data"), 37);
    let rename = |name: &str| name.replace(".bin", ".zstd:4.bin");
    compress_files(&data, ".bin", rename);
    let text = fs::read_to_string(data.join("index.json")).unwrap();
    let text = rename(&text).replace("\"compression\": null", "\"compression\": \"zstd:4\"");
    write_aged(&data.join("index.json"), text.as_bytes());
    let config = config_for("auto", &data);
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "litdata");
    let opened = CACHED_EVERYWHERE[0](&config_for("litdata", &data), OpenOptions::default());
    let opened = opened.unwrap();
    assert_eq!(opened.dataset.sample_count(), 37);
    assert_eq!(sample(&opened, 30).unwrap()[1], "30");
}

#[test]
fn damaged_compressed_chunks_and_rows_do_not_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    for (target, name, run) in [
        ("records", "litdata-frames", fuzzing::records as fn(&[u8])),
        ("records", "litdata-frame-each", fuzzing::records),
        ("records", "litdata-frames-index", fuzzing::records),
        ("records", "litdata-tokens-index", fuzzing::records),
        ("arrow_table", "zstd", fuzzing::arrow_table),
    ] {
        let whole = fs::read(corpus.join(target).join(name)).unwrap();
        run(&whole);
        let rounds = if target == "records" { 10_000 } else { 500 };
        let mut noise = 0_u64;
        for round in 0..rounds {
            let mut bytes = whole.clone();
            for _ in 0..=round % 3 {
                noise = noise.wrapping_add(0x9E37_79B9_7F4A_7C15).rotate_left(29);
                // Three of four times in the first bytes, which are tables.
                let most = if round % 4 == 0 { bytes.len() } else { 128 };
                let place = usize::try_from(noise >> 8).unwrap() % most;
                bytes[place] = noise.to_le_bytes()[0];
            }
            run(&bytes);
        }
    }
}

#[test]
fn other_compressions_within_chunks_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = packed_together(&folder.path().join("data"), 37);
    let index = data.join("index.json");
    let text = fs::read_to_string(&index).unwrap();
    for (from, to, reason) in [
        ("\"batch\"", "\"page\"", "its compression_level is \"page\""),
        ("\"zstd\"", "\"lz4\"", "its items are compressed by lz4"),
        ("\"zstd\"", "null", "a codec that it does not name"),
    ] {
        write_aged(&index, text.replacen(from, to, 1).as_bytes());
        let message = open_with("litdata", &data, Section::default()).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    }
    // A zstd level is accepted.
    write_aged(&index, text.replacen("\"zstd\"", "\"zstd:19\"", 1).as_bytes());
    assert_eq!(open_with("litdata", &data, Section::default()).unwrap().dataset.sample_count(), 37);
}
