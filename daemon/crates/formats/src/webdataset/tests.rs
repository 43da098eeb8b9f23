use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use forebay_keys::Section;
use forebay_protocol::ids::SampleId;
use forebay_synth::tar;

use crate::conformance::{self, Format};
use crate::testing::{
    CACHED_EVERYWHERE, EVERYWHERE, compress_files, config_for, names, own_keys, sample, write_aged,
};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, OpenOptions, Opened};

pub(super) fn conforming(root: &Path, count: usize) -> PathBuf {
    let samples: Vec<_> = (0..count)
        .map(|number| {
            let text = format!("text {number}");
            let image = vec![u8::try_from(number).unwrap(); 100 + number];
            (format!("./k{number:03}"), image, number.to_string(), text)
        })
        .collect();
    for (place, shard) in samples.chunks(count.div_ceil(3)).enumerate() {
        let members: Vec<(String, &[u8])> = shard
            .iter()
            .flat_map(|(key, image, label, text)| {
                [("jpg", &image[..]), ("cls", label.as_bytes()), ("txt", text.as_bytes())]
                    .map(|(field, data)| (format!("{key}.{field}"), data))
            })
            .collect();
        let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], *data)).collect();
        write_aged(&root.join(format!("shard-{place:02}.tar")), &tar::archive(&members));
    }
    root.to_owned()
}

/// The same archives, selected by a pattern.
fn conforming_by_pattern(root: &Path, count: usize) -> PathBuf {
    let last = count.div_ceil(count.div_ceil(3)) - 1;
    conforming(root, count).join(format!("shard-{{00..{last:02}}}.tar"))
}

#[test]
fn archives_conform_on_disk_and_behind_urls() {
    for open in EVERYWHERE {
        for make in [conforming, conforming_by_pattern] {
            let (has_names, refuses_cuts) = (true, true);
            let name = "webdataset";
            conformance::run(&Format { open, name, make, has_names, refuses_cuts });
        }
    }
}

/// The same samples in archives compressed by gzip or zstd.
fn compressed(root: &Path, count: usize) -> PathBuf {
    let path = conforming(root, count);
    let ending = |name: &str| if name.contains("01") { "zst" } else { "gz" };
    compress_files(root, ".tar", |name| format!("{name}.{}", ending(name)));
    path
}

