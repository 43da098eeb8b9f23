//! The schema of a Parquet file: its stored columns, and the structs and lists around them.
//!
//! A list is a group with a repeated group in it, or, as old writers have it, with a repeated element; the format's rules
//! of backward compatibility distinguish them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::elements::Element;
use super::thrift::Broken;
use super::times::{self, Scale};
use crate::arrow::{self, Field, Kind, TimeUnit};
use crate::lists::{
    BYTE_LISTS, IN_PICTURES, IN_STRUCTS, TEXTS, array_form, left_out_as_json, may_be_json,
};
use crate::{Encoding, Feature, Features, Inferred, SharedClasses, TableColumn, json};

/// The maximum nesting of groups.
const MAX_DEPTH: usize = 32;

/// Parquet's numbers of physical types.
pub(super) const BOOLEAN: i64 = 0;
pub(super) const BYTE_ARRAY: i64 = 6;
/// Bytes of a fixed length.
pub(super) const FIXED: i64 = 7;

/// The logical type of a column without values.
const NULL: i64 = 11;
/// Why a list becomes a field only if the configuration names it: earlier versions could not read lists.
const ONLY_NAMED: &str = "it is a list, read only if dataset.fields names it";

/// A stored column.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) column: TableColumn,
    /// Its index among the columns of a row group.
    pub(super) place: usize,
    /// The physical type, and the length of a fixed-length value.
    pub(super) stored: i64,
    pub(super) length: u64,
    /// The definition level of a value that is not null; 0: no value is null.
    pub(super) level: u32,
    /// The lists around a value, from the outermost on.
    pub(super) lists: Vec<List>,
    /// The unit of a time.
    unit: Option<TimeUnit>,
    /// Converts to the writer's unit.
    pub(super) scale: Option<Scale>,
}

/// A list around the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    /// The definition level of an empty list.
    pub(super) level: u32,
    /// The length of each, if it is fixed.
    pub(super) size: Option<u64>,
}

impl Leaf {
    /// Converts times to the writer's unit.
    fn take_unit(&mut self, units: &HashMap<String, TimeUnit>) {
        let column = &mut self.column.column;
        let Encoding::Number(name) = &mut column.encoding else { return };
        let meant = units.get(&column.name);
        self.scale =
            self.unit.zip(meant).and_then(|(stored, meant)| Scale::between(stored, *meant));
        if self.scale.is_some_and(|scale| scale.widens) {
            "int64".clone_into(name);
        }
    }

    /// The type of its values, for messages.
    pub(super) fn type_name(&self) -> String {
        match (&self.column.column.encoding, self.stored) {
            (Encoding::Number(name), _) => format!("of {name}"),
            (Encoding::Array(_), _) => {
                format!("a list of {}", self.column.column.encoding.element().unwrap_or("numbers"))
            }
            (Encoding::Text | Encoding::Json, _) => "of text".to_owned(),
            (_, FIXED) => format!("of bytes of the fixed length {}", self.length),
            _ => "of bytes".to_owned(),
        }
    }
}

/// A struct, a list or a value in a column.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// The definition level from which on it is not null.
    pub(super) level: u32,
    pub(super) kind: NodeKind,
    /// The stored columns in it.
    pub(super) stored: Range<usize>,
    /// Why it cannot be JSON.
    fault: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Value,
    Struct(Vec<Arc<Node>>),
    /// `repetition`: the repetition level of an element that is not the first.
    List {
        repetition: u32,
        element: Arc<Node>,
    },
}

/// A struct or a list that is read as JSON.
#[derive(Debug, Clone)]
pub(super) struct JsonColumn {
    pub(super) column: TableColumn,
    pub(super) node: Arc<Node>,
}

/// What the writer's Arrow schema says of the columns.
#[derive(Debug, Default)]
pub(super) struct Written {
    units: HashMap<String, TimeUnit>,
    fields: Vec<Field>,
}

impl Written {
    /// Parses the metadata; nothing if it cannot be read.
    pub(super) fn parse(metadata: &[u8]) -> Self {
        let Some(message) = times::decode_base64(metadata) else { return Self::default() };
        let units = arrow::time_units(&message).unwrap_or_default().into_iter().collect();
        Self { units, fields: arrow::fields(&message).unwrap_or_default() }
    }
}

