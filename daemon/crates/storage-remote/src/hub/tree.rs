//! What the hub lists: pages of a recursive listing, and the folders that they describe.
//!
//! One recursive listing serves the folder that is asked for and all folders below it, each once: a folder that is listed
//! again is requested again. A listing that is interrupted, as by a pause that the hub asks for, continues at its page.

use std::collections::{BTreeMap, BTreeSet};

use http::HeaderMap;
use http::header::LINK;
use object_store::path::Path as Key;
use serde::Deserialize;

use forebay_storage::version::ObjectStamp;

use super::name::Kind;

/// The most entries of a repository.
const MAX_ENTRIES: usize = 1 << 27;
/// The most pages without an entry.
const MAX_EMPTY_PAGES: u32 = 1000;
/// The longest path. Each folder above a file is kept by its own path.
const MAX_PATH_BYTES: usize = 4096;
/// The most characters of an unusable name in a message.
const MAX_SHOWN_CHARS: usize = 200;

/// A page of a listing, as the hub sends it.
#[derive(Debug, Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<Lfs>,
    #[serde(rename = "xetHash")]
    xet_hash: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// The names in a folder, each once; a file has a stamp, a folder none.
pub(crate) type Entries = BTreeMap<String, Option<ObjectStamp>>;

/// The folders of a listing, by their paths in the repository.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    folders: BTreeMap<String, Entries>,
    /// Folders that are entries of their parents already.
    known: BTreeSet<String>,
    entries: usize,
    empty_pages: u32,
    /// Names that cannot be paths; the first, shortened.
    pub(crate) unusable: u64,
    pub(crate) first_unusable: String,
}

/// What is known of a repository's folders.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Folders that were listed and not asked for yet.
    pub(crate) waiting: BTreeMap<String, Entries>,
    /// A listing that was interrupted: of which folder, its next page, and what it has so far.
    pub(crate) begun: Option<(String, String, Folders)>,
}

impl Folders {
    /// Adds a page of a listing of `root`.
    ///
    /// # Errors
    /// It is not a page, or the listing does not end.
    pub(crate) fn add(&mut self, kind: Kind, root: &str, page: &[u8]) -> Result<(), String> {
        let listed: Vec<Listed> = serde_json::from_slice(page)
            .map_err(|error| format!("a page of the listing is not as expected: {error}"))?;
        self.empty_pages = if listed.is_empty() { self.empty_pages + 1 } else { 0 };
        self.entries += listed.len();
        if self.empty_pages > MAX_EMPTY_PAGES || self.entries > MAX_ENTRIES {
            return Err("the listing does not end".to_owned());
        }
        for found in listed {
            let stamp = match found.kind.as_str() {
                "file" => Some(stamp(kind, &found)),
                "directory" => None,
                // A submodule or what comes later.
                _ => continue,
            };
            if !is_usable(&found.path) {
                self.unusable += 1;
                if self.first_unusable.is_empty() {
                    self.first_unusable = found.path.chars().take(MAX_SHOWN_CHARS).collect();
                }
                continue;
            }
            self.place(root, &found.path, stamp);
        }
        Ok(())
    }

    /// Adds an entry to its folder, and the folders above it up to `root` to theirs.
    fn place(&mut self, root: &str, path: &str, stamp: Option<ObjectStamp>) {
        let is_below = match root {
            "" => !path.is_empty(),
            root => path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')),
        };
        if !is_below {
            return;
        }
        let (mut path, mut stamp) = (path, stamp);
        while path != root && (stamp.is_some() || self.known.insert(path.to_owned())) {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            self.folders.entry(folder.to_owned()).or_default().insert(name.to_owned(), stamp);
            (path, stamp) = (folder, None);
        }
    }

    /// The entries by folder, also of folders without any.
    pub(crate) fn finish(mut self) -> BTreeMap<String, Entries> {
        for folder in self.known {
            self.folders.entry(folder).or_default();
        }
        self.folders
    }
}

