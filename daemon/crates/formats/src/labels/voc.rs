//! `voc`: Pascal VOC's folders `JPEGImages`, `Annotations` and `ImageSets`, and an XML file beside each picture, as
//! labelling tools export it.
//!
//! XML is read by the crate `quick-xml`, event by event; document types, and with them entities of a file's own, are
//! refused.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use forebay_keys::keys;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::{
    Label, LabelKind, Labels, MAX_LABEL_BYTES, MaskSource, Objects, Pair, Plan, is_picture, stem,
    text_of_names, twice,
};
use crate::indexed::Opening;
use crate::manifest::coco::Masks;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::open_file;
use forebay_index::shard_paths::{has_extension, is_below};

/// How deep elements may lie within each other; VOC's lie 4 deep.
const MAX_DEPTH: usize = 32;

keys! {
    /// The keys of VOC folders.
    pub(crate) struct VocKeys = "dataset" {
        /// the file below `ImageSets` that lists the pictures, such as `"train"`
        pub(super) image_set: String, "", absent("all pictures with an XML file");
        /// the classes' names in the order of their labels
        pub(super) class_names: Vec<String>, "", absent("the names that occur, sorted");
        /// a mask of each picture: `"categories"`, of `SegmentationClass`, or `"instances"`, of `SegmentationObject`; pictures are then listed in `ImageSets/Segmentation`
        pub(super) masks: Masks, "", absent("no masks");
    }
}

/// The kind of VOC's folders.
#[derive(Debug)]
pub(crate) struct Voc;

impl LabelKind for Voc {
    const FORMAT: FolderFormat =
        FolderFormat { name: "voc", extensions: &[".xml"], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str =
        "a folder with Annotations and JPEGImages, or of pictures with an .xml file each";
    const MARKS: &'static [&'static str] = &[];

    type Keys = VocKeys;

    fn split(path: &Path) -> (PathBuf, Option<&str>) {
        (path.to_owned(), None)
    }

    fn digested(keys: &VocKeys) -> String {
        let VocKeys { image_set, class_names, masks } = keys;
        let classes = text_of_names(class_names.as_deref());
        let (set, masks) = (image_set.as_deref().unwrap_or(""), masks.map_or("", Masks::word));
        format!("{set}\0{classes}\0{masks}")
    }

    fn is_label(name: &[u8]) -> bool {
        has_extension(name, &[".xml"])
    }

