//! The schema of an Arrow stream: its fields, and which of them become columns.

use serde_json::Value;

use super::flatbuffer::{Broken, Table};
use crate::json;
use crate::lists::{
    BYTE_LISTS, IN_PICTURES, IN_STRUCTS, TEXTS, array_form, left_out_as_json, may_be_json,
};
use crate::{Encoding, Feature, Features, HUGGINGFACE, Inferred};
use crate::{MAX_COLUMNS, NameSizes, SharedClasses, TableColumn};

/// The maximum nesting of fields.
const MAX_DEPTH: usize = 32;
/// Arrow's version 4, by its number in messages: before version 5, unions had one more buffer.
const V4: i16 = 3;

/// The layout of a field's values in the buffers of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No buffers.
    Null,
    Bool,
    /// Values of a fixed size; the name of the number type, if it is supported.
    Fixed(u64, Option<&'static str>),
    /// Dates and times, as integers of this size and type.
    Time(u64, &'static str),
    /// Bytes or text with offsets of 4 or 8 bytes.
    Bytes {
        is_text: bool,
        is_large: bool,
    },
    List {
        is_large: bool,
    },
    FixedList(u64),
    Struct,
    /// An unsupported type: its name, its number of buffers, and whether each batch counts further ones.
    Unread {
        name: &'static str,
        buffers: usize,
        has_more: bool,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) children: Vec<Field>,
}

/// A step from a row to the elements of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Struct,
    List { is_large: bool },
    FixedList(u64),
}

/// The layout of the values after the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Bool,
    Fixed(u64),
    Bytes {
        is_large: bool,
    },
    /// Bytes in a list, each located by itself.
    ByteList {
        is_large: bool,
    },
    /// The field and all in it, as JSON.
    Json,
    /// Not located.
    Unread,
}

/// A column and its location. Fields are numbered as a batch lists them, each before its children.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) column: TableColumn,
    pub(super) steps: Vec<(Step, usize)>,
    pub(super) field: usize,
    pub(super) values: Values,
    /// For pictures in a struct: the field with the paths of pictures that the file does not contain.
    pub(super) path: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Schema {
    pub(super) fields: Vec<Field>,
    pub(super) leaves: Vec<Leaf>,
}

impl Schema {
    /// # Errors
    /// Describes the fault, or an unsupported feature.
    pub(super) fn parse(table: &Table<'_>, version: i16) -> Result<Self, String> {
        let broken = |_: Broken| "its schema is damaged".to_owned();
        if table.i16(0, 0).map_err(broken)? != 0 {
            return Err(
                "its numbers have the most significant byte first, which is not read".to_owned()
            );
        }
        let mut sizes = NameSizes::default();
        let mut left = MAX_COLUMNS;
        add_names(table, 1, 0, 0, &mut left, &mut sizes)?;
        sizes.check()?;
        let fields = parse_fields(table, 1, version)?;
        let mut features = None;
        for entry in table.tables(2).map_err(broken)? {
            let entry = entry.map_err(broken)?;
            if entry.text(0).is_ok_and(|key| key == HUGGINGFACE) {
                features = Features::parse(entry.text(1).map_err(broken)?);
            }
        }
        let leaves = leaves(&fields, features.as_ref());
        Ok(Self { fields, leaves })
    }
}

/// The unit of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    /// The number of units per second.
    PerSecond(i64),
    Days,
    /// Days, counted in milliseconds.
    DaysInMilliseconds,
}

/// The fields of a schema.
///
/// # Errors
/// Describes the fault of the schema.
pub(super) fn fields(table: &Table<'_>, version: i16) -> Result<Vec<Field>, String> {
    let mut sizes = NameSizes::default();
    let mut left = MAX_COLUMNS;
    add_names(table, 1, 0, 0, &mut left, &mut sizes)?;
    sizes.check()?;
    parse_fields(table, 1, version)
}

/// The units of dates, times of day and timestamps, by column name; times in lists are ignored.
///
/// # Errors
/// Describes the fault of the schema.
pub(super) fn time_units(table: &Table<'_>) -> Result<Vec<(String, TimeUnit)>, String> {
    let mut sizes = NameSizes::default();
    let mut left = MAX_COLUMNS;
    add_names(table, 1, 0, 0, &mut left, &mut sizes)?;
    sizes.check()?;
    let mut units = Vec::new();
    add_units(table, 1, "", &mut units).map_err(|_| "its schema is damaged".to_owned())?;
    Ok(units)
}

