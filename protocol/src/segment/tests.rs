//! Tests of segments: which of a client's segments are adopted, and huge pages.

use nix::unistd::ftruncate;

use super::*;
use crate::sync::Ordering;

const BYTES: u64 = 64 * 4096;

fn sealed() -> Segment {
    let segment = Segment::create("data", BYTES).unwrap();
    segment.seal(Access::ReadWrite).unwrap();
    segment
}

fn copy(segment: &Segment) -> OwnedFd {
    segment.descriptor().try_clone_to_owned().unwrap()
}

#[test]
fn adopted_segment_keeps_its_bytes_and_has_every_page() {
    let segment = sealed();
    segment.map().unwrap().word(9).store(7, Ordering::Relaxed);
    let client = copy(&segment);
    let flags = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
        | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&client, flags, 4096, 8 * 4096).unwrap();
    let blocks = || nix::sys::stat::fstat(&client).unwrap().st_blocks;
    let all = 64 * 4096 / 512;
    assert!(blocks() < all);
    let taken = Segment::take_back(copy(&segment), "data", BYTES).unwrap();
    assert_eq!(blocks(), all);
    assert_eq!(taken.map().unwrap().word(9).load(Ordering::Relaxed), 7);
}

#[test]
fn only_segments_of_a_daemon_are_adopted() {
    let refused = |descriptor: OwnedFd, bytes: u64| {
        let taken = Segment::take_back(descriptor, "data", bytes);
        assert!(taken.is_err(), "{taken:?}");
    };
    refused(copy(&sealed()), BYTES * 2);
    refused(copy(&sealed()), BYTES / 2);
    // Not sealed: it could be truncated while the daemon uses it.
    refused(copy(&Segment::create("data", BYTES).unwrap()), BYTES);
    // Not writable.
    let read_only = Segment::create("publish", BYTES).unwrap();
    read_only.seal(Access::ReadOnly).unwrap();
    refused(copy(&read_only), BYTES);
    // A file, a socket.
    let file = tempfile::tempfile().unwrap();
    ftruncate(&file, i64::try_from(BYTES).unwrap()).unwrap();
    refused(file.into(), BYTES);
    if let Ok(file) = tempfile::tempfile_in("/dev/shm") {
        ftruncate(&file, i64::try_from(BYTES).unwrap()).unwrap();
        refused(file.into(), BYTES);
    }
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    refused(socket.into(), BYTES);
    // hugetlbfs, where the kernel supports it.
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
    if let Ok(huge) = memfd_create("huge", flags)
        && ftruncate(&huge, 2 << 20).is_ok()
    {
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&huge, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        refused(huge, 2 << 20);
    }
}

/// Bytes of the mapping at this address that this process's page tables map with huge pages.
fn seen_huge(place: *mut u8) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", place.addr());
    let of_mapping = maps.lines().skip_while(|line| !line.starts_with(&start));
    let line = of_mapping.into_iter().find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1024
}

#[test]
fn both_sides_map_as_much_in_huge_pages_as_the_segment_reports() {
    let bytes = (2 * HUGE_PAGE_BYTES + 3 * 4096) as u64;
    let segment = Segment::create("data", bytes).unwrap();
    segment.seal(Access::ReadWrite).unwrap();
    let made = segment.huge_pages();
    assert_eq!(made.possible_bytes, 2 * HUGE_PAGE_BYTES as u64);
    assert_eq!(made.bytes == made.possible_bytes, made.refusal.is_none(), "{made:?}");
    let own = segment.map().unwrap();
    let client = open_segment(segment.descriptor(), "data", bytes, Access::ReadWrite).unwrap();
    for mapping in [&own, &client] {
        assert_eq!(mapping.base().addr() % HUGE_PAGE_BYTES, 0);
        assert_eq!(mapping.bytes() as u64, bytes);
    }
    for word in (0..own.count()).step_by(512) {
        own.word(word).store(word as u64 + 1, Ordering::Relaxed);
    }
    for word in (0..client.count()).step_by(512) {
        assert_eq!(client.word(word).load(Ordering::Relaxed), word as u64 + 1);
    }
    for mapping in [&own, &client] {
        assert_eq!(seen_huge(mapping.base()), made.bytes, "{made:?}");
    }
}

#[test]
fn name_is_removed_with_its_segment_or_by_the_next_sweep() {
    let segment = Segment::create_named("data", BYTES).unwrap();
    let name = segment.name().unwrap().to_owned();
    let file = std::path::Path::new("/dev/shm").join(name.trim_start_matches('/'));
    named::sweep();
    assert!(file.exists(), "a living daemon's name was removed");
    let client = open_named_segment(&name, "data", BYTES).unwrap();
    assert!(open_named_segment(&name, "data", BYTES * 2).is_err());
    segment.map().unwrap().word(3).store(7, Ordering::Relaxed);
    drop(segment);
    assert!(!file.exists());
    assert_eq!(client.word(3).load(Ordering::Relaxed), 7);
    // A killed daemon leaves a file that no process locks.
    std::fs::write(&file, [0; 64]).unwrap();
    assert!(named::sweep() >= 1);
    assert!(!file.exists());
}
