//! What a daemon keeps of its parent's, and who may look into it.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use forebay_tests::{
    Daemon, TestDir, is_running, open_files, program, signal, skipped, test_dir, wait_until,
};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;

/// A file that every child inherits, as a GPU's devices may be.
fn inheritable(dir: &TestDir) -> std::fs::File {
    let file = std::fs::File::create(dir.path("gpu-device")).unwrap();
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    file
}

fn holds(process: u32) -> bool {
    open_files(process).iter().any(|name| name.ends_with("gpu-device"))
}

#[test]
fn a_daemon_holds_nothing_that_its_parent_left_open() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let left_open = inheritable(&dir);
    // The environment of the test's own process says nothing of this; root may look into every process.
    let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
    let private = loader.private_process().unwrap();
    if nix::unistd::Uid::effective().is_root() {
        assert!(!holds(private), "{:?}", open_files(private));
    }
    // The daemon after a restart neither.
    assert!(signal(private, Signal::SIGKILL));
    assert!(loader.stats().unwrap().contains("streams"));
    let second = loader.private_process().unwrap();
    assert_ne!(second, private);
    if nix::unistd::Uid::effective().is_root() {
        assert!(!holds(second), "{:?}", open_files(second));
    }
    let mut serve = dir.forebay(&["serve"]);
    serve.arg(&config).arg("--socket").arg(dir.path("daemon.sock")).stderr(Stdio::null());
    let mut serve = serve.spawn().unwrap();
    wait_until("the daemon listens", || dir.path("daemon.sock").exists());
    assert!(!holds(serve.id()), "{:?}", open_files(serve.id()));
    program::kill(&mut serve);
    // `run` leaves it to its command.
    let mut run = dir.forebay(&["run"]);
    let number = left_open.as_raw_fd();
    let script = format!(
        "test -e /proc/$$/fd/{number} && touch {}; exec sleep 600",
        dir.path("seen").display()
    );
    run.arg(&config).args(["--", "sh", "-c", &script]).stderr(Stdio::null());
    let mut run = run.spawn().unwrap();
    wait_until("the command has it", || dir.path("seen").exists());
    wait_until("the daemon has it no more", || !holds(run.id()));
    program::kill(&mut run);
}

#[test]
fn no_process_of_the_same_user_can_look_into_a_daemon() {
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let is_root = nix::unistd::Uid::effective().is_root();
    // Root may look everywhere, so the daemon is another user's then.
    let user = if is_root { 65_533 } else { nix::unistd::Uid::effective().as_raw() };
    let program_copy = dir.path("forebay");
    program::copy_forebay(&program_copy);
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(&dir.path(""));
    let socket = dir.path("user/daemon.sock");
    std::fs::create_dir(dir.path("user")).unwrap();
    if is_root {
        std::os::unix::fs::chown(dir.path("user"), Some(user), Some(user)).unwrap();
    }
    for (dumpable, owner) in [("0", 0), ("1", user)] {
        let mut serve = dir.command(&program_copy);
        serve.arg("serve").arg(&config).arg("--socket").arg(&socket);
        serve.env("FOREBAY_DUMPABLE", dumpable).stderr(Stdio::null());
        if is_root {
            serve.uid(user).gid(user);
        }
        let mut daemon = serve.spawn().unwrap();
        wait_until("the daemon listens", || socket.exists());
        // The kernel gives these files to root when the process is not dumpable.
        let of_process = |name: &str| format!("/proc/{}/{name}", daemon.id());
        assert_eq!(std::fs::metadata(of_process("fd")).unwrap().uid(), owner, "{dumpable}");
        // What everybody may know stays known: a client reads a daemon's memory figures there.
        assert!(std::fs::read_to_string(of_process("status")).unwrap().contains("VmHWM"));
        let mut stats = dir.command(&program_copy);
        stats.args(["stats", "--json"]).arg(&socket);
        if is_root {
            stats.uid(user).gid(user);
        }
        let figures = program::run(&mut stats).json();
        assert!(figures["process"]["resident_bytes"].as_u64().is_none_or(|bytes| bytes > 0));
        program::kill(&mut daemon);
        std::fs::remove_file(&socket).unwrap();
        assert!(!is_running(daemon.id()));
    }
}

/// The socket's mode and the peer credentials: each by itself refuses another user.
#[test]
fn another_user_comes_in_only_where_the_configuration_names_him() {
    if !nix::unistd::Uid::effective().is_root() {
        skipped("only root can be two users");
        return;
    }
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let stranger = 65_533;
    let program_copy = dir.path("forebay");
    program::copy_forebay(&program_copy);
    let set_mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&dir.path(""), 0o755);
    let socket = dir.path("daemon.sock");
    let ask = || {
        let mut stats = dir.command(&program_copy);
        stats.args(["stats", "--json"]).arg(&socket).uid(stranger).gid(stranger);
        program::run(&mut stats)
    };
    let daemon = Daemon::serve(&dir, &config);
    let refused = ask();
    assert!(!refused.status.success() && refused.stderr.contains("ermission"), "{refused:?}");
    set_mode(&socket, 0o666);
    let refused = ask();
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("user 65533 may not use this daemon"), "{refused:?}");
    drop(daemon);
    let allowed = format!("listen.allow_uids=[{stranger}]");
    let _daemon = Daemon::serve_with(&dir, &[&config], &["--set", &allowed]);
    let admitted = ask();
    assert!(admitted.status.success(), "{admitted:?}");
}

/// Containers run as `nobody`. Its number stands for unmapped users as well, where a user namespace leaves some out.
#[test]
fn a_daemon_of_nobody_serves_its_own_user() {
    if !nix::unistd::Uid::effective().is_root() {
        skipped("only root can be another user");
        return;
    }
    let dir = TestDir::new();
    let config = dir.stack_stream(40, "");
    let program_copy = dir.path("forebay");
    program::copy_forebay(&program_copy);
    let nobody = 65_534;
    for path in [dir.path(""), program_copy.clone()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::create_dir(dir.path("user")).unwrap();
    std::os::unix::fs::chown(dir.path("user"), Some(nobody), Some(nobody)).unwrap();
    let socket = dir.path("user/daemon.sock");
    let mut serve = dir.command(&program_copy);
    serve.arg("serve").arg(&config).arg("--socket").arg(&socket).stderr(Stdio::null());
    let mut daemon = serve.uid(nobody).gid(nobody).spawn().unwrap();
    wait_until("the daemon listens", || socket.exists());
    let mut stats = dir.command(&program_copy);
    stats.args(["stats", "--json"]).arg(&socket);
    let own = program::run(stats.uid(nobody).gid(nobody));
    // Another user that the socket's mode does not keep out, as root.
    let other = program::run(dir.forebay(&["stats"]).arg(&socket));
    program::kill(&mut daemon);
    assert!(own.status.success(), "{own:?}");
    assert!(!other.status.success(), "{other:?}");
    assert!(other.stderr.contains("user 0 may not use this daemon of user 65534"), "{other:?}");
}