#[test]
fn compressed_archives_conform_with_a_cache_and_are_refused_without_one() {
    for open in CACHED_EVERYWHERE {
        let (name, make, has_names, refuses_cuts) = ("webdataset", compressed as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
    let folder = tempfile::tempdir().unwrap();
    compressed(folder.path(), 3);
    let unsaid = config_for("auto", folder.path());
    assert_eq!(recognize(&unsaid, OpenOptions::default()).unwrap(), "webdataset");
    let error = open(&config_for("webdataset", folder.path()), OpenOptions::default());
    let message = error.unwrap_err().to_string();
    assert!(message.contains("shard-00.tar.gz") && message.contains("cache.path"), "{message}");
}

#[test]
fn damaged_or_removed_cache_entries_are_unpacked_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let mut config = config_for("webdataset", &compressed(&data, 6));
    config.index = Some(folder.path().join("index"));
    let opened = CACHED_EVERYWHERE[0](&config, OpenOptions::default()).unwrap();
    let expected: Vec<_> = (0..6).map(|id| sample(&opened, id).unwrap()).collect();
    assert_eq!(expected[5][1..], ["5".to_owned(), "\"text 5\"".to_owned()]);
    // Each thread keeps the piece that it read last, so a new thread reads.
    let again = || {
        let read = || (0..6).map(|id| sample(&opened, id).unwrap()).collect::<Vec<_>>();
        std::thread::scope(|scope| scope.spawn(read).join().unwrap())
    };
    let entries = || {
        let mut found = vec![folder.path().join("cache")];
        let mut files = Vec::new();
        while let Some(next) = found.pop() {
            for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
                let is_entry = entry.file_name().unwrap().len() == 38;
                if entry.is_dir() {
                    found.push(entry)
                } else if is_entry {
                    files.push(entry)
                }
            }
        }
        files
    };
    assert_eq!(entries().len(), 6, "a piece and a length of each archive");
    for damage in [|path: &Path| fs::write(path, "rubbish"), |path: &Path| fs::remove_file(path)] {
        entries().iter().for_each(|path| damage(path).unwrap());
        assert_eq!(again(), expected);
        assert!(entries().len() >= 3, "the pieces are kept again");
    }
    // An archive that is damaged after it was indexed has no effect, as long as its pieces are cached.
    let path = data.join("shard-00.tar.gz");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    assert_eq!(again(), expected);
    let other = CACHED_EVERYWHERE[0](&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(other.contains("shard-00.tar.gz cannot be unpacked"), "{other}");
}

#[test]
fn samples_across_pieces_of_an_unpacked_archive_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let value = |number: usize| -> Vec<u8> {
        (0..150_000 * number + 7).map(|at| ((at * (number + 3)) >> 7).to_le_bytes()[0]).collect()
    };
    let members: Vec<_> = (0..5).map(|number| (format!("k{number}.bin"), value(number))).collect();
    let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], &data[..])).collect();
    write_aged(&data.join("a.tar"), &tar::archive(&members));
    compress_files(&data, ".tar", |name| format!("{name}.gz"));
    let mut config = config_for("webdataset", &data);
    config.index = Some(folder.path().join("index"));
    config.own = own_keys("[dataset.fields]\nvalue = { from = \"bin\", as = \"bytes\" }");
    let opened = CACHED_EVERYWHERE[0](&config, OpenOptions::default()).unwrap();
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().len() == 38).collect()
    };
    let cache = fs::read_dir(folder.path().join("cache")).unwrap().next().unwrap().unwrap().path();
    let folders = || fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let dataset = folders().find(|path| path.is_dir()).unwrap();
    let pieces = || -> Vec<PathBuf> {
        let below = fs::read_dir(&dataset).unwrap().map(|entry| entry.unwrap().path());
        below.filter(|path| path.is_dir()).flat_map(|path| entries(&path)).collect()
    };
    assert_eq!(pieces().len(), 7, "six pieces and a length");
    for removed in 0..7 {
        fs::remove_file(&pieces()[removed % pieces().len()]).unwrap();
        for number in (0..5).rev() {
            let found = sample(&opened, number as u64).unwrap();
            assert!(found == [format!("{:?}", value(number))], "{removed} {number}");
        }
    }
}

#[test]
fn compressed_archive_replaced_by_one_of_equal_size_is_unpacked_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let write = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::none());
        encoder.write_all(&tar::archive(&[("k.txt", text.as_bytes())])).unwrap();
        fs::write(data.join("a.tar.gz"), encoder.finish().unwrap()).unwrap();
        fs::metadata(data.join("a.tar.gz")).unwrap().len()
    };
    let mut config = config_for("webdataset", &data);
    config.index = Some(folder.path().join("index"));
    let open = || CACHED_EVERYWHERE[0](&config, OpenOptions::default()).unwrap();
    let bytes = write("one");
    assert_eq!(sample(&open(), 0).unwrap(), ["\"one\""]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(write("two"), bytes);
    assert_eq!(sample(&open(), 0).unwrap(), ["\"two\""]);
}

#[test]
fn index_of_unpacked_archives_needs_the_cache_and_the_same_archives() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let mut config = config_for("webdataset", &compressed(&data, 6));
    config.index = Some(folder.path().join("index"));
    // A saved index of a URL is used without a check.
    let (cached, plain) = (CACHED_EVERYWHERE[1], EVERYWHERE[1]);
    cached(&config, OpenOptions::default()).unwrap();
    let read = |opened: &Opened, id| {
        let (mut locations, mut buffer) = (Vec::new(), Vec::new());
        opened.dataset.locate(SampleId(id), &mut locations);
        let dataset = opened.dataset.as_ref();
        opened.storage.read(dataset, locations[0], 1 << 20, &mut buffer)
    };
    let opened = plain(&config, OpenOptions::default()).unwrap();
    let message = read(&opened, 0).unwrap_err().to_string();
    assert!(message.contains("shard-00.tar.gz is compressed"), "{message}");
    // Another archive with the same name.
    fs::copy(data.join("shard-02.tar.gz"), data.join("shard-00.tar.gz")).unwrap();
    let opened = cached(&config, OpenOptions::default()).unwrap();
    let message = read(&opened, 0).unwrap_err().to_string();
    assert!(message.contains("has changed since the dataset was indexed"), "{message}");
    read(&opened, 5).unwrap();
}

