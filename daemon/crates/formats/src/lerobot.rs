//! `lerobot`: recordings of robots, as LeRobot writes them (LeRobotDataset 2.0, 2.1 and 3.0).
//!
//! A sample is one frame of an episode: the values of its row, the pictures that cameras took at this instant, and the
//! task. A field may be stacked over several instants around the frame. The values of all frames and the packets of all
//! pictures are learned when the dataset is opened ([`scan`]) and kept in the index, so that a sample reads nothing but the
//! packets of its pictures. Which files there are is in `meta`: no folder is listed.

mod episodes;
mod index;
mod info;
mod keys;
mod pictures;
mod plan;
mod rows;
mod scan;
mod values;

use std::borrow::Cow;
use std::fmt::Write as _;

use forebay_columnar::{Encoding, Number};
use forebay_keys::{ConfigError, Keys, Section, Table, Value, toml_key};
use forebay_protocol::counted::counted;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_select::{Type, Value as Selected};

use self::index::{Column, Form, Frame, RobotIndex, Rules};
use self::info::INFO;
use self::keys::{Instants, RobotKeys};
use self::pictures::Clock;
use self::plan::{Made, Planned};
use crate::draft::{Draft, Epochs, Seen};
use crate::indexed::{Format, Opening, Take};
use forebay_dataset::error::DatasetError;
use forebay_dataset::{ArrayValue, Defect, Field, FieldKind, FieldValue, FileColumn, VisitColumns};
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_index::saved_index::{SavedIndex, is_unchanged};
use forebay_index::stored_file::StoredFile;
use forebay_storage::Storage;
use forebay_storage::location::{ByteRange, FileId, Location, SampleBytes, Unit};
use forebay_video::Cut;
use forebay_video::table::Stream;

/// The field with the text of the task.
const TASK: &str = "task";
/// The remedy for files that contradict each other.
const BROKEN: &str = "download the dataset again, or write it again with LeRobot";

/// The fields of a dataset.
#[derive(Debug)]
pub(super) struct LeRobot {
    rules: Rules,
    fields: Vec<Planned>,
    clock: Clock,
    counts: Counts,
}

/// What a dataset has, for users.
#[derive(Debug, Clone, Copy)]
struct Counts {
    episodes: usize,
    frames: u64,
}

/// The keys of `[dataset]`, and the instants of fields.
#[derive(Debug)]
pub(super) struct LeRobotKeys {
    keys: RobotKeys,
    instants: Vec<(String, Instants)>,
}

impl Keys for LeRobotKeys {
    const TABLE: Table = RobotKeys::TABLE;

    fn take(section: &mut Section) -> Result<Self, ConfigError> {
        let keys = RobotKeys::take(section)?;
        let instants = keys.instants(section)?;
        Ok(Self { keys, instants })
    }

    fn entries(&self) -> Vec<(&'static str, Value)> {
        self.keys.entries()
    }

    fn check(&mut self, _section: &Section) -> Result<(), ConfigError> {
        Ok(())
    }
}

impl LeRobotKeys {
    fn text(&self) -> String {
        self.keys.text()
    }
}

impl LeRobot {
    fn plan_of(rules: &Rules, keys: &LeRobotKeys) -> Result<Vec<Planned>, String> {
        let LeRobotKeys { keys, instants } = keys;
        plan::plan(rules, keys.features.as_deref(), instants, keys.instant_tolerance())
    }

    /// Refuses fields that no sample may have.
    fn check_size(fields: &[Planned], limit: u64) -> Result<(), String> {
        let bytes = stacked_bytes(fields);
        match bytes > limit {
            true => Err(format!(
                "a sample has {bytes} bytes of values, and limits.sample_bytes is {limit}; stack fields over fewer instants, \
                 or raise the limit"
            )),
            false => Ok(()),
        }
    }

    /// The pictures of a field in a sample: their file, the stream, and what is read of it.
    fn pictures(
        &self,
        index: &RobotIndex,
        frame: Frame,
        (camera, planned): (usize, &Planned),
    ) -> Result<(FileId, Stream, Cut), Defect> {
        let named = |Defect(reason)| Defect(format!("`{}`: {reason}", planned.field.name));
        let (file, start, stream) = index.video(frame.place, camera).map_err(named)?;
        let rows = planned.rows(frame.row, frame.rows);
        let cut = self.clock.cut(&stream, start, rows).map_err(named)?;
        Ok((file, stream, cut))
    }

