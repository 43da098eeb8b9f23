//! `yolo`: a text file for each picture, in folders `images` and `labels` beside each other or in one folder, and the
//! `data.yaml` that lists folders and classes.
//!
//! A line has a class, then the middle, width and height of a box, or the corners of a polygon, as parts of the
//! picture's sides. Pictures' headers are read for the index, which has boxes in pixels.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use forebay_keys::keys;

use super::yaml::Yaml;
use super::{
    Label, LabelKind, Labels, MaskSource, Objects, Pair, Plan, is_picture, stem, text_of_names,
    twice,
};
use crate::indexed::Opening;
use crate::manifest::coco::Masks;
use forebay_dataset::error::DatasetError;
use forebay_dataset::mask::{in_steps, push_outline};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::open_file;
use forebay_index::shard_paths::{self, has_extension};
use forebay_index::stored_file::StoredFile;

/// The file that lists folders and classes.
const DATA: &str = "data.yaml";
/// The maximal size of such a file.
const MAX_DATA_BYTES: u64 = 1 << 20;
/// The maximal size of a list of pictures.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Usual names of sets.
const SETS: [&str; 8] =
    ["train", "training", "val", "valid", "validation", "test", "testing", "dev"];
/// How far outside of the picture a place may be, in parts of its side: labelling tools round.
const BEYOND: f64 = 0.01;

keys! {
    /// The keys of YOLO's folders.
    pub(crate) struct YoloKeys = "dataset" {
        /// the pictures: a key of `data.yaml`, or the folder `images/…` or `…/images`
        pub(super) image_set: String, "", default("train".to_owned());
        /// the classes' names in the order of their numbers
        pub(super) class_names: Vec<String>, "", absent("those of `data.yaml`, or none");
        /// a mask of each picture, of lines with polygons: the numbers of `"categories"`, or of `"instances"`
        pub(super) masks: Masks, "", absent("no masks");
    }
}

/// The kind of YOLO's folders.
#[derive(Debug)]
pub(crate) struct Yolo;

impl LabelKind for Yolo {
    const FORMAT: FolderFormat =
        FolderFormat { name: "yolo", extensions: &[".yaml", ".yml"], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str =
        "a data.yaml, or a folder with one or with folders images and labels";
    const MARKS: &'static [&'static str] = &[DATA];

    type Keys = YoloKeys;

    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        shard_paths::split(path, Self::FORMAT.extensions)
    }

    fn digested(keys: &YoloKeys) -> String {
        let YoloKeys { image_set, class_names, masks } = keys;
        let classes = text_of_names(class_names.as_deref());
        format!("{image_set}\0{classes}\0{}", masks.map_or("", Masks::word))
    }

    fn is_label(name: &[u8]) -> bool {
        has_extension(name, &[".txt"])
    }

    fn plan(opening: &Opening<'_, Labels<Self>>, found: &[Vec<u8>]) -> Result<Plan, DatasetError> {
        let (keys, set) = (&opening.keys, &opening.keys.image_set);
        let name = opening.pattern.unwrap_or(DATA).as_bytes();
        let data = match opening.pattern {
            Some(_) => Some(open_file(opening.storage, name)?),
            None => StoredFile::if_there(opening.storage, name)?,
        };
        let mut plan = Plan {
            masks: keys.masks.map_or(MaskSource::None, |masks| MaskSource::Outlines {
                instances: masks == Masks::Instances,
            }),
            needs_sizes: true,
            ..Plan::default()
        };
        let (mut names, pictures) = match &data {
            Some(file) => {
                let (names, folders) = read_data(file, set)?;
                plan.lists.push(name.to_vec());
                (names, pictures_of(opening, file, folders, found, &mut plan)?)
            }
            None => {
                let folders = [format!("images/{set}"), format!("{set}/images")];
                let of = |folder: &String| in_folder(found, folder.as_bytes());
                let pictures = folders.iter().map(of).find(|pictures| !pictures.is_empty());
                // Not if folders below it are other sets.
                let undivided = || {
                    let all = in_folder(found, b"images");
                    (!all.is_empty() && !all.iter().any(|path| is_of_set(path))).then_some(all)
                };
                (None, pictures.or_else(undivided).ok_or_else(|| {
                    opening.request.no_samples(format!(
                        "it has no {DATA}, no pictures in {}, and no images that are not divided into sets; name \
                         the pictures' folder by dataset.image_set",
                        folders.join(" or ")
                    ))
                })?)
            }
        };
        if keys.class_names.is_some() {
            names.clone_from(&keys.class_names);
        }
        plan.classes = Some(names.unwrap_or_default());
        let labels: HashSet<&[u8]> =
            found.iter().filter(|path| Self::is_label(path)).map(Vec::as_slice).collect();
        let mut pictures_of_labels = HashMap::new();
        for picture in pictures {
            let own = label_path(&picture);
            let labels = labels.contains(own.as_slice()).then_some(own);
            if let Some(own) = &labels
                && let Some(other) = pictures_of_labels.insert(own.clone(), picture.clone())
                && other != picture
            {
                return Err(twice(opening.storage, [&picture, &other]));
            }
            plan.samples.push(Pair { picture, labels, mask: None });
        }
        Ok(plan)
    }

    fn read(
        plan: &Plan,
        text: Option<&str>,
        size: Option<[u32; 2]>,
    ) -> Result<Objects, (usize, String)> {
        let classes = plan.classes.as_ref().map_or(0, Vec::len);
        read(text.unwrap_or(""), size.unwrap_or([1, 1]), classes)
    }
}

