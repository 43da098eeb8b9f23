//! The paths in a manifest: their base, and the limits on where they may lead.

use std::path::Path;

/// Resolves the paths of one manifest.
#[derive(Debug)]
pub(super) struct Paths<'a> {
    /// The root of the storage that samples are read from.
    root: String,
    /// The base of relative paths, relative to the root.
    folder: &'a [u8],
    /// Whether paths must stay below the root, because the data, and so the manifest, may come from a URL.
    is_contained: bool,
}

impl<'a> Paths<'a> {
    pub(super) fn new(root: &Path, folder: &'a [u8], is_contained: bool) -> Self {
        Self { root: root.to_string_lossy().trim_end_matches('/').to_owned(), folder, is_contained }
    }

    /// Converts a path to the storage's form.
    ///
    /// # Errors
    /// Describes the fault of the path.
    pub(super) fn resolve(&self, cell: &[u8], path: &mut Vec<u8>) -> Result<(), String> {
        path.clear();
        if cell.contains(&0) {
            return Err("holds a byte of zero, which no path has".to_owned());
        }
        let below =
            cell.strip_prefix(self.root.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        let below = below.filter(|_| !self.root.is_empty());
        let shown = || String::from_utf8_lossy(cell).into_owned();
        if below.is_none() {
            if cell.windows(3).any(|window| window == b"://") {
                return Err(format!(
                    "is a URL that is not below {}: {}; set dataset.root to the URL that all of them begin with",
                    self.root,
                    shown()
                ));
            }
            if cell.starts_with(b"/") {
                if self.is_contained {
                    return Err(format!(
                        "is an absolute path that is not below {}: {}; set dataset.root to the folder or the URL that all \
                         of them lie in",
                        self.root,
                        shown()
                    ));
                }
                path.extend_from_slice(cell);
                return Ok(());
            }
            path.extend_from_slice(self.folder);
        }
        for part in below.unwrap_or(cell).split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." if self.is_contained => {
                    if path.is_empty() {
                        return Err(format!("leads out of {}: {}", self.root, shown()));
                    }
                    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    path.truncate(end);
                    continue;
                }
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        match path.is_empty() {
            true => Err(format!("names no file: {}", shown())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_manifests_folder_or_the_root() {
        let resolve = |contained: bool, cell: &str| {
            let root = if contained { "s3://bucket/data" } else { "/data" };
            let mut path = Vec::new();
            Paths::new(Path::new(root), b"lists", contained)
                .resolve(cell.as_bytes(), &mut path)
                .map(|()| String::from_utf8(path).unwrap())
        };
        for (cell, expected) in [
            ("a.jpg", "lists/a.jpg"),
            ("./b//a.jpg", "lists/b/a.jpg"),
            ("../a.jpg", "lists/../a.jpg"),
            ("/data/x/a.jpg", "x/a.jpg"),
            ("/other/a.jpg", "/other/a.jpg"),
        ] {
            assert_eq!(resolve(false, cell).unwrap(), expected);
        }
        for (cell, expected) in [
            ("a.jpg", "lists/a.jpg"),
            ("../a.jpg", "a.jpg"),
            ("x/../../b/a.jpg", "b/a.jpg"),
            ("s3://bucket/data/a.jpg", "a.jpg"),
        ] {
            assert_eq!(resolve(true, cell).unwrap(), expected);
        }
        for (contained, cell, reason) in [
            (true, "/etc/passwd", "absolute path"),
            (true, "../../a.jpg", "leads out of s3://bucket/data"),
            (true, "x/../../../a.jpg", "leads out"),
            (true, "s3://bucket/other/a.jpg", "set dataset.root"),
            (true, "s3://bucket/data/../a.jpg", "leads out"),
            (true, "file:///etc/passwd", "set dataset.root"),
            (false, "https://host/a.jpg", "set dataset.root"),
            (false, "a\0b", "a byte of zero"),
            (true, "..", "names no file"),
        ] {
            let message = resolve(contained, cell).unwrap_err();
            assert!(message.contains(reason), "{cell}: {message}");
        }
    }
}
