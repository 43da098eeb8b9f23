//! Front coding: names survive encoding, take few bytes, and damaged bytes do not cause a panic.

use proptest::prelude::*;

use super::{Extensions, NameDecoder, NameEncoder, split_extension};

const IMAGES: Extensions = &[".jpg", ".jpeg", ".png", ".webp"];

fn encode(names: &[Vec<u8>]) -> (Vec<u8>, Vec<u32>) {
    let (mut encoded, mut offsets) = (Vec::new(), Vec::new());
    let mut encoder = NameEncoder::default();
    for name in names {
        let (stem, extension) = split_extension(name, IMAGES).unwrap();
        encoder.push(&name[..stem], extension, &mut encoded, &mut offsets).unwrap();
    }
    (encoded, offsets)
}

/// Decodes as the index does: each name from the start of its block.
fn decode(encoded: &[u8], offsets: &[u32], place: usize) -> Option<Vec<u8>> {
    let mut buffer = b"dir/".to_vec();
    let start = usize::try_from(offsets[place / 16]).unwrap();
    let mut decoder = NameDecoder::new(encoded.get(start..)?, IMAGES, 4);
    for _ in 0..=place % 16 {
        decoder.next_stem(&mut buffer)?;
    }
    decoder.finish_name(&mut buffer)?;
    Some(buffer[4..].to_vec())
}

#[test]
fn extensions_match_in_any_case_and_keep_it() {
    let split = |name: &str| split_extension(name.as_bytes(), IMAGES);
    assert_eq!(split("a.jpg"), Some((1, 0)));
    assert_eq!(split("a.JPEG"), Some((1, 32 + 15)));
    assert_eq!(split("a.b.PnG"), Some((3, 64 + 5)));
    assert_eq!(split(".webp"), Some((0, 96)));
    for name in ["a.jpg2", "ajpg", "a.gif", "a", "", "a.jpg.txt"] {
        assert_eq!(split(name), None, "{name}");
    }
}

#[test]
fn a_format_may_have_many_extensions() {
    const MANY: Extensions =
        &[".a", ".b", ".c", ".d", ".e", ".f", ".g", ".h", ".i", ".j", ".k", ".abcde"];
    let names = ["0.A", "1.d", "2.e", "3.H", "4.i", "5.ABCDE", "6.aBcDe", "7.K"];
    let (mut encoded, mut offsets) = (Vec::new(), Vec::new());
    let mut encoder = NameEncoder::default();
    for name in names.map(str::as_bytes) {
        let (stem, extension) = split_extension(name, MANY).unwrap();
        encoder.push(&name[..stem], extension, &mut encoded, &mut offsets).unwrap();
    }
    let (mut decoder, mut buffer) = (NameDecoder::new(&encoded, MANY, 0), Vec::new());
    for name in names {
        decoder.next_stem(&mut buffer).unwrap();
        let stem = buffer.len();
        decoder.finish_name(&mut buffer).unwrap();
        assert_eq!(buffer, name.as_bytes());
        buffer.truncate(stem);
    }
}

#[test]
fn numbered_names_take_about_one_byte_and_imagenet_names_about_two() {
    let counted: Vec<_> = (0..16_000).map(|n| format!("img_{n:08}.jpg").into_bytes()).collect();
    let (encoded, offsets) = encode(&counted);
    assert!(encoded.len() + 4 * offsets.len() < 16_000 * 5 / 2, "{}", encoded.len());
    for (place, name) in counted.iter().enumerate() {
        assert_eq!(decode(&encoded, &offsets, place).as_ref(), Some(name));
    }
}

#[test]
fn numbers_carry_between_digits_but_not_into_the_name() {
    let names: Vec<_> = ["a099.jpg", "a100.jpg", "a228.jpg", "a357.jpg", "b000.jpg"]
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let (encoded, offsets) = encode(&names);
    // 099 → 100 → 228 are steps of at most 128 and take one byte; 357 is 129 more.
    assert_eq!(encoded[5..7], [0, 127]);
    for (place, name) in names.iter().enumerate() {
        assert_eq!(decode(&encoded, &offsets, place).as_ref(), Some(name));
    }
}

#[test]
fn hashed_names_are_packed_two_digits_per_byte() {
    let names: Vec<_> = (0..160_u64)
        .map(|n| format!("{n:02x}{:013x}.jpg", n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 12))
        .map(String::into_bytes)
        .collect();
    let (encoded, offsets) = encode(&names);
    // 15 digits in 8 bytes, a tag, two lengths.
    assert!(encoded.len() <= 160 * 11, "{}", encoded.len());
    for (place, name) in names.iter().enumerate() {
        assert_eq!(decode(&encoded, &offsets, place).as_ref(), Some(name));
    }
}

fn a_name() -> impl Strategy<Value = Vec<u8>> {
    let stem = prop_oneof![
        "[a-c0-9_.-]{0,12}",
        "n[0-9]{1,3}_[0-9]{1,5}",
        "[a-b]{0,200}",
        "[a-f0-9]{5,40}",
        "[a-f0-9]{9,12}[A-Fx]",
        (0_u32..2000).prop_map(|number| format!("x{number:05}")),
    ];
    let extension = prop_oneof![Just(".jpg"), Just(".JPEG"), Just(".Png"), Just(".webp")];
    (stem, extension)
        .prop_map(|(stem, extension)| [stem, extension.to_owned()].concat().into_bytes())
}

proptest! {
    #[test]
    fn any_names_in_any_order_decode_to_themselves(mut names in prop::collection::vec(a_name(), 1..100), sorted: bool) {
        if sorted {
            names.sort();
        }
        let (encoded, offsets) = encode(&names);
        for (place, name) in names.iter().enumerate() {
            prop_assert_eq!(decode(&encoded, &offsets, place), Some(name.clone()));
        }
    }

    #[test]
    fn decoding_over_several_blocks_returns_every_name(names in prop::collection::vec(a_name(), 17..60)) {
        let (encoded, _) = encode(&names);
        let mut decoder = NameDecoder::new(&encoded, IMAGES, 0);
        let mut buffer = Vec::new();
        for name in &names {
            decoder.next_stem(&mut buffer).unwrap();
            let stem_end = buffer.len();
            decoder.finish_name(&mut buffer).unwrap();
            prop_assert_eq!(&buffer, name);
            buffer.truncate(stem_end);
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_decode_to_another_name(bytes in prop::collection::vec(any::<u8>(), 0..64), place in 0_usize..16) {
        let _ = decode(&bytes, &[0], place);
    }
}