/// Adds the units of fields that [`add_names`] has checked.
fn add_units(
    table: &Table<'_>,
    number: usize,
    above: &str,
    units: &mut Vec<(String, TimeUnit)>,
) -> Result<(), Broken> {
    for field in table.tables(number)? {
        let field = field?;
        if field.table(4)?.is_some() {
            continue;
        }
        let name = match above {
            "" => field.text(0)?.to_owned(),
            above => format!("{above}.{}", field.text(0)?),
        };
        let own = field.table(3)?;
        let unit = |default| own.as_ref().map_or(Ok(default), |own| own.i16(0, default));
        let per_second = |unit| match unit {
            0 => Ok(TimeUnit::PerSecond(1)),
            1 => Ok(TimeUnit::PerSecond(1000)),
            2 => Ok(TimeUnit::PerSecond(1_000_000)),
            3 => Ok(TimeUnit::PerSecond(1_000_000_000)),
            _ => Err(Broken),
        };
        match field.u8(2, 0)? {
            8 if unit(1)? == 0 => units.push((name, TimeUnit::Days)),
            8 => units.push((name, TimeUnit::DaysInMilliseconds)),
            9 => units.push((name, per_second(unit(1)?)?)),
            10 => units.push((name, per_second(unit(0)?)?)),
            13 => add_units(&field, 5, &name, units)?,
            _ => {}
        }
    }
    Ok(())
}

/// Sums the lengths of the names of fields and their children; `above`: the length of the parent's dotted name. Offsets
/// may form cycles, so depth and number of fields are limited.
fn add_names(
    table: &Table<'_>,
    number: usize,
    above: u64,
    depth: usize,
    left: &mut u64,
    sizes: &mut NameSizes,
) -> Result<(), String> {
    let broken = |_: Broken| "its schema is damaged".to_owned();
    for field in table.tables(number).map_err(broken)? {
        let field = field.map_err(broken)?;
        *left =
            left.checked_sub(1).ok_or_else(|| format!("it has more than {MAX_COLUMNS} columns"))?;
        if depth == MAX_DEPTH {
            return Err(format!("its columns lie more than {MAX_DEPTH} deep in each other"));
        }
        let bytes = NameSizes::below(above, field.text(0).map_err(broken)?);
        sizes.add(bytes)?;
        // Children of a dictionary-encoded field are not read.
        if field.table(4).map_err(broken)?.is_none() {
            add_names(&field, 5, bytes, depth + 1, left, sizes)?;
        }
    }
    Ok(())
}

/// Parses fields that [`add_names`] has checked.
fn parse_fields(table: &Table<'_>, number: usize, version: i16) -> Result<Vec<Field>, String> {
    let broken = |_: Broken| "its schema is damaged".to_owned();
    let mut fields = Vec::new();
    for field in table.tables(number).map_err(broken)? {
        let field = field.map_err(broken)?;
        let name = field.text(0).map_err(broken)?.to_owned();
        let is_dictionary = field.table(4).map_err(broken)?.is_some();
        let (kind, children) = match is_dictionary {
            // A batch contains only the dictionary's indices.
            true => {
                let name = "encoded by a dictionary; write it as plain values, as in table.cast(…)";
                (Kind::Unread { name, buffers: 2, has_more: false }, Vec::new())
            }
            false => {
                let kind = kind(&field, version).map_err(broken)?;
                let kind = kind.ok_or_else(|| {
                    format!(
                        "its column {name} is of a type that is not known here; write it without"
                    )
                })?;
                (kind, parse_fields(&field, 5, version)?)
            }
        };
        let children_needed = match kind {
            Kind::List { .. } | Kind::FixedList(_) => Some(1),
            Kind::Bool | Kind::Fixed(..) | Kind::Time(..) | Kind::Bytes { .. } => Some(0),
            _ => None,
        };
        if children_needed.is_some_and(|needed| needed != children.len()) {
            return Err(format!("its column {name} has {} columns in it", children.len()));
        }
        fields.push(Field { name, kind, children });
    }
    Ok(fields)
}

