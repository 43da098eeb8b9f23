//! Reads a COCO file as a stream: keeps the parts that fields need, and skips everything else.
//!
//! The kept part of an image or an annotation is smaller than its JSON. A value longer than [`MAX_TOKEN_BYTES`] and
//! lists nested deeper than [`MAX_DEPTH`] are refused before they are stored.

use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::ControlFlow;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::segmentation::{Numbers, Segmentation};
use forebay_dataset::error::DatasetError;
use forebay_index::window::Bytes;

const MAX_TOKEN_BYTES: u64 = 16 << 20;
const MAX_DEPTH: u32 = 256;
/// The maximal number of keypoints of an object: each object of the file takes as many in the index.
const MAX_POINTS: usize = 1024;

/// An image in the file.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) id: u64,
    /// The end of its path in [`Parsed::names`].
    pub(super) name_end: usize,
    /// Height and width.
    pub(super) size: Option<[u32; 2]>,
}

/// The parts of annotations that fields are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Boxes only; segmentations and keypoints are skipped.
    Boxes,
    /// Boxes, segmentations and keypoints; whether regions of crowds have masks.
    Objects { crowds: bool },
    /// The segments of panoptic annotations.
    Segments,
}

/// An object, or a segment of a panoptic annotation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annotation {
    pub(super) image: u64,
    pub(super) category: u64,
    /// The corners: x and y of the upper left, then of the lower right.
    pub(super) corners: [f32; 4],
    pub(super) is_crowd: bool,
    /// The segment's id in its picture of ids.
    pub(super) segment: u32,
    /// The end of its parts in [`Parsed::parts`].
    parts_end: usize,
    /// The end of its keypoints in [`Parsed::points`].
    points_end: usize,
}

/// The picture of ids of a panoptic annotation.
#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) image: u64,
    /// The end of its path in [`Parsed::segment_names`].
    pub(super) name_end: usize,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) images: Vec<Image>,
    pub(super) names: Vec<u8>,
    pub(super) annotations: Vec<Annotation>,
    /// Ids and names.
    pub(super) categories: Vec<(u64, String)>,
    /// The number of crowd annotations, which have no boxes.
    pub(super) crowds: u64,
    /// The number of boxes without an area, which are left out.
    pub(super) empty: u64,
    /// The number of objects without a segmentation.
    pub(super) without_mask: u64,
    /// The number of keypoints of each object; 0: none has any.
    pub(super) points_each: usize,
    /// The parts of masks, of all annotations.
    parts: Vec<u8>,
    /// x, y and visibility, of all annotations.
    points: Vec<f32>,
    /// The image's height and width by segmentations of runs, with the annotation's place.
    run_sizes: Vec<(usize, [u32; 2])>,
    pub(super) segment_files: Vec<SegmentFile>,
    pub(super) segment_names: Vec<u8>,
}

impl Parsed {
    /// The parts of an object's mask.
    pub(super) fn parts(&self, place: usize) -> &[u8] {
        let start = self.before(place).map_or(0, |before| before.parts_end);
        &self.parts[start..self.annotations[place].parts_end]
    }

    /// An object's keypoints; empty: it has none.
    pub(super) fn points(&self, place: usize) -> &[f32] {
        let start = self.before(place).map_or(0, |before| before.points_end);
        &self.points[start..self.annotations[place].points_end]
    }

    fn before(&self, place: usize) -> Option<&Annotation> {
        self.annotations.get(place.checked_sub(1)?)
    }

    /// The image's height and width, if the object's segmentation states them.
    pub(super) fn run_size(&self, place: usize) -> Option<[u32; 2]> {
        let found = self.run_sizes.binary_search_by_key(&place, |(place, _)| *place);
        found.ok().map(|found| self.run_sizes[found].1)
    }
}

/// An id: an integer from 0, in any notation. Some exporters write `9.0` or `"9"`.
#[derive(Clone, Copy)]
struct Id(u64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ids;
        impl Visitor<'_> for Ids {
            type Value = Id;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an id, which is a whole number from 0")
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Id, E> {
                Ok(Id(id))
            }

            fn visit_f64<E: de::Error>(self, id: f64) -> Result<Id, E> {
                // Larger floats are not exact integers.
                const MOST: f64 = 9_007_199_254_740_992.0;
                if id.fract() != 0.0 || !(0.0..=MOST).contains(&id) {
                    return Err(E::invalid_value(de::Unexpected::Float(id), &self));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole and in bounds"
                )]
                let id = id as u64;
                Ok(Id(id))
            }

            fn visit_str<E: de::Error>(self, id: &str) -> Result<Id, E> {
                id.parse().map(Id).map_err(|_| E::invalid_value(de::Unexpected::Str(id), &self))
            }
        }
        deserializer.deserialize_any(Ids)
    }
}

