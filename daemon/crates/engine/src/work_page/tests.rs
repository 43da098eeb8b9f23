//! Deaths that follow each other: what the next daemon makes of the page.

use std::sync::atomic::AtomicBool;

use super::*;

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
fn three_deaths_alone_make_a_killer_and_it_is_one_in_its_epoch_only() {
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
    // It stays one, however the next daemons end.
    for end in [LastEnd::Exit, LastEnd::Signal(9), SEGV, LastEnd::Unknown] {
        page = WorkPage::in_memory(Some((&file(&page), end))).unwrap();
        assert!(page.begin((0, 0), key(4)).is_err());
    }
}

#[test]
fn no_number_of_kills_from_outside_makes_a_suspect() {
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
fn a_suspect_that_survives_alone_begins_anew() {
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
fn nothing_is_under_work_beside_a_suspect() {
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
fn a_page_in_a_file_goes_on_in_the_same_file_and_rubbish_is_an_empty_one() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let path = folder.path().join("page");
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let mut page = WorkPage::in_file(open()).unwrap();
    for _ in 0..4 {
        let work = page.begin((0, 0), key(9)).unwrap();
        // The next daemon maps the same file; this one is dead by then.
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
