//! The page that a web server shows of a folder, as nginx, Apache, Caddy, rclone and Python do: its links that lead to
//! something directly below the folder.

use url::Url;

use super::address::percent_decode;

/// Calls `visit` with the name of each link below `folder`, whose URL ends with a slash, and whether it is a folder.
/// Links elsewhere (to the folder above, to other hosts, to the page in another order) are left out.
pub(super) fn entries(page: &str, folder: &Url, mut visit: impl FnMut(&str, bool)) {
    let mut rest = page;
    while let Some(at) = find(rest, "href") {
        rest = &rest[at + 4..];
        let value = rest.trim_start().strip_prefix('=').map(str::trim_start);
        let Some(value) = value else { continue };
        let target = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split([' ', '>', '\t', '\n']).next(),
        };
        if let Some((name, is_folder)) = target.and_then(|target| below(target, folder)) {
            visit(&name, is_folder);
        }
    }
}

fn find(text: &str, word: &str) -> Option<usize> {
    text.as_bytes()
        .windows(word.len())
        .position(|found| found.eq_ignore_ascii_case(word.as_bytes()))
}

/// What a link names in the folder.
fn below(target: &str, folder: &Url) -> Option<(String, bool)> {
    let target = target.replace("&amp;", "&");
    let url = folder.join(&target).ok()?;
    if url.origin() != folder.origin() || url.query().is_some() {
        return None;
    }
    let rest = url.path().strip_prefix(folder.path())?;
    let name = rest.strip_suffix('/').unwrap_or(rest);
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let is_folder = name.len() < rest.len();
    let name = percent_decode(name)?;
    let is_usable = !name.contains(['/', '\0']) && name != "." && name != "..";
    is_usable.then_some((name, is_folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &str) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        let folder = Url::parse("https://host/data/train/").unwrap();
        entries(page, &folder, |name, is_folder| found.push((name.to_owned(), is_folder)));
        found
    }

    #[test]
    fn links_below_the_folder_are_its_entries() {
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
}