/// A box as written: left, top, width and height; `None`: null.
#[derive(Default)]
struct Corners(Option<[f64; 4]>);

impl<'de> Deserialize<'de> for Corners {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Boxes;
        impl<'de> Visitor<'de> for Boxes {
            type Value = Corners;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a bbox, which is [left, top, width, height] in pixels")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Corners, E> {
                Ok(Corners(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Corners, A::Error> {
                let mut corners = [0.0; 4];
                let mut count = 0;
                while let Some(number) = numbers.next_element()? {
                    let place = corners.get_mut(count).ok_or_else(|| {
                        de::Error::invalid_length(count + 1, &self as &dyn de::Expected)
                    })?;
                    *place = number;
                    count += 1;
                }
                match count {
                    // Some exporters write this for an annotation without a box.
                    0 => Ok(Corners(Some([0.0; 4]))),
                    4 => Ok(Corners(Some(corners))),
                    _ => Err(de::Error::invalid_length(count, &self as &dyn de::Expected)),
                }
            }
        }
        deserializer.deserialize_any(Boxes)
    }
}

#[derive(Deserialize)]
struct ImageRecord {
    id: Id,
    file_name: String,
    width: Option<u32>,
    height: Option<u32>,
}

#[derive(Deserialize)]
struct AnnotationRecord {
    image_id: Id,
    category_id: Option<Id>,
    #[serde(default)]
    bbox: Corners,
    iscrowd: Option<Flag>,
}

/// As [`AnnotationRecord`], with the object's segmentation and keypoints.
#[derive(Deserialize)]
struct ObjectRecord {
    image_id: Id,
    category_id: Option<Id>,
    #[serde(default)]
    bbox: Corners,
    iscrowd: Option<Flag>,
    #[serde(default)]
    segmentation: Segmentation,
    keypoints: Option<Keypoints>,
}

#[derive(Deserialize)]
struct PanopticRecord {
    image_id: Id,
    file_name: Option<String>,
    segments_info: Option<Vec<SegmentRecord>>,
}

#[derive(Deserialize)]
struct SegmentRecord {
    id: Id,
    category_id: Id,
    bbox: Corners,
    iscrowd: Option<Flag>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Number(u64),
}

impl Flag {
    const fn is_set(&self) -> bool {
        matches!(self, Self::Bool(true) | Self::Number(1..))
    }
}

/// x, y and visibility of each keypoint.
struct Keypoints(Vec<f32>);

impl<'de> Deserialize<'de> for Keypoints {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seed = Numbers(PhantomData, "keypoints, which are [x, y, visibility, ...] in pixels");
        seed.deserialize(deserializer).map(Self)
    }
}

#[derive(Deserialize)]
struct CategoryRecord {
    id: Id,
    name: String,
}

/// A point at the middle of its pixel, whose number the file has; one that is not labelled stays zeros.
fn at_middles([x, y, visibility]: [f32; 3]) -> [f32; 3] {
    match visibility > 0.0 {
        true => [x + 0.5, y + 0.5, visibility],
        false => [x, y, visibility],
    }
}

impl Parsed {
    fn add_image(&mut self, image: ImageRecord) -> Result<(), String> {
        let Id(id) = image.id;
        if i64::try_from(id).is_err() {
            return Err(format!("the image's id {id} is larger than an int64 can be"));
        }
        self.names.extend_from_slice(image.file_name.as_bytes());
        let size = image.height.zip(image.width).map(|(height, width)| [height, width]);
        self.images.push(Image { id, name_end: self.names.len(), size });
        Ok(())
    }

    fn add_box(&mut self, annotation: AnnotationRecord) -> Result<(), String> {
        let AnnotationRecord { image_id, category_id, bbox, iscrowd } = annotation;
        if iscrowd.is_some_and(|flag| flag.is_set()) {
            self.crowds += 1;
            return Ok(());
        }
        self.add_annotation((image_id, category_id, bbox)).map(drop)
    }

