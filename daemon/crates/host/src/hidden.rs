//! Processes that /proc hides. Mounted with `hidepid`, /proc shows an ordinary user only processes that the reader may
//! trace, and a confined daemon may trace none.

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, getegid, getgroups, test_kill_process};

/// A remedy that makes processes visible to a confined daemon.
pub const REMEDY: &str = "mount /proc without hidepid, or with gid= of a group of this user's";

/// Whether a process exists that is missing in /proc.
#[must_use]
pub fn is_hidden(process: u32) -> bool {
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    let exists = matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM));
    // In this order: a process that ends in between does not count as hidden.
    exists
        && fs::read(format!("/proc/{process}/stat")).is_err_and(|error| hides(&error))
        && test_kill_process(pid) != Err(Errno::SRCH)
}

/// Too many open files, for example, say nothing about the process.
fn hides(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// The mount option by which /proc hides processes from this user: `hidepid=invisible`.
#[must_use]
pub fn hiding_option() -> Option<String> {
    let groups = getgroups().unwrap_or_default().into_iter().chain([getegid()]);
    let groups: Vec<u32> = groups.map(|group| group.as_raw()).collect();
    option_in(&fs::read_to_string("/proc/self/mountinfo").ok()?, &groups)
}

fn option_in(mounts: &str, groups: &[u32]) -> Option<String> {
    // The last mount at this path is the visible one.
    let mount = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"))?;
    let (_, of_file_system) = mount.split_once(" - proc ")?;
    let options = || of_file_system.split(' ').nth(1).unwrap_or_default().split(',');
    let gid = options().find_map(|option| option.strip_prefix("gid=")?.parse().ok());
    if groups.contains(&gid.unwrap_or(0)) {
        return None;
    }
    let hides = |option: &&str| {
        option.strip_prefix("hidepid=").is_some_and(|how| !matches!(how, "0" | "off"))
    };
    options().find(hides).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_invalid_processes_are_not_hidden() {
        assert!(!is_hidden(std::process::id()));
        assert!(!is_hidden(0) && !is_hidden(i32::MAX as u32) && !is_hidden(u32::MAX));
    }

    #[test]
    fn too_many_open_files_hide_no_process() {
        assert!(hides(&Errno::NOENT.into()) && hides(&Errno::PERM.into()));
        assert!(!hides(&Errno::MFILE.into()) && !hides(&Errno::NFILE.into()));
    }

    #[test]
    fn visible_mount_determines_whether_processes_are_hidden() {
        let mount = |options| format!("24 1 0:22 / /proc rw,nosuid - proc proc {options}\n");
        let [plain, hiding, grouped] =
            ["rw", "rw,hidepid=invisible", "rw,gid=40,hidepid=2"].map(mount);
        let other = "25 1 0:23 / /jail/proc rw - proc proc rw,hidepid=2\n";
        assert_eq!(option_in(&plain, &[1000]), None);
        assert_eq!(option_in(&format!("{plain}{other}"), &[1000]), None);
        assert_eq!(option_in(&hiding, &[1000]).as_deref(), Some("hidepid=invisible"));
        assert_eq!(option_in(&hiding, &[1000, 0]), None, "it is seen by group 0");
        assert_eq!(option_in(&format!("{hiding}{plain}"), &[1000]), None);
        assert_eq!(option_in(&grouped, &[1000, 0]).as_deref(), Some("hidepid=2"));
        assert_eq!(option_in(&grouped, &[1000, 40]), None);
        assert_eq!(option_in("", &[1000]), None);
        assert_eq!(option_in(&mount("rw,hidepid=off"), &[1000]), None);
    }
}
