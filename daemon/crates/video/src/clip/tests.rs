//! Clips as bytes.

use super::*;

fn clip() -> Clip<'static> {
    let packet = |pts, dts, start, length, key, restarts| Packet {
        pts,
        dts,
        duration: 512,
        start,
        length,
        key,
        discard: pts < 0,
        restarts,
    };
    Clip {
        codec: Codec::H264,
        configuration: vec![1, 100, 0, 31].into(),
        width: 641,
        height: 481,
        color: Color {
            matrix: Some(0),
            full_range: Some(true),
            bits: Some(255),
            ..Color::default()
        },
        rotation: Rotation::Quarter,
        time_base: TimeBase { numerator: 1, denominator: 12_800 },
        packets: vec![
            packet(-512, -1024, 2, 3, true, true),
            packet(512, -512, 5, 2, false, false),
            packet(0, 0, 7, 1, false, false),
            packet(90_000, 90_000, 0, 2, true, true),
        ],
        wanted: vec![0, 512, 512, 90_000, 0],
        data: vec![0, 1, 2, 3, 4, 5, 6, 7].into(),
    }
}

#[test]
fn clips_survive_their_bytes() {
    let clip = clip();
    let bytes = clip.to_bytes();
    assert_eq!(Clip::from_bytes(&bytes).unwrap(), clip);
    assert_eq!(clip.bytes(&clip.packets[1]), [5, 6]);
    let head = bytes.len() - clip.data.len();
    for length in 0..bytes.len() {
        assert!(Clip::from_bytes(&bytes[..length]).is_err(), "{length} of {head} and 8");
    }
}

#[test]
fn broken_promises_are_refused_by_name() {
    type Break = fn(&mut Clip<'_>);
    let breaks: [(Break, &str); 6] = [
        (|clip| clip.packets[0].key = false, "decoding cannot begin with packet 0"),
        (|clip| clip.packets[0].restarts = false, "decoding cannot begin with packet 0"),
        (|clip| clip.packets[3].key = false, "decoding cannot begin with packet 3"),
        (|clip| clip.packets[2].length = 2, "packet 2 is at 7..9 of 8 bytes"),
        (|clip| clip.packets[2].length = 0, "packet 2 is at 7..7 of 8 bytes"),
        (|clip| clip.wanted[0] = -512, "no packet has the frame at -512"),
    ];
    for (change, reason) in breaks {
        let mut clip = clip();
        change(&mut clip);
        let refused = Clip::from_bytes(&clip.to_bytes()).unwrap_err().0;
        assert!(refused.contains(reason), "{refused}");
    }
}
