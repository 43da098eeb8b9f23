//! What reading files from the page cache costs: `read_figures FOLDER [ROUNDS]`, for a folder of files, best of 5 rounds.
//!
//! Prints the CPU time of a file and the bytes a second of a core: reading into a buffer; into a buffer and from there
//! into a row, as a sample goes that is worked on; straight into a row, as an array goes that is not; and copying the same
//! bytes from memory to memory, which is the most that any of them can reach. Rows and the copy's sources are as many as
//! a ring's, so that neither lies in a near cache.

use std::error::Error;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use forebay::dataset::ByteRange;
use forebay::storage::LocalFiles;
use nix::time::{ClockId, clock_gettime};

/// What an array's header is read apart as; NumPy's takes so many bytes.
const BEFORE_BYTES: usize = 128;
/// The memory that rows go round in.
const RING_BYTES: usize = 256 << 20;

fn cpu_seconds() -> nix::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

/// The files below a folder, relative to it, with their bytes.
fn list(root: &Path, folder: &Path, found: &mut Vec<(Vec<u8>, usize)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, found)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            let bytes = usize::try_from(path.metadata()?.len()).unwrap_or(0);
            found.push((relative.as_os_str().as_bytes().to_vec(), bytes));
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("read_figures FOLDER [ROUNDS]")?;
    let rounds: u32 = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let root = Path::new(&folder);
    let mut files = Vec::new();
    list(root, root, &mut files)?;
    files.retain(|(_, bytes)| (BEFORE_BYTES..RING_BYTES).contains(bytes));
    let total: usize = files.iter().map(|(_, bytes)| bytes).sum();
    let largest = files.iter().map(|(_, bytes)| *bytes).max().ok_or("no files there")?;
    let storage = LocalFiles::open(root)?;
    let whole = ByteRange { offset: 0, length: None };
    let mut ring = vec![1_u8; RING_BYTES];
    let source = vec![2_u8; RING_BYTES];
    let (mut buffer, mut scratch, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let rows = RING_BYTES / largest;
    let names = [
        "read into a buffer",
        "read, then copied into a row",
        "read straight into a row",
        "copied",
    ];
    let mut best = [f64::MAX; 4];
    for _ in 0..=rounds {
        for (way, best) in best.iter_mut().enumerate() {
            let start = cpu_seconds()?;
            for (number, (path, bytes)) in files.iter().enumerate() {
                let at = number % rows * largest;
                let row = &mut ring[at..at + bytes];
                match way {
                    0 => storage.read(path, whole, u64::MAX, &mut buffer)?,
                    1 => {
                        storage.read(path, whole, u64::MAX, &mut buffer)?;
                        row.copy_from_slice(&buffer);
                    }
                    2 => {
                        // The header of the file before: with one type and shape all are the same.
                        let elements = &mut row[BEFORE_BYTES..];
                        let file = storage.open_straight(path);
                        if !file
                            .is_some_and(|file| file.read(whole, &before, elements, &mut scratch))
                        {
                            storage.read(path, whole, u64::MAX, &mut buffer)?;
                            before = buffer[..BEFORE_BYTES].to_vec();
                        }
                    }
                    _ => row.copy_from_slice(&source[at..at + bytes]),
                }
                black_box(&ring);
            }
            *best = best.min(cpu_seconds()? - start);
        }
    }
    println!("{} files, {total} bytes", files.len());
    for (name, seconds) in names.iter().zip(best) {
        println!(
            "{name:30} {:8.1} µs a file {:6.2} GB/s {:5.2} of copying",
            seconds / files.len() as f64 * 1e6,
            total as f64 / seconds * 1e-9,
            best[3] / seconds
        );
    }
    Ok(())
}
