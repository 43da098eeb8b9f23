//! Parses a chunked body (RFC 9112, section 7.1), which many servers use for errors. Data is never read this way.

/// Whether the body is complete.
pub(super) fn is_whole(text: &[u8]) -> bool {
    text == b"0\r\n\r\n" || text.ends_with(b"\r\n0\r\n\r\n")
}

/// The body, as far as it was received.
pub(super) fn joined(text: &[u8]) -> Vec<u8> {
    let (mut body, mut rest) = (Vec::with_capacity(text.len()), text);
    loop {
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return body };
        // Text after a semicolon is an extension.
        let size = rest[..end].split(|byte| *byte == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let Some(size) = size.filter(|size| *size > 0) else { return body };
        rest = &rest[end + 2..];
        let chunk = &rest[..size.min(rest.len())];
        body.extend_from_slice(chunk);
        rest = rest.get(chunk.len() + 2..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsed_body_is_never_longer_than_the_input(
            text in "([0-9a-fA-F]{0,18}(;x)?\r\n[a-c]{0,9}(\r\n)?){0,6}",
            cut in 0_usize..60,
        ) {
            let text = &text.as_bytes()[..cut.min(text.len())];
            prop_assert!(joined(text).len() <= text.len());
        }
    }

    #[test]
    fn received_chunks_are_joined() {
        let text = b"5\r\n<Code\r\n3;x=y\r\n>ab\r\n0\r\n\r\n";
        assert_eq!(joined(text), b"<Code>ab");
        assert!(is_whole(text) && is_whole(b"0\r\n\r\n") && !is_whole(&text[..12]));
        for (part, body) in [
            (&text[..4], "<"),
            (&text[..10], "<Code"),
            (b"", ""),
            (b"\r\n", ""),
            (b"-1\r\nabc", ""),
        ] {
            assert_eq!(joined(part), body.as_bytes());
        }
        assert_eq!(joined(b"ffffffffffffffff\r\nabc"), b"abc");
        assert_eq!(joined(b"1ffffffffffffffff\r\nabc"), b"");
    }
}
