//! Parses the page that a web server (nginx, Apache, Caddy, rclone, Python) shows of a folder: its links to direct
//! children of the folder.

use std::collections::HashSet;

use url::Url;

use super::address::percent_decode_bytes;

/// Calls `visit` once for each child of `folder`, with its name and whether it is a folder; `folder`'s URL ends with a
/// slash. Links elsewhere (to the parent folder, to other hosts, to another order of the page) are skipped, as are
/// repeated links such as Apache's icons. Returns the number of links to children with names that a file cannot have.
pub(super) fn entries(page: &[u8], folder: &Url, mut visit: impl FnMut(&[u8], bool)) -> u64 {
    let mut seen = HashSet::new();
    let mut unusable = 0;
    let mut rest = page;
    while let Some(at) = find(rest, b"href") {
        rest = rest[at + 4..].trim_ascii_start();
        let Some(value) = rest.strip_prefix(b"=").map(<[u8]>::trim_ascii_start) else { continue };
        // The search goes on after the value, so each byte is read once.
        let target;
        (target, rest) = match value.split_first() {
            Some((quote @ (b'"' | b'\''), value)) => split(value, |byte| byte == *quote),
            _ => split(value, |byte| matches!(byte, b' ' | b'>' | b'\t' | b'\n')),
        };
        match below(target, folder) {
            Link::Entry(name, is_folder) => {
                if !seen.contains(&(name.clone(), is_folder)) {
                    visit(&name, is_folder);
                    seen.insert((name, is_folder));
                }
            }
            Link::Unusable => unusable += 1,
            Link::Elsewhere => {}
        }
    }
    unusable
}

/// Splits at the first byte for which `is_end` is true.
fn split(text: &[u8], is_end: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| is_end(*byte)) {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, b""),
    }
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|found| found.eq_ignore_ascii_case(word))
}

/// The target of a link.
enum Link {
    /// A child with this name, and whether it is a folder.
    Entry(Vec<u8>, bool),
    /// A child with a name that a file cannot have.
    Unusable,
    Elsewhere,
}

fn below(target: &[u8], folder: &Url) -> Link {
    let target = encoded(target).replace("&amp;", "&");
    let Ok(url) = folder.join(&target) else { return Link::Elsewhere };
    if url.origin() != folder.origin() || url.query().is_some() {
        return Link::Elsewhere;
    }
    let Some(rest) = url.path().strip_prefix(folder.path()) else { return Link::Elsewhere };
    let name = rest.strip_suffix('/').unwrap_or(rest);
    if name.is_empty() || name.contains('/') {
        return Link::Elsewhere;
    }
    let is_folder = name.len() < rest.len();
    let name = percent_decode_bytes(name);
    let is_usable = !name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b"..";
    if is_usable { Link::Entry(name, is_folder) } else { Link::Unusable }
}

/// A link's text; bytes that are not UTF-8 as `%FF`.
fn encoded(target: &[u8]) -> String {
    let mut text = String::with_capacity(target.len());
    for chunk in target.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02X}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(page: &[u8]) -> (Vec<(Vec<u8>, bool)>, u64) {
        let mut found = Vec::new();
        let folder = Url::parse("https://host/data/train/").unwrap();
        let unusable =
            entries(page, &folder, |name, is_folder| found.push((name.to_owned(), is_folder)));
        (found, unusable)
    }

    fn of(page: &str) -> Vec<(String, bool)> {
        let text = |(name, is_folder)| (String::from_utf8(name).unwrap(), is_folder);
        bytes_of(page.as_bytes()).0.into_iter().map(text).collect()
    }

    #[test]
    fn links_to_children_are_the_entries() {
        let page = "<a href=\"../\">..</a><a href=\"?C=N;O=D\">Name</a><A HREF='cats/'>c</A>\n\
                    <a class=x href = \"1%20%c3%a4.jpg\">1</a><a href=/data/train/2.jpg>2</a><a href=\"./3&amp;4.jpg\">\
                    <a href=\"/data/\">up</a><a href=\"https://other/data/train/5.jpg\">5</a><a href=\"a/6.jpg\">6</a>\
                    <a href=\"%2e%2e\">7</a><a href=\"8%2f9.jpg\">8</a><a href=\"#top\">top</a><a href=";
        let expected = [("cats", true), ("1 ä.jpg", false), ("2.jpg", false), ("3&4.jpg", false)];
        assert_eq!(of(page), expected.map(|(name, is_folder)| (name.to_owned(), is_folder)));
    }

    #[test]
    fn a_page_without_links_has_no_entries() {
        assert_eq!(of("no href here"), []);
        assert_eq!(of(""), []);
    }

    #[test]
    fn repeated_links_give_one_entry() {
        let page = "<a href=\"1.jpg\"><img></a> <a href=\"1.jpg\">1.jpg</a>\
                    <a href=\"c/\"><img></a> <a href=\"/data/train/c/\">c/</a>";
        assert_eq!(of(page), [("1.jpg".to_owned(), false), ("c".to_owned(), true)]);
    }

    #[test]
    fn names_are_bytes_and_unusable_ones_are_counted() {
        let page =
            b"<a href=\"%FF.npy\">1</a><a href=\"\xfe.npy\">2</a><a href=\"8%2f9.npy\">3</a>";
        let expected = [(b"\xff.npy".to_vec(), false), (b"\xfe.npy".to_vec(), false)];
        assert_eq!(bytes_of(page), (expected.to_vec(), 1));
    }

    #[test]
    fn page_is_read_once_regardless_of_its_links() {
        // A second search per link would read 100 TiB of these 32 MiB.
        let page = b"href=".repeat((32 << 20) / 5);
        assert_eq!(bytes_of(&page).0.len(), 1);
        let open = b"<a href=\"".repeat((32 << 20) / 9);
        bytes_of(&open);
    }
}
