//! Reads a COCO file for an index.

use std::ops::ControlFlow;

use super::super::scan::window;
use super::cells::{Cells, SegmentFiles};
use super::parse::{Annotation, Fault, Parsed, Wanted, parse};
use super::{Coco, Masks};
use crate::indexed::{Format, Opening};
use crate::manifest::paths::Paths;
use forebay_dataset::error::DatasetError;
use forebay_dataset::progress::ScanProgress;
use forebay_index::folder::select::Listed;
use forebay_index::row_index::{RowDraft, append_name};
use forebay_index::saved_index::{now_seconds, tell_missing};
use forebay_index::stored_file::StoredFile;
use forebay_protocol::counted::counted;
use forebay_storage::StorageError;

/// The form of a sample's name.
const NAME_FORM: &str =
    "a sample is named by its JSON file and the image's id, as in instances_train2017.json:397133";

/// The error for a missing folder, or a folder without the file.
fn no_file(opening: &Opening<'_, Coco>) -> DatasetError {
    match opening.lists.list(b"", &mut |_, _| {}) {
        Err(error) => tell_missing(error.into()),
        Ok(_) => opening.request.no_samples(
            "it is a folder without _annotations.coco.json; name the JSON file in dataset.path, such as \
             annotations/instances_train2017.json",
        ),
    }
}

/// Reads the file and builds an index.
pub(super) fn make(
    opening: &Opening<'_, Coco>,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, DatasetError> {
    let started_seconds = now_seconds();
    let request = &opening.request;
    request.check_limit()?;
    let file_name = Coco::files(opening)?.remove(0);
    let file = StoredFile::new(opening.lists, &file_name);
    let file = file.map_err(|error| match error {
        StorageError::Vanished { .. } if opening.pattern.is_none() => no_file(opening),
        error => tell_missing(error.into()),
    })?;
    let window = window(opening.lists) as u64;
    let ask = || -> ControlFlow<()> {
        let seen = ScanProgress::default();
        (request.options.progress)(seen)
    };
    let keys = &opening.keys;
    let wanted = match (&keys.panoptic, keys.masks, keys.keypoints) {
        (Some(_), ..) => Wanted::Segments,
        (None, None, false) => Wanted::Boxes,
        (None, masks, _) => Wanted::Objects { crowds: masks == Some(Masks::Categories) },
    };
    let parsed = parse(&file, window, wanted, &ask).map_err(|fault| match fault {
        Fault::Read(error) => error,
        Fault::Broken(line, message) => file.fault_at(line, message),
    })?;
    let refuse = |reason: String| file.fault(reason);
    let mut table = Table::of(&parsed).map_err(refuse)?;
    let layout = Coco {
        classes: std::mem::take(&mut table.classes),
        has_sizes: parsed.images.iter().all(|image| image.size.is_some()),
        masks: keys.masks,
        points_each: keys.keypoints.then_some(parsed.points_each as u64),
        is_panoptic: keys.panoptic.is_some(),
    };
    layout.check(&parsed).map_err(refuse)?;
    let segment_files = SegmentFiles::new(&parsed, opening).map_err(refuse)?;
    let cells = Cells { layout: &layout, parsed: &parsed, table: &table, segment_files };
    let keys = [&request.identity, &request.digest];
    let mut draft = RowDraft::new(layout.columns(), keys, |cell| cell.len() as u64);
    draft.begin(&file_name, file.stamp);
    let mut listed = request.ids.as_ref().map(Listed::new).transpose()?;
    let paths = Paths::new(&opening.data_root, b"", true);
    let (mut name_start, mut path, mut name) = (0, Vec::new(), Vec::new());
    for (place, image) in parsed.images.iter().enumerate() {
        let given = &parsed.names[name_start..image.name_end];
        name_start = image.name_end;
        if request.config.limit.is_some_and(|limit| draft.samples() >= limit) {
            break;
        }
        if let Some(listed) = &mut listed {
            name.clear();
            append_name(&file_name, image.id, &mut name);
            if !listed.take(&name) {
                continue;
            }
        }
        paths
            .resolve(given, &mut path)
            .map_err(|reason| refuse(format!("the file_name of image {} {reason}", image.id)))?;
        let cells = cells.of(place, &path).map_err(refuse)?;
        draft.add(image.id, cells.iter().map(|cell| Some(cell.as_slice())));
    }
    if let Some(listed) = listed {
        listed.finish(NAME_FORM)?;
    }
    if draft.samples() == 0 {
        return Err(request.no_samples(match &request.ids {
            Some(ids) => ids.lists_none(),
            None => "it lists no images".to_owned(),
        }));
    }
    warnings.extend(table.sentences(&parsed, layout.masks));
    // Strings only: serialization cannot fail.
    let rules = serde_json::to_string(&layout).unwrap_or_default();
    Ok(draft.build(started_seconds, &rules))
}