/// Size and tag of a file: the hash of its content, or else of its git object.
fn stamp(kind: Kind, found: &Listed) -> ObjectStamp {
    let bytes = found.lfs.as_ref().map_or(found.size, |lfs| lfs.size);
    let tag = match kind {
        Kind::Dataset => found.lfs.as_ref().map(|lfs| &lfs.oid).or(found.oid.as_ref()),
        Kind::Bucket => found.xet_hash.as_ref(),
    };
    ObjectStamp::new(bytes, tag.map(String::as_str))
}

/// Whether a path can be requested: it has no control character and no part that is empty, `.` or `..`.
fn is_usable(path: &str) -> bool {
    (1..=MAX_PATH_BYTES).contains(&path.len())
        && Key::parse(path).is_ok_and(|key| key.as_ref() == path)
}

/// The URL of the next page, of a header such as `Link: <https://…>; rel="next"`.
pub(crate) fn next_page(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(LINK).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(split_links).find_map(|(target, rest)| {
        let is_next = rest.split(';').any(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            name.trim() == "rel" && value.trim().trim_matches('"') == "next"
        });
        is_next.then_some(target)
    })
}

/// The links of a header: target and parameters.
fn split_links(line: &str) -> Vec<(&str, &str)> {
    let mut links = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once('<') {
        let Some((target, after)) = after.split_once('>') else { break };
        let end = after.find(",").unwrap_or(after.len());
        links.push((target, &after[..end]));
        rest = &after[end..];
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(kind: Kind, root: &str, pages: &[&str]) -> BTreeMap<String, Entries> {
        let mut folders = Folders::default();
        for page in pages {
            folders.add(kind, root, page.as_bytes()).unwrap();
        }
        folders.finish()
    }

    fn file(name: &str, bytes: u64, tag: &str) -> (String, Option<ObjectStamp>) {
        (name.to_owned(), Some(ObjectStamp::new(bytes, Some(tag))))
    }

    fn file_without_tag(name: &str) -> (String, Option<ObjectStamp>) {
        (name.to_owned(), Some(ObjectStamp::new(0, None)))
    }

    fn folder(name: &str) -> (String, Option<ObjectStamp>) {
        (name.to_owned(), None)
    }

    #[test]
    fn recursive_listing_has_the_entries_of_each_folder() {
        let first = r#"[{"type":"directory","oid":"d1","size":0,"path":"data"},
            {"type":"file","oid":"b1","size":7,"path":"README.md"}]"#;
        let second = r#"[{"type":"file","oid":"b2","size":133,"lfs":{"oid":"s2","size":900,"pointerSize":133},
            "xetHash":"x2","path":"data/a/1.tar"},{"type":"directory","oid":"d2","size":0,"path":"data/a"},
            {"type":"directory","path":"empty"},{"type":"commit","path":"module"}]"#;
        let found = entries(Kind::Dataset, "", &[first, second]);
        let expected = [
            ("", vec![folder("data"), file("README.md", 7, "b1"), folder("empty")]),
            ("data", vec![folder("a")]),
            ("data/a", vec![file("1.tar", 900, "s2")]),
            ("empty", vec![]),
        ];
        assert_eq!(
            found,
            expected.map(|(path, list)| (path.to_owned(), list.into_iter().collect())).into()
        );
    }

    #[test]
    fn bucket_has_the_hashes_of_contents_and_a_listing_its_folder_alone() {
        let page = r#"[{"type":"file","path":"x/1","size":3,"xetHash":"h"},{"type":"file","path":"y/2","size":3},
            {"type":"file","path":"x","size":3}]"#;
        let found = entries(Kind::Bucket, "x", &[page]);
        assert_eq!(found, [("x".to_owned(), [file("1", 3, "h")].into())].into());
    }

    #[test]
    fn unusable_names_are_counted_and_malformed_pages_refused() {
        let mut folders = Folders::default();
        let page = r#"[{"type":"file","path":"a/../b"},{"type":"file","path":"a//b"},{"type":"file","path":"c"}]"#;
        folders.add(Kind::Dataset, "", page.as_bytes()).unwrap();
        assert_eq!((folders.unusable, folders.first_unusable.as_str()), (2, "a/../b"));
        let page = r#"[{"type":"file","path":"a\u0001b"},{"type":"file","path":"a\nb"},{"type":"directory","path":"a\u007f"},
            {"type":"file","path":"/a"},{"type":"file","path":"a/"},{"type":"file","path":"a\u0000"},{"type":"file","path":""}]"#;
        folders.add(Kind::Dataset, "", page.as_bytes()).unwrap();
        assert_eq!(folders.unusable, 9);
        assert_eq!(
            folders.finish().into_iter().collect::<Vec<_>>(),
            [(String::new(), [file_without_tag("c")].into())]
        );
        let mut folders = Folders::default();
        for wrong in [
            "",
            "{}",
            "[1]",
            "[{}]",
            r#"[{"type":"file"}]"#,
            r#"[{"type":"file","path":"x","size":-1}]"#,
        ] {
            assert!(folders.add(Kind::Dataset, "", wrong.as_bytes()).is_err(), "{wrong}");
        }
        let mut endless = Folders::default();
        let pages = (0..=MAX_EMPTY_PAGES + 1).map(|_| endless.add(Kind::Dataset, "", b"[]"));
        assert!(pages.last().unwrap().is_err());
    }

    #[test]
    fn path_has_a_longest_length_and_any_number_of_parts() {
        let mut folders = Folders::default();
        let add = |folders: &mut Folders, path: &str| {
            let page = serde_json::json!([{"type": "file", "path": path}]).to_string();
            folders.add(Kind::Dataset, "", page.as_bytes()).unwrap();
        };
        add(&mut folders, &"a/".repeat(100_000));
        add(&mut folders, &format!("{}b", "ä/".repeat(100_000)));
        add(&mut folders, &"c".repeat(MAX_PATH_BYTES + 1));
        assert_eq!((folders.unusable, folders.first_unusable.len()), (3, MAX_SHOWN_CHARS));
        let longest = format!("{}dd", "d/".repeat(MAX_PATH_BYTES / 2 - 1));
        add(&mut folders, &longest);
        assert_eq!((folders.unusable, folders.finish().len()), (3, MAX_PATH_BYTES / 2));
    }

    #[test]
    fn next_page_is_the_link_with_that_relation() {
        let next = |text: &str| {
            let headers = HeaderMap::from_iter([(LINK, text.parse().unwrap())]);
            next_page(&headers).map(str::to_owned)
        };
        assert_eq!(
            next("<https://h/x?cursor=a,b>; rel=\"next\"").as_deref(),
            Some("https://h/x?cursor=a,b")
        );
        assert_eq!(next("<u>; rel=\"first\", <v>; a=b; rel=next").as_deref(), Some("v"));
        for text in
            ["", "<u>", "<u; rel=\"next\"", "u>; rel=\"next\"", "<u>; rel=\"nextish\"", "<><"]
        {
            assert_eq!(next(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), link in "[<>;,=\"a-z ]{0,60}") {
            let _ = Folders::default().add(Kind::Dataset, "", &bytes);
            let headers = HeaderMap::from_iter([(LINK, link.parse().unwrap())]);
            let _ = next_page(&headers);
        }

        #[test]
        fn each_path_is_once_in_its_folder(paths in prop::collection::btree_set("([ab]{1,2}/){0,3}[ab]\\.tar", 0..20)) {
            let page: Vec<_> = paths.iter().map(|path| serde_json::json!({"type": "file", "path": path})).collect();
            let page = serde_json::to_string(&page).unwrap();
            let found = entries(Kind::Dataset, "", &[&page]);
            let files = found.iter().flat_map(|(folder, entries)| {
                let files = entries.iter().filter(|(_, stamp)| stamp.is_some());
                files.map(move |(name, _)| match folder.as_str() {
                    "" => name.clone(),
                    folder => format!("{folder}/{name}"),
                })
            });
            prop_assert_eq!(files.collect::<BTreeSet<_>>(), paths);
        }
    }
}
