//! Digests of the orders at the last change of [`STREAM_VERSION`].
//!
//! A saved state contains the stream version; if the same version gave another order, resuming would silently repeat
//! and omit samples. So a change of any digest here must raise the version.

use forebay_protocol::ids::{Position, SampleId};

use super::*;

/// BLAKE3 over little-endian words, shortened.
fn digest(words: impl Iterator<Item = u64>) -> String {
    let mut hasher = blake3::Hasher::new();
    for word in words {
        hasher.update(&word.to_le_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

fn assert_pinned(what: &str, found: &str, pinned: &str) {
    assert_eq!(
        found, pinned,
        "{what} changed for the same input: raise STREAM_VERSION (now {STREAM_VERSION}), then pin the new digests"
    );
}

#[test]
fn orders_are_pinned() {
    let cases = [
        (1_000, 0, 0, "5a6e4ffe919f190ce911c191c85c1f4d"),
        (50_000, 17, 3, "1cbe8e086954b1629c7e9f21c683415d"),
        (65_536, 17, 0, "5c978e8748e7062e12762ac47e5c24a8"),
        (65_537, 17, 0, "a1a8b20234f0e929e48a0c16e639a2a0"),
        (1_281_167, 17, 89, "24be05aeb6b10b51ec4c2cc80c99e74a"),
        (1_000_000_000, u64::MAX, 1, "d893d6c4a8f4816e19b268918943c1cd"),
    ];
    for (samples, seed, epoch, pinned) in cases {
        let dealing =
            Dealing { seed, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };

        let order = Schedule::new(samples, dealing, 0, 1).unwrap().epoch(epoch);
        let ids = (0..samples.min(10_000)).map(|position| order.sample_at(position).0);
        let what = format!("the order of {samples} samples, seed {seed}, epoch {epoch}");
        assert_pinned(&what, &digest(ids), pinned);
    }
}

#[test]
fn mixtures_are_pinned() {
    let part = |samples, draws| MixturePart { samples, draws };
    let cases = [
        (
            vec![part(1_000, 700), part(300, 750), part(80_000, 50_000)],
            3,
            "2bd8ce50b83ed7b49a8a9eadac74069a",
        ),
        (
            vec![part(100, 1_000_000), part(0, 0), part(1 << 40, 3_000_000)],
            0,
            "77141623fd4f18e6960eb51dfcf141e4",
        ),
        (vec![part(70_000, 3_000)], 17, "c5e9f3f2104c84f6b39bc0c48df954f9"),
    ];
    for (parts, epoch, pinned) in cases {
        let what = format!("the order of epoch {epoch} of {parts:?}");
        let selection = Selection::Mixture(Mixture::new(&parts).unwrap().into());
        assert_pinned(&what, &digest(drawn(selection, epoch)), pinned);
    }
}

#[test]
fn changes_of_weights_are_pinned() {
    let change = |from, weights: [f64; 3]| WeightChange { from, weights: weights.to_vec() };
    let changes = [change(0, [3.0, 1.0, 1.0]), change(13_000, [1.0, 1.0, 2.5])];
    let mixture = Mixture::with_changes(&[1_000, 300, 80_000], 10_000, &changes).unwrap();
    for (epoch, pinned) in [
        (0, "f381f862d88f4851c1f873cc33ff1111"),
        (1, "7b5de6c87e85632052d438be0db818e1"),
        (7, "14bc44010e260feeaed7426ba37326e4"),
    ] {
        let what = format!("the order of epoch {epoch} of weights that change");
        let selection = Selection::Mixture(mixture.clone().into());
        assert_pinned(&what, &digest(drawn(selection, epoch)), pinned);
    }
}

#[test]
fn orders_in_blocks_are_pinned() {
    let cases = [
        (200, 8, 400, "67738f7f2d4f745dd737108ee7824fe2"),
        (70_000, 5, 40_000, "e3cc6c51b9e639c458df16acc037de39"),
        (3, 100_000, 40_000, "2e45385c08208add5040bdcc9a0f63c7"),
    ];
    for (count, open, three, pinned) in cases {
        let firsts: Vec<u64> = (0..count).map(|block| three * block / 3).collect();
        let blocks = Blocks::new(firsts, three * count / 3, open).unwrap();
        let what = format!("the order of {count} blocks, {open} of them open");
        assert_pinned(&what, &digest(drawn(Selection::InBlocks(blocks.into()), 3)), pinned);
    }
}

#[test]
fn draws_by_weight_are_pinned() {
    let weights: Vec<f64> = (0..5_000).map(|id| f64::from(id % 17) * 0.3).collect();
    let selection = Selection::Weighted(Weighted::new(&weights, 20_000).unwrap().into());
    assert_pinned(
        "draws by weight",
        &digest(drawn(selection, 5)),
        "520858e2bde93456653d060fe92ec8c0",
    );
}

#[test]
fn draws_by_class_and_groups_are_pinned() {
    let class_of: Vec<u32> =
        (0..5_000_u32).map(|id| id.wrapping_mul(2_654_435_761) >> 17).collect();
    // Of few and of many samples each.
    for (divisor, balanced, grouped) in [
        (2_000, "81bcfbc87b74438eae90dfb4326cfc67", "dfbe6389cb56cfe5e35a6f76cc1d550b"),
        (40, "22a9b8b8083221c64f88520e55c31a7e", "29ca654c8255beaf929459e70cb3d435"),
    ] {
        let count = (1 << 15) / divisor + 1;
        let class_of = class_of.iter().map(|class| class / divisor).collect();
        let classes = std::sync::Arc::new(Classes::new(class_of, count).unwrap());
        let alike = Balanced::new(classes.clone(), Some(20_000)).unwrap();
        let what = format!("draws of {count} classes alike");
        assert_pinned(&what, &digest(drawn(Selection::Balanced(alike.into()), 5)), balanced);
        let groups = Grouped::new(classes, 3, 48).unwrap();
        let what = format!("batches of {count} groups");
        assert_pinned(&what, &digest(drawn(Selection::Grouped(groups.into()), 5)), grouped);
    }
}

/// Samples and passes of the first positions of an epoch.
fn drawn(selection: Selection, epoch: u64) -> impl Iterator<Item = u64> {
    let dealing =
        Dealing { seed: 17, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Drop };

    let draws = selection.draws_per_epoch();
    let order = Schedule::of(selection, dealing, 0, 1).unwrap().epoch(epoch);
    (0..draws.min(10_000)).flat_map(move |position| {
        let drawn = order.draw_at(position);
        [drawn.sample.0, drawn.pass]
    })
}

#[test]
fn draws_are_pinned() {
    let key = |seed, epoch, sample| DrawKey { seed, epoch, sample };
    for (key, operation, pinned) in [
        (key(0, 0, 0), 0, "633e21e356c9603c4c7a2d89a81c840a"),
        (key(17, 3, 1_281_166), 2, "c2c72e737d19f713c6988cdffd6b8a3e"),
    ] {
        let mut draws = Draws::new(key, operation);
        let mut words = Vec::new();
        for bound in 1..=2_500 {
            words.extend([
                draws.next_u64(),
                draws.uniform().to_bits(),
                draws.below(bound),
                draws.below(u64::MAX - bound),
            ]);
        }
        assert_pinned("the draws", &digest(words.into_iter()), pinned);
    }
}

#[test]
fn substitutes_are_pinned() {
    let ids = (0..10_000).map(|bad| {
        let attempt = bad % SUBSTITUTE_DRAWS;
        substitute(1_281_167, 17, 3, SampleId(bad), attempt).map_or(u64::MAX, |other| other.0)
    });
    assert_pinned("the substitutes", &digest(ids), "2b9e370eda49ea431f8f8b440bb52e33");
}

#[test]
fn batches_by_shape_are_pinned() {
    let shapes: Vec<u32> = (0..2_000u32).map(|id| id.wrapping_mul(2_654_435_761) >> 29).collect();
    let dealing =
        Dealing { seed: 17, is_shuffled: true, epochs: None, batch_size: 9, last: Last::Pad };
    let by_shape = ByLength::by_shape(shapes.into(), 500, 9);
    let schedule =
        Schedule::by_length(Selection::Once(2_000), dealing, 2, 3, by_shape.into()).unwrap();
    let order = schedule.epoch(3);
    let mut position = Position { epoch: 3, samples: 0 };
    let mut words = Vec::new();
    while position.epoch == 3 {
        let batch = schedule.batch_at(position).unwrap();
        words.extend(batch.rows.iter(&order).map(|row| row.sample.0));
        position = batch.position_after;
        words.push(position.samples);
    }
    let found = digest(words.into_iter());
    assert_pinned("batches by shape", &found, "436c8cb64f6c1d4f1eb090058a25077d");
}

#[test]
fn batches_by_length_are_pinned() {
    let lengths: Vec<u32> =
        (0..5_000u32).map(|id| 1 + id.wrapping_mul(2_654_435_761) % 700).collect();
    let dealing =
        Dealing { seed: 17, is_shuffled: true, epochs: None, batch_size: 1, last: Last::Pad };
    let schedule = |rank, world_size, budget| {
        let by_length = ByLength::new(lengths.clone().into(), 1_000, budget, 8, 64);
        Schedule::by_length(Selection::Once(5_000), dealing, rank, world_size, by_length.into())
            .unwrap()
    };
    let words = |schedule: &Schedule, mut position: Position| {
        let order = schedule.epoch(3);
        let mut words = Vec::new();
        while position.epoch == 3 {
            let batch = schedule.batch_at(position).unwrap();
            words.extend(batch.rows.iter(&order).map(|row| row.sample.0));
            position = batch.position_after;
            words.push(position.samples);
        }
        words
    };
    let start = Position { epoch: 3, samples: 0 };
    for (rank, world_size, pinned) in
        [(0, 1, "dc10fcdb706f28ee86b4e961ce721446"), (2, 3, "a039de4d5082fa291209954114c5e8a8")]
    {
        let found = digest(words(&schedule(rank, world_size, 4_096), start).into_iter());
        assert_pinned(&format!("batches by length of rank {rank} of {world_size}"), &found, pinned);
    }
    let before = schedule(0, 3, 4_096);
    let at =
        before.batch_at(before.batch_at(start).unwrap().position_after).unwrap().position_after;
    let cuts = before.pools().unwrap().chain_at(at, (start, &[]));
    let (after, at) = schedule(1, 2, 3_000).beginning_at(at, &cuts).unwrap();
    assert_pinned(
        "a continued pool",
        &digest(words(&after, at).into_iter()),
        "f5744d3151d1dc96582c4522c5e2aec9",
    );
}
