//! Adds files to the wheel: the `forebay` program and the licence texts.
//!
//! Only with the feature `wheel`, which pyproject.toml sets. maturin does not include programs in the wheel of an
//! extension module, so this script builds the program with a separate cargo in a separate target folder, because the
//! outer cargo holds the lock of the usual one. The files are then included as data of the package (`include` in
//! pyproject.toml). `FOREBAY_WHEEL_PROGRAM` names a program that is already built.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_WHEEL").is_none() {
        return Ok(());
    }
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = here.join("../..").canonicalize()?;
    for input in
        ["daemon", "protocol", "client-lib/src", "Cargo.toml", "Cargo.lock", "scripts/notices"]
    {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    let package = here.join("python/forebay");
    // A package with missing files is built again.
    println!("cargo:rerun-if-changed={}", package.join("bin/forebay").display());

    println!("cargo:rerun-if-env-changed=FOREBAY_WHEEL_PROGRAM");
    let program = match env::var_os("FOREBAY_WHEEL_PROGRAM") {
        Some(built) => PathBuf::from(built),
        None => build_program(&root)?,
    };
    replace(&program, &package.join("bin"), "forebay")?;
    let licences = package.join("licenses");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        replace(&root.join(licence), &licences, licence)?;
    }
    let notices = root.join("scripts/notices");
    if notices.is_file() {
        let output = licences.join("THIRD-PARTY-NOTICES.txt");
        run(Command::new("python3").arg(notices).arg(output).current_dir(&root))?;
    }
    Ok(())
}

/// Builds `forebay` in release mode and returns its path.
fn build_program(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // OUT_DIR is TARGET_DIR/[TRIPLE/]PROFILE/build/NAME/out.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR is not where cargo puts it")?;
    let folder = profile.join("wheel-program");
    let (target, host) = (env::var("TARGET")?, env::var("HOST")?);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--package", "forebay", "--bin", "forebay"])
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(root)
        // Symbols are kept for profiles; line tables would be three quarters of the wheel.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        // Flags for the extension module do not apply to the program.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    let mut program = folder;
    if target != host {
        cargo.args(["--target", &target]);
        program.push(&target);
    }
    run(&mut cargo)?;
    Ok(program.join("release/forebay"))
}

/// Copies a file into a folder under a name, with the times of Cargo.toml: older than this run, so that cargo runs this
/// script again if the copy is missing but not because it was made. The old file is removed rather than overwritten: it
/// may be running.
fn replace(from: &Path, folder: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    let to = folder.join(name);
    match fs::remove_file(&to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::copy(from, &to)
        .map_err(|error| format!("copying {} to {}: {error}", from.display(), to.display()))?;
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("Cargo.toml");
    let time = fs::metadata(manifest)?.modified()?;
    fs::File::options().append(true).open(&to)?.set_modified(time)?;
    Ok(())
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status().map_err(|error| format!("starting {command:?}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed: {status}").into())
}