/// Assigns annotations to images.
pub(super) struct Table {
    /// In the order of the categories' ids.
    classes: Vec<String>,
    /// Annotations by image, in the order of the file, each with its label.
    order: Vec<(u32, u32)>,
    /// By image: the start of its annotations in `order`; the last entry is the end.
    starts: Vec<u32>,
    /// The number of annotations of unlisted images.
    foreign: u64,
}

impl Table {
    /// # Errors
    /// Two images or categories have the same id, or an annotation has an unlisted category.
    pub(super) fn of(parsed: &Parsed) -> Result<Self, String> {
        let count = |length: usize, what: &str| {
            u32::try_from(length)
                .map_err(|_| format!("it has {length} {what}, and at most 4 billion are read"))
        };
        count(parsed.images.len(), "images")?;
        count(parsed.annotations.len(), "annotations")?;
        let mut images: Vec<(u64, u32)> =
            parsed.images.iter().map(|image| image.id).zip(0..).collect();
        images.sort_unstable();
        if let Some(twice) = images.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two images have the id {}", twice[0].0));
        }
        let mut categories: Vec<_> = parsed.categories.iter().collect();
        categories.sort_unstable();
        if let Some(twice) = categories.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("two categories have the id {}", twice[0].0));
        }
        let place = |annotation: &Annotation| {
            let found = images.binary_search_by_key(&annotation.image, |(id, _)| *id);
            found.ok().map(|found| images[found].1)
        };
        let mut starts = vec![0_u32; parsed.images.len() + 1];
        let mut foreign = 0;
        for annotation in &parsed.annotations {
            match place(annotation) {
                Some(place) => starts[place as usize + 1] += 1,
                None => foreign += 1,
            }
        }
        for place in 1..starts.len() {
            starts[place] += starts[place - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![(0, 0); *starts.last().unwrap_or(&0) as usize];
        for (annotation, number) in parsed.annotations.iter().zip(0..) {
            let Some(place) = place(annotation) else { continue };
            let label = categories.binary_search_by_key(&annotation.category, |(id, _)| *id);
            let label = label.ok().and_then(|label| u32::try_from(label).ok()).ok_or_else(|| {
                format!(
                    "an annotation of image {} has the category {}, which categories do not list",
                    annotation.image, annotation.category
                )
            })?;
            let at = &mut next[place as usize];
            order[*at as usize] = (number, label);
            *at += 1;
        }
        let classes = categories.into_iter().map(|(_, name)| name.clone()).collect();
        Ok(Self { classes, order, starts, foreign })
    }

    /// The annotations of an image, each with its place among all and its label.
    pub(super) fn annotations<'p>(
        &'p self,
        parsed: &'p Parsed,
        image: usize,
    ) -> impl Iterator<Item = (usize, &'p Annotation, u32)> {
        let range = self.starts[image] as usize..self.starts[image + 1] as usize;
        self.order[range].iter().map(|(number, label)| {
            let number = *number as usize;
            (number, &parsed.annotations[number], *label)
        })
    }

    /// The warnings for the user, one sentence each.
    fn sentences(&self, parsed: &Parsed, masks: Option<Masks>) -> impl Iterator<Item = String> {
        let tell = |count: u64, before: &str, noun: &str, words: &str| {
            (count > 0).then(|| format!("{before}: {}{words}", counted(count, noun)))
        };
        let left_out = "left out";
        let crowds = match masks {
            Some(Masks::Categories) => "without boxes",
            _ => left_out,
        };
        let without_mask = masks.map_or(0, |_| parsed.without_mask);
        let sentences = [
            tell(parsed.crowds, crowds, "annotation", " of crowds (iscrowd)"),
            tell(parsed.empty, left_out, "box", " without an area"),
            tell(without_mask, "not in masks", "object", " without a segmentation"),
            tell(self.foreign, left_out, "annotation", " of images that the file does not list"),
        ];
        sentences.into_iter().flatten()
    }
}
