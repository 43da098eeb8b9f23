use super::{DType, Halves};

/// Pseudorandom numbers below 1 from a fixed sequence (xorshift).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        #[expect(clippy::cast_precision_loss, reason = "a fraction")]
        let fraction = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        fraction
    }

    /// Like the words of a text: the probability of a token decreases with its rank (Zipf's law), and ranks except the
    /// first few are scattered over the vocabulary, as in byte-pair encodings.
    fn zipf(&mut self, vocabulary: u32) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below the vocabulary"
        )]
        let rank = f64::from(vocabulary).powf(self.next()) as u32;
        if rank < 8 { rank + 8 } else { rank.wrapping_mul(2_654_435_761) % vocabulary }
    }
}

fn tokens(count: usize, vocabulary: u32, seed: u64) -> Vec<u32> {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15 ^ seed);
    (0..count).map(|_| draws.zipf(vocabulary)).collect()
}

fn u16s(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| u16::try_from(*token).unwrap().to_le_bytes()).collect()
}

fn u32s(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn verdict(bytes: &[u8]) -> Result<DType, String> {
    let mut halves = Halves::default();
    halves.add(bytes);
    halves.verdict(bytes.len() as u64).map(|width| width.dtype)
}

#[test]
fn width_of_text_tokens_is_inferred_for_every_vocabulary() {
    for count in [16, 100, 1000, 50_000] {
        for seed in 0..20 {
            for vocabulary in [32_000, 50_257, 65_536] {
                let bytes = u16s(&tokens(count, vocabulary, seed));
                assert_eq!(verdict(&bytes), Ok(DType::U16), "{count} of {vocabulary}");
            }
            for vocabulary in [32_000, 50_257, 128_000, 256_000] {
                let tokens = tokens(count, vocabulary, seed);
                assert_eq!(verdict(&u32s(&tokens)), Ok(DType::U32), "{count} of {vocabulary}");
                let wide: Vec<u8> =
                    tokens.iter().flat_map(|token| u64::from(*token).to_le_bytes()).collect();
                assert_eq!(verdict(&wide), Ok(DType::I64), "{count} of {vocabulary}");
            }
        }
    }
}

#[test]
fn width_of_tokens_from_small_alphabets_is_inferred() {
    for vocabulary in [5, 65, 256] {
        let tokens = tokens(10_000, vocabulary, 1).into_iter().map(|token| token % vocabulary);
        let tokens: Vec<_> = tokens.collect();
        assert_eq!(verdict(&u32s(&tokens)), Ok(DType::U32), "{vocabulary}");
        assert_eq!(verdict(&u16s(&tokens)), Ok(DType::U16), "{vocabulary}");
    }
}

#[test]
fn ignored_positions_imply_a_signed_type() {
    let tokens = tokens(1000, 128_000, 3).into_iter().enumerate();
    let signed: Vec<_> = tokens
        .map(|(place, token)| if place % 7 == 0 { -100_i32 } else { token.cast_signed() })
        .collect();
    let narrow: Vec<u8> = signed.iter().flat_map(|token| token.to_le_bytes()).collect();
    assert_eq!(verdict(&narrow), Ok(DType::I32));
    let wide: Vec<u8> = signed.iter().flat_map(|token| i64::from(*token).to_le_bytes()).collect();
    assert_eq!(verdict(&wide), Ok(DType::I64));
}

#[test]
fn ambiguous_data_has_no_inferred_width() {
    let tokens = tokens(10_000, 128_000, 5);
    let big_endian: Vec<u8> = tokens.iter().flat_map(|token| token.to_be_bytes()).collect();
    #[expect(clippy::cast_precision_loss, reason = "any floats will do")]
    let floats: Vec<u8> =
        tokens.iter().flat_map(|token| (*token as f32 / 1e5).to_le_bytes()).collect();
    let mut odd = u16s(&[700, 800, 900]);
    odd.push(1);
    let text = b"To be, or not to be, that is the question. ".repeat(9);
    let cut_short = &u32s(&tokens)[..39_998];
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("zeros", vec![0; 4096]),
        ("two tokens", u32s(&[7, 9])),
        ("big endian", big_endian),
        ("floats", floats),
        ("odd", odd),
        ("text", text),
        ("cut short", cut_short.to_vec()),
    ] {
        assert!(verdict(&bytes).is_err(), "{what}: {:?}", verdict(&bytes));
    }
}