    fn task<'i>(
        &'i self,
        index: &'i RobotIndex,
        frame: u64,
        column: &Column,
    ) -> Result<&'i str, Defect> {
        let number = Encoding::number(&column.dtype, index.value(frame, column));
        let number = match number {
            Ok(Number::Integer(number)) => usize::try_from(number).ok(),
            _ => None,
        };
        let tasks = self.rules.tasks.as_deref().unwrap_or_default();
        let found = number.and_then(|number| tasks.get(number));
        found.map(String::as_str).ok_or_else(|| {
            Defect(format!(
                "its `task_index` is none of the {} of meta",
                counted(tasks.len(), "task")
            ))
        })
    }
}

/// The bytes of the values of a sample that are copied.
fn stacked_bytes(fields: &[Planned]) -> u64 {
    let stacked = fields.iter().filter(|planned| planned.deltas.is_some());
    stacked.filter_map(Planned::array_bytes).fold(0, u64::saturating_add)
}

/// The bytes of some parts of a sample, one after another.
fn joined<'a>(
    bytes: SampleBytes<'a>,
    parts: std::ops::Range<usize>,
    start: usize,
) -> Option<Cow<'a, [u8]>> {
    let found: Vec<&[u8]> = parts.map(|part| bytes.part(part)).collect::<Option<_>>()?;
    let length: usize = found.iter().map(|part| part.len()).sum();
    let all = bytes.all();
    match found[..] {
        [one] => Some(one.into()),
        _ if all.len() as u64 == bytes.length_bytes() => {
            all.get(start..start.checked_add(length)?).map(Cow::Borrowed)
        }
        _ => Some(found.concat().into()),
    }
}