#[derive(Debug)]
pub(super) struct Schema {
    pub(super) leaves: Vec<Leaf>,
    pub(super) json: Vec<JsonColumn>,
    /// The columns in groups, as values for JSON, by place.
    pub(super) values: BTreeMap<usize, Leaf>,
    /// The number of stored columns.
    pub(super) stored: usize,
}

impl Schema {
    pub(super) fn new(
        elements: Vec<Element<'_>>,
        features: Features<'_>,
        written: &Written,
    ) -> Result<Self, Broken> {
        let mut found = Found {
            elements: elements.into_iter(),
            leaves: Vec::new(),
            paths: Vec::new(),
            pictures: Vec::new(),
            json: Vec::new(),
            json_names_left: json::MAX_NAMES_BYTES,
            values: BTreeMap::new(),
            next: 0,
            classes: SharedClasses::default(),
        };
        let root = found.elements.next().ok_or(Broken)?;
        for place in 0..root.children {
            let field = written.fields.get(place);
            found.add(&Around { above: "", features, level: 0, lists: &[], depth: 0, field })?;
        }
        let Found { mut leaves, paths, pictures, json, values, next: stored, .. } = found;
        leaves.extend(paths);
        leaves.extend(pictures);
        leaves.iter_mut().for_each(|leaf| leaf.take_unit(&written.units));
        Ok(Self { leaves, json, values, stored })
    }
}

/// What is around an element of the schema.
#[derive(Clone, Copy)]
struct Around<'a> {
    /// The dotted name of the structs around it.
    above: &'a str,
    features: Features<'a>,
    /// The definition level of a group around it that is not null, or of an element of a list.
    level: u32,
    lists: &'a [List],
    depth: usize,
    /// The field of the writer's schema at its place.
    field: Option<&'a Field>,
}

/// The columns of a schema.
struct Found<'e> {
    elements: std::vec::IntoIter<Element<'e>>,
    leaves: Vec<Leaf>,
    /// Columns of picture paths, which come after the others.
    paths: Vec<Leaf>,
    /// Lists of pictures in structs, which come after these.
    pictures: Vec<Leaf>,
    json: Vec<JsonColumn>,
    json_names_left: usize,
    values: BTreeMap<usize, Leaf>,
    /// The index of the next stored column.
    next: usize,
    classes: SharedClasses,
}

impl<'e> Found<'e> {
    /// Adds the next element and its members.
    fn add(&mut self, around: &Around<'_>) -> Result<Arc<Node>, Broken> {
        let element = self.elements.next().ok_or(Broken)?;
        let name = match around.above {
            "" => element.name.to_owned(),
            above => format!("{above}.{}", element.name),
        };
        let own = Around {
            features: around.features.child(element.name),
            field: around.field.filter(|field| field.name == element.name),
            ..*around
        };
        if element.is_repeated() {
            // A list without a group around it.
            let first = (self.next, self.leaves.len());
            let list = List { level: own.level, size: None };
            let names = (element.name, name.as_str());
            let list = self.list_of(&element, false, names, &own, list, first)?;
            return Ok(self.offer(list, name, around, first));
        }
        let level = own.level + u32::from(element.has_level());
        self.typed(&element, name, &Around { level, ..own })
    }