#[test]
fn error_names_an_archive_too_large_for_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let mut config = config_for("webdataset", &compressed(&data, 3));
    config.cache.path = Some(folder.path().join("cache"));
    config.cache.size = Some(4096);
    config.cache.keep_free = Some(0);
    let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("has no room") && message.contains("raise cache.size"), "{message}");
}

/// A folder with one or more archives.
struct Fixture {
    folder: tempfile::TempDir,
    own: Section,
    limit: Option<u64>,
}

impl Fixture {
    fn new(archives: &[(&str, Vec<u8>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in archives {
            write_aged(&folder.path().join("data").join(name), bytes);
        }
        Self { folder, own: Section::default(), limit: None }
    }

    fn of(members: &[(&str, &[u8])]) -> Self {
        Self::new(&[("a.tar", tar::archive(members))])
    }

    fn with(mut self, keys: &str) -> Self {
        self.own = own_keys(keys);
        self
    }

    fn open_path(&self, path: &str) -> Result<Opened, DatasetError> {
        let mut config = config_for("webdataset", &self.folder.path().join(path));
        config.index = Some(self.folder.path().join("saved.index"));
        (config.own, config.limit) = (self.own.clone(), self.limit);
        open(&config, OpenOptions::default())
    }

    fn open(&self) -> Opened {
        self.open_path("data").unwrap()
    }

    fn refusal(&self) -> String {
        self.open_path("data").unwrap_err().to_string()
    }
}

#[test]
fn archives_in_all_tar_formats_are_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/tar");
    for form in ["ustar", "gnu", "pax", "webdataset", "base256"] {
        let bytes = fs::read(corpus.join(form)).unwrap();
        let made = Fixture::new(&[("a.tar", bytes)]);
        let opened = made.open();
        let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
        assert_eq!(fields[0], "image", "{form}");
        let place = |name| fields.iter().position(|field| *field == name).unwrap();
        for id in 0..3 {
            let values = sample(&opened, id).unwrap();
            assert_eq!(values[0], format!("image {}", 7 + 700 * id), "{form}");
            assert_eq!(values[place("label")], (10 * id).to_string(), "{form}");
            assert!(values[place("json")].contains(&format!("picture {id}")), "{form}: {values:?}");
        }
        assert_eq!(opened.dataset.sample_count(), 3, "{form}");
        assert!(names(&opened)[0] == "a.tar/n00/sample0", "{form}");
        assert_eq!(names(&opened)[2].len() > 100, form != "webdataset", "{form}");
        assert_eq!(
            opened.report.warnings.len(),
            usize::from(form != "webdataset"),
            "{:?}",
            opened.report
        );
    }
    let sparse = fs::read(corpus.join("sparse")).unwrap();
    let refusal = Fixture::new(&[("a.tar", sparse)]).refusal();
    assert!(refusal.contains("a.tar: at byte 0: it is a sparse file"), "{refusal}");
}

#[test]
fn what_webdatasets_writer_writes_is_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/webdataset");
    let shards = ["shard-000000.tar", "shard-000001.tar"];
    let shards = shards.map(|name| (name, fs::read(fixtures.join(name)).unwrap()));
    let made = Fixture::new(&shards);
    let opened = made.open();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    let place = |name| fields.iter().position(|field| *field == name).unwrap();
    assert_eq!(opened.dataset.sample_count(), 7);
    for id in 0..7 {
        let values = sample(&opened, id).unwrap();
        assert!(values[place("image")].starts_with("image "), "{values:?}");
        assert_eq!(values[place("label")], (id % 3).to_string());
        assert_eq!(values[place("txt")], format!("{:?}", "ü".repeat(usize::try_from(id).unwrap())));
        assert!(values[place("json")].contains(&format!("no {id}")), "{values:?}");
    }
    assert_eq!(names(&opened)[5], "shard-000001.tar/0005");
}