impl Format for LeRobot {
    const FORMAT: FolderFormat =
        FolderFormat { name: "lerobot", extensions: &[], loose: LooseFiles::NoFolders };
    const EXPECTED: &'static str = "the folder of a LeRobotDataset, which has meta/info.json";
    const OTHER_FILE: &'static str = "a file";
    const MARKS: &'static [&'static str] = &[INFO];

    type Keys = LeRobotKeys;
    type Index = RobotIndex;

    fn reads(_name: &[u8]) -> bool {
        false
    }

    /// Decodes the pictures of each camera to one size, and keeps the other fields.
    fn draft(seen: &Seen) -> Draft {
        let mut operations = String::new();
        let is_camera = |field: &&Field| matches!(field.kind, FieldKind::Video { .. });
        for Field { name, .. } in seen.fields.iter().filter(is_camera) {
            for operation in ["decode-video\"", "resize\", size = [224, 224]"] {
                // Writing to a String cannot fail.
                let _ = writeln!(operations, "    {{ op = \"{operation}, field = {name:?} }},");
            }
        }
        let operations = match operations.is_empty() {
            true => "[]".to_owned(),
            false => format!("[\n{operations}]"),
        };
        let stacked = "# [dataset.delta_frames]        # fields that are stacked over several frames\n# action = [0, 1, 2, 3]\n";
        let output = match seen.output.as_str() {
            "" => String::new(),
            lines => format!("\n# As floats, normalized by meta/stats.json:\n{lines}"),
        };
        Draft {
            epochs: Epochs::Many,
            tables: format!(
                "{stacked}\n[[stage]]\nname = \"decode\"\noperations = {operations}\n{output}"
            ),
            ..Draft::default()
        }
    }

    fn digested(keys: &LeRobotKeys) -> Result<String, ConfigError> {
        Ok(keys.text())
    }

    /// The file that names the others.
    fn files(_opening: &Opening<'_, Self>) -> Result<Vec<Vec<u8>>, DatasetError> {
        Ok(vec![INFO.as_bytes().to_vec()])
    }

    fn is_complete(index: &RobotIndex, opening: &Opening<'_, Self>) -> Result<bool, DatasetError> {
        let read_at = index.file().scan_started_seconds();
        // A dataset may lack these, and have them at another time.
        for path in [episodes::TASKS[0], episodes::TASKS[1], scan::STATISTICS] {
            let is_known = index.other_files().any(|(_, known, _)| known == path);
            if is_known != StoredFile::if_there(opening.storage, path)?.is_some() {
                return Ok(false);
            }
        }
        for (file, _, stamp) in index.other_files() {
            if !is_unchanged(opening.storage, index, file, stamp, read_at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn make(
        opening: &Opening<'_, Self>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<u8>, DatasetError> {
        scan::make(opening, warnings)
    }

    fn of_index(index: &RobotIndex, opening: &Opening<'_, Self>) -> Option<Self> {
        let rules: Rules = serde_json::from_str(index.rules()).ok()?;
        if rules.keys != opening.keys.text() {
            return None;
        }
        let fields = Self::plan_of(&rules, &opening.keys).ok()?;
        let tolerance = opening.keys.keys.picture_tolerance(rules.fps);
        let clock = Clock { fps: rules.fps, tolerance };
        let counts = Counts { episodes: index.episodes(), frames: index.samples() };
        Some(Self { rules, fields, clock, counts })
    }

    fn fields(&self, _: &RobotIndex, _: Option<SampleBytes<'_>>) -> Result<Vec<Field>, Defect> {
        Ok(self.fields.iter().map(|planned| planned.field.clone()).collect())
    }

    fn locate(&self, index: &RobotIndex, id: SampleId, locations: &mut Vec<Location>) {
        let frame = index.frame(id);
        let before = locations.len();
        for planned in &self.fields {
            let Made::Camera(camera) = planned.made else { continue };
            // A defect is said when the values are made.
            let Ok((file, _, cut)) = self.pictures(index, frame, (camera, planned)) else {
                continue;
            };
            locations.extend(cut.ranges.iter().map(|range| {
                let length = Some(range.end.saturating_sub(range.start));
                let range = ByteRange { offset: range.start, length };
                Location { file, range, unit: Unit::Sample }
            }));
        }
        if locations.len() == before {
            // Nothing of the frame is read; a sample has a location.
            let range = ByteRange { offset: 0, length: Some(1) };
            locations.push(Location { range, ..Location::whole(FileId(0)) });
        }
    }

    fn values<'a>(
        &'a self,
        index: &'a RobotIndex,
        id: SampleId,
        bytes: SampleBytes<'a>,
        take: Take<'_, 'a>,
    ) -> Result<(), Defect> {
        let frame = index.frame(id);
        let (mut part, mut start) = (0, 0);
        for planned in &self.fields {
            let shape = match &planned.field.kind {
                FieldKind::Array { shape, .. } => &shape[..],
                _ => &[],
            };
            take(match &planned.made {
                Made::Column(column) => {
                    let value = |row: u64| index.value(frame.first.saturating_add(row), column);
                    let dtype = column.dtype().unwrap_or(DType::U8);
                    let bytes: Cow<'_, [u8]> = match &planned.deltas {
                        None => value(frame.row).into(),
                        Some(_) => {
                            let mut stacked = Vec::new();
                            planned
                                .rows(frame.row, frame.rows)
                                .for_each(|row| stacked.extend_from_slice(value(row)));
                            stacked.into()
                        }
                    };
                    if Some(bytes.len() as u64) != planned.array_bytes() {
                        return Err(Defect("the index has no values of it; remove it".to_owned()));
                    }
                    FieldValue::Array(ArrayValue::new(dtype, shape, bytes))
                }
                Made::Pad => {
                    let row = i128::from(frame.row);
                    let is_outside = |delta: &i64| {
                        let row = row + i128::from(*delta);
                        u8::from(row < 0 || row >= i128::from(frame.rows))
                    };
                    let deltas = planned.deltas.as_deref().unwrap_or_default();
                    let bits: Vec<u8> = deltas.iter().map(is_outside).collect();
                    FieldValue::Array(ArrayValue::new(DType::Bool, shape, bits))
                }
                Made::Task(column) => {
                    FieldValue::Text(self.task(index, frame.first + frame.row, column)?.into())
                }
                Made::Camera(camera) => {
                    let (_, stream, cut) = self.pictures(index, frame, (*camera, planned))?;
                    let parts = part..part + cut.ranges.len();
                    part = parts.end;
                    let own = joined(bytes, parts, start);
                    let own =
                        own.ok_or_else(|| Defect("its pictures were not read whole".to_owned()))?;
                    start += own.len();
                    let clip = stream.clip(&cut, own);
                    FieldValue::Video(Box::new(clip.map_err(|refused| {
                        Defect(format!("`{}`: {}", planned.field.name, refused.0))
                    })?))
                }
            })?;
        }
        Ok(())
    }

    fn unpacked_bytes(&self, _bytes: SampleBytes<'_>) -> u64 {
        stacked_bytes(&self.fields)
    }

    fn output(&self) -> String {
        let mut lines = String::new();
        for planned in &self.fields {
            let Made::Camera(camera) = planned.made else { continue };
            let statistics = self.rules.features.iter().find_map(|known| match &known.form {
                Form::Camera { place, statistics } if *place == camera => statistics.as_ref(),
                _ => None,
            });
            let Some(index::Statistics { mean, std }) = statistics else { continue };
            let rounded = |numbers: &[f64]| {
                let numbers: Vec<_> = numbers.iter().map(|number| format!("{number:.4}")).collect();
                numbers.join(", ")
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                lines,
                "# [output.{}]\n# dtype = \"float32\"\n# mean = [{}]\n# std = [{}]",
                toml_key(&planned.field.name),
                rounded(mean),
                rounded(std)
            );
        }
        lines
    }

    fn max_row_bytes(&self, _index: &RobotIndex, place: usize, _field: &Field) -> Option<u64> {
        let planned = self.fields.get(place)?;
        match planned.made {
            Made::Task(_) => {
                let texts = self.rules.tasks.as_deref().unwrap_or_default();
                Some(texts.iter().map(|text| text.len() as u64).max().unwrap_or(0).max(1))
            }
            _ => planned.array_bytes(),
        }
    }

    fn rows_differ(&self, _index: &RobotIndex, _field: usize) -> Option<bool> {
        Some(false)
    }

    fn columns(
        &self,
        _index: &RobotIndex,
        _files: &dyn Storage,
    ) -> Result<Option<Vec<FileColumn>>, DatasetError> {
        let column = |(name, column): (&str, &Column)| {
            let values = match (column.shape.is_empty(), column.dtype.as_str()) {
                (false, _) => Err("its values are arrays".to_owned()),
                (true, "bool") => Ok(Type::Boolean),
                (true, _) => Ok(Type::Number),
            };
            FileColumn { name: name.to_owned(), values }
        };
        let task = self
            .task_column()
            .map(|_| FileColumn { name: TASK.to_owned(), values: Ok(Type::Text) });
        Ok(Some(self.rules.columns().map(column).chain(task).collect()))
    }

    fn visit_columns(
        &self,
        index: &RobotIndex,
        _files: &dyn Storage,
        columns: &[usize],
        visit: VisitColumns<'_>,
    ) -> Result<(), DatasetError> {
        let known: Vec<&Column> = self.rules.columns().map(|(_, column)| column).collect();
        let broken = |frame: u64, reason: String| {
            let mut name = Vec::new();
            index.append_name(SampleId(frame), &mut name);
            DatasetError::BrokenFile {
                path: String::from_utf8_lossy(&name).into_owned().into(),
                reason,
            }
        };
        let mut values = Vec::with_capacity(columns.len());
        for frame in 0..index.samples() {
            values.clear();
            for place in columns {
                values.push(match known.get(*place) {
                    Some(column) => {
                        let number = Encoding::number(&column.dtype, index.value(frame, column));
                        match number.map_err(|why| broken(frame, why))? {
                            Number::Integer(number) if column.dtype == "bool" => {
                                Selected::Boolean(number != 0)
                            }
                            Number::Integer(number) => Selected::Integer(number),
                            Number::Float(number) => Selected::Float(number),
                        }
                    }
                    None => match self.task_column() {
                        Some(column) => {
                            let task = self.task(index, frame, column);
                            Selected::Text(task.map_err(|Defect(reason)| broken(frame, reason))?)
                        }
                        None => Selected::Null,
                    },
                });
            }
            visit(SampleId(frame), &values)?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let Counts { episodes, frames } = self.counts;
        let cameras: Vec<&str> = self.rules.cameras().collect();
        let cameras = match cameras.is_empty() {
            true => "no cameras".to_owned(),
            false => format!("{}: {}", counted(cameras.len(), "camera"), cameras.join(", ")),
        };
        let words = format!(
            "{}, {} at {} a second; {cameras}",
            counted(episodes, "episode"),
            counted(frames, "frame"),
            self.rules.fps
        );
        vec![("episodes", words)]
    }
}

impl LeRobot {
    /// The column with the number of the task, if there are texts of tasks.
    fn task_column(&self) -> Option<&Column> {
        self.rules.tasks.as_ref().and_then(|_| self.rules.column("task_index"))
    }
}

#[cfg(test)]
mod tests;
