//! Removes names that cannot be paths from pages of a provider's listing.
//!
//! A bucket allows keys such as `train//1.jpg` or `a/../b`. `object_store` refuses the whole page that has one, so
//! these elements are removed from the page before it is parsed.

use object_store::path::Path as Key;

use super::address::percent_decode;

/// XML elements of an entry, and the element of its name: S3's and Google's, then Azure's.
const ENTRIES: [(&str, &str); 4] =
    [("Contents", "Key"), ("CommonPrefixes", "Prefix"), ("Blob", "Name"), ("BlobPrefix", "Name")];

/// The longest name of a reference, such as `#x0010FFFF`.
const MAX_REFERENCE_BYTES: usize = 12;

/// Names that were left out of a listing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) count: u64,
    pub(super) first: String,
}

/// Whether a request's query requests a page of a listing.
pub(super) fn is_page(query: &str) -> bool {
    query.split('&').any(|pair| pair == "list-type=2" || pair == "comp=list")
}

/// Whether a name can be a path: no part of it is empty, `.` or `..`.
fn is_usable(name: &str) -> bool {
    let bare = name.strip_suffix('/').unwrap_or(name);
    name != "/" && Key::parse(name).is_ok_and(|key| key.as_ref() == bare)
}

/// The page without unusable names; `None`: it has none.
pub(super) fn without_unusable(page: &str) -> Option<(String, LeftOut)> {
    let mut left_out = LeftOut::default();
    let mut kept = String::new();
    // The page is copied up to `copied` and read up to `at`.
    let (mut copied, mut at) = (0, 0);
    while let Some(open) = page[at..].find('<').map(|open| at + open) {
        let rest = &page[open + 1..];
        let begun = ENTRIES.iter().find_map(|(element, name)| {
            Some((element, name, rest.strip_prefix(element)?.strip_prefix('>')?))
        });
        let Some((element, name, inner)) = begun else {
            at = open + 1;
            continue;
        };
        // Nothing is searched twice: an element without an end is the rest.
        let Some(length) = inner.find(&format!("</{element}>")) else { break };
        let end = open + 1 + element.len() + 1 + length + element.len() + 3;
        let Some(name) = name_in(&inner[..length], name) else {
            at = end;
            continue;
        };
        if !is_usable(&name) {
            kept.push_str(&page[copied..open]);
            copied = end;
            left_out.count += 1;
            if left_out.first.is_empty() {
                left_out.first = name;
            }
        }
        at = end;
    }
    kept.push_str(&page[copied..]);
    (left_out.count > 0).then_some((kept, left_out))
}

/// The text of the first element with this name.
fn name_in(entry: &str, element: &str) -> Option<String> {
    let start = entry.find(&format!("<{element}"))? + 1 + element.len();
    let (attributes, rest) = entry[start..].split_once('>')?;
    let (text, _) = rest.split_once("</")?;
    let text = unescaped(text);
    // Azure encodes names that XML cannot hold.
    if attributes.contains("Encoded=\"true\"") { percent_decode(&text) } else { Some(text) }
}

/// Replaces XML's references.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        // Only so far: a text of many `&` would be searched to its end for each of them.
        let end = after.bytes().take(MAX_REFERENCE_BYTES + 1).position(|byte| byte == b';');
        let Some((name, after)) = end.map(|end| (&after[..end], &after[end + 1..])) else {
            plain.push('&');
            rest = after;
            continue;
        };
        let code = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix('x') {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        });
        let char = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => code.and_then(char::from_u32),
        };
        plain.extend(char);
        rest = after;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_names_are_removed_and_counted() {
        let contents = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let prefix = |key: &str| format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>");
        let blob = |name: &str| format!("<Blob><Name>{name}</Name><Properties/></Blob>");
        let good = [contents("train/a&amp;b.jpg"), contents("train/"), prefix("train/c/")].concat();
        let head = "<?xml version=\"1.0\"?><ListBucketResult><Prefix>train/</Prefix>";
        let page = |middle: &str| format!("{head}{middle}</ListBucketResult>");
        assert_eq!(without_unusable(&page(&good)), None);
        let bad = [prefix("train//"), contents("train/../x"), contents("/x"), prefix("/")].concat();
        let left_out = |count, first: &str| LeftOut { count, first: first.to_owned() };
        let found = without_unusable(&page(&format!("{bad}{good}{}", contents("a/./b"))));
        assert_eq!(found, Some((page(&good), left_out(5, "train//"))));
        let blobs = format!(
            "<EnumerationResults><Blobs>{}{}<BlobPrefix><Name>b//</Name></BlobPrefix>\
             <Blob><Name Encoded=\"true\">c%2F%2Fd</Name></Blob></Blobs></EnumerationResults>",
            blob("a"),
            blob("a&#47;/b"),
        );
        let (kept, found) = without_unusable(&blobs).unwrap();
        assert_eq!(
            kept,
            format!("<EnumerationResults><Blobs>{}</Blobs></EnumerationResults>", blob("a"))
        );
        assert_eq!(found, left_out(3, "a//b"));
    }

    #[test]
    fn references_are_replaced_and_others_stay_in_time_that_grows_with_the_text() {
        assert_eq!(unescaped("a&amp;b &lt;&#x0010FFFF;&#65;"), "a&b <\u{10ffff}A");
        assert_eq!(unescaped("a & b; & thirteen_long; &amp"), "a  & thirteen_long; &amp");
        let long = "&".repeat(4 << 20);
        assert!(unescaped(&long) == long);
    }

    #[test]
    fn pages_are_recognised_by_their_queries() {
        assert!(is_page("list-type=2&prefix=a") && is_page("restype=container&comp=list"));
        assert!(!is_page("prefix=list-type") && !is_page(""));
    }
}
