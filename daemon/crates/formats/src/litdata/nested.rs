//! The binary lists and dicts of LitData 0.2.70 and later. They become the JSON text that earlier versions wrote, so
//! readers need not know the version.
//!
//! A value is a type byte and its data. Lengths and counts are little-endian `u32`, numbers have 8 bytes.
//! The source is `_nested_loads_at` of litdata/streaming/serializers.py.

use std::borrow::Cow;

use forebay_dataset::Defect;

/// The highest type byte; a higher first byte begins JSON text.
const LAST_KIND: u8 = 0x20;
/// The maximum nesting, as in `serde_json`.
const MOST_DEPTH: usize = 128;
/// The maximum text bytes per byte of the binary value. Only the names of records repeat, once per record.
const MOST_GROWTH: usize = 8;
/// Additional text bytes, so that short values fit.
const SPARE_BYTES: usize = 64;

/// The maximum text bytes of a value of this length.
pub(crate) fn most_text_bytes(value_bytes: u64) -> u64 {
    value_bytes.saturating_mul(MOST_GROWTH as u64).saturating_add(SPARE_BYTES as u64)
}

/// Converts a value to JSON text.
///
/// # Errors
/// The value is damaged, or its text exceeds [`most_text_bytes`].
pub(crate) fn json_text(value: &[u8]) -> Result<Cow<'_, [u8]>, Defect> {
    if value.first().is_none_or(|first| *first > LAST_KIND) {
        return Ok(Cow::Borrowed(value));
    }
    let limit = value.len().saturating_mul(MOST_GROWTH) + SPARE_BYTES;
    let mut reader = Reader { rest: value, text: Vec::new(), limit };
    reader.value(0)?;
    if !reader.rest.is_empty() {
        return Err(damaged("bytes follow it"));
    }
    Ok(Cow::Owned(reader.text))
}

fn damaged(reason: &str) -> Defect {
    Defect(format!("a list or dict of LitData is damaged: {reason}"))
}

struct Reader<'v> {
    rest: &'v [u8],
    text: Vec<u8>,
    limit: usize,
}

impl<'v> Reader<'v> {
    fn value(&mut self, depth: usize) -> Result<(), Defect> {
        if depth > MOST_DEPTH {
            return Err(damaged("its values lie too deep in each other"));
        }
        let [kind] = self.take()?;
        match kind {
            0 => {
                let text = self.sized()?;
                serde_json::from_slice::<serde::de::IgnoredAny>(text)
                    .map_err(|error| damaged(&error.to_string()))?;
                self.put(text)
            }
            1 => self.list(|reader| reader.string()),
            2 => self.list(|reader| reader.integer()),
            3 => self.list(|reader| reader.float()),
            4 => self.list(|reader| reader.boolean()),
            5 => {
                let entries = self.count()?;
                self.put(b"{")?;
                for entry in 0..entries {
                    self.separate(entry)?;
                    self.string()?;
                    self.put(b":")?;
                    self.value(depth + 1)?;
                }
                self.put(b"}")
            }
            6 => self.records(),
            7 => self.string(),
            8 => self.integer(),
            9 => self.float(),
            10 => self.boolean(),
            11 => self.put(b"null"),
            kind => Err(damaged(&format!("it has a value of the kind {kind}"))),
        }
    }

    /// Dicts with equal names, which are stored once.
    fn records(&mut self) -> Result<(), Defect> {
        let (rows, names) = (self.count()?, self.count()?);
        let names: Vec<&[u8]> = (0..names).map(|_| self.sized()).collect::<Result<_, _>>()?;
        self.put(b"[")?;
        for row in 0..rows {
            self.separate(row)?;
            self.put(b"{")?;
            for (place, name) in (0_u32..).zip(&names) {
                self.separate(place)?;
                self.quote(name)?;
                self.put(b":")?;
                let [kind] = self.take()?;
                match kind {
                    0x10 => self.put(b"null")?,
                    0x11 => self.string()?,
                    0x12 => self.integer()?,
                    0x13 => self.float()?,
                    0x14 => self.boolean()?,
                    kind => return Err(damaged(&format!("it has a value of the kind {kind}"))),
                }
            }
            self.put(b"}")?;
        }
        self.put(b"]")
    }

