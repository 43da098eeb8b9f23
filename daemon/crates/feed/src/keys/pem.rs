//! Writes PEM (RFC 7468): base64 in lines of 64 characters between two marks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{Certificate, KeyPair};

const LINE: usize = 64;

pub(crate) fn certificate(certificate: &Certificate) -> String {
    encode("CERTIFICATE", certificate.der())
}

pub(crate) fn private_key(key: &KeyPair) -> String {
    encode("PRIVATE KEY", key.serialized_der())
}

fn encode(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let body = STANDARD.encode(der);
    let mut rest = body.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII: each index is a character's.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
    text
}
