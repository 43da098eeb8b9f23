//! The cells of an image's row in the index: its boxes, labels and size, and as configured its mask, its keypoints or
//! its segments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::parse::{Annotation, Parsed};
use super::scan::Table;
use super::{Coco, Masks};
use crate::indexed::Opening;
use crate::manifest::paths::Paths;
use forebay_dataset::mask::MaskDraft;

/// Makes rows of what a file says.
pub(super) struct Cells<'a> {
    pub(super) layout: &'a Coco,
    pub(super) parsed: &'a Parsed,
    pub(super) table: &'a Table,
    pub(super) segment_files: SegmentFiles<'a>,
}

impl Cells<'_> {
    /// The cells of an image by its place in the file; `path` is where its picture is.
    ///
    /// # Errors
    /// A mask does not fit the image, or the image lacks what the configuration asks for.
    pub(super) fn of(&self, place: usize, path: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let (image, layout) = (&self.parsed.images[place], self.layout);
        // Crowds have regions, and segments; no boxes of objects.
        let is_row = |annotation: &Annotation| layout.is_panoptic || !annotation.is_crowd;
        let all = || self.table.annotations(self.parsed, place);
        let rows = || all().filter(|(_, annotation, _)| is_row(annotation));
        let (mut boxes, mut labels) = (Vec::new(), Vec::new());
        for (_, annotation, label) in rows() {
            boxes.extend(annotation.corners.iter().flat_map(|number| number.to_le_bytes()));
            labels.extend_from_slice(&i64::from(label).to_le_bytes());
        }
        let size: Vec<u8> =
            image.size.iter().flatten().flat_map(|side| i64::from(*side).to_le_bytes()).collect();
        let mut cells = vec![path.to_vec(), boxes, labels, size];
        if let Some(masks) = layout.masks {
            cells.push(self.mask(place, masks)?);
        }
        if let Some(each) = layout.points_each {
            let numbers = 3 * usize::try_from(each).unwrap_or(0);
            let mut points = Vec::new();
            for (place, ..) in rows() {
                let own = self.parsed.points(place);
                let missing = numbers - own.len().min(numbers);
                let own = own.iter().copied().chain(std::iter::repeat_n(0.0, missing));
                points.extend(own.flat_map(f32::to_le_bytes));
            }
            cells.push(points);
        }
        if layout.is_panoptic {
            let ids = rows().flat_map(|(_, one, _)| i64::from(one.segment).to_le_bytes());
            let crowds = rows().map(|(_, one, _)| u8::from(one.is_crowd));
            let (ids, crowds) = (ids.collect(), crowds.collect());
            cells.extend([self.segment_files.path(image.id)?, ids, crowds]);
        }
        Ok(cells)
    }

    /// The mask of an image: crowds first, then objects in the order of the file.
    fn mask(&self, place: usize, masks: Masks) -> Result<Vec<u8>, String> {
        let image = &self.parsed.images[place];
        let Some([height, width]) = image.size else {
            return Err(format!("image {} has no height and width, which masks need", image.id));
        };
        let mut draft = MaskDraft::new(width, height);
        let all = || self.table.annotations(self.parsed, place);
        let crowds = all().filter(|(_, annotation, _)| annotation.is_crowd);
        let objects = all().filter(|(_, annotation, _)| !annotation.is_crowd);
        for (row, (number, _, label)) in crowds.map(|one| (0, one)).chain((1..).zip(objects)) {
            if let Some(size) = self.parsed.run_size(number).filter(|size| *size != [height, width])
            {
                return Err(format!(
                    "a segmentation of image {} is of {}x{} pixels (width x height), and the image of {width}x{height}",
                    image.id, size[1], size[0]
                ));
            }
            let value = match masks {
                Masks::Categories => label + 1,
                Masks::Instances => row,
            };
            let value = u16::try_from(value).map_err(|_| {
                format!("image {} has more objects than a mask of 16 bits has numbers", image.id)
            })?;
            draft.add(value, self.parsed.parts(number));
        }
        Ok(draft.into_bytes())
    }
}

/// The pictures of ids of a panoptic file.
pub(super) struct SegmentFiles<'a> {
    parsed: &'a Parsed,
    /// By image, sorted: the range of its path in the file's names.
    places: Vec<(u64, std::ops::Range<usize>)>,
    /// The folder of the pictures.
    folder: Vec<u8>,
    paths: Paths<'static>,
}

impl<'a> SegmentFiles<'a> {
    /// `opening` has the configured folder.
    ///
    /// # Errors
    /// Two annotations are of one image, or the folder of data behind a URL is not below it.
    pub(super) fn new(parsed: &'a Parsed, opening: &Opening<'_, Coco>) -> Result<Self, String> {
        let root = opening.data_root.to_string_lossy();
        let folder = opening.keys.panoptic.clone().unwrap_or_default();
        let folder = folder.to_string_lossy();
        let below = folder.strip_prefix(root.trim_end_matches('/'));
        let below = below.filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let is_remote = opening.storage.remote_root().is_some();
        let folder = match below {
            Some(rest) => rest.trim_matches('/').to_owned(),
            None if is_remote && opening.keys.panoptic.is_some() => {
                return Err(format!(
                    "dataset.panoptic = {folder:?} is not below {root}; set dataset.root to the URL that both begin with"
                ));
            }
            None => folder.into_owned(),
        };
        Self::of(parsed, folder.into_bytes())
    }

    /// # Errors
    /// Two annotations are of one image.
    pub(super) fn of(parsed: &'a Parsed, folder: Vec<u8>) -> Result<Self, String> {
        let mut start = 0;
        let files = parsed.segment_files.iter();
        let mut places: Vec<_> = files
            .map(|file| (file.image, std::mem::replace(&mut start, file.name_end)..file.name_end))
            .collect();
        places.sort_unstable_by_key(|(image, _)| *image);
        if let Some(twice) = places.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two annotations are of the image {}", twice[0].0));
        }
        let paths = Paths::new(&PathBuf::from(OsString::from_vec(folder.clone())), b"", true);
        Ok(Self { parsed, places, folder, paths })
    }

    fn path(&self, image: u64) -> Result<Vec<u8>, String> {
        let found = self.places.binary_search_by_key(&image, |(image, _)| *image);
        let found = found.map_err(|_| format!("no annotation is of the image {image}"))?;
        let name = &self.parsed.segment_names[self.places[found].1.clone()];
        let mut path = Vec::new();
        let resolved = self.paths.resolve(name, &mut path);
        resolved
            .map_err(|reason| format!("the file_name of the segments of image {image} {reason}"))?;
        Ok(match self.folder.is_empty() {
            true => path,
            false => [self.folder.as_slice(), &path].join(&b'/'),
        })
    }
}
