use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, names, sample, write_aged};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 1).unwrap()
}

fn open_list(path: &Path) -> Result<Opened, DatasetError> {
    let mut config = config_for("manifest", path);
    let folder = if path.is_dir() { path } else { path.parent().unwrap() };
    config.index = Some(folder.join("saved.index"));
    open(&config, OpenOptions::default())
}

fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    write_aged(&path, bytes);
    (folder, path)
}

fn packed(root: &Path, count: usize) -> PathBuf {
    let mut text = String::new();
    for number in 0..count {
        let name = format!("images/{number:03}.jpg");
        write_aged(&root.join(&name), &vec![u8::try_from(number).unwrap(); 20 + number]);
        text += &format!("{{\"caption\": \"no {number}\", \"file_name\": \"{name}\"}}\n");
    }
    let path = root.join("train.jsonl.gz");
    write_aged(&path, &gzip(text.as_bytes()));
    path
}

#[test]
fn compressed_lists_conform_on_disk_and_from_urls() {
    for open in EVERYWHERE {
        let (name, make, has_names, refuses_cuts) = ("manifest", packed as _, true, false);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

#[test]
fn compressed_lists_have_the_rows_and_lines_of_plain_ones() {
    // Larger than a window, so that cells cross its ends.
    let rows = (0..40_000).map(|n| format!("{n},\"text,\n{n}\"\r\n"));
    let csv = "n,text\r\n".to_owned() + &rows.collect::<String>() + "-1,end\n";
    let two = [gzip(&csv.as_bytes()[..1000]), gzip(&csv.as_bytes()[1000..])].concat();
    for (name, bytes) in [
        ("a.csv", csv.clone().into_bytes()),
        ("a.csv.gz", gzip(csv.as_bytes())),
        ("a.CSV.GZ", two),
        ("a.csv.zst", zstd(csv.as_bytes())),
    ] {
        let (_folder, path) = written(name, &bytes);
        let opened = open_list(&path).unwrap();
        assert_eq!(opened.dataset.sample_count(), 40_001, "{name}");
        assert_eq!(sample(&opened, 39_999).unwrap(), ["39999", "\"text,\\n39999\""], "{name}");
        assert_eq!(names(&opened)[40_000], format!("{name}:80002"));
        assert!(open_list(&path).unwrap().report.reused, "{name}");
    }
    let (_folder, path) = written("metadata.jsonl.gz", &gzip(b"{\"a\": 1}\n{\"a\": }\n"));
    let message = open_list(&path).unwrap_err().to_string();
    assert!(message.contains("metadata.jsonl.gz:2: column 7: it is no JSON object"), "{message}");
    let (_folder, path) = written("metadata.jsonl.gz", &gzip(b"{\"a\": 1}\n"));
    assert_eq!(sample(&open_list(path.parent().unwrap()).unwrap(), 0).unwrap(), ["1"]);
}

#[test]
fn damaged_and_hostile_compressed_lists_are_refused() {
    let whole = gzip("{\"a\": 1}\n".repeat(1000).as_bytes());
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0xff;
    for (name, bytes) in [
        ("a.jsonl.gz", &whole[..whole.len() - 4]),
        ("a.jsonl.gz", &flipped[..]),
        ("a.jsonl.gz", b"{\"a\": 1}\n"),
        ("a.jsonl.zst", &whole[..]),
    ] {
        let (_folder, path) = written(name, bytes);
        let message = open_list(&path).unwrap_err().to_string();
        assert!(message.contains("it cannot be unpacked: it is cut off or damaged"), "{message}");
    }
    // 400 MB of rows in 400 kB.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let rows = "{\"a\":1}\n".repeat(1 << 19);
    (0..100).for_each(|_| encoder.write_all(rows.as_bytes()).unwrap());
    let (_folder, path) = written("a.jsonl.gz", &encoder.finish().unwrap());
    let message = open_list(&path).unwrap_err().to_string();
    assert!(message.contains("over 100 times as many"), "{message}");
    // One row without an end.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let row = vec![b' '; 20 << 20];
    encoder.write_all(&row).unwrap();
    let (_folder, path) = written("a.jsonl.gz", &encoder.finish().unwrap());
    let message = open_list(&path).unwrap_err().to_string();
    assert!(message.contains("the line has more than 16 MiB"), "{message}");
}
