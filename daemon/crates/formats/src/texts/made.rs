//! The tokens of consecutive texts, which a thread has made and the files' writer takes.

use forebay_protocol::tensor::DType;

use crate::in_order::Piece;

/// The bytes of tokens from which on a piece is given.
const PIECE_BYTES: usize = 1 << 20;
/// How many texts that are left out are named.
pub(super) const NAMED: usize = 3;

/// The tokens of consecutive texts.
#[derive(Debug, Default)]
pub(super) struct MadeTexts {
    /// In the type of the files, little endian.
    pub(super) ids: Vec<u8>,
    /// The number of tokens of each text; 0 for one that is left out.
    pub(super) lengths: Vec<u32>,
    /// Those that are left out: their place among these texts, and of the first ones the name and the reason.
    pub(super) left_out: Vec<(usize, Option<String>)>,
}

impl MadeTexts {
    /// Adds a text.
    ///
    /// # Errors
    /// It has more tokens than Megatron's index counts, or one that the type does not have.
    pub(super) fn add(&mut self, ids: &[u32], dtype: DType) -> Result<(), String> {
        let Ok(length) = i32::try_from(ids.len()) else {
            return Err(format!("it has {} tokens, more than 2³¹", ids.len()));
        };
        let most = if dtype.size_bytes() == 2 { 0xffff } else { i32::MAX.cast_unsigned() };
        if let Some(id) = ids.iter().find(|id| **id > most) {
            return Err(format!(
                "it has the token {id}, and the tokenizer's vocabulary ends before it"
            ));
        }
        self.lengths.push(length.cast_unsigned());
        match dtype.size_bytes() {
            2 => self.ids.extend(ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(2))),
            _ => self.ids.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
        Ok(())
    }

    /// Adds a text without tokens.
    pub(super) fn leave_out(&mut self, name: impl FnOnce() -> String) {
        let name = (self.left_out.len() < NAMED).then(name);
        self.left_out.push((self.lengths.len(), name));
        self.lengths.push(0);
    }

    /// Whether it is to be given.
    pub(super) fn is_large(&self) -> bool {
        self.bytes() >= PIECE_BYTES
    }
}

impl Piece for MadeTexts {
    fn bytes(&self) -> usize {
        self.ids.len()
            + self.lengths.len() * size_of::<u32>()
            + self.left_out.len() * size_of::<(usize, Option<String>)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_outside_of_the_type_is_refused() {
        let mut made = MadeTexts::default();
        assert!(made.add(&[1, 70_000], DType::U16).unwrap_err().contains("70000"));
        assert!(made.add(&[u32::MAX], DType::I32).is_err());
        made.add(&[1, 70_000], DType::I32).unwrap();
        assert_eq!((made.lengths, made.ids.len()), (vec![2], 8));
    }
}