/// `None`: a type of a newer version.
fn kind(field: &Table<'_>, version: i16) -> Result<Option<Kind>, Broken> {
    let unread = |name, buffers| Kind::Unread { name, buffers, has_more: false };
    let own = field.table(3)?;
    let own = own.as_ref();
    let i16_of = |number, default| own.map_or(Ok(default), |own| own.i16(number, default));
    let size_of = |number, default| {
        let size = own.map_or(Ok(default), |own| own.i32(number, default))?;
        u64::try_from(size).map_err(|_| Broken)
    };
    Ok(Some(match field.u8(2, 0)? {
        1 => Kind::Null,
        2 => {
            let is_signed = own.map_or(Ok(0), |own| own.u8(1, 0))? != 0;
            let (bytes, name) = match (size_of(0, 0)?, is_signed) {
                (8, true) => (1, "int8"),
                (16, true) => (2, "int16"),
                (32, true) => (4, "int32"),
                (64, true) => (8, "int64"),
                (8, false) => (1, "uint8"),
                (16, false) => (2, "uint16"),
                (32, false) => (4, "uint32"),
                (64, false) => (8, "uint64"),
                _ => return Err(Broken),
            };
            Kind::Fixed(bytes, Some(name))
        }
        3 => match i16_of(0, 0)? {
            0 => Kind::Fixed(2, Some("float16")),
            1 => Kind::Fixed(4, Some("float32")),
            2 => Kind::Fixed(8, Some("float64")),
            _ => return Err(Broken),
        },
        4 => Kind::Bytes { is_text: false, is_large: false },
        5 => Kind::Bytes { is_text: true, is_large: false },
        6 => Kind::Bool,
        7 => unread("a decimal; write it as a float or as text", 2),
        8 if i16_of(0, 1)? == 0 => Kind::Time(4, "int32"),
        8 | 10 | 18 => Kind::Time(8, "int64"),
        9 if size_of(1, 32)? == 32 => Kind::Time(4, "int32"),
        9 => Kind::Time(8, "int64"),
        11 => unread("an interval", 2),
        12 => Kind::List { is_large: false },
        13 => Kind::Struct,
        14 if version <= V4 => return Ok(None),
        14 => unread("a union; write its parts as columns", if i16_of(0, 0)? == 0 { 1 } else { 2 }),
        15 => Kind::Fixed(size_of(0, 0)?, None),
        16 => Kind::FixedList(size_of(0, 0)?),
        17 => unread("a map; write it as JSON text", 2),
        19 => Kind::Bytes { is_text: false, is_large: true },
        20 => Kind::Bytes { is_text: true, is_large: true },
        21 => Kind::List { is_large: true },
        22 => unread("encoded by runs; write it as plain values", 0),
        23 | 24 => Kind::Unread {
            name: "a view; write it as binary or string, as in table.cast(…)",
            buffers: 2,
            has_more: true,
        },
        25 | 26 => unread("a view of lists; write it as a list", 3),
        _ => return Ok(None),
    }))
}

/// The columns of fields; fields of structs have dotted names.
fn leaves(fields: &[Field], features: Option<&Value>) -> Vec<Leaf> {
    let mut found = Found {
        leaves: Vec::new(),
        paths: Vec::new(),
        pictures: Vec::new(),
        json: Vec::new(),
        json_names_left: json::MAX_NAMES_BYTES,
        next: 0,
        classes: SharedClasses::default(),
    };
    let features = Features::new(features);
    for field in fields {
        found.add(field, &field.name, features.child(&field.name), &[]);
    }
    [found.leaves, found.paths, found.pictures, found.json].concat()
}

struct Found {
    leaves: Vec<Leaf>,
    /// Columns of picture paths, which come last.
    paths: Vec<Leaf>,
    /// Lists of pictures in structs, which come after these.
    pictures: Vec<Leaf>,
    /// Structs and lists as JSON, which come after all others.
    json: Vec<Leaf>,
    json_names_left: usize,
    /// The number of the next field.
    next: usize,
    classes: SharedClasses,
}

