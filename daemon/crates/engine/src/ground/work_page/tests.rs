//! Consecutive deaths: the next daemon's page.

use std::sync::atomic::AtomicBool;

use crate::ground::work_page::*;

const SEGV: LastEnd = LastEnd::Signal(11);

fn key(sample: u64) -> WorkKey {
    WorkKey { stream: 7, epoch: 2, sample }
}

fn file(page: &WorkPage) -> File {
    page.descriptor().try_clone_to_owned().unwrap().into()
}

/// The next daemon's page, after a death with these samples under work.
fn die(page: &WorkPage, samples: &[u64], end: LastEnd) -> WorkPage {
    let work: Vec<_> = samples
        .iter()
        .enumerate()
        .map(|(thread, sample)| page.begin((0, thread), key(*sample)).unwrap())
        .collect();
    let next = WorkPage::in_memory(Some((&file(page), end))).unwrap();
    drop(work);
    next
}

fn suspects(page: &WorkPage) -> usize {
    page.suspects.load(Ordering::Relaxed)
}

#[test]
fn sample_is_quarantined_after_three_crashes_for_this_epoch() {
    let page = WorkPage::in_memory(None).unwrap();
    let mut page = die(&page, &[3, 4, 5], SEGV);
    assert_eq!(suspects(&page), 3);
    for sample in [3, 5] {
        page.begin((0, 0), key(sample)).unwrap().finish();
    }
    for deaths in 0..3 {
        assert!(page.begin((0, 0), key(4)).is_ok(), "after {deaths} deaths alone");
        page = die(&page, &[4], SEGV);
        assert!(page.begin((1, 511), key(3)).is_ok());
    }
    let reason = page.begin((0, 0), key(4)).unwrap_err();
    assert!(reason.contains("ends the daemon (signal 11)"), "{reason}");
    assert_eq!(suspects(&page), 0);
    assert!(page.begin((0, 0), WorkKey { epoch: 3, ..key(4) }).is_ok());
    assert!(page.begin((0, 0), WorkKey { stream: 8, ..key(4) }).is_ok());
    // It remains a killer, however the next daemons end.
    for end in [LastEnd::Exit, LastEnd::Signal(9), SEGV, LastEnd::Unknown] {
        page = WorkPage::in_memory(Some((&file(&page), end))).unwrap();
        assert!(page.begin((0, 0), key(4)).is_err());
    }
}

#[test]
fn external_kills_never_make_a_suspect() {
    let mut page = WorkPage::in_memory(None).unwrap();
    for _ in 0..20 {
        page = die(&page, &[4], LastEnd::Signal(9));
        page = die(&page, &[4], LastEnd::Exit);
    }
    assert!(page.entries.is_empty());
    page = die(&page, &[4], SEGV);
    for _ in 0..20 {
        page = die(&page, &[4], LastEnd::Signal(9));
    }
    page.begin((0, 0), key(4)).unwrap().finish();
    assert_eq!(suspects(&page), 0);
}

#[test]
fn suspect_that_survives_alone_is_cleared() {
    let mut page = WorkPage::in_memory(None).unwrap();
    for _ in 0..10 {
        page = die(&page, &[4], SEGV);
        page = die(&page, &[4], SEGV);
        page = die(&page, &[4], SEGV);
        page.begin((0, 0), key(4)).unwrap().finish();
        page = die(&page, &[6, 7], SEGV);
        for sample in [6, 7] {
            page.begin((0, 0), key(sample)).unwrap().finish();
        }
    }
    assert!(page.begin((0, 0), key(4)).is_ok());
}

#[test]
fn no_other_sample_is_processed_during_a_suspect() {
    let page = WorkPage::in_memory(None).unwrap();
    let page = die(&page, &[1, 2], SEGV);
    let inside = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (page, inside, failed) = (&page, &inside, &failed);
            scope.spawn(move || {
                for round in 0..500 {
                    let sample = if round == 250 && thread < 2 { 1 + thread } else { 100 + thread };
                    let is_suspect = sample <= 2;
                    let work =
                        page.begin((0, usize::try_from(thread).unwrap()), key(sample)).unwrap();
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    if is_suspect && others > 0 {
                        failed.store(true, Ordering::SeqCst);
                    }
                    std::thread::yield_now();
                    if is_suspect && inside.load(Ordering::SeqCst) > 1 {
                        failed.store(true, Ordering::SeqCst);
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    work.finish();
                }
            });
        }
    });
    assert!(!failed.load(Ordering::SeqCst));
    assert_eq!(suspects(&page), 0);
}

#[test]
fn page_continues_in_its_file_and_a_malformed_page_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let path = folder.path().join("page");
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let mut page = WorkPage::in_file(open()).unwrap();
    for _ in 0..4 {
        let work = page.begin((0, 0), key(9)).unwrap();
        // The next daemon maps the same file; this one has died by then.
        let next = WorkPage::in_file(open()).unwrap();
        std::mem::forget(work);
        page = next;
    }
    assert!(page.begin((0, 0), key(9)).unwrap_err().contains("ends the daemon:"));
    for rubbish in [&b""[..], b"FBWORK", &[0xff; WORDS * 8]] {
        std::fs::write(folder.path().join("page"), rubbish).unwrap();
        assert!(WorkPage::in_file(open()).unwrap().entries.is_empty());
    }
}
