//! Promise P2 under SIGKILL: a short run of each kind of kill. `FOREBAY_TEST_KILLS` says how many, `scripts/prove` runs
//! the long ones.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::Command;

use forebay_tests::program;

/// Runs the killing program, which compares every batch; fewer kills over a format that is not the usual one.
fn kill(mode: &str, seed: &str, format: Option<&str>) {
    let usual = if format.is_some() { "8" } else { "20" };
    let kills = std::env::var("FOREBAY_TEST_KILLS").unwrap_or_else(|_| usual.to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-test-kills"));
    command.envs(format.map(|format| ("FOREBAY_TEST_KILLS_FORMAT", format)));
    command.args([mode, "--kills", &kills, "--seed", seed]);
    command.env("FOREBAY_PROGRAM", program::forebay());
    let finished = program::run(&mut command);
    assert!(finished.status.success(), "{}\n{}", finished.stdout, finished.stderr);
    println!("{}", finished.stdout.trim());
}

/// Whether this host decodes videos; says so if it does not.
fn has_decoders() -> bool {
    let doctor = program::run(Command::new(program::forebay()).arg("doctor"));
    let has = doctor.stdout.contains("decoded by libavcodec");
    if !has {
        // Past the test runner, which hides the output of tests that pass.
        let _ = writeln!(std::io::stderr(), "skipped: this host has no libavcodec");
    }
    has
}

/// A test by its name: the mode, its seed and the format of the samples.
macro_rules! kills {
    ($($name:ident: $mode:literal $seed:literal $(over $format:literal)?;)*) => {
        $(#[test]
        fn $name() {
            if [$($format)?].iter().any(|format: &&str| format.starts_with("videos")) && !has_decoders() {
                return;
            }
            kill($mode, $seed, [$($format)?].first().copied());
        })*
    };
}

kills! {
    the_daemon_is_killed: "daemon" "1";
    the_trainer_is_killed: "trainer" "2";
    run_is_killed: "run" "3";
    everything_is_killed_at_once: "all" "4";
    the_daemon_of_eight_trainers_is_killed: "shared" "16";
    trainers_of_one_load_are_killed: "load" "17";
    // Behind a server in bad weather, which is killed, too.
    trainers_daemons_and_the_server_are_killed: "remote" "15";
    // Who also join and drain.
    trainers_daemons_and_feeders_are_killed: "feeders" "23";
    the_daemon_is_killed_over_archives: "daemon" "5" over "webdataset";
    the_daemon_is_killed_over_a_manifest: "daemon" "6" over "manifest";
    the_daemon_is_killed_over_tfrecords: "daemon" "7" over "tfrecord";
    the_daemon_is_killed_over_array_records: "daemon" "29" over "arrayrecord";
    the_daemon_is_killed_over_shards_of_mosaic: "daemon" "8" over "mds";
    the_daemon_is_killed_over_shards_of_litdata: "daemon" "9" over "litdata";
    the_daemon_is_killed_over_compressed_archives_and_their_cache: "daemon" "10" over "webdataset.gz";
    the_daemon_is_killed_over_tables_of_arrow: "daemon" "11" over "arrow";
    the_daemon_is_killed_over_tables_of_parquet: "daemon" "12" over "parquet";
    the_daemon_is_killed_over_datasets_of_lance: "daemon" "30" over "lance";
    the_daemon_is_killed_over_compressed_pages_of_parquet: "daemon" "13" over "parquet.pages";
    the_daemon_is_killed_over_batches_by_length: "daemon" "18" over "lengths";
    the_trainer_is_killed_over_batches_by_length: "trainer" "19" over "lengths";
    the_daemon_is_killed_over_classes_drawn_alike: "daemon" "21" over "balance";
    the_trainer_is_killed_over_groups: "trainer" "22" over "group";
    the_daemon_is_killed_over_tokens_of_texts: "daemon" "20" over "texts";
    the_daemon_is_killed_over_windows: "daemon" "21" over "windows";
    the_daemon_is_killed_over_windows_of_hdf5: "daemon" "28" over "windows.hdf5";
    the_daemon_is_killed_over_windows_of_tables: "daemon" "27" over "windows.parquet";
    the_daemon_and_decoders_are_killed_over_videos: "decoders" "23" over "videos";
    the_trainer_is_killed_over_videos: "trainer" "24" over "videos";
    the_daemon_and_decoders_are_killed_over_videos_in_archives: "decoders" "26" over "videos.tar";
    the_daemon_and_decoders_are_killed_over_sounds_of_aac: "decoders" "31" over "videos.sounds";
    the_daemon_is_killed_over_a_mixture_whose_weights_change: "daemon" "14" over "mixture";
}
