//! Names of files on a web server, which are bytes, as the text that `object_store` takes.
//!
//! A byte that is not part of valid UTF-8 becomes a character at the end of the last private plane, U+10FF80 for 0x80
//! to U+10FFFF for 0xFF. The bytes of such characters are escaped in the same way, so each name has one text and each
//! text one name.

use std::borrow::Cow;

const BASE: u32 = 0x0010_FF00;
/// These characters in a URL, without their last byte.
const LOW: &str = "%F4%8F%BE%";
const HIGH: &str = "%F4%8F%BF%";

const fn is_escape(char: char) -> bool {
    char as u32 >= BASE + 0x80
}

fn escape(byte: u8) -> char {
    char::from_u32(BASE + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A name as text.
pub(super) fn text_of(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name)
        && !text.contains(is_escape)
    {
        return text.into();
    }
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            match is_escape(char) {
                true => text.extend(char.encode_utf8(&mut [0; 4]).bytes().map(escape)),
                false => text.push(char),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| escape(*byte)));
    }
    text.into()
}

/// The name of a text.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    for char in text.chars() {
        match u8::try_from((char as u32).wrapping_sub(BASE)) {
            Ok(byte) if is_escape(char) => name.push(byte),
            _ => name.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    name
}

/// A URL as the server expects it; `None`: unchanged.
pub(super) fn plain_url(url: &str) -> Option<String> {
    if !url.contains(LOW) && !url.contains(HIGH) {
        return None;
    }
    let mut plain = String::with_capacity(url.len());
    let mut rest = url;
    while let Some(at) = rest.find("%F4%8F%B") {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let more = if from.starts_with(LOW) { 0 } else { 0x40 };
        let digits = from.get(LOW.len()..LOW.len() + 2);
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| from.starts_with(LOW) || from.starts_with(HIGH)) {
            Some(byte @ 0x80..=0xBF) => {
                plain.push_str(&format!("%{:02X}", byte + more));
                rest = &from[LOW.len() + 2..];
            }
            _ => {
                plain.push_str(&from[..1]);
                rest = &from[1..];
            }
        }
    }
    plain.push_str(rest);
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_have_different_texts() {
        let names: [&[u8]; 6] = [
            b"plain \xc3\xa4.npy",
            b"\xff.npy",
            b"a\x80\xbf\xc0\xfe",
            b"\xf4\x8f\xbe\x80",
            b"\xf4\x8f\xbf\xbf\xf4",
            b"",
        ];
        let mut texts: Vec<_> = names.iter().map(|name| text_of(name)).collect();
        for (name, text) in names.iter().zip(&texts) {
            assert_eq!(bytes_of(text), *name);
        }
        assert_eq!(texts[0], "plain \u{e4}.npy");
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), names.len());
    }

    #[test]
    fn url_contains_the_bytes_of_the_name() {
        for byte in 0x80..=0xFF_u8 {
            let mut url = url::Url::parse("https://host/").unwrap();
            let text = text_of(&[b'a', byte, b'b']).into_owned();
            url.path_segments_mut().unwrap().push(&text);
            let plain = plain_url(url.as_str()).unwrap();
            assert_eq!(plain, format!("https://host/a%{byte:02X}b"));
        }
        assert_eq!(plain_url("https://host/a%C3%A4"), None);
        assert_eq!(plain_url("%F4%8F%BE%8").as_deref(), Some("%F4%8F%BE%8"));
    }
}