    /// Adds an element whose own repetition is in `around.level` already, and its members.
    fn typed(
        &mut self,
        element: &Element<'e>,
        name: String,
        around: &Around<'_>,
    ) -> Result<Arc<Node>, Broken> {
        if around.depth == MAX_DEPTH {
            return Err(Broken);
        }
        let first = (self.next, self.leaves.len());
        let around = &Around { depth: around.depth + 1, ..*around };
        if element.children == 0 {
            return Ok(self.value(element, name, around));
        }
        let is_list = element.is_list() && element.children == 1;
        if is_list && self.elements.as_slice().first().is_some_and(Element::is_repeated) {
            let repeated = self.elements.next().ok_or(Broken)?;
            let (is_array, size) = match around.field.map(|field| &field.kind) {
                Some(Kind::FixedList(size)) => (true, Some(*size)),
                Some(Kind::List { .. }) => (true, None),
                _ => (false, None),
            };
            let field = around.field.filter(|_| is_array).and_then(|field| field.children.first());
            let features = match around.features.feature() {
                Feature::Array(_) => around.features,
                _ => around.features.element(),
            };
            let of_element = Around { field, features, ..*around };
            let list = List { level: around.level, size };
            let names = (element.name, name.as_str());
            let node = if self.is_element(&repeated, element.name) {
                self.list_of(&repeated, false, names, &of_element, list, first)?
            } else {
                // The usual layout: the repeated group has the element alone.
                if around.depth == MAX_DEPTH {
                    return Err(Broken);
                }
                let inner = self.elements.next().ok_or(Broken)?;
                let of_element = Around { depth: around.depth + 1, ..of_element };
                let has_level = inner.has_level();
                self.list_of(&inner, has_level, names, &of_element, list, first)?
            };
            return Ok(self.offer(node, name, around, first));
        }
        let (mut fields, json) = (Vec::new(), self.json.len());
        for place in 0..element.children {
            let field = around.field.filter(|field| field.kind == Kind::Struct);
            let field = field.and_then(|field| field.children.get(place));
            fields.push(self.add(&Around { above: &name, field, ..*around })?);
        }
        let node = self.node(element.name, around.level, NodeKind::Struct(fields), first.0);
        if element.is_map() {
            self.json.truncate(json);
            return Ok(self.refuse_map(node, &name, first.1));
        }
        let node = Arc::new(node);
        if self.is_picture(&name, first) {
            self.name_picture(name, around.features, first.1);
            return Ok(node);
        }
        Ok(self.offer(node, name, around, first))
    }

    /// Makes the columns of a map one column that is not read, as in Arrow.
    fn refuse_map(&mut self, node: Node, name: &str, first: usize) -> Arc<Node> {
        self.leaves.truncate(first + 1);
        if let Some(leaf) = self.leaves.get_mut(first) {
            let why = "it is a map; write it as JSON text".to_owned();
            leaf.column = TableColumn::new(name, Encoding::Unread(why));
        }
        Arc::new(Node { fault: Some(json::fault(name, "a map").into()), ..node })
    }

    /// Whether the repeated part of a list is the element itself, as old writers have it.
    fn is_element(&self, repeated: &Element<'_>, list: &str) -> bool {
        let is_named =
            || repeated.name == "array" || repeated.name.strip_suffix("_tuple") == Some(list);
        let has_repeated = || self.elements.as_slice().first().is_some_and(Element::is_repeated);
        repeated.children != 1
            || repeated.is_list()
            || repeated.is_map()
            || is_named()
            || has_repeated()
    }

    /// Adds a list of `element`, which may be null if it `has_level`. Gives the list, with its own and its dotted name.
    fn list_of(
        &mut self,
        element: &Element<'e>,
        has_level: bool,
        (own, name): (&str, &str),
        around: &Around<'_>,
        list: List,
        first: (usize, usize),
    ) -> Result<Arc<Node>, Broken> {
        let lists = [around.lists, &[list]].concat();
        let repetition = u32::try_from(lists.len()).map_err(|_| Broken)?;
        let level = list.level + 1 + u32::from(has_level);
        let around = Around { level, lists: &lists, ..*around };
        let element = self.typed(element, name.to_owned(), &around)?;
        let kind = NodeKind::List { repetition, element };
        Ok(Arc::new(self.node(own, list.level, kind, first.0)))
    }

    fn node(&self, name: &str, level: u32, kind: NodeKind, first: usize) -> Node {
        let fault = match &kind {
            NodeKind::Value => None,
            NodeKind::Struct(fields) => fields.iter().find_map(|field| field.fault.clone()),
            NodeKind::List { element, .. } => element.fault.clone(),
        };
        Node { name: name.to_owned(), level, kind, stored: first..self.next, fault }
    }

