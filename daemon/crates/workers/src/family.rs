//! The descendants of a worker, from /proc as the spawner sees it: their numbers, memory and worker.

use std::fs;

/// Environment variable of a worker and its descendants that identifies the worker.
pub(crate) const MARK_VARIABLE: &str = "FOREBAY_WORKER_MARK";

/// The children of all threads of a process. A child that is started meanwhile may be missing.
pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut is_known = false;
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        if let Ok(text) = fs::read_to_string(thread.path().join("children")) {
            is_known = true;
            found.extend(text.split_whitespace().filter_map(|number| number.parse::<u32>().ok()));
        }
    }
    if is_known { found } else { children_by_parent(process) }
}

/// The same if the kernel keeps no list of children (`CONFIG_PROC_CHILDREN`).
fn children_by_parent(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|number| parent_of(*number) == Some(parent)).collect()
}

/// A process and all its descendants.
fn with_descendants(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        for child in children_of(parent) {
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

/// All descendants of a process, as far as /proc shows them and their parents.
pub(crate) fn descendants_of(process: u32) -> Vec<u32> {
    with_descendants(process).split_off(1)
}

/// Whether a process is a descendant of another one.
pub(crate) fn is_below(process: u32, ancestor: u32) -> bool {
    let mut seen = Vec::new();
    let mut next = parent_of(process);
    while let Some(parent) = next {
        // A circle is possible only if numbers were reused meanwhile.
        if parent == ancestor || seen.contains(&parent) {
            return parent == ancestor;
        }
        seen.push(parent);
        next = parent_of(parent);
    }
    false
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    crate::process::after_name(&stat)?.split_whitespace().nth(1)?.parse().ok()
}

/// Resident bytes of a worker and its descendants, without file pages. `arena_bytes`, the arena's memory, counts once,
/// mapped or not. Memory shared with forked processes counts once if the total exceeds `limit`; below it the precise
/// value, which takes the kernel long, is not needed. `None` if /proc hides the worker.
pub(crate) fn memory_of(worker: u32, arena_bytes: u64, limit: u64) -> Option<u64> {
    let family = with_descendants(worker);
    let with_arena = |(own, shared): (u64, u64)| own.saturating_add(shared.max(arena_bytes));
    let sum = |one: (u64, u64), other: (u64, u64)| {
        (one.0.saturating_add(other.0), one.1.saturating_add(other.1))
    };
    let own = resident(worker)?;
    let others = family[1..].iter().filter_map(|process| resident(*process));
    let bytes = with_arena(others.fold(own, sum));
    if bytes <= limit || family.len() == 1 {
        return Some(bytes);
    }
    let shares: Vec<_> = family.iter().filter_map(|process| proportional(*process)).collect();
    // A process that has ended meanwhile shares nothing; if the worker itself has ended, the result does not matter.
    Some(shares.into_iter().reduce(sum).map_or(bytes, with_arena))
}

/// Resident memory of a process: private, and shared memory.
fn resident(process: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    // A zombie holds no memory and has no such lines.
    let field = |name| field(&status, name).unwrap_or(0);
    Some((field("RssAnon:"), field("RssShmem:")))
}

/// The same with each page divided by the number of processes that map it.
fn proportional(process: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    match (field(&text, "Pss_Anon:"), field(&text, "Pss_Shmem:")) {
        (Some(own), Some(shared)) => Some((own, shared)),
        // Linux before 5.9.
        _ => resident(process),
    }
}

/// The value of a line in kibibytes, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The worker whose descendant a process is; `None` if its environment cannot be read or does not contain the mark.
pub(crate) fn mark_of(process: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let mark = variables.find_map(|one| {
        one.strip_prefix(MARK_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec)
    })?;
    String::from_utf8(mark).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    /// A Python process that runs a script and waits.
    fn python(script: &str) -> Child {
        let script = format!("{script}\nprint(flush=True)\nimport sys; sys.stdin.read()");
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .env(MARK_VARIABLE, "7-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    fn end(mut child: Child) {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_are_found_both_ways_and_carry_the_mark() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; read line"])
            .env(MARK_VARIABLE, "7-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        assert_eq!(children_of(shell.id()), [child]);
        assert_eq!(children_by_parent(shell.id()), [child]);
        assert!(with_descendants(std::process::id()).contains(&child));
        // Between the shell's fork and the start of `sleep` the child has no environment for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        let mark = loop {
            let mark = mark_of(child);
            if mark.is_some() || Instant::now() > end {
                break mark;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(mark.as_deref(), Some("7-1"));
        assert_eq!(mark_of(u32::MAX), None);
        Command::new("kill").arg(line.trim()).status().unwrap();
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        assert_eq!(
            shell.stdout.take().map_or(0, |mut out| out.read_to_string(&mut rest).unwrap()),
            0
        );
        shell.wait().unwrap();
    }

    #[test]
    fn shared_memory_counts_and_the_arena_counts_once() {
        let child = python("import mmap; m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))");
        let none = memory_of(child.id(), 0, u64::MAX).unwrap();
        assert!(none > 64 * MEBIBYTE && none < 128 * MEBIBYTE, "{none}");
        // As large as the shared memory, which may be the arena itself.
        assert_eq!(memory_of(child.id(), 64 * MEBIBYTE, u64::MAX), Some(none));
        let larger = memory_of(child.id(), 96 * MEBIBYTE, u64::MAX).unwrap();
        assert!(larger > none + 31 * MEBIBYTE && larger <= none + 32 * MEBIBYTE, "{larger} {none}");
        end(child);
    }

    #[test]
    fn descendants_count_and_pages_shared_by_a_fork_count_once() {
        let ballast = "ballast = b'x' * (64 << 20)\nimport os, sys\n";
        let parent = python(&format!("{ballast}if os.fork() == 0: sys.stdin.read(); os._exit(0)"));
        let upper = memory_of(parent.id(), 0, u64::MAX).unwrap();
        assert!(upper > 128 * MEBIBYTE, "{upper}");
        let exact = memory_of(parent.id(), 0, 0).unwrap();
        assert!(exact > 64 * MEBIBYTE && exact < 100 * MEBIBYTE, "{exact}");
        end(parent);
        let other = "child = subprocess.Popen([sys.executable, '-c', \"import sys; x = b'x' * (64 << 20); print(flush=True); sys.stdin.read()\"], stdout=-1)";
        let parent = python(&format!("import subprocess, sys\n{other}\nchild.stdout.readline()"));
        let both = memory_of(parent.id(), 0, 0).unwrap();
        assert!(both > 64 * MEBIBYTE, "{both}");
        end(parent);
    }
}
