//! Whole runs: what is read back of each layout, interruptions, and refusals.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forebay_config::{Config, Override};
use forebay_dataset::{FieldKind, OpenOptions, Opened};
use forebay_formats::testing::{npy_bytes, npz_bytes};

use super::*;

/// A temporary folder with a source, its packed result, and an index of each.
struct Fixture {
    root: tempfile::TempDir,
    config: Config,
    source: Opened,
}

/// Opens a configuration of a folder; the index is beside the folder.
fn open(path: &Path) -> (Config, Opened) {
    let index = Override::from_argument("dataset.index=/tmp/unused").unwrap();
    let mut config = Config::from_file(path, &[index]).unwrap();
    forebay_formats::resolve_keys(&mut config.dataset).unwrap();
    config.dataset.index = Some(path.parent().unwrap().with_extension("index"));
    let options = OpenOptions { by_blocks: true, ..OpenOptions::default() };
    let opened = forebay_formats::open(&config.dataset, options).unwrap();
    (config, opened)
}

impl Fixture {
    /// Of files below `data`, and the text of `[dataset]`.
    fn new(files: &[(&str, &[u8])], dataset: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = root.path().join("data").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let path = root.path().join("source/train.toml");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let text = format!(
            "[dataset]\n{dataset}\n[batch]\nsize = 2\n[[stage]]\nname = \"copy\"\noperations = []\n"
        );
        fs::write(&path, text).unwrap();
        let (config, source) = open(&path);
        Self { root, config, source }
    }

    /// 40 pictures of different sizes in two classes, and a file beside one of them that has its name and is none.
    fn pictures() -> Self {
        Self::pictures_and(&[("cat/00.v1.png", b"not a picture")])
    }

    fn pictures_and(more: &[(&str, &[u8])]) -> Self {
        let mut files = Vec::new();
        for number in 0..40_usize {
            let (width, height) = (20 + number % 7, 30 - number % 5);
            let pixels = vec![u8::try_from(number * 6).unwrap(); width * height * 3];
            let side = |side: usize| u16::try_from(side).unwrap();
            let file = forebay_media::test_images::jpeg(&pixels, side(width), side(height), 3);
            files.push((format!("{}/{number:02}.v1.jpg", ["cat", "dog"][number % 2]), file));
        }
        files.extend(more.iter().map(|(name, file)| ((*name).to_owned(), file.to_vec())));
        let files: Vec<_> =
            files.iter().map(|(name, file)| (name.as_str(), file.as_slice())).collect();
        Self::new(&files, "format = \"image-folder\"\npath = \"../data\"")
    }

    fn output(&self) -> PathBuf {
        self.root.path().join("packed")
    }

    fn request(&self, layout: &str) -> (Request<'_>, PathBuf) {
        let request = Request {
            config: &self.config,
            source: &self.source,
            patience: None,
            output: Path::new(""),
            layout: LayoutChoice::find(layout).unwrap(),
            names: Names::Keep,
            recoding: Recoding::default(),
            picture: None,
            shard_bytes: 4000,
            threads: 3,
        };
        (request, self.output())
    }