impl Found {
    fn add(&mut self, field: &Field, name: &str, features: Features<'_>, above: &[(Step, usize)]) {
        let (number, first) = (self.next, self.leaves.len());
        self.next += 1;
        let lists = above.iter().filter(|(step, _)| *step != Step::Struct).count();
        let below = |step| [above, &[(step, number)]].concat();
        match &field.kind {
            Kind::Struct => {
                let steps = below(Step::Struct);
                if lists == 0 && self.add_picture(field, name, features, &steps) {
                    return;
                }
                for child in &field.children {
                    let name = format!("{name}.{}", child.name);
                    self.add(child, &name, features.child(&child.name), &steps);
                }
                self.add_json(field, name, above, (number, first));
            }
            Kind::List { is_large } => {
                let steps = below(Step::List { is_large: *is_large });
                let features = if is_array(features) { features } else { features.element() };
                field.children.iter().for_each(|child| self.add(child, name, features, &steps));
                if lists > 0 || !self.add_pictures(field, name, first) {
                    self.add_json(field, name, above, (number, first));
                }
            }
            Kind::FixedList(size) => {
                let steps = below(Step::FixedList(*size));
                let features = if is_array(features) { features } else { features.element() };
                field.children.iter().for_each(|child| self.add(child, name, features, &steps));
                self.add_json(field, name, above, (number, first));
            }
            kind => {
                self.next += field.children.iter().map(count).sum::<usize>();
                let (values, encoding) = column(kind, above, &features.feature());
                self.push(name, encoding, above, number, values);
                if let (Feature::Classes(names), Some(leaf)) =
                    (features.feature(), self.leaves.last_mut().filter(|_| lists == 0))
                {
                    leaf.column.classes = self.classes.of(names);
                }
            }
        }
    }

    /// Adds a struct or a list that is not in a list as JSON, if no column has all of it. `number`: its field; `first`:
    /// the first of its columns.
    fn add_json(
        &mut self,
        field: &Field,
        name: &str,
        above: &[(Step, usize)],
        (number, first): (usize, usize),
    ) {
        let is_in_list = above.iter().any(|(step, _)| *step != Step::Struct);
        if is_in_list {
            return;
        }
        let own = self.leaves.get_mut(first..).unwrap_or_default();
        let why = match &*own {
            [leaf] if leaf.column.column.name == name => match &leaf.column.column.encoding {
                Encoding::Unread(why) if may_be_json(why) => Some(left_out_as_json(why)),
                _ => return,
            },
            _ => None,
        };
        let fault = json_fault(field, name);
        let Some(left) = self.json_names_left.checked_sub(name.len() + 1) else { return };
        if fault.is_some() && why.is_some() {
            return;
        }
        self.json_names_left = left;
        if why.is_some() {
            self.leaves.truncate(first);
        } else if fault.is_none() && field.kind != Kind::Struct {
            for leaf in own {
                let encoding = &mut leaf.column.column.encoding;
                if matches!(encoding, Encoding::Unread(why) if may_be_json(why)) {
                    *encoding = Encoding::Unread(IN_STRUCTS.to_owned());
                }
            }
        }
        let values = if fault.is_some() { Values::Unread } else { Values::Json };
        let mut column = TableColumn::new(name, fault.map_or(Encoding::Json, Encoding::Unread));
        column.inferred = why.map_or(Inferred::Unmentioned, Inferred::LeftOut);
        self.json.push(Leaf { column, steps: above.to_vec(), field: number, values, path: None });
    }

    /// Adds a list of bytes, or of structs of `bytes` and `path`, as one column. `first`: the number of its first field.
    /// Returns whether it is such a list.
    fn add_pictures(&mut self, list: &Field, name: &str, first: usize) -> bool {
        let Some(element) = list.children.first() else { return false };
        let own = self.leaves.get_mut(first..).unwrap_or_default();
        match (&element.kind, &element.children[..], own) {
            (Kind::Bytes { is_text: false, is_large }, _, [leaf]) => {
                leaf.column = TableColumn::new(name, Encoding::ByteLists);
                leaf.column.inferred = Inferred::LeftOut(BYTE_LISTS.to_owned());
                leaf.values = Values::ByteList { is_large: *is_large };
                true
            }
            (Kind::Struct, [bytes, path], own @ [_, _]) => {
                let Kind::Bytes { is_text: false, is_large } = bytes.kind else { return false };
                let is_text = matches!(path.kind, Kind::Bytes { is_text: true, .. });
                if bytes.name != "bytes" || path.name != "path" || !is_text {
                    return false;
                }
                for part in own.iter_mut() {
                    part.column.column.encoding = Encoding::Unread(IN_PICTURES.to_owned());
                }
                let mut column = TableColumn::new(name, Encoding::Images);
                (column.is_known, column.inferred) = (true, Inferred::Unmentioned);
                let (steps, field) = (own[0].steps.clone(), own[0].field);
                let values = Values::ByteList { is_large };
                self.pictures.push(Leaf { column, steps, field, values, path: None });
                true
            }
            _ => false,
        }
    }