    fn add_object(&mut self, object: ObjectRecord, keeps_crowds: bool) -> Result<(), String> {
        let ObjectRecord { image_id, category_id, bbox, iscrowd, segmentation, keypoints } = object;
        let is_crowd = iscrowd.is_some_and(|flag| flag.is_set());
        self.crowds += u64::from(is_crowd);
        if is_crowd && !keeps_crowds {
            return Ok(());
        }
        let place = self.annotations.len();
        let Some(annotation) = self.add_annotation((image_id, category_id, bbox))? else {
            return Ok(());
        };
        annotation.is_crowd = is_crowd;
        self.without_mask += u64::from(segmentation.parts.is_empty());
        self.parts.extend_from_slice(&segmentation.parts);
        self.run_sizes.extend(segmentation.size.map(|size| (place, size)));
        let points = keypoints.map_or_else(Vec::new, |points| points.0);
        if !points.is_empty() {
            if points.len() > 3 * MAX_POINTS {
                return Err(format!(
                    "an annotation has {} keypoints, and an object has at most {MAX_POINTS}",
                    points.len() / 3
                ));
            }
            if self.points_each == 0 {
                self.points_each = points.len() / 3;
            }
            if points.len() != 3 * self.points_each {
                return Err(format!(
                    "an annotation has {} numbers as keypoints, and the first one with keypoints has {}: three for each point",
                    points.len(),
                    3 * self.points_each
                ));
            }
            if !points.iter().all(|number| number.is_finite()) {
                return Err("a keypoint has a number that float32 does not hold".to_owned());
            }
        }
        self.points.extend(points.as_chunks::<3>().0.iter().copied().flat_map(at_middles));
        let ends = (self.parts.len(), self.points.len());
        if let Some(annotation) = self.annotations.last_mut() {
            (annotation.parts_end, annotation.points_end) = ends;
        }
        Ok(())
    }

    fn add_segments(&mut self, annotation: PanopticRecord) -> Result<(), String> {
        let PanopticRecord { image_id: Id(image), file_name, segments_info } = annotation;
        let (Some(file_name), Some(segments)) = (file_name, segments_info) else {
            return Err(
                "an annotation has no segments_info or no file_name: dataset.panoptic is for files such as \
                 panoptic_train2017.json"
                    .to_owned(),
            );
        };
        self.segment_names.extend_from_slice(file_name.as_bytes());
        let name_end = self.segment_names.len();
        self.segment_files.push(SegmentFile { image, name_end });
        for segment in segments {
            let Id(id) = segment.id;
            // A pixel of the picture has three bytes.
            let id = u32::try_from(id).ok().filter(|id| *id < 1 << 24);
            let id = id.ok_or("a segment's id is larger than a pixel of three bytes can be")?;
            let parts = (Id(image), Some(segment.category_id), segment.bbox);
            if let Some(annotation) = self.add_annotation(parts)? {
                annotation.segment = id;
                annotation.is_crowd = segment.iscrowd.is_some_and(|flag| flag.is_set());
            }
        }
        Ok(())
    }

    /// Adds an annotation with its box; `None`: it has no area.
    fn add_annotation(
        &mut self,
        (Id(image), category_id, bbox): (Id, Option<Id>, Corners),
    ) -> Result<Option<&mut Annotation>, String> {
        let (Some(Id(category)), Corners(Some([x, y, width, height]))) = (category_id, bbox) else {
            return Err(
                "an annotation has no bbox or no category_id: files of boxes are read, such as instances_train2017.json"
                    .to_owned(),
            );
        };
        if width <= 0.0 || height <= 0.0 {
            self.empty += 1;
            return Ok(None);
        }
        #[expect(clippy::cast_possible_truncation, reason = "boxes are float32")]
        let corners = [x, y, x + width, y + height].map(|number| number as f32);
        if !corners.iter().all(|number| number.is_finite()) {
            return Err("a bbox has a number that float32 does not hold".to_owned());
        }
        let (parts_end, points_end) = (self.parts.len(), self.points.len());
        let (is_crowd, segment) = (false, 0);
        let annotation =
            Annotation { image, category, corners, is_crowd, segment, parts_end, points_end };
        self.annotations.push(annotation);
        Ok(self.annotations.last_mut())
    }

    fn add_category(&mut self, category: CategoryRecord) -> Result<(), String> {
        let CategoryRecord { id: Id(id), name } = category;
        self.categories.push((id, name));
        Ok(())
    }
}

/// The reason why a file is refused.
#[derive(Debug)]
pub(super) enum Fault {
    /// It cannot be read, or the scan was stopped.
    Read(DatasetError),
    /// The line and its fault.
    Broken(usize, String),
}

