//! The compact protocol of Thrift, in which Parquet has its headers and footers: what is written.

/// The types of fields and of elements of lists.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct; fields are written in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    pub(super) fn i32(mut self, number: u8, value: i32) -> Self {
        self.head(number, I32);
        self.zigzag(value.into());
        self
    }

    pub(super) fn i64(mut self, number: u8, value: i64) -> Self {
        self.head(number, I64);
        self.zigzag(value);
        self
    }

    pub(super) fn text(mut self, number: u8, value: &str) -> Self {
        self.head(number, BINARY);
        self.binary(value);
        self
    }

    pub(super) fn structure(mut self, number: u8, value: Self) -> Self {
        self.head(number, STRUCT);
        self.bytes.extend(value.finish());
        self
    }

    pub(super) fn i32s(mut self, number: u8, values: &[i32]) -> Self {
        self.list(number, I32, values.len());
        values.iter().for_each(|value| self.zigzag((*value).into()));
        self
    }

    pub(super) fn texts(mut self, number: u8, values: &[&str]) -> Self {
        self.list(number, BINARY, values.len());
        values.iter().for_each(|value| self.binary(value));
        self
    }

    pub(super) fn structures(mut self, number: u8, values: Vec<Self>) -> Self {
        self.list(number, STRUCT, values.len());
        values.into_iter().for_each(|value| self.bytes.extend(value.finish()));
        self
    }

    /// The bytes of the whole struct.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }

    /// Numbers are at most 15 apart.
    fn head(&mut self, number: u8, kind: u8) {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    fn list(&mut self, number: u8, kind: u8, length: usize) {
        self.head(number, LIST);
        match u8::try_from(length).ok().filter(|length| *length < 15) {
            Some(length) => self.bytes.push(length << 4 | kind),
            None => {
                self.bytes.push(0xf0 | kind);
                push_varint(&mut self.bytes, length as u64);
            }
        }
    }

    fn binary(&mut self, value: &str) {
        push_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value.as_bytes());
    }

    fn zigzag(&mut self, value: i64) {
        push_varint(&mut self.bytes, (value << 1 ^ value >> 63).cast_unsigned());
    }
}

/// Appends a number in groups of 7 bits, the lowest first.
pub(super) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let inner = Struct::default().text(1, "ab");
        let found = Struct::default()
            .i32(1, -1)
            .i64(3, 300)
            .i32s(6, &[1, -2])
            .texts(7, &["c"])
            .structures(8, vec![inner])
            .finish();
        let expected = [
            0x15, 0x01, 0x26, 0xd8, 0x04, 0x39, 0x25, 0x02, 0x03, 0x19, 0x18, 0x01, b'c', 0x19,
            0x1c, 0x18, 0x02, b'a', b'b', 0x00, 0x00,
        ];
        assert_eq!(found, expected);
        let long = Struct::default().i32s(1, &[0; 200]).finish();
        assert_eq!(long[..4], [0x19, 0xf5, 0xc8, 0x01]);
    }
}
