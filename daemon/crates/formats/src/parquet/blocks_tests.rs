//! Rows that share pages: which rows form a block, whether they read the same as alone, and the bytes read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use forebay_protocol::ids::SampleId;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{IN_BLOCKS_EVERYWHERE, config_for, own_keys, sample, write_aged};
use forebay_dataset::{OpenOptions, Opened, SampleBlocks};
use forebay_storage::location::{Location, Transform, Unit};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tables").join(name)).unwrap()
}

/// A file of `count` rows, several in a page.
fn pages(root: &Path, count: usize) -> PathBuf {
    write_aged(&root.join("train.parquet"), &fixture(&format!("pages-{count}.parquet")));
    root.to_owned()
}

#[test]
fn samples_that_share_pages_conform_on_disk_from_urls_and_in_a_cache() {
    for open in IN_BLOCKS_EVERYWHERE {
        let (name, has_names, refuses_cuts) = ("parquet", true, true);
        conformance::run(&Format { open, name, make: pages, has_names, refuses_cuts });
    }
}

const FIELDS: &str = "[dataset.fields]\n\
    image = { from = \"image\", as = \"bytes\", missing = \"empty\" }\nlabel = { from = \"label\" }\n";

/// Two files of 120 rows each, opened for an order of blocks and for one of single samples.
fn opened(fields: &str) -> (tempfile::TempDir, [Opened; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for name in ["a.parquet", "b.parquet"] {
        write_aged(&data.join(name), &fixture("pages-120.parquet"));
    }
    let mut config = config_for("parquet", &data);
    config.index = Some(folder.path().join("index"));
    config.own = own_keys(fields);
    let opened = [true, false].map(|by_blocks| {
        open(&config, OpenOptions { by_blocks, ..OpenOptions::default() }).unwrap()
    });
    (folder, opened)
}

fn locations(opened: &Opened, id: u64) -> Vec<Location> {
    let mut locations = Vec::new();
    opened.dataset.locate(SampleId(id), &mut locations);
    locations
}

/// The pages of each sample, with their compressed and unpacked bytes.
fn pages_of(opened: &Opened) -> Vec<BTreeMap<(u64, u64), (u64, u64)>> {
    let pages = |id| {
        let page = |location: Location| {
            let Unit::Block(Transform::Unpacked { bytes, .. }) = location.unit else {
                panic!("{location:?}");
            };
            let key = (location.file.0, location.range.offset);
            (key, (location.range.length.unwrap(), u64::from(bytes)))
        };
        locations(opened, id).into_iter().map(page).collect()
    };
    (0..opened.dataset.sample_count()).map(pages).collect()
}

/// Recomputes the bytes read in an order of blocks from the locations.
fn check_costs(opened: &Opened, found: &SampleBlocks) {
    let pages = pages_of(opened);
    let ends = found.firsts[1..].iter().copied().chain([pages.len() as u64]);
    let (mut most, mut together) = (0, (0, 0));
    for (first, end) in found.firsts.iter().zip(ends) {
        let block = &pages[usize::try_from(*first).unwrap()..usize::try_from(end).unwrap()];
        let distinct: BTreeMap<_, _> = block.iter().flatten().collect();
        most = most.max(distinct.values().map(|(_, unpacked)| unpacked).sum());
        together.0 += distinct.values().map(|(packed, _)| packed).sum::<u64>();
        together.1 += distinct.values().map(|(_, unpacked)| unpacked).sum::<u64>();
    }
    assert_eq!((found.together.packed, found.together.unpacked), together);
    assert_eq!(found.most_bytes, most);
    let scratch =
        |(packed, unpacked): &(u64, u64)| ((packed + unpacked) * 1000).div_ceil(*unpacked);
    let most_scratch = pages.iter().flatten().map(|(_, bytes)| scratch(bytes)).max();
    assert_eq!(Some(found.scratch_per_thousand), most_scratch);
    let alone = pages
        .iter()
        .flatten()
        .fold((0, 0), |sum, (_, (packed, unpacked))| (sum.0 + packed, sum.1 + unpacked));
    assert_eq!((found.alone.packed, found.alone.unpacked), alone);
}

#[test]
fn blocks_are_the_rows_of_a_page_and_read_the_same_as_single_samples() {
    let (_folder, [shared, single]) = opened(FIELDS);
    assert_eq!(shared.dataset.fingerprint(), single.dataset.fingerprint());
    assert!(shared.dataset.shares_units() && !single.dataset.shares_units());
    for id in 0..240 {
        assert_eq!(sample(&shared, id).unwrap(), sample(&single, id).unwrap());
    }
    let found = shared.dataset.blocks().unwrap();
    assert_eq!(single.dataset.blocks().as_ref(), Some(&found));
    // Each page belongs to one block, and each block to one page, with rows without a picture in between.
    let pages = pages_of(&shared);
    let distinct: BTreeSet<_> = pages.iter().flatten().map(|(page, _)| *page).collect();
    assert_eq!(found.firsts.len(), distinct.len());
    assert!(found.firsts.contains(&120), "a file begins with a block");
    assert!(found.firsts.len() > 12 && found.firsts.is_sorted(), "{:?}", found.firsts);
    check_costs(&shared, &found);
    assert!(
        found.together.unpacked < 2 * found.used_bytes
            && found.alone.unpacked > 5 * found.used_bytes
    );
}

/// The larger column determines the blocks; pages of the other one cross them.
#[test]
fn blocks_of_two_columns_follow_the_larger_one() {
    let own = format!("{FIELDS}mask = {{ from = \"mask\" }}\n");
    let (_folder, [shared, single]) = opened(&own);
    let (_other, [alone, _]) = opened(FIELDS);
    let found = shared.dataset.blocks().unwrap();
    assert_eq!(found.firsts, alone.dataset.blocks().unwrap().firsts);
    check_costs(&shared, &found);
    for id in 0..240 {
        assert_eq!(sample(&shared, id).unwrap(), sample(&single, id).unwrap());
    }
}

#[test]
fn damaged_page_is_reported_and_affects_only_its_rows() {
    let (folder, [shared, _]) = opened(FIELDS);
    let place = locations(&shared, 130)[0];
    let path = folder.path().join("data/b.parquet");
    let mut bytes = fs::read(&path).unwrap();
    bytes[usize::try_from(place.range.offset).unwrap()] ^= 0x40;
    fs::write(&path, &bytes).unwrap();
    let Opened { dataset, storage, .. } = &shared;
    let mut failed = 0;
    for id in 0..240 {
        let mut parts = Vec::new();
        let there = locations(&shared, id);
        let mut bytes = Vec::new();
        storage.open_all(dataset.as_ref(), &there, 1 << 20, &mut parts).unwrap();
        let read = storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut Vec::new());
        let is_there = there.contains(&place);
        assert_eq!(read.is_err(), is_there, "{id}");
        if let Err(error) = read {
            let message = error.to_string();
            let offset = format!("cannot be unpacked at byte {}", place.range.offset);
            assert!(message.contains("b.parquet") && message.contains(&offset), "{message}");
            assert!(error.is_bad_sample());
            failed += 1;
        }
    }
    assert!(failed > 2, "{failed}");
}