    fn list(&mut self, item: impl Fn(&mut Self) -> Result<(), Defect>) -> Result<(), Defect> {
        let items = self.count()?;
        self.put(b"[")?;
        for place in 0..items {
            self.separate(place)?;
            item(self)?;
        }
        self.put(b"]")
    }

    fn separate(&mut self, place: u32) -> Result<(), Defect> {
        if place == 0 { Ok(()) } else { self.put(b",") }
    }

    fn string(&mut self) -> Result<(), Defect> {
        let text = self.sized()?;
        self.quote(text)
    }

    fn quote(&mut self, text: &[u8]) -> Result<(), Defect> {
        let text = str::from_utf8(text).map_err(|error| damaged(&error.to_string()))?;
        let quoted = serde_json::to_string(text).map_err(|error| damaged(&error.to_string()))?;
        self.put(quoted.as_bytes())
    }

    fn integer(&mut self) -> Result<(), Defect> {
        let number = i64::from_le_bytes(self.take()?);
        self.put(number.to_string().as_bytes())
    }

    fn float(&mut self) -> Result<(), Defect> {
        let number = f64::from_le_bytes(self.take()?);
        // JSON has neither NaN nor infinity: they become null.
        let text = serde_json::to_string(&number).map_err(|error| damaged(&error.to_string()))?;
        self.put(text.as_bytes())
    }

    fn boolean(&mut self) -> Result<(), Defect> {
        let [byte] = self.take()?;
        self.put(if byte == 0 { b"false" } else { b"true" })
    }

    fn count(&mut self) -> Result<u32, Defect> {
        self.take().map(u32::from_le_bytes)
    }

    fn sized(&mut self) -> Result<&'v [u8], Defect> {
        let length = self.count()? as usize;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Defect> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn put(&mut self, text: &[u8]) -> Result<(), Defect> {
        if self.text.len() + text.len() > self.limit {
            return Err(damaged("its names repeat too often"));
        }
        self.text.extend_from_slice(text);
        Ok(())
    }
}

fn cut_off() -> Defect {
    damaged("it is cut off")
}

#[cfg(test)]
mod tests {
    use super::{json_text, most_text_bytes};

    #[test]
    fn json_text_is_unchanged_and_damage_is_reported() {
        assert_eq!(*json_text(b"[1, 2]").unwrap(), *b"[1, 2]");
        assert_eq!(*json_text(&[11]).unwrap(), *b"null");
        assert_eq!(*json_text(&[10, 1]).unwrap(), *b"true");
        for (bytes, reason) in [
            (&[2, 2, 0, 0, 0, 1][..], "cut off"),
            (&[12], "kind 12"),
            (&[11, 11], "bytes follow it"),
            (&[7, 1, 0, 0, 0, 0xff], "utf-8"),
            (&[0, 1, 0, 0, 0, b'['], "EOF"),
        ] {
            let message = json_text(bytes).unwrap_err().0;
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn depth_and_repeated_names_are_limited() {
        let one_dict = [5, 1, 0, 0, 0, 0, 0, 0, 0];
        let deep: Vec<u8> = one_dict.repeat(100_000);
        assert!(json_text(&deep).unwrap_err().0.contains("too deep"));
        // 4,294,967,295 dicts without a name.
        let many = [6, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        assert!(json_text(&many).unwrap_err().0.contains("repeat too often"));
        let mut names = [&[6, 0, 4, 0, 0, 1, 0, 0, 0, 100, 0, 0, 0][..], &[b'n'; 100]].concat();
        names.extend([0x10; 1024]);
        assert!(json_text(&names).unwrap_err().0.contains("repeat too often"));
        names[1..3].copy_from_slice(&[7, 0]);
        names.truncate(names.len() - 1017);
        let text = json_text(&names).unwrap();
        assert!(text.len() as u64 <= most_text_bytes(names.len() as u64));
    }
}