/// The classes of a `data.yaml`, and the folders or lists of one of its sets, relative to its folder or to its `path`.
fn read_data(
    file: &StoredFile<'_>,
    set: &str,
) -> Result<(Option<Vec<String>>, Vec<String>), DatasetError> {
    let text = file.read_whole(MAX_DATA_BYTES)?;
    let text =
        std::str::from_utf8(&text).map_err(|_| file.fault("it is not valid UTF-8".to_owned()))?;
    let data = Yaml::read(text).map_err(|(line, message)| file.fault_at(line, message))?;
    if data.get("kpt_shape").is_some() {
        return Err(file.fault(
            "it is of poses (kpt_shape), which are not read; save them as a COCO file (format = \"coco\", keypoints = true)"
                .to_owned(),
        ));
    }
    let names = data.get("names").map(|names| {
        names_of(names).ok_or_else(|| {
            file.fault(
                "its `names` are neither a list nor a map of the numbers from 0 on".to_owned(),
            )
        })
    });
    let base = data.get("path").and_then(Yaml::word).unwrap_or("").trim_end_matches('/');
    let folders = data.get(set).and_then(Yaml::words).ok_or_else(|| {
        file.fault(format!("it has no `{set}`, which dataset.image_set asks for"))
    })?;
    let below = |folder: &str| match base {
        "" | "." => folder.to_owned(),
        base => format!("{base}/{folder}"),
    };
    Ok((names.transpose()?, folders.into_iter().map(below).collect()))
}

fn names_of(names: &Yaml) -> Option<Vec<String>> {
    match names {
        Yaml::List(_) => Some(names.words()?.into_iter().map(str::to_owned).collect()),
        Yaml::Map(entries) => {
            let mut sorted: Vec<(usize, &str)> = Vec::new();
            for (number, name) in entries {
                sorted.push((number.parse().ok()?, name.word()?));
            }
            sorted.sort_unstable();
            let are_all = sorted.iter().zip(0..).all(|((number, _), place)| *number == place);
            are_all.then(|| sorted.into_iter().map(|(_, name)| name.to_owned()).collect())
        }
        Yaml::Word(_) => None,
    }
}

/// The pictures of a set's folders and lists.
fn pictures_of(
    opening: &Opening<'_, Labels<Yolo>>,
    data: &StoredFile<'_>,
    folders: Vec<String>,
    found: &[Vec<u8>],
    plan: &mut Plan,
) -> Result<Vec<Vec<u8>>, DatasetError> {
    let mut pictures = Vec::new();
    for folder in folders {
        let path = below_root(&folder, b"").map_err(|reason| data.fault(reason))?;
        if !has_extension(&path, &[".txt"]) {
            let own = in_folder(found, &path);
            if own.is_empty() {
                let remedy = match folder.contains("..") {
                    true => format!(
                        ", which is read as {:?} in the folder of the file, since `..` leads out of it; move the file into the \
                         folder that has them",
                        String::from_utf8_lossy(&path)
                    ),
                    false => String::new(),
                };
                return Err(data.fault(format!("no pictures are in its {folder:?}{remedy}")));
            }
            pictures.extend(own);
            continue;
        }
        let list = open_file(opening.storage, &path)?;
        let text = list.read_whole(MAX_LIST_BYTES)?;
        let parent =
            path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &path[..end]);
        let known: HashSet<&[u8]> = found.iter().map(Vec::as_slice).collect();
        for (line, text) in (1..).zip(String::from_utf8_lossy(&text).lines()) {
            if text.trim().is_empty() {
                continue;
            }
            let picture =
                below_root(text.trim(), parent).map_err(|reason| list.fault_at(line, reason))?;
            if !known.contains(picture.as_slice()) {
                return Err(list.fault_at(line, format!("there is no picture {text:?}")));
            }
            pictures.push(picture);
        }
        plan.lists.push(path);
    }
    pictures.sort_unstable();
    pictures.dedup();
    Ok(pictures)
}

/// A path of a `data.yaml` relative to the dataset's root.
fn below_root(path: &str, folder: &[u8]) -> Result<Vec<u8>, String> {
    if path.starts_with('/') || path.contains("://") || path.contains('\0') {
        return Err(format!(
            "{path:?} is an absolute path; make it relative to the folder of {DATA}"
        ));
    }
    // As Ultralytics does with Roboflow's `../train/images`, which are in the folder itself.
    let mut parts: Vec<&[u8]> =
        folder.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.as_bytes()),
        }
    }
    Ok(parts.join(&b'/'))
}