/// A page may exceed the limit, which applies to a sample's own bytes.
#[test]
fn limit_applies_to_the_samples_own_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let data = pages(&folder.path().join("data"), 38);
    let mut config = config_for("parquet", &data);
    config.index = Some(folder.path().join("index"));
    config.own = own_keys(FIELDS);
    config.limits.sample_bytes = 320;
    let open =
        |by_blocks| open(&config, OpenOptions { by_blocks, ..OpenOptions::default() }).unwrap();
    let (shared, single) = (open(true), open(false));
    let mut refused = 0;
    for id in 0..38 {
        let fits = |opened: &Opened| {
            let mut parts = Vec::new();
            let Opened { dataset, storage, .. } = opened;
            let there = locations(opened, id);
            storage.open_all(dataset.as_ref(), &there, 320, &mut parts).is_ok()
                && sample(opened, id).is_ok()
        };
        let fits = [&shared, &single].map(fits);
        assert_eq!(fits[0], fits[1], "{id}");
        refused += usize::from(!fits[0]);
        if let Err(reason) = sample(&shared, id) {
            assert!(reason.contains("bytes to read, and limits.sample_bytes is 320"), "{reason}");
        }
    }
    assert!((5..33).contains(&refused), "{refused}");
}

#[test]
fn costs_of_single_samples_are_reported_only_without_blocks() {
    let (_folder, [in_blocks, single]) = opened(FIELDS);
    assert_eq!(in_blocks.report.warnings, [""; 0]);
    assert!(single.report.reused);
    let [warning] = &single.report.warnings[..] else { panic!("{:?}", single.report.warnings) };
    assert!(warning.starts_with("the values of image lie in compressed pages"), "{warning}");
}

#[test]
fn files_without_compressed_pages_have_no_blocks() {
    let folder = tempfile::tempdir().unwrap();
    write_aged(&folder.path().join("one.parquet"), &fixture("one.parquet"));
    let mut config = config_for("parquet", folder.path());
    config.index = Some(folder.path().join("index"));
    let options = OpenOptions { by_blocks: true, ..OpenOptions::default() };
    let opened = open(&config, options).unwrap();
    assert_eq!(opened.dataset.blocks(), None);
    assert!(!opened.dataset.shares_units());
}
