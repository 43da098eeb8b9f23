//! Messages about images in unsupported formats: the format's name, by the first bytes, and the remedy.

/// The supported formats.
pub(super) const READ: &str = "JPEG, PNG, WebP, TIFF, BMP or GIF";

/// Known unsupported formats.
fn named_format(file: &[u8]) -> Option<&'static str> {
    Some(match file {
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h', b'e', ..]
        | [_, _, _, _, b'f', b't', b'y', b'p', b'm', b'i' | b's', b'f', b'1', ..] => "HEIC",
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => "JPEG 2000",
        [b'I', b'I', 43, 0, ..] | [b'M', b'M', 0, 43, ..] => "BigTIFF",
        [b'I', b'I', 0xbc, 1, ..] => "JPEG XR",
        [b'8', b'B', b'P', b'S', ..] => "Photoshop (PSD)",
        [0x76, 0x2f, 0x31, 0x01, ..] => "OpenEXR",
        [0, 0, 1, 0, 1..=255, 0, ..] => "ICO",
        [b'P', b'1'..=b'7', b' ' | b'\n' | b'\r' | b'\t', ..] => "PNM",
        _ if file.get(128..132) == Some(b"DICM") => "DICOM",
        _ => return None,
    })
}

/// The message about a file that begins like no supported format.
pub(super) fn unknown_format(file: &[u8]) -> String {
    if file.is_empty() {
        return "the image file is empty".to_owned();
    }
    if let Some(name) = named_format(file) {
        return format!(
            "{name} is not read: convert the file to JPEG, PNG, WebP or TIFF, or decode it in a Python stage"
        );
    }
    let first: String = file.iter().take(8).map(|byte| format!(" {byte:02x}")).collect();
    format!("not a {READ} file: it begins with{first}")
}