#[test]
fn fields_follow_the_configured_table() {
    let json = br#"{"caption": "a cat", "n": 3, "score": 0.5, "nothing": null}"#;
    let made = Fixture::of(&[
        ("a.PNG", b"png"),
        ("a.jpg", b"jpeg"),
        ("a.json", json),
        ("a.txt", b"text"),
        ("b.jpg", b"jpeg"),
        ("b.json", b"{}"),
        ("c.txt", b"alone"),
        ("d.zip", b"foreign"),
    ])
    .with(
        r#"
        [dataset.fields]
        image   = { from = ["jpg", "png"], as = "image", missing = "skip" }
        caption = { from = "json:caption", as = "text", missing = "empty" }
        n       = { from = "json:n", as = "integer" }
        score   = { from = "json:score", as = "float" }
        note    = { from = "txt", as = "bytes", missing = "empty" }
        "#,
    );
    let opened = made.open();
    assert_eq!(names(&opened), ["a.tar/a", "a.tar/b"]);
    let expected = ["image 4", "\"a cat\"", "3", "0.5", "[116, 101, 120, 116]"];
    assert_eq!(sample(&opened, 0).unwrap(), expected);
    assert_eq!(sample(&opened, 1).unwrap_err(), "it has no json:n for the field `n`");
    let warnings = opened.report.warnings.join("\n");
    assert!(
        warnings.contains(
            "left out: 1 sample without a member that dataset.fields has as missing = \"skip\""
        ),
        "{warnings}"
    );
    assert!(warnings.contains("left out: 1 sample without any member"), "{warnings}");
    assert_eq!(opened.dataset.max_row_bytes(1), Some(json.len() as u64));
    assert_eq!((opened.dataset.max_row_bytes(0), opened.dataset.max_row_bytes(2)), (None, None));
    // The rules are part of what a saved state is compared with.
    let other = Fixture {
        own: own_keys("dataset.fields = { image = { from = \"jpg\", missing = \"skip\" } }"),
        ..made
    };
    assert_ne!(other.open().dataset.fingerprint(), opened.dataset.fingerprint());
}

#[test]
fn invalid_table_of_fields_is_refused_with_its_line() {
    let made = Fixture::of(&[("a.jpg", b"x")]);
    for (fields, reason) in [
        ("image = { as = \"image\" }", "`dataset.fields.image.from` is required"),
        ("image = { from = \"jpg\", as = \"picture\" }", "must be \"image\", \"images\", \"text\""),
        ("image = { from = \"jpg\", form = \"image\" }", "unknown key `dataset.fields.image.form`"),
        ("image = { from = \"jpg\", missing = \"empty\" }", "for text and bytes alone"),
        ("x = { from = \"pickle\" }", "pickles and code in data are never run"),
        ("x = { from = \"json:a\", missing = \"skip\" }", "cannot be \"skip\" for a key of JSON"),
        ("x = { from = \"txt:a\" }", "has a colon"),
        ("x = { from = [\"json:a\", \"txt\"] }", "has several names"),
        ("x = { from = \"txt.gz\", as = \"text\" }", "names a compressed member"),
        ("index = { from = \"jpg\" }", "is made by Forebay"),
    ] {
        let own = own_keys(&format!("[dataset.fields]\n{fields}"));
        let refusal = Fixture { own, folder: tempfile::tempdir().unwrap(), limit: None };
        fs::rename(made.folder.path().join("data"), refusal.folder.path().join("data")).unwrap();
        let message = refusal.refusal();
        fs::rename(refusal.folder.path().join("data"), made.folder.path().join("data")).unwrap();
        assert!(
            message.starts_with("test.toml:6") && message.contains(reason),
            "{fields}: {message}"
        );
    }
}