fn in_folder(found: &[Vec<u8>], folder: &[u8]) -> Vec<Vec<u8>> {
    let is_in = |path: &&Vec<u8>| {
        let rest = path.strip_prefix(folder);
        is_picture(path) && (folder.is_empty() || rest.is_some_and(|rest| rest.starts_with(b"/")))
    };
    found.iter().filter(is_in).cloned().collect()
}

/// Whether a picture is in a folder of `images` with the usual name of a set.
fn is_of_set(picture: &[u8]) -> bool {
    let folder = picture.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
    SETS.iter().any(|set| folder.eq_ignore_ascii_case(set.as_bytes()))
}

/// The file of labels of a picture: below `labels` instead of the last `images`, or beside it.
fn label_path(picture: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = picture.split(|byte| *byte == b'/').collect();
    let folders = parts.len() - 1;
    if let Some(last) = parts[..folders].iter().rposition(|part| *part == b"images") {
        parts[last] = b"labels";
    }
    let path = parts.join(&b'/');
    [stem(&path), b".txt"].concat()
}

/// Reads a file of labels of a picture of this height and width; `classes`: their number, if it is known.
///
/// # Errors
/// The line, from 1, and its fault.
pub(super) fn read(text: &str, size: [u32; 2], classes: usize) -> Result<Objects, (usize, String)> {
    let mut objects = Objects { size: Some(size), ..Objects::default() };
    let mut numbers: Vec<f64> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut words = text.split_ascii_whitespace();
        let Some(class) = words.next() else { continue };
        numbers.clear();
        for word in words {
            let number: Option<f64> = word.parse().ok();
            let number = number.filter(|number| (-BEYOND..=1.0 + BEYOND).contains(number));
            numbers.push(number.ok_or_else(|| {
                (
                    line,
                    format!(
                        "{word:?} is no part of the picture's side, which is a number from 0 to 1"
                    ),
                )
            })?);
        }
        let class = class_of(class, classes).map_err(|message| (line, message))?;
        objects.add_line(class, &numbers).map_err(|message| (line, message))?;
    }
    Ok(objects)
}

/// A class's number; some tools write `3.0`.
fn class_of(word: &str, classes: usize) -> Result<u32, String> {
    let number: Option<u32> = word.strip_suffix(".0").unwrap_or(word).parse().ok();
    let number = number.filter(|number| *number < u32::MAX);
    let number = number.ok_or_else(|| format!("{word:?} is no number of a class"))?;
    match classes {
        0 => Ok(number),
        classes if (number as usize) < classes => Ok(number),
        classes => {
            Err(format!("the class {number} does not exist: there are {classes}, from 0 on"))
        }
    }
}

impl Objects {
    fn add_line(&mut self, class: u32, numbers: &[f64]) -> Result<(), String> {
        let [height, width] = self.size.unwrap_or([1, 1]).map(f64::from);
        let (corners, outline) = match numbers {
            [x, y, across, down] => {
                let (x, y) = (x * width, y * height);
                let (across, down) = (across * width / 2.0, down * height / 2.0);
                let corners = [x - across, y - down, x + across, y + down];
                let [left, top, right, bottom] = corners;
                (corners, vec![[left, top], [right, top], [right, bottom], [left, bottom]])
            }
            polygon if polygon.len() >= 6 && polygon.len().is_multiple_of(2) => {
                let points = polygon.as_chunks::<2>().0.iter();
                let points: Vec<_> = points.map(|[x, y]| [x * width, y * height]).collect();
                let bound = |axis: usize, choose: fn(f64, f64) -> f64| {
                    points.iter().map(|point| point[axis]).reduce(choose).unwrap_or(0.0)
                };
                let corners = [
                    bound(0, f64::min),
                    bound(1, f64::min),
                    bound(0, f64::max),
                    bound(1, f64::max),
                ];
                (corners, points)
            }
            other => {
                return Err(format!(
                    "it has {} numbers behind the class: a box has 4, and a polygon two for each of 3 or more corners",
                    other.len()
                ));
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "boxes are float32")]
        let corners = corners.map(|number| number as f32);
        let [left, top, right, bottom] = corners;
        if right <= left || bottom <= top {
            self.empty += 1;
            return Ok(());
        }
        let point = |[x, y]: &[f64; 2]| Some([in_steps(*x)?, in_steps(*y)?]);
        let outline: Option<Vec<_>> = outline.iter().map(point).collect();
        let mut part = Vec::new();
        push_outline(&outline.ok_or("the picture is too large for outlines")?, &mut part);
        self.boxes.push(corners);
        self.labels.push(Label::Number(class));
        self.outlines.push(part);
        Ok(())
    }
}
