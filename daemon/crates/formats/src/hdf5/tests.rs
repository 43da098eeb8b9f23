use std::path::Path;

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/hdf5");
    std::fs::read(Path::new(folder).join(name)).unwrap()
}

/// Reads all datasets of a file, and their chunks.
fn read(bytes: &[u8]) -> Result<Vec<Hdf5Dataset>, DatasetError> {
    let file = InMemory(bytes);
    let mut hdf5 = Hdf5::open(&file, WindowSize::BLOCK)?;
    let named = hdf5.datasets()?;
    let one = |(path, header): (String, u64)| hdf5.dataset(&path, header);
    named.into_iter().map(one).collect()
}

#[test]
fn checksums_are_those_of_the_specification() {
    assert_eq!(lookup3(b""), 0xdead_beef);
    assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
}

#[test]
fn each_bit_of_a_new_header_counts() {
    let whole = fixture("dense.h5");
    assert_eq!(read(&whole).unwrap().len(), 60);
    let headers: Vec<usize> =
        (0..whole.len() - 64).filter(|at| whole[*at..].starts_with(b"OHDR")).collect();
    assert!(headers.len() > 60);
    for at in headers {
        let mut bytes = whole.clone();
        // In the messages.
        bytes[at + 30] ^= 1;
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{error}");
    }
}

#[test]
fn chunks_whose_keys_do_not_rise_are_refused() {
    let whole = fixture("rows.h5");
    let file = InMemory(&whole);
    let mut hdf5 = Hdf5::open(&file, WindowSize::BLOCK).unwrap();
    let (_, header) =
        hdf5.datasets().unwrap().into_iter().find(|(path, _)| path == "gzip/x").unwrap();
    let Hdf5Dataset { shape, place, .. } = hdf5.dataset("gzip/x", header).unwrap();
    let Place::Chunks { chunk, list: Some(list), .. } = place else { panic!("{place:?}") };
    let (tree, size) = (list.address, 4);
    let chunking = Chunking { shape: &shape, chunk: &chunk, size };
    let found = hdf5.chunks(&list, chunking).unwrap();
    assert_eq!(found.len(), 14);
    let error = hdf5.chunks(&list, chunking).unwrap_err().to_string();
    assert!(error.contains("the list of chunks"), "a tree is read once: {error}");
    // An entry is bytes and a mask, the places along both axes and in the element, and an address.
    let (entry, first) = (8 + 3 * 8 + 8, usize::try_from(hdf5.base + tree).unwrap() + 24);
    let refused = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = whole.clone();
        change(&mut bytes[first..]);
        let file = InMemory(&bytes);
        let mut hdf5 = Hdf5::open(&file, WindowSize::BLOCK).unwrap();
        hdf5.chunks(&list, chunking).is_err()
    };
    assert!(!refused(&|_| {}));
    // Two keys swapped; a place that is no multiple; a place within an element; a place outside of the shape.
    let swap = |bytes: &mut [u8]| {
        let (one, other) = bytes[entry..].split_at_mut(entry);
        one[8..32].swap_with_slice(&mut other[8..32]);
    };
    assert!(refused(&swap));
    assert!(refused(&|bytes| bytes[2 * entry + 8] += 1));
    assert!(refused(&|bytes| bytes[2 * entry + 24] += 1));
    assert!(refused(&|bytes| bytes[2 * entry + 15] = 0x70));
}

#[test]
fn parts_are_read_a_bounded_number_of_times() {
    let whole = fixture("rows.h5");
    let file = InMemory(&whole);
    let mut hdf5 = Hdf5::open(&file, WindowSize::BLOCK).unwrap();
    hdf5.left = 1000;
    let error = hdf5.datasets().unwrap_err().to_string();
    assert!(error.contains("again and again"), "{error}");
}