/// Reads a file in windows of this size. `ask` is called between two windows.
///
/// # Errors
/// The file is not a COCO file, or the storage fails.
pub(super) fn parse(
    file: &dyn Bytes,
    window: u64,
    wanted: Wanted,
    ask: &dyn Fn() -> ControlFlow<()>,
) -> Result<Parsed, Fault> {
    let mut source = Source {
        file,
        window,
        ask,
        offset: 0,
        buffer: Vec::new(),
        taken: 0,
        guard: Guard::default(),
        failure: None,
    };
    let mut parsed = Parsed::default();
    let mut json = serde_json::Deserializer::from_reader(&mut source);
    let read = json.deserialize_map(TopLevel(&mut parsed, wanted)).and_then(|()| json.end());
    drop(json);
    match (read, source.failure) {
        (_, Some(failure)) => Err(Fault::Read(failure)),
        (Err(error), None) => {
            // The position is reported separately.
            let words = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            let words = words.strip_suffix(place.as_str()).unwrap_or(&words);
            let message = format!("column {}: {words}", error.column());
            Err(Fault::Broken(error.line(), message))
        }
        (Ok(()), None) => Ok(parsed),
    }
}

/// The bytes of the file for the parser.
struct Source<'f> {
    file: &'f dyn Bytes,
    window: u64,
    ask: &'f dyn Fn() -> ControlFlow<()>,
    offset: u64,
    buffer: Vec<u8>,
    taken: usize,
    guard: Guard,
    failure: Option<DatasetError>,
}

impl Source<'_> {
    fn fill(&mut self) -> io::Result<()> {
        let length = self.window.min(self.file.length() - self.offset);
        let read = match (self.ask)() {
            ControlFlow::Break(()) => Err(DatasetError::Cancelled),
            ControlFlow::Continue(()) => self.file.read(self.offset, length, &mut self.buffer),
        };
        if let Err(error) = read {
            self.failure = Some(error);
            self.buffer.clear();
            return Err(io::Error::other("it cannot be read"));
        }
        (self.offset, self.taken) = (self.offset + length, 0);
        self.guard.check(&self.buffer).map_err(io::Error::other)
    }
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.buffer.len() {
            if self.offset == self.file.length() {
                return Ok(0);
            }
            self.fill()?;
        }
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

/// Limits the memory of the parser: the length of a string or a number, and the nesting of lists.
#[derive(Default)]
struct Guard {
    is_text: bool,
    is_escaped: bool,
    token_bytes: u64,
    depth: u32,
}

impl Guard {
    fn check(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        for byte in bytes {
            self.token_bytes += 1;
            if self.is_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => (self.is_text, self.token_bytes) = (false, 0),
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => (self.is_text, self.token_bytes) = (true, 0),
                    b'[' | b'{' => (self.depth, self.token_bytes) = (self.depth + 1, 0),
                    b']' | b'}' => {
                        (self.depth, self.token_bytes) = (self.depth.saturating_sub(1), 0)
                    }
                    b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' => self.token_bytes = 0,
                    _ => {}
                }
            }
            if self.token_bytes > MAX_TOKEN_BYTES {
                return Err("a text or a number has more than 16 MiB");
            }
            if self.depth > MAX_DEPTH {
                return Err("lists lie more than 256 deep within each other");
            }
        }
        Ok(())
    }
}

/// The top-level object of a file.
struct TopLevel<'p>(&'p mut Parsed, Wanted);

impl<'de> Visitor<'de> for TopLevel<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object with images, annotations and categories")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut seen = [false; 3];
        while let Some(key) = map.next_key::<String>()? {
            let place =
                ["images", "annotations", "categories"].iter().position(|known| *known == key);
            if place.is_some_and(|place| std::mem::replace(&mut seen[place], true)) {
                return Err(de::Error::custom(format!("{key} is there twice")));
            }
            match place {
                Some(0) => map.next_value_seed(Each::new(|image| self.0.add_image(image)))?,
                Some(1) => match self.1 {
                    Wanted::Boxes => map.next_value_seed(Each::new(|one| self.0.add_box(one)))?,
                    Wanted::Objects { crowds } => {
                        map.next_value_seed(Each::new(|one| self.0.add_object(one, crowds)))?;
                    }
                    Wanted::Segments => {
                        map.next_value_seed(Each::new(|one| self.0.add_segments(one)))?;
                    }
                },
                Some(_) => map.next_value_seed(Each::new(|one| self.0.add_category(one)))?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match seen[0] {
            true => Ok(()),
            false => Err(de::Error::custom("it has no images: it is no COCO file")),
        }
    }
}

/// Calls a function with each element of a list, and keeps none.
struct Each<T, F>(F, PhantomData<T>);

impl<T, F: FnMut(T) -> Result<(), String>> Each<T, F> {
    const fn new(visit: F) -> Self {
        Self(visit, PhantomData)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'de>
    for Each<T, F>
{
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            (self.0)(element).map_err(de::Error::custom)?;
        }
        Ok(())
    }
}
