//! Hostile clients do not harm other clients (promise P9). `scripts/prove` runs the long version.

use forebay_tests::hostile::trial;

#[test]
fn hostile_clients_are_cut_off_and_others_go_on_unharmed() {
    let trial = trial(150_000, 1);
    assert!(trial["operations"].as_u64().unwrap() >= 150_000, "{trial}");
    assert!(trial["descriptors_left"] == 0 && trial["segments_left"] == 0, "{trial}");
    assert!(trial["honest_epochs_unharmed"] != 0, "{trial}");
    let cut_off = trial["cut_off"].as_object().unwrap();
    // Each kind of offence is noticed.
    for reason in [
        "the client claims",
        "the client returned",
        "a control frame",
        "the first frame",
        "connections are",
    ] {
        assert!(cut_off.keys().any(|cut| cut.contains(reason)), "{reason}: {trial}");
    }
}
