//! Measures reads from the page cache: `read_throughput PATH [ROUNDS]`, best of 5 rounds. PATH is a folder of files, or
//! one file, which is read in rows of 4 KiB.
//!
//! Prints the CPU time of a read and the bytes per second of a core for: reading into a buffer; reading into a buffer
//! and copying to a row, as for a sample that is processed; reading directly into a row, as for an array that is not;
//! opening, reading and closing by plain system calls; and copying the same bytes from memory to memory, which is the
//! upper limit. There are as many rows and sources as in a ring, so that neither stays in a fast cache.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forebay_storage::location::{ByteRange, FileId, FileTable, Location};
use forebay_storage::{LocalFiles, Storage as _};
use nix::time::{ClockId, clock_gettime};

/// Bytes of an array's header, which are read separately; as many as NumPy's.
const BEFORE_BYTES: usize = 128;
/// The memory of the rows.
const RING_BYTES: usize = 256 << 20;
/// Size of a read from a single file.
const ROW_BYTES: usize = 4096;

fn cpu_seconds() -> nix::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

/// Paths by number.
struct Files(Vec<Vec<u8>>);

impl FileTable for Files {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(usize::try_from(file.0).map_or(&[], |number| &self.0[number]));
    }
}

/// The files below a folder with their sizes.
fn list(
    root: &Path,
    folder: &Path,
    files: &mut Files,
    reads: &mut Vec<(Location, usize)>,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files, reads)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            let bytes = usize::try_from(path.metadata()?.len()).unwrap_or(0);
            reads.push((Location::whole(FileId(files.0.len() as u64)), bytes));
            files.0.push(relative.as_os_str().as_bytes().to_vec());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("read_throughput PATH [ROUNDS]")?;
    let rounds: u32 = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let root = Path::new(&path);
    let (mut files, mut reads) = (Files(Vec::new()), Vec::new());
    let before_bytes = if root.is_dir() {
        list(root, root, &mut files, &mut reads)?;
        BEFORE_BYTES
    } else {
        let name = root.file_name().ok_or("no file's name")?;
        files.0.push(name.as_bytes().to_vec());
        let rows = root.metadata()?.len() / ROW_BYTES as u64;
        // A permutation of the rows: the step is coprime to most counts.
        for row in (0..rows).map(|row| row * 7919 % rows) {
            let (offset, length) = (row * ROW_BYTES as u64, Some(ROW_BYTES as u64));
            let range = ByteRange { offset, length };
            reads.push((Location { range, ..Location::whole(FileId(0)) }, ROW_BYTES));
        }
        0
    };
    reads.retain(|(_, bytes)| (before_bytes.max(1)..RING_BYTES).contains(bytes));
    let total: usize = reads.iter().map(|(_, bytes)| bytes).sum();
    let largest = reads.iter().map(|(_, bytes)| *bytes).max().ok_or("nothing to read there")?;
    let storage = LocalFiles::open(root)?;
    let mut ring = vec![1_u8; RING_BYTES];
    let source = vec![2_u8; RING_BYTES];
    let (mut buffer, mut scratch, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let rows = RING_BYTES / largest;
    let names = [
        "read into a buffer",
        "read, then copied into a row",
        "read directly into a row",
        "opened, read and closed",
        "copied",
    ];
    let mut best = [f64::MAX; 5];
    for _ in 0..=rounds {
        for (way, best) in best.iter_mut().enumerate() {
            let start = cpu_seconds()?;
            for (number, (location, bytes)) in reads.iter().enumerate() {
                let at = number % rows * largest;
                let row = &mut ring[at..at + bytes];
                match way {
                    0 => storage.read(&files, *location, u64::MAX, &mut buffer)?,
                    1 => {
                        storage.read(&files, *location, u64::MAX, &mut buffer)?;
                        row.copy_from_slice(&buffer);
                    }
                    2 => {
                        // The header of the previous file: with equal type and shape all headers are equal.
                        let elements = &mut row[before_bytes..];
                        let file = storage.open_direct(&files, *location);
                        if !file.is_some_and(|file| file.read(&before, elements, &mut scratch)) {
                            storage.read(&files, *location, u64::MAX, &mut buffer)?;
                            before = buffer[..before_bytes].to_vec();
                        }
                    }
                    3 => {
                        let path = storage.full_path(&files.path(location.file));
                        File::open(path)?.read_exact_at(row, location.range.offset)?;
                    }
                    _ => row.copy_from_slice(&source[at..at + bytes]),
                }
                black_box(&ring);
            }
            *best = best.min(cpu_seconds()? - start);
        }
    }
    println!("{} reads, {total} bytes", reads.len());
    for (name, seconds) in names.iter().zip(best) {
        println!(
            "{name:30} {:8.2} µs a read {:6.2} GB/s {:5.2} of copying",
            seconds / reads.len() as f64 * 1e6,
            total as f64 / seconds * 1e-9,
            best[4] / seconds
        );
    }
    Ok(())
}