    /// Adds a struct or a list that is not in a list as JSON, if no column has all of it. `first`: the first of its
    /// stored columns, and of its columns.
    fn offer(
        &mut self,
        node: Arc<Node>,
        name: String,
        around: &Around<'_>,
        (_, first): (usize, usize),
    ) -> Arc<Node> {
        if !around.lists.is_empty() || self.offer_pictures(&node, &name, first) {
            return node;
        }
        let own = self.leaves.get_mut(first..).unwrap_or_default();
        let why = match &*own {
            [leaf] if leaf.column.column.name == name => match &leaf.column.column.encoding {
                Encoding::Unread(why) if may_be_json(why) => Some(left_out_as_json(why)),
                _ => return node,
            },
            _ => None,
        };
        let Some(left) = self.json_names_left.checked_sub(name.len() + 1) else { return node };
        if node.fault.is_some() && why.is_some() {
            return node;
        }
        self.json_names_left = left;
        if why.is_some() {
            self.leaves.truncate(first);
        } else if node.fault.is_none() && matches!(node.kind, NodeKind::List { .. }) {
            for leaf in own {
                let encoding = &mut leaf.column.column.encoding;
                if matches!(encoding, Encoding::Unread(why) if may_be_json(why)) {
                    *encoding = Encoding::Unread(IN_STRUCTS.to_owned());
                }
            }
        }
        let unread = |why: &Arc<str>| Encoding::Unread(why.to_string());
        let encoding = node.fault.as_ref().map_or(Encoding::Json, unread);
        let mut column = TableColumn::new(&name, encoding);
        column.inferred = why.map_or(Inferred::Unmentioned, Inferred::LeftOut);
        self.json.push(JsonColumn { column, node: Arc::clone(&node) });
        node
    }

    /// Adds a list of bytes, or of structs of `bytes` and `path`, as one column. Returns whether it is such a list.
    fn offer_pictures(&mut self, node: &Node, name: &str, first: usize) -> bool {
        let NodeKind::List { element, .. } = &node.kind else { return false };
        let values = &self.values;
        let is_of = |leaf: &Leaf, encoding: &Encoding| {
            let value = values.get(&leaf.place).map(|leaf| &leaf.column.column.encoding);
            leaf.lists.len() == 1 && value == Some(encoding)
        };
        let is_chain = |leaf: &Leaf| leaf.stored == BYTE_ARRAY && is_of(leaf, &Encoding::Bytes);
        match (&element.kind, self.leaves.get_mut(first..).unwrap_or_default()) {
            (NodeKind::Value, [leaf]) if is_chain(leaf) => {
                leaf.column = TableColumn::new(name, Encoding::ByteLists);
                leaf.column.inferred = Inferred::LeftOut(BYTE_LISTS.to_owned());
                true
            }
            (NodeKind::Struct(fields), [bytes, path]) => {
                let is_named = |names: [&str; 2]| {
                    fields.len() == 2
                        && fields.iter().zip(names).all(|(field, it)| field.name == it)
                };
                if !(is_named(["bytes", "path"]) && is_chain(bytes) && is_of(path, &Encoding::Text))
                {
                    return false;
                }
                let mut column = TableColumn::new(name, Encoding::Images);
                (column.is_known, column.inferred) = (true, Inferred::Unmentioned);
                self.pictures.push(Leaf { column, ..bytes.clone() });
                for part in [bytes, path] {
                    part.column.column.encoding = Encoding::Unread(IN_PICTURES.to_owned());
                }
                true
            }
            _ => false,
        }
    }

    /// Whether a struct has `bytes` and `path` alone.
    fn is_picture(&self, name: &str, (place, first): (usize, usize)) -> bool {
        let [bytes, path] = self.leaves.get(first..).unwrap_or_default() else { return false };
        let names = (format!("{name}.bytes"), format!("{name}.path"));
        self.next == place + 2
            && (&bytes.column.column.name, &path.column.column.name) == (&names.0, &names.1)
            && bytes.column.column.encoding == Encoding::Bytes
    }

    /// Makes the columns of a struct of `bytes` and `path` one column, and its paths.
    fn name_picture(&mut self, name: String, features: Features<'_>, first: usize) {
        let path = self.leaves.drain(first + 1..);
        self.paths.extend(path.map(|mut path| {
            path.column.is_path = true;
            path
        }));
        let is_image = features.feature() == Feature::Image;
        let leaf = &mut self.leaves[first].column;
        leaf.column.name = name;
        leaf.is_known = is_image;
        if is_image {
            leaf.column.encoding = Encoding::Image;
        }
    }