    fn plan(opening: &Opening<'_, Labels<Self>>, found: &[Vec<u8>]) -> Result<Plan, DatasetError> {
        let keys = &opening.keys;
        let is_standard = found.iter().any(|path| path.starts_with(b"Annotations/"));
        let mut pictures = HashMap::new();
        for path in found.iter().filter(|path| is_picture(path)) {
            // VOC's folder, or the one that the XML file is in.
            let own = match is_standard {
                true => path.strip_prefix(b"JPEGImages/"),
                false => Some(path.as_slice()),
            };
            let Some(own) = own else { continue };
            if let Some(other) = pictures.insert(stem(own), path) {
                return Err(twice(opening.storage, [path, other]));
            }
        }
        let below = |path: &[u8]| match is_standard {
            true => path.strip_prefix(b"Annotations/").map(<[u8]>::to_vec),
            false => Some(path.to_vec()),
        };
        let xml = found.iter().filter(|path| Self::is_label(path));
        let annotations: Vec<_> = xml.filter_map(|path| Some((below(path)?, path))).collect();
        let folder = match keys.masks {
            Some(Masks::Instances) => "SegmentationObject",
            _ => "SegmentationClass",
        };
        let mask = |name: &[u8]| {
            let has_masks = keys.masks.is_some();
            has_masks.then(|| [folder.as_bytes(), b"/", name, b".png"].concat())
        };
        let mut plan = Plan {
            classes: keys.class_names.clone(),
            masks: if keys.masks.is_some() { MaskSource::Files } else { MaskSource::None },
            has_difficult: true,
            ..Plan::default()
        };
        let Some(set) = &keys.image_set else {
            for (own, path) in annotations {
                let name = stem(&own);
                let picture = pictures.get(name).ok_or_else(|| DatasetError::BrokenFile {
                    path: opening.storage.full_path(path),
                    reason: "no picture has its name, in JPEGImages or beside it".to_owned(),
                })?;
                let (picture, labels) = (picture.to_vec(), Some(path.clone()));
                plan.samples.push(Pair { picture, labels, mask: mask(name) });
            }
            plan.samples.sort_unstable_by(|one, other| one.picture.cmp(&other.picture));
            return Ok(plan);
        };
        let of_boxes = if keys.masks.is_some() { "Segmentation" } else { "Main" };
        let list = format!("ImageSets/{of_boxes}/{set}.txt");
        if !is_below(&list) {
            return Err(opening
                .request
                .no_samples(format!("dataset.image_set = {set:?} is no name of a file")));
        }
        let file = open_file(opening.storage, list.as_bytes())?;
        let text = file.read_whole(MAX_LABEL_BYTES)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let annotations: HashMap<_, _> =
            annotations.iter().map(|(own, path)| (stem(own), *path)).collect();
        let mut seen = HashSet::new();
        for (line, text) in (1..).zip(text.lines()) {
            let mut words = text.split_ascii_whitespace();
            let Some(name) = words.next() else { continue };
            // Files of one class mark the pictures without it.
            if words.next() == Some("-1") {
                continue;
            }
            if !seen.insert(name.to_owned()) {
                return Err(file.fault_at(line, format!("{name:?} is listed twice")));
            }
            let picture = pictures.get(name.as_bytes()).ok_or_else(|| {
                file.fault_at(line, format!("no picture of JPEGImages has the name {name:?}"))
            })?;
            let labels = annotations.get(name.as_bytes()).map(|path| path.to_vec());
            if labels.is_none() && keys.masks.is_none() {
                return Err(file.fault_at(line, format!("Annotations has no {name}.xml")));
            }
            plan.samples.push(Pair {
                picture: picture.to_vec(),
                labels,
                mask: mask(name.as_bytes()),
            });
        }
        plan.lists.push(list.into_bytes());
        Ok(plan)
    }

    fn read(
        _plan: &Plan,
        text: Option<&str>,
        _size: Option<[u32; 2]>,
    ) -> Result<Objects, (usize, String)> {
        text.map_or(Ok(Objects::default()), read)
    }
}

/// An object of a file so far.
#[derive(Debug, Default)]
struct Object {
    name: String,
    is_difficult: bool,
    /// xmin, ymin, xmax, ymax.
    corners: [Option<f32>; 4],
}

