//! A COCO file, read as a stream: the parts that fields are made of are kept, polygons and all else are passed over.
//!
//! What is kept of an image or an annotation is smaller than its JSON. A single value of more than [`MAX_TOKEN_BYTES`] and
//! lists within lists deeper than [`MAX_DEPTH`] are refused before they are stored.

use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::ControlFlow;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::dataset::error::DatasetError;
use crate::dataset::window::Bytes;

const MAX_TOKEN_BYTES: u64 = 16 << 20;
const MAX_DEPTH: u32 = 256;

/// An image as the file lists it.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) id: u64,
    /// Of its path within [`Parsed::names`].
    pub(super) name_end: usize,
    /// Height and width.
    pub(super) size: Option<[u32; 2]>,
}

/// A box.
#[derive(Debug, Clone, Copy)]
pub(super) struct Annotation {
    pub(super) image: u64,
    pub(super) category: u64,
    /// The corners' x and y: the upper left's, the lower right's.
    pub(super) corners: [f32; 4],
}

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) images: Vec<Image>,
    pub(super) names: Vec<u8>,
    pub(super) annotations: Vec<Annotation>,
    /// Ids and names.
    pub(super) categories: Vec<(u64, String)>,
    /// Annotations of crowds, which are left out.
    pub(super) crowds: u64,
    /// Boxes without an area, which are left out.
    pub(super) empty: u64,
}

#[derive(Deserialize)]
struct ImageRecord {
    id: u64,
    file_name: String,
    width: Option<u32>,
    height: Option<u32>,
}

#[derive(Deserialize)]
struct AnnotationRecord {
    image_id: u64,
    category_id: Option<u64>,
    bbox: Option<[f64; 4]>,
    iscrowd: Option<Flag>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Number(u64),
}

#[derive(Deserialize)]
struct CategoryRecord {
    id: u64,
    name: String,
}

impl Parsed {
    fn add_image(&mut self, image: ImageRecord) -> Result<(), String> {
        if i64::try_from(image.id).is_err() {
            return Err(format!("the image's id {} is larger than an int64 can be", image.id));
        }
        self.names.extend_from_slice(image.file_name.as_bytes());
        let size = image.height.zip(image.width).map(|(height, width)| [height, width]);
        self.images.push(Image { id: image.id, name_end: self.names.len(), size });
        Ok(())
    }

    fn add_annotation(&mut self, annotation: AnnotationRecord) -> Result<(), String> {
        let AnnotationRecord { image_id: image, category_id, bbox, iscrowd } = annotation;
        if matches!(iscrowd, Some(Flag::Bool(true) | Flag::Number(1..))) {
            self.crowds += 1;
            return Ok(());
        }
        let (Some(category), Some([x, y, width, height])) = (category_id, bbox) else {
            return Err(
                "an annotation has no bbox or no category_id: files of boxes are read, such as instances_train2017.json"
                    .to_owned(),
            );
        };
        if width <= 0.0 || height <= 0.0 {
            self.empty += 1;
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, reason = "boxes are float32")]
        let corners = [x, y, x + width, y + height].map(|number| number as f32);
        if !corners.iter().all(|number| number.is_finite()) {
            return Err("a bbox has a number that float32 does not hold".to_owned());
        }
        self.annotations.push(Annotation { image, category, corners });
        Ok(())
    }

    fn add_category(&mut self, CategoryRecord { id, name }: CategoryRecord) -> Result<(), String> {
        self.categories.push((id, name));
        Ok(())
    }
}

/// Why a file is refused.
#[derive(Debug)]
pub(super) enum Fault {
    /// It cannot be read, or its reading was stopped.
    Read(DatasetError),
    /// What is wrong in a line.
    Broken(usize, String),
}

/// Reads a file of so many bytes, as much as a window holds at once. `ask` is called between two windows.
///
/// # Errors
/// It is no COCO file, or as the storage has it.
pub(super) fn parse(
    file: &dyn Bytes,
    file_bytes: u64,
    window: u64,
    ask: &dyn Fn() -> ControlFlow<()>,
) -> Result<Parsed, Fault> {
    let mut source = Source {
        file,
        file_bytes,
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
    let read = json.deserialize_map(TopLevel(&mut parsed)).and_then(|()| json.end());
    drop(json);
    match (read, source.failure) {
        (_, Some(failure)) => Err(Fault::Read(failure)),
        (Err(error), None) => {
            // The place is told apart.
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
    file_bytes: u64,
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
        let length = self.window.min(self.file_bytes - self.offset);
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
            if self.offset == self.file_bytes {
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

/// Bounds what the parser may have to store: the length of a text or a number, and how deep lists lie within each other.
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

/// The object that a file is.
struct TopLevel<'p>(&'p mut Parsed);

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
                Some(1) => map.next_value_seed(Each::new(|one| self.0.add_annotation(one)))?,
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

/// Calls a function with each element of a list, of which none is kept.
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
