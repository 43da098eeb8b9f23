//! Hostile clients harm nobody but themselves (promise P9). `scripts/prove` runs the long version.

use forebay_tests::hostile::trial;

#[test]
fn hostile_clients_are_cut_off_and_others_go_on_unharmed() {
    let trial = trial(150_000, 1);
    assert!(trial.tally.total() >= 150_000, "{trial:?}");
    assert_eq!((trial.descriptors_left, trial.segments_left), (0, 0), "{trial:?}");
    assert!(trial.epochs > 0, "{trial:?}");
    // Each kind of offence is noticed.
    for reason in [
        "the client claims",
        "the client returned",
        "a control frame",
        "the first frame",
        "connections are",
    ] {
        assert!(trial.tally.cut_off.keys().any(|cut| cut.contains(reason)), "{reason}: {trial:?}");
    }
}