#[test]
fn distant_members_are_read_separately_and_missing_ones_make_a_bad_sample() {
    let large = vec![1; 100 << 10];
    let made =
        Fixture::of(&[("a.jpg", b"x"), ("a.mp4", &large), ("a.txt", b"far"), ("b.jpg", b"y")])
            .with("dataset.fields = { image = { from = \"jpg\" }, text = { from = \"txt\" } }");
    let opened = made.open();
    let mut locations = Vec::new();
    opened.dataset.locate(SampleId(0), &mut locations);
    assert_eq!(locations.len(), 2);
    assert_eq!(sample(&opened, 0).unwrap(), ["image 1", "\"far\""]);
    assert_eq!(sample(&opened, 1).unwrap_err(), "it has no txt for the field `text`");
    assert!(opened.report.warnings[0].contains("1 sample without txt, which are bad samples"));
}

#[test]
fn error_has_the_offset_in_a_broken_archive() {
    let whole = tar::archive(&[("a.jpg", b"picture"), ("a.txt", b"text"), ("b.jpg", b"other")]);
    let open = |bytes: &[u8]| Fixture::new(&[("a.tar", bytes.to_vec())]).open_path("data");
    // Truncated at any length: refused, or, between members, opened with a warning.
    for length in (0..whole.len() - 1024).step_by(7) {
        match open(&whole[..length]) {
            Ok(opened) => {
                assert!(length.is_multiple_of(512) || length % 512 >= 4, "{length}");
                let warnings = opened.report.warnings.join("\n");
                assert!(warnings.contains("without the blocks"), "{length}: {warnings}");
            }
            Err(error) => {
                assert!(error.to_string().contains("a.tar: at byte"), "{length}: {error}")
            }
        }
    }
    let with = |extra: Vec<u8>| [extra, whole.clone()].concat();
    let mut lying = tar::header("z.jpg", (1 << 33) - 1, b'0').to_vec();
    lying.resize(1024, 0);
    let mut negative = tar::header("z.jpg", 0, b'0');
    negative[124..136].fill(0xff);
    tar::seal(&mut negative);
    let mut damaged = whole.clone();
    damaged[1024 + 3] ^= 1;
    let pax = |records: &[u8], name: &str, size: u64| {
        let mut bytes = tar::member("x", records, b'x');
        bytes.extend_from_slice(&tar::header(name, size, b'0'));
        with(bytes)
    };
    for (bytes, reason) in [
        (with(lying), "at byte 0: a member of 8589934591 bytes ends behind the file"),
        (with(negative.to_vec()), "at byte 0: its size is no number"),
        (damaged, "at byte 1024: no tar header is there"),
        (pax(b"9 size=7\n", "z.jpg", 3), "give two sizes"),
        (pax(b"9 size=x\n", "z.jpg", 0), "its PAX records are malformed"),
        (
            with([tar::member("x", b"a\0", b'L'), pax(b"10 path=b\n", "z", 0)].concat()),
            "give two names",
        ),
        (with(tar::member("x", b"9 size=7\n", b'g')), "a global PAX header gives a path or a size"),
        (with(tar::member("x", &vec![b'a'; 70_000], b'L')), "more than 65535 bytes"),
        (with(tar::header("x", (1 << 20) + 1, b'x').to_vec()), "larger than 1 MiB"),
        (tar::member("x", b"a\0", b'L'), "cut off"),
        (with(tar::member("dir", b"x", b'5')), "a directory, link or device has data"),
        (tar::archive(&[("a.jpg", b"1"), ("a.JPG", b"2")]), "has two members \"jpg\""),
        (b"\x1f\x8b\x08".repeat(300), "compressed by gzip"),
        (Vec::new(), "the file is empty"),
        (vec![0; 1024], "no samples"),
    ] {
        let message = open(&bytes).unwrap_err().to_string();
        assert!(message.contains(reason), "{reason}: {message}");
    }
}