    /// Adds a stored column.
    fn value(&mut self, element: &Element<'_>, name: String, around: &Around<'_>) -> Arc<Node> {
        let (place, stored, length) = (self.next, element.stored, element.length);
        let unit = element.unit.or_else(|| times::converted_unit(element.converted?));
        let feature = around.features.feature();
        let scalar = scalar(element);
        let mut column = TableColumn::new(&name, scalar.clone());
        if !around.lists.is_empty() {
            let encoding = in_lists(element, unit, &scalar, around.lists, &feature);
            if matches!(encoding, Encoding::Array(_)) {
                column.inferred = Inferred::LeftOut(ONLY_NAMED.to_owned());
            }
            column.column.encoding = encoding;
        } else if let Feature::Classes(names) = feature {
            column.classes = self.classes.of(names);
        }
        let (level, lists) = (around.level, around.lists.to_vec());
        let leaf = Leaf { column, place, stored, length, level, lists, unit, scale: None };
        let what = match &scalar {
            _ if element.logical == NULL => None,
            _ if unit.is_some() => Some("a time"),
            Encoding::Number(_) | Encoding::Text | Encoding::Json => None,
            Encoding::Unread(why) => {
                Some(why.trim_start_matches("it is ").split(';').next().unwrap_or(why))
            }
            _ => Some("bytes"),
        };
        let fault = what.map(|what| json::fault(&name, what).into());
        if around.depth > 1 || !around.lists.is_empty() {
            // Of a column without values only nulls are read.
            let encoding = match element.logical == NULL {
                true => Encoding::Number("int32".to_owned()),
                false => scalar,
            };
            let column = TableColumn::new(&name, encoding);
            self.values.insert(place, Leaf { column, ..leaf.clone() });
        }
        self.leaves.push(leaf);
        self.next += 1;
        let node = self.node(element.name, level, NodeKind::Value, place);
        Arc::new(Node { fault, ..node })
    }
}

/// The encoding of a value.
fn scalar(element: &Element<'_>) -> Encoding {
    let number = |name: &str| Encoding::Number(name.to_owned());
    let unread = |why: &str| Encoding::Unread(why.to_owned());
    let is_decimal = element.converted == Some(5) || element.logical == 5;
    match (element.stored, element.converted) {
        _ if is_decimal => unread("it is a decimal; write it as a float or as text"),
        _ if element.logical == NULL => unread("it has no values (its type is null)"),
        (BOOLEAN, _) => number("bool"),
        (1, Some(11..=13)) => number("uint32"),
        (1, _) => number("int32"),
        (2, Some(14)) => number("uint64"),
        (2, _) => number("int64"),
        (3, _) => unread("it is a time of 96 bits; write it as a timestamp of 64 bits"),
        (4, _) => number("float32"),
        (5, _) => number("float64"),
        (BYTE_ARRAY, Some(19)) => Encoding::Json,
        (BYTE_ARRAY, _) if element.logical == 12 => Encoding::Json,
        (BYTE_ARRAY, Some(0 | 4)) => Encoding::Text,
        (BYTE_ARRAY, _) if matches!(element.logical, 1 | 4) => Encoding::Text,
        (7, _) if element.logical == 15 && element.length == 2 => number("float16"),
        (BYTE_ARRAY | 7, _) => Encoding::Bytes,
        _ => unread("it is of a type that is not known here"),
    }
}

/// The encoding of lists of values. Their numbers keep the widths that Arrow has, and Parquet stores as 4 bytes.
fn in_lists(
    element: &Element<'_>,
    unit: Option<TimeUnit>,
    scalar: &Encoding,
    lists: &[List],
    feature: &Feature<'_>,
) -> Encoding {
    let unread = |why: &str| Encoding::Unread(why.to_owned());
    let Encoding::Number(name) = scalar else {
        return match scalar {
            Encoding::Unread(why) => unread(why),
            _ => unread(TEXTS),
        };
    };
    if unit.is_some() {
        return unread("it is a list of times; write it as a list of int64");
    }
    let name = match (element.stored, element.converted) {
        (1, Some(11)) => "uint8",
        (1, Some(12)) => "uint16",
        (1, Some(15)) => "int8",
        (1, Some(16)) => "int16",
        _ => name.as_str(),
    };
    let sizes: Vec<Option<u64>> = lists.iter().map(|list| list.size).collect();
    match array_form(name, &sizes, feature) {
        Ok(form) => Encoding::Array(form),
        Err(why) => unread(why),
    }
}