    /// Adds a struct of `bytes` and `path` as one column, and its paths.
    fn add_picture(
        &mut self,
        field: &Field,
        name: &str,
        features: Features<'_>,
        steps: &[(Step, usize)],
    ) -> bool {
        let [bytes, path] = &field.children[..] else { return false };
        let Kind::Bytes { is_text: false, is_large } = bytes.kind else { return false };
        let Kind::Bytes { is_text: true, is_large: has_large_paths } = path.kind else {
            return false;
        };
        if bytes.name != "bytes" || path.name != "path" {
            return false;
        }
        let is_image = features.feature() == Feature::Image;
        let encoding = if is_image { Encoding::Image } else { Encoding::Bytes };
        let values = Values::Bytes { is_large };
        self.push(name, encoding, steps, self.next, values);
        if let Some(leaf) = self.leaves.last_mut() {
            leaf.column.is_known = is_image;
            leaf.path = Some(self.next + 1);
        }
        let mut column = TableColumn::new(&format!("{name}.path"), Encoding::Text);
        column.is_path = true;
        let values = Values::Bytes { is_large: has_large_paths };
        let field = self.next + 1;
        self.paths.push(Leaf { column, steps: steps.to_vec(), field, values, path: None });
        self.next += 2;
        true
    }

    fn push(
        &mut self,
        name: &str,
        encoding: Encoding,
        steps: &[(Step, usize)],
        field: usize,
        values: Values,
    ) {
        let is_unread = matches!(encoding, Encoding::Unread(_));
        let values = if is_unread { Values::Unread } else { values };
        let column = TableColumn::new(name, encoding);
        self.leaves.push(Leaf { column, steps: steps.to_vec(), field, values, path: None });
    }
}

fn is_array(features: Features<'_>) -> bool {
    matches!(features.feature(), Feature::Array(_))
}

/// The number of a field and its descendants.
fn count(field: &Field) -> usize {
    1 + field.children.iter().map(count).sum::<usize>()
}

/// Why a field cannot be JSON.
fn json_fault(field: &Field, name: &str) -> Option<String> {
    let what = match &field.kind {
        Kind::Struct => {
            let of = |child: &Field| json_fault(child, &format!("{name}.{}", child.name));
            return field.children.iter().find_map(of);
        }
        Kind::List { .. } | Kind::FixedList(_) => {
            return field.children.iter().find_map(|child| json_fault(child, name));
        }
        Kind::Null | Kind::Bool | Kind::Fixed(_, Some(_)) | Kind::Bytes { is_text: true, .. } => {
            return None;
        }
        Kind::Fixed(_, None) | Kind::Bytes { .. } => "bytes",
        Kind::Time(..) => "a time",
        Kind::Unread { name, .. } => name.split(';').next().unwrap_or(name),
    };
    Some(json::fault(name, what))
}

/// The layout and the encoding of a column's values.
fn column(kind: &Kind, steps: &[(Step, usize)], feature: &Feature<'_>) -> (Values, Encoding) {
    let size = |step: &Step| match step {
        Step::Struct => None,
        Step::List { .. } => Some(None),
        Step::FixedList(size) => Some(Some(*size)),
    };
    let lists: Vec<Option<u64>> = steps.iter().filter_map(|(step, _)| size(step)).collect();
    let unread = |why: &str| (Values::Unread, Encoding::Unread(why.to_owned()));
    let array = |name: &str, values| match array_form(name, &lists, feature) {
        Ok(form) => (values, Encoding::Array(form)),
        Err(why) => unread(why),
    };
    let number = |name: &str| Encoding::Number(name.to_owned());
    match (kind, lists.is_empty()) {
        (Kind::Null, _) => unread("it has no values"),
        (Kind::Unread { name, .. }, _) => {
            (Values::Unread, Encoding::Unread(format!("it is {name}")))
        }
        (Kind::Bool, true) => (Values::Bool, number("bool")),
        (Kind::Bool, false) => array("bool", Values::Bool),
        (Kind::Fixed(bytes, Some(name)) | Kind::Time(bytes, name), true) => {
            (Values::Fixed(*bytes), number(name))
        }
        (Kind::Fixed(bytes, None), true) => (Values::Fixed(*bytes), Encoding::Bytes),
        (Kind::Bytes { is_text, is_large }, true) => {
            let encoding = if *is_text { Encoding::Text } else { Encoding::Bytes };
            (Values::Bytes { is_large: *is_large }, encoding)
        }
        (Kind::Fixed(bytes, Some(name)) | Kind::Time(bytes, name), false) => {
            array(name, Values::Fixed(*bytes))
        }
        _ => unread(TEXTS),
    }
}
