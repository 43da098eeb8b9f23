use std::time::Duration;

use forebay_protocol::identity::Identity;

use super::{STATE_KEY, check_expected, describe_missing, find_differences, wait_limit};
use crate::error::Error;

fn stream(samples: u64, seed: u64) -> Identity {
    Identity::default().with("samples", samples).with("order.seed", seed).with("world_size", 3)
}

#[test]
fn differing_keys_are_named_with_values_and_ranks() {
    assert_eq!(find_differences(&[(0, stream(5, 1)), (1, stream(5, 1))]), None);
    let members = [(0, stream(1000, 7)), (1, stream(999, 7)), (2, stream(1000, 8))];
    let message = find_differences(&members).unwrap().to_string();
    for part in [
        "samples is 1000 on ranks 0 and 2 and 999 on rank 1;",
        "order.seed is 7 on ranks 0 and 1 and 8 on rank 2;",
        "compare_ranks",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("world_size is"), "{message}");
    // A rank of another release may lack a key.
    let message = find_differences(&[(0, stream(5, 1)), (4, stream(5, 1).with("new", 1))]);
    assert!(message.unwrap().to_string().contains("new is absent on rank 0 and 1 on rank 4"));
    // Two processes with the same rank.
    let message = find_differences(&[(0, stream(5, 1)), (0, stream(6, 1))]).unwrap().to_string();
    assert!(message.contains("samples is 5 on rank 0 and 6 on rank 0"), "{message}");
}

#[test]
fn expectation_may_have_only_some_keys() {
    let check = |expected: &str, rank| check_expected(&stream(5, 1), expected, "train", rank);
    check("order.seed=1", 0).unwrap();
    check(&stream(5, 1).to_string(), 0).unwrap();
    let error = check("samples=6, order.seed=1,x=2", 3).unwrap_err();
    let error = error.to_string();
    for part in ["rank 3", "samples is 5 and 6 is expected; x is absent and 2 is expected"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(check("nonsense", 0).is_err());
    // Each stream of a job has separate expectations.
    check("val:samples=6; train:samples=5;order.seed=1", 0).unwrap();
    assert!(check("val:samples=5;train:samples=6", 0).is_err());
    assert!(check("val:samples=6;order.seed=2", 0).is_err());
}

#[test]
fn missing_ranks_are_named_up_to_a_number() {
    let text = describe_missing(&[3], Duration::from_secs(60));
    assert!(text.contains("rank 3 did not") && text.contains("60 s"), "{text}");
    let many: Vec<u32> = (0..20).collect();
    let text = describe_missing(&many, Duration::from_secs(1));
    assert!(text.contains("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"), "{text}");
}

#[test]
fn wait_is_bounded_by_the_time_out() {
    let limit = |text: &'static str, timeout| {
        wait_limit(
            &[("FOREBAY_RANKS_WAIT", text)].into_iter().collect(),
            Duration::from_secs(timeout),
        )
    };
    assert_eq!(limit("", 300).unwrap(), Duration::from_secs(60));
    assert_eq!(limit("", 5).unwrap(), Duration::from_secs(5));
    assert_eq!(limit("0.5", 300).unwrap(), Duration::from_millis(500));
    assert!(limit("soon", 300).is_err() && limit("-1", 300).is_err());
}

#[test]
fn ranks_with_only_different_states_get_a_state_mismatch() {
    let at = |seed, state: &str| stream(5, seed).with(STATE_KEY, state);
    let error = find_differences(&[(0, at(1, "epoch 0 sample 24 (0a)")), (1, at(1, "none"))]);
    let Some(Error::StateMismatch(message)) = error else { panic!("{error:?}") };
    let expected = "state is epoch 0 sample 24 (0a) on rank 0 and none on rank 1";
    assert!(message.contains(expected), "{message}");
    let error = find_differences(&[(0, at(1, "none")), (1, at(2, "epoch 1 sample 0 (0b)"))]);
    assert!(matches!(error, Some(Error::Config(_))), "{error:?}");
}