#[test]
fn appended_archives_are_read_to_the_end_of_the_last_one() {
    let [one, two, three] =
        ["a", "b", "c"].map(|key| tar::archive(&[(&format!("{key}.txt"), key.as_bytes())]));
    let zeros = |blocks: usize| vec![0; 512 * blocks];
    for between in [0, 1, 18, 500] {
        let appended = [&one[..], &zeros(between), &two, &three, &zeros(40), &[0; 100]].concat();
        let made = Fixture::new(&[("a.tar", appended)]);
        let opened = made.open();
        assert_eq!(names(&opened), ["a.tar/a", "a.tar/b", "a.tar/c"], "{between} blocks");
        let texts: Vec<String> = (0..3).map(|id| sample(&opened, id).unwrap().join("")).collect();
        assert_eq!(texts, ["\"a\"", "\"b\"", "\"c\""]);
        assert!(opened.report.warnings.is_empty(), "{:?}", opened.report.warnings);
    }
    let refusal = Fixture::new(&[("a.tar", [&one[..], &[7; 512]].concat())]).refusal();
    let place = format!("at byte {}: the archive ends at byte 1024 and is followed by", one.len());
    assert!(refusal.contains(&place), "{refusal}");
}

#[test]
fn hard_links_are_counted_with_a_remedy() {
    let link = tar::header("b.txt", 0, b'1');
    let archive = [&link[..], &tar::archive(&[("a.txt", b"text")])].concat();
    let opened = Fixture::new(&[("a.tar", archive)]).open();
    let warnings = opened.report.warnings.join("\n");
    assert!(
        warnings.contains("1 member that a hard link") && warnings.contains("--hard-dereference")
    );
}

#[test]
fn replaced_archive_gives_a_bad_sample_until_it_is_reindexed() {
    let made = Fixture::of(&[("a.txt", b"first"), ("b.txt", b"second")]);
    let opened = made.open();
    assert_eq!(sample(&opened, 1).unwrap(), ["\"second\""]);
    let path = made.folder.path().join("data/a.tar");
    fs::write(&path, tar::archive(&[("a.txt", &[b'x'; 600]), ("b.txt", b"second")])).unwrap();
    let defect = sample(&opened, 1).unwrap_err();
    assert!(defect.contains("the archive was changed after it was indexed"), "{defect}");
    let again = made.open();
    assert!(!again.report.reused);
    assert_eq!(sample(&again, 1).unwrap(), ["\"second\""]);
}

#[test]
fn archives_are_found_by_patterns_and_below_folders() {
    let one = |text: &str| tar::archive(&[("a.txt", text.as_bytes())]);
    let made = Fixture::new(&[
        ("b/1.tar", one("b1")),
        ("a/2.TAR", one("a2")),
        ("a/1.tar", one("a1")),
        (".hidden/x.tar", one("hidden")),
        ("c.tar.gz", b"x".to_vec()),
    ]);
    let texts = |path: &str| {
        fs::remove_file(made.folder.path().join("saved.index")).ok();
        let opened = made.open_path(path).unwrap();
        (0..opened.dataset.sample_count())
            .map(|id| sample(&opened, id).unwrap().concat())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(texts("data"), "\"a1\" \"a2\" \"b1\"");
    assert_eq!(texts("data/{b,a}/1.tar"), "\"b1\" \"a1\"");
    assert_eq!(texts("data/a/*.TAR"), "\"a2\"");
    assert_eq!(texts("data/a/?.tar"), "\"a1\"");
    assert_eq!(texts("data/a/1.tar"), "\"a1\"");
    let refusal = |path: &str| {
        fs::remove_file(made.folder.path().join("saved.index")).ok();
        made.open_path(path).unwrap_err().to_string()
    };
    assert!(refusal("data/c.tar.gz").contains("decompress it (gunzip"));
    assert!(refusal("data/a/{1,1}.tar").contains("names it twice"));
    assert!(refusal("data/a/{1,9}.tar").contains("9.tar does not exist"));
    assert!(refusal("data/{a/1.tar").contains("not balanced"));
    assert!(refusal("data/?/1.tar").contains("not of folders"));
    fs::remove_dir_all(made.folder.path().join("data/a")).unwrap();
    fs::remove_dir_all(made.folder.path().join("data/b")).unwrap();
    assert!(refusal("data").contains("c.tar.gz: a compressed archive"));
}