    fn pack(&self, layout: &str, change: impl Fn(&mut Request<'_>)) -> Result<Packed, PackError> {
        self.pack_until(u64::MAX, layout, change)
    }

    /// Interrupted at the report of this number.
    fn pack_until(
        &self,
        last: u64,
        layout: &str,
        change: impl Fn(&mut Request<'_>),
    ) -> Result<Packed, PackError> {
        let (mut request, output) = self.request(layout);
        change(&mut request);
        let reports = Cell::new(0);
        pack(&Request { output: &output, ..request }, &|_| {
            reports.set(reports.get() + 1);
            if reports.get() >= last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}

fn kinds(opened: &Opened) -> Vec<(String, FieldKind)> {
    let fields = opened.dataset.fields().iter();
    fields.map(|field| (field.name.clone(), field.kind.clone())).collect()
}

/// The digests of all samples, without their keys.
fn digests(opened: &Opened) -> Vec<sample::Digest> {
    let (dataset, storage) = (opened.dataset.as_ref(), opened.storage.as_ref());
    let mut reader = forebay_formats::sample_reader::SampleReader::new(dataset, storage, 1 << 30);
    let ids = (0..dataset.kept_count()).map(|number| dataset.kept_at(number));
    ids.map(|id| {
        let values = reader.read(id, |values| values.iter().map(sample::Value::of).collect());
        sample::Sample { key: String::new(), values: values.unwrap().unwrap() }.digest()
    })
    .collect()
}

/// The files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_owned();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

/// Packs into a layout, and compares the rows of the written configuration with the source's.
fn round_trip(fixture: &Fixture, layout: &str, change: impl Fn(&mut Request<'_>)) -> Opened {
    let packed = fixture.pack(layout, change).unwrap();
    assert_eq!(packed.samples, fixture.source.dataset.kept_count());
    let (config, opened) = open(&packed.config);
    assert_eq!(digests(&opened), digests(&fixture.source), "{layout}");
    assert_eq!(config.batch.size, fixture.config.batch.size);
    opened
}

#[test]
fn class_folders_give_the_same_rows_from_each_layout() {
    for layout in words() {
        for names in [Names::Keep, Names::Drop] {
            let fixture = Fixture::pictures();
            let opened = round_trip(&fixture, layout, |request| request.names = names);
            assert_eq!(kinds(&opened), kinds(&fixture.source), "{layout}");
            let has_classes = layout == "parquet";
            assert_eq!(opened.dataset.classes() == ["cat", "dog"], has_classes);
            let names = |name: &Path| name.to_string_lossy().starts_with("shard");
            assert!(files(&fixture.output()).keys().filter(|name| names(name)).count() > 5);
            let left = |ending| fixture.output().with_extension(ending).exists();
            assert!(!left("partial") && !left("packing"));
        }
    }
}

#[test]
fn a_selection_is_packed_and_its_condition_left_out() {
    let mut files = Vec::new();
    for number in 0..9_u8 {
        files.push((format!("{number}.npy"), npy_bytes("|u1", false, "(2,)", &[number, 1])));
    }
    let files: Vec<_> = files.iter().map(|(name, file)| (name.as_str(), file.as_slice())).collect();
    let dataset =
        "format = \"npy\"\npath = \"../data\"\nwhere = \"name in ('3.npy', '5.npy', '8.npy')\"";
    for layout in words() {
        let fixture = Fixture::new(&files, dataset);
        assert_eq!(fixture.source.dataset.kept_count(), 3);
        let opened = round_trip(&fixture, layout, |_| {});
        assert_eq!((opened.dataset.sample_count(), opened.dataset.kept()), (3, None));
    }
}

#[test]
fn arrays_of_all_types_give_the_same_rows_from_each_layout() {
    let zeros =
        |count: usize| (0..count).map(|byte| u8::try_from(byte).unwrap()).collect::<Vec<_>>();
    let sample = |scale: usize| {
        let members = [
            ("a", npy_bytes(">f8", true, "(2, 3)", &zeros(48))),
            ("scalar", npy_bytes("<f4", false, "()", &[0, 0, 0x80, 0x3f])),
            ("flag", npy_bytes("|b1", false, "()", &[1])),
            ("half", npy_bytes("<f2", false, "(3,)", &zeros(6))),
            ("count", npy_bytes("<u4", false, "()", &zeros(4))),
            ("flags", npy_bytes("|b1", false, "(2,)", &[0, 1])),
            ("n", npy_bytes("<i2", false, &format!("({scale}, 2)"), &zeros(4 * scale))),
        ];
        let members: Vec<_> =
            members.iter().map(|(name, bytes)| (format!("{name}.npy"), bytes.clone())).collect();
        let members: Vec<_> =
            members.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        npz_bytes(&members, zip::CompressionMethod::Stored)
    };
    let samples: Vec<_> =
        (1..30).map(|number| (format!("{number:03}.npz"), sample(number))).collect();
    let samples: Vec<_> =
        samples.iter().map(|(name, file)| (name.as_str(), file.as_slice())).collect();
    for layout in words() {
        let fixture = Fixture::new(&samples, "format = \"npz\"\npath = \"../data\"");
        let opened = round_trip(&fixture, layout, |_| {});
        assert_eq!(kinds(&opened), kinds(&fixture.source), "{layout}");
    }
}

#[test]
fn texts_numbers_and_names_of_fields_are_kept() {
    let line = |number: u32| {
        format!(
            "{{\"text\": \"é{}\", \"empty\": \"{}\", \"score\": {}, \"n\": {}}}\n",
            "x".repeat(number as usize % 500),
            "y".repeat(number as usize % 2),
            f64::from(number) / 3.0,
            i64::from(number) - 350
        )
    };
    let rows: String = (0..700).map(line).collect();
    let dataset = "format = \"manifest\"\npath = \"../data/rows.jsonl\"\n[dataset.fields]\n\
                   \"a text: long\" = { from = \"text\", as = \"text\" }\n\
                   empty = { from = \"empty\", as = \"text\", missing = \"empty\" }\n\
                   score = { from = \"score\", as = \"float\" }\n\
                   n = { from = \"n\", as = \"integer\" }\n";
    for layout in words() {
        let fixture = Fixture::new(&[("rows.jsonl", rows.as_bytes())], dataset);
        let opened = round_trip(&fixture, layout, |request| request.shard_bytes = 50_000);
        assert_eq!(kinds(&opened), kinds(&fixture.source), "{layout}");
    }
}

/// 12 pictures with boxes, and as configured masks.
fn detection(keys: &str) -> Fixture {
    let pixels = vec![9; 8 * 8 * 3];
    let picture = forebay_media::test_images::jpeg(&pixels, 8, 8, 3);
    let annotations: Vec<_> = (0..12)
        .flat_map(|id| (0..id % 4).map(move |place| (id, place)))
        .map(|(id, place)| {
            format!(
                r#"{{"image_id": {id}, "bbox": [{place}, 1, 2.5, 3], "category_id": 3, "segmentation": [[0, 0, 5, 0, 5, 5]]}}"#
            )
        })
        .collect();
    let images: Vec<_> = (0..12)
        .map(|id| format!(r#"{{"file_name": "{id:02}.jpg", "id": {id}, "width": 8, "height": 8}}"#))
        .collect();
    let text = format!(
        r#"{{"annotations": [{}], "images": [{}], "categories": [{{"id": 3, "name": "a"}}]}}"#,
        annotations.join(","),
        images.join(",")
    );
    let names: Vec<_> = (0..12).map(|id| format!("{id:02}.jpg")).collect();
    let mut sources: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), picture.as_slice())).collect();
    sources.push(("a.json", text.as_bytes()));
    Fixture::new(&sources, &format!("format = \"coco\"\npath = \"../data/a.json\"\n{keys}"))
}

#[test]
fn labels_in_pixels_and_masks_of_outlines_are_not_ruined() {
    let fixture = detection("");
    for (recoding, option) in [
        (Recoding { shorter: Some(4), quality: None }, "--resize-shorter"),
        (Recoding { shorter: None, quality: Some(50) }, "--jpeg-quality"),
    ] {
        let change = |request: &mut Request<'_>| request.recoding = recoding;
        let error = fixture.pack("tar", change).unwrap_err().to_string();
        let words = [option, "`boxes` may be boxes or keypoints", "dataset.fields"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let pixels = vec![9; 8 * 8 * 3];
    let picture = forebay_media::test_images::jpeg(&pixels, 8, 8, 3);
    let sources: [(&str, &[u8]); 2] =
        [("a.jpg", &picture), ("rows.jsonl", b"{\"image\": \"a.jpg\", \"mask\": \"a.jpg\"}\n")];
    let fields = "format = \"manifest\"\npath = \"../data/rows.jsonl\"\n[dataset.fields]\n\
                  image = { from = \"image\", as = \"image\" }\nmask = { from = \"mask\", as = \"image\" }\n";
    let pairs = Fixture::new(&sources, fields);
    let change = |request: &mut Request<'_>| {
        (request.picture, request.recoding.shorter) = (Some("image"), Some(4));
    };
    let error = pairs.pack("tar", change).unwrap_err().to_string();
    assert!(error.contains("`mask` has pictures") && error.contains("dataset.fields"), "{error}");
    for layout in words() {
        let fixture = detection("masks = \"instances\"");
        let error = fixture.pack(layout, |_| {}).unwrap_err().to_string();
        assert!(error.contains("`mask` has masks of outlines"), "{error}");
        assert!(error.contains("leave dataset.masks out"), "{error}");
        assert!(!fixture.output().with_extension("partial").exists());
    }
}

#[test]
fn a_sample_that_a_layout_cannot_store_is_named() {
    let dataset = "format = \"manifest\"\npath = \"../data/rows.csv\"\n[dataset.fields]\n\
                   score = { from = \"score\", as = \"float\" }\n";
    let fixture = Fixture::new(&[("rows.csv", b"score\n1.5\nNaN\n")], dataset);
    let error = fixture.pack("tar", |_| {}).unwrap_err().to_string();
    assert!(error.contains("rows.csv:3: `score` is NaN, which JSON does not have"), "{error}");
    assert!(error.contains("mend it, or leave it out"), "{error}");
    for name in ["packed.partial", "packed.packing"] {
        fs::remove_dir_all(fixture.root.path().join(name)).unwrap();
    }
    round_trip(&fixture, "mds", |_| {});
}

#[test]
fn rows_of_boxes_stay_ragged() {
    for layout in words() {
        let fixture = detection("");
        let packed = round_trip(&fixture, layout, |_| {});
        assert!(packed.dataset.classes().is_empty());
        let (request, _) = fixture.request(layout);
        let reading = reading::Reading::new(&request, fixture.source.storage.as_ref()).unwrap();
        let notes = notes(&request, &reading);
        assert!(notes[0].contains("names of classes are not stored"), "{notes:?}");
        let text = fs::read_to_string(fixture.output().join(CONFIG_FILE)).unwrap();
        assert!(text.contains("boxes = { ragged = true, max_bytes ="), "{text}");
    }
}

#[test]
fn an_interrupted_run_ends_with_the_same_bytes() {
    for layout in words() {
        let fixture = Fixture::pictures_and(&[]);
        let recode = |request: &mut Request<'_>| {
            request.recoding = Recoding { shorter: Some(24), quality: None };
        };
        let output = fixture.output();
        fixture.pack(layout, recode).unwrap();
        let expected = files(&output);
        let mut interrupted = 0;
        for last in (1..).step_by(13) {
            fs::remove_dir_all(&output).unwrap();
            match fixture.pack_until(last, layout, recode) {
                Ok(_) => break,
                Err(PackError::Interrupted { .. }) => interrupted += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(!output.exists());
            // What a kill leaves of a shard, and of its record.
            let partial = output.with_extension("partial");
            let packing = output.with_extension("packing");
            fs::write(partial.join("shard-000001.tar.tmp"), "left").unwrap();
            fs::write(packing.join("000003.json.tmp"), "left").unwrap();
            if interrupted == 2 {
                // Killed between a shard and its record.
                let _ = fs::remove_file(packing.join("000000.json"));
            }
            fixture.pack(layout, recode).unwrap();
            assert!(files(&output) == expected, "{layout}, report {last}");
        }
        assert!(interrupted >= 2, "{layout}");
    }
}

#[test]
fn a_run_that_was_killed_after_the_renaming_is_ended() {
    let fixture = Fixture::pictures();
    let output = fixture.output();
    let packed = fixture.pack("tar", |_| {}).unwrap();
    let expected = files(&output);
    fs::remove_dir_all(&output).unwrap();
    assert!(fixture.pack_until(1, "tar", |_| {}).is_err());
    let packing = output.with_extension("packing");
    let begun = fs::read(packing.join("begun.json")).unwrap();
    fixture.pack("tar", |_| {}).unwrap();
    fs::create_dir(&packing).unwrap();
    fs::write(packing.join("begun.json"), &begun).unwrap();
    // It may be about to end that itself.
    let held = fs::File::open(packing.join("begun.json")).unwrap();
    held.try_lock().unwrap();
    assert!(matches!(fixture.pack("tar", |_| {}), Err(PackError::InUse(_))));
    drop(held);
    let again = fixture.pack("tar", |_| {}).unwrap();
    assert_eq!(again, Packed { resumed: packed.samples, ..packed });
    assert!(files(&output) == expected && !packing.exists());
}

#[test]
fn nothing_is_overwritten_and_other_options_do_not_go_on() {
    let fixture = Fixture::pictures();
    fs::create_dir(fixture.output()).unwrap();
    let error = fixture.pack("tar", |_| {}).unwrap_err().to_string();
    assert!(error.contains("packed exists, and nothing is overwritten"), "{error}");
    fs::remove_dir(fixture.output()).unwrap();
    let partial = fixture.output().with_extension("partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("mine"), "").unwrap();
    let error = fixture.pack("tar", |_| {}).unwrap_err().to_string();
    assert!(error.contains("packed.partial exists"), "{error}");
    fs::remove_dir_all(&partial).unwrap();
    assert!(fixture.pack_until(2, "tar", |_| {}).is_err());
    for (layout, names, bytes, named) in [
        ("mds", Names::Keep, 4000, "another --to"),
        ("tar", Names::Drop, 4000, "another --names"),
        ("tar", Names::Keep, 5000, "another --shard-bytes"),
    ] {
        let change = |request: &mut Request<'_>| {
            (request.names, request.shard_bytes) = (names, bytes);
        };
        let error = fixture.pack(layout, change).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("to begin anew"), "{error}");
    }
    fixture.pack("tar", |_| {}).unwrap();
}

#[test]
fn a_changed_shard_is_found_when_it_is_read_back() {
    for layout in words() {
        let fixture = Fixture::pictures();
        // The last report is that of reading back.
        let reports = Cell::new(0);
        let (request, output) = fixture.request(layout);
        let stops = |seen: PackProgress| {
            reports.set(reports.get() + 1);
            if seen.verifies { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        pack(&Request { output: &output, ..request }, &stops).unwrap_err();
        let partial = output.with_extension("partial");
        let names = files(&partial);
        let (name, bytes) = names
            .iter()
            .find(|(name, _)| {
                name.starts_with("shard-000000.tar")
                    || name.starts_with("shard.00000.mds")
                    || name.starts_with("shard-000000.parquet")
            })
            .unwrap();
        let mut bytes = bytes.clone();
        // In the data of a picture.
        let place = bytes.windows(3).position(|it| it == [0xff, 0xd8, 0xff]).unwrap() + 300;
        bytes[place] ^= 1;
        fs::write(partial.join(name), bytes).unwrap();
        let error = fixture.pack(layout, |_| {}).unwrap_err().to_string();
        assert!(error.contains("sample ") && error.contains("not complete"), "{layout}: {error}");
        assert!(!output.exists());
    }
}

#[test]
fn options_that_do_not_apply_are_refused_by_name() {
    let fixture = Fixture::pictures();
    let refused =
        |change: fn(&mut Request<'_>)| fixture.pack("mds", change).unwrap_err().to_string();
    for (change, named) in [
        (
            (|request| request.picture = Some("image")) as fn(&mut Request<'_>),
            "give --resize-shorter",
        ),
        (
            |request| {
                request.recoding.shorter = Some(8);
                request.picture = Some("label");
            },
            "those are `image`",
        ),
        (|request| request.shard_bytes = 3 << 30, "at most 2147483648"),
    ] {
        let error = refused(change);
        assert!(error.contains(named), "{error}");
    }
    // A sample that is no picture cannot be encoded anew, and is named.
    let error = refused(|request| request.recoding.shorter = Some(8));
    assert!(error.contains("cat/00.v1.png") && error.contains("mend it"), "{error}");
    let texts = Fixture::new(
        &[("a.jsonl", b"{\"a\": 1}\n")],
        "format = \"manifest\"\npath = \"../data/a.jsonl\"",
    );
    let change = |request: &mut Request<'_>| request.recoding.quality = Some(9);
    let error = texts.pack("tar", change).unwrap_err().to_string();
    assert!(error.contains("no field of single pictures"), "{error}");
}

/// Appends to a picture after its first read.
#[derive(Debug)]
struct Written {
    inner: std::sync::Arc<dyn Storage>,
    picture: PathBuf,
    is_written: std::sync::atomic::AtomicBool,
}

impl forebay_storage::Layer for Written {
    type Inner = dyn Storage;

    fn inner(&self) -> &Self::Inner {
        self.inner.as_ref()
    }

    fn read_opened(
        &self,
        files: &dyn forebay_storage::location::FileTable,
        opened: forebay_storage::Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), forebay_storage::StorageError> {
        self.inner.read_opened(files, opened, buffer)?;
        if !self.is_written.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let mut bytes = fs::read(&self.picture).unwrap();
            bytes.push(0);
            fs::write(&self.picture, bytes).unwrap();
        }
        Ok(())
    }
}

#[test]
fn picture_that_is_written_to_while_it_is_read_is_named() {
    let mut fixture = Fixture::pictures();
    let picture = fixture.root.path().join("data/cat/00.v1.jpg");
    let inner = std::sync::Arc::clone(&fixture.source.storage);
    let is_written = false.into();
    fixture.source.storage = std::sync::Arc::new(Written { inner, picture, is_written });
    // The first sample is read once before the threads begin.
    let error = fixture.pack("tar", |request| request.threads = 1).unwrap_err().to_string();
    assert!(error.contains("/data/cat/00.v1.jpg changed while it was read"), "{error}");
    // What does not change is packed by the same command.
    let packed = fixture.pack("tar", |_| {}).unwrap();
    assert_eq!(packed.samples, 41);
}