/// Reads an XML file of VOC.
///
/// # Errors
/// The line, from 1, and its fault.
pub(super) fn read(text: &str) -> Result<Objects, (usize, String)> {
    let mut reader = Reader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    let (mut objects, mut object) = (Objects::default(), Object::default());
    let (mut names, mut value): (Vec<Vec<u8>>, _) = (Vec::new(), String::new());
    let mut sides = [None; 2];
    let mut is_voc = false;
    loop {
        let event = reader.read_event();
        let line = |reader: &Reader<&[u8]>, at: Option<u64>| {
            let at = at.unwrap_or_else(|| reader.buffer_position());
            let before = text.as_bytes().iter().take(usize::try_from(at).unwrap_or(usize::MAX));
            1 + before.filter(|byte| **byte == b'\n').count()
        };
        let event = event.map_err(|error| {
            (
                line(&reader, Some(reader.error_position())),
                format!("it is not well-formed XML: {}", error.to_string().escape_debug()),
            )
        })?;
        let fault = |message: String| Err((line(&reader, None), message));
        match event {
            Event::Start(start) => {
                if names.len() == MAX_DEPTH {
                    return fault(format!(
                        "elements lie more than {MAX_DEPTH} deep within each other"
                    ));
                }
                names.push(start.name().as_ref().to_vec());
                value.clear();
            }
            Event::Text(text) => value.push_str(&decoded(text.decode())),
            Event::CData(text) => value.push_str(&decoded(text.decode())),
            Event::GeneralRef(reference) => match resolved(&reference) {
                Some(character) => value.push(character),
                None => {
                    let name = decoded(reference.decode()).into_owned();
                    return fault(format!(
                        "it has the entity {name:?}, and only those of XML are read"
                    ));
                }
            },
            Event::End(_) => {
                let path: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                is_voc |= path == [b"annotation"];
                let taken = take(&path, value.trim(), &mut object, &mut sides);
                if let Err(message) = taken {
                    return fault(message);
                }
                if path == [&b"annotation"[..], b"object"]
                    && let Err(message) = objects.add(std::mem::take(&mut object))
                {
                    return fault(message);
                }
                names.pop();
                value.clear();
            }
            Event::DocType(_) => {
                return fault("it has a document type, which is not read; remove it".to_owned());
            }
            Event::Eof => break,
            Event::Empty(_) | Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
    if !is_voc || !names.is_empty() {
        return Err((1, "it is not a VOC file: it has no whole <annotation>".to_owned()));
    }
    objects.size = sides[0].zip(sides[1]).map(|(height, width)| [height, width]);
    Ok(objects)
}

fn decoded<E>(text: Result<Cow<'_, str>, E>) -> Cow<'_, str> {
    // The text is UTF-8 already.
    text.unwrap_or_default()
}

fn resolved(reference: &quick_xml::events::BytesRef<'_>) -> Option<char> {
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Some(character);
    }
    Some(match &**reference {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        _ => return None,
    })
}

/// Takes the text of an element, if it is one that is read.
fn take(
    path: &[&[u8]],
    value: &str,
    object: &mut Object,
    sides: &mut [Option<u32>; 2],
) -> Result<(), String> {
    let shown = || String::from_utf8_lossy(path.last().unwrap_or(&&b""[..])).into_owned();
    match path {
        [b"annotation", b"size", side @ (b"height" | b"width")] => {
            let number =
                value.parse().map_err(|_| format!("<{}> is no number: {value:?}", shown()))?;
            // Some tools do not know it.
            sides[usize::from(*side == b"width")] = Some(number).filter(|side| *side > 0);
        }
        [b"annotation", b"object", b"name"] => object.name = value.to_owned(),
        [b"annotation", b"object", b"difficult"] => {
            object.is_difficult = !matches!(value, "" | "0" | "Unspecified");
        }
        [b"annotation", b"object", b"bndbox", corner] => {
            let known: [&[u8]; 4] = [b"xmin", b"ymin", b"xmax", b"ymax"];
            if let Some(place) = known.iter().position(|known| known == corner) {
                let number: Option<f32> =
                    value.parse().ok().filter(|number: &f32| number.is_finite());
                let number =
                    number.ok_or_else(|| format!("<{}> is no number: {value:?}", shown()))?;
                object.corners[place] = Some(number);
            }
        }
        _ => {}
    }
    Ok(())
}

impl Objects {
    fn add(&mut self, object: Object) -> Result<(), String> {
        let [Some(left), Some(top), Some(right), Some(bottom)] = object.corners else {
            return Err("an object has no <bndbox> with xmin, ymin, xmax and ymax".to_owned());
        };
        if object.name.is_empty() {
            return Err("an object has no <name>".to_owned());
        }
        if right <= left || bottom <= top {
            self.empty += 1;
            return Ok(());
        }
        self.boxes.push([left, top, right, bottom]);
        self.labels.push(Label::Name(object.name));
        self.difficult.push(u8::from(object.is_difficult));
        Ok(())
    }
}
