//! The columns of a Lance file, from its list of fields.
//!
//! The file stores one column for each field that is no list or struct, in the order of the fields.

use std::collections::HashMap;

use crate::lists::array_form;
use crate::protobuf::{Fault, Part, parts};
use crate::{
    Encoding, Feature, Features, HUGGINGFACE, MAX_COLUMNS, NameSizes, SharedClasses, TableColumn,
};

/// The maximum number of fields: lists and structs have some besides those of their values.
const MAX_FIELDS: u64 = 4 * MAX_COLUMNS;
/// The maximum number of lists of fixed length around a value.
const MAX_SIZES: usize = 32;
/// Marks a struct that is stored as one column, in a field's metadata.
const PACKED: [&[u8]; 2] = [b"lance-encoding:packed", b"packed"];

const NESTED: &str = "it is a list of lists or structs, which are not read of Lance";
const MAP: &str = "it is a map; write it as JSON text";
const STRUCT: &str = "its struct is stored as one value; write it without lance-encoding:packed";
const BLOB: &str =
    "it is a blob of the version 2, whose values may be in other files; write it as large_binary";

/// A column that is read.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) column: TableColumn,
    /// Its number among the columns of the file; `None`: it has none.
    pub(super) stored: Option<usize>,
}

/// The columns of a file.
#[derive(Debug, Default)]
pub(super) struct Schema {
    pub(super) leaves: Vec<Leaf>,
    /// The number of columns that the file stores.
    pub(super) stored: usize,
}

/// A field, as the file describes it.
#[derive(Debug, Default)]
struct Field<'a> {
    name: &'a str,
    id: u64,
    /// `None`: it is in no other.
    parent: Option<u64>,
    kind: &'a str,
    is_packed: bool,
    /// A struct of this kind is stored as one column.
    is_blob: bool,
}

/// What the fields in a field are.
#[derive(Debug, Clone, Copy)]
enum Role<'f> {
    /// Columns of their own. With the index of the name of the struct.
    Struct { name: usize, features: Features<'f> },
    /// The items of a list, with its index among the columns.
    List { place: usize, features: Features<'f> },
    /// Parts of a column that is left out.
    Hidden,
    /// Parts that are stored with the field.
    Stored,
}

impl Schema {
    /// Parses a message with fields as `1` and metadata as `metadata`.
    ///
    /// # Errors
    /// Describes a limit, or damage.
    pub(super) fn parse(message: &[u8], metadata: u64) -> Result<Self, String> {
        const DAMAGED: &str = "its schema is damaged";
        let (mut fields, mut features) = (Vec::new(), None);
        for part in parts(message) {
            let part = part.map_err(|_| DAMAGED)?;
            if part.number == 1 {
                if fields.len() as u64 == MAX_FIELDS {
                    return Err(format!("it has more than {MAX_FIELDS} fields"));
                }
                fields.push(field(part).ok().flatten().ok_or(DAMAGED)?);
            } else if part.number == metadata {
                let [key, value] = entry(part).map_err(|_| DAMAGED)?;
                if key == HUGGINGFACE.as_bytes() {
                    features = std::str::from_utf8(value).ok().and_then(Features::parse);
                }
            }
        }
        let mut found = Found::new(Features::new(features.as_ref()));
        for field in &fields {
            found.add(field)?;
        }
        found.name_pictures();
        Ok(found.schema)
    }
}

/// The key and the value of a map's entry.
fn entry<'a>(part: Part<'a>) -> Result<[&'a [u8]; 2], Fault> {
    let mut found = [&[][..]; 2];
    for part in parts(part.content().ok_or(Fault::CutOff)?) {
        let part = part?;
        if let 1..=2 = part.number {
            found[usize::from(part.number == 2)] = part.content().ok_or(Fault::CutOff)?;
        }
    }
    Ok(found)
}

/// `None`: a name is not UTF-8.
fn field<'a>(part: Part<'a>) -> Result<Option<Field<'a>>, Fault> {
    let mut field = Field::default();
    let mut is_text = true;
    let mut text = |part: Part<'a>| {
        let text = std::str::from_utf8(part.content().ok_or(Fault::CutOff)?);
        is_text &= text.is_ok();
        Ok(text.unwrap_or_default())
    };
    let number = |part: Part<'_>| part.integer().ok_or(Fault::CutOff);
    field.parent = Some(0);
    for part in parts(part.content().ok_or(Fault::CutOff)?) {
        let part = part?;
        match part.number {
            2 => field.name = text(part)?,
            3 => field.id = number(part)?,
            // -1: it is in no other.
            4 => field.parent = Some(number(part)?).filter(|parent| parent.cast_signed() >= 0),
            5 => field.kind = text(part)?,
            9 => field.is_blob |= text(part)?.starts_with("lance.blob"),
            10 => {
                let [key, value] = entry(part)?;
                field.is_packed |= PACKED.contains(&key) && value != b"false";
                field.is_blob |= key == b"lance-encoding:blob";
            }
            _ => {}
        }
    }
    Ok(is_text.then_some(field))
}

struct Found<'f> {
    schema: Schema,
    features: Features<'f>,
    /// By number of a field.
    roles: HashMap<u64, Role<'f>>,
    /// Names of structs.
    names: Vec<String>,
    sizes: NameSizes,
    classes: SharedClasses,
}

impl<'f> Found<'f> {
    fn new(features: Features<'f>) -> Self {
        Self {
            schema: Schema::default(),
            features,
            roles: HashMap::new(),
            names: Vec::new(),
            sizes: NameSizes::default(),
            classes: SharedClasses::default(),
        }
    }

    fn add(&mut self, field: &Field<'_>) -> Result<(), String> {
        // Parts of a blob of the version 2 have the number -1, and are in no field.
        if field.id.cast_signed() < 0 {
            return Ok(());
        }
        let above = match field.parent {
            None => None,
            Some(parent) => {
                Some(*self.roles.get(&parent).ok_or("its schema has a field outside its struct")?)
            }
        };
        let role = match above {
            None => self.add_column(field, "", self.features.child(field.name))?,
            Some(Role::Struct { name, features }) => {
                let name = self.names[name].clone();
                self.add_column(field, &name, features.child(field.name))?
            }
            Some(Role::List { place, features }) => self.add_item(field, place, features),
            Some(Role::Hidden) => self.hide(field),
            Some(Role::Stored) => Role::Stored,
        };
        self.roles.insert(field.id, role);
        Ok(())
    }

    /// Adds a column, or the struct or list around one.
    fn add_column(
        &mut self,
        field: &Field<'_>,
        above: &str,
        features: Features<'f>,
    ) -> Result<Role<'f>, String> {
        let bytes = NameSizes::below(above.len() as u64, field.name);
        self.sizes.add(bytes)?;
        self.sizes.check()?;
        let name = match above {
            "" => field.name.to_owned(),
            above => format!("{above}.{}", field.name),
        };
        let unread = |why: &str| Encoding::Unread(why.to_owned());
        let place = self.schema.leaves.len();
        Ok(match field.kind {
            "struct" if field.is_blob => {
                self.push(&name, unread(BLOB), true);
                Role::Stored
            }
            "struct" if field.is_packed => {
                self.push(&name, unread(STRUCT), true);
                Role::Stored
            }
            "struct" => {
                self.names.push(name);
                Role::Struct { name: self.names.len() - 1, features }
            }
            "list" | "large_list" => {
                self.push(&name, unread("it is a list without items"), false);
                Role::List { place, features }
            }
            "map" => {
                self.push(&name, unread(MAP), false);
                Role::Hidden
            }
            kind if is_of_structs(kind) => {
                self.push(&name, unread(NESTED), false);
                Role::Hidden
            }
            kind => {
                let feature = features.feature();
                self.push(&name, encoding(kind, &[], &feature), true);
                if let (Feature::Classes(names), Some(leaf)) =
                    (&feature, self.schema.leaves.last_mut())
                {
                    leaf.column.classes = self.classes.of(names);
                }
                Role::Stored
            }
        })
    }

    /// Sets the encoding of a list by its items.
    fn add_item(&mut self, field: &Field<'_>, place: usize, features: Features<'f>) -> Role<'f> {
        let role = self.hide(field);
        let encoding = match role {
            Role::Stored => encoding(field.kind, &[None], &features.feature()),
            _ => Encoding::Unread(NESTED.to_owned()),
        };
        let stored = self.schema.stored.checked_sub(1);
        if let Some(leaf) = self.schema.leaves.get_mut(place) {
            leaf.stored = stored.filter(|_| matches!(role, Role::Stored));
            leaf.column.column.encoding = encoding;
        }
        role
    }

    /// Counts the stored columns of a field that is not read.
    fn hide(&mut self, field: &Field<'_>) -> Role<'f> {
        let is_nested = matches!(field.kind, "struct" | "list" | "large_list" | "map");
        let is_one = field.kind == "struct" && (field.is_packed || field.is_blob);
        if (is_nested || is_of_structs(field.kind)) && !is_one {
            return Role::Hidden;
        }
        self.schema.stored += 1;
        Role::Stored
    }

    fn push(&mut self, name: &str, encoding: Encoding, is_stored: bool) {
        let stored = is_stored.then_some(self.schema.stored);
        self.schema.stored += usize::from(is_stored);
        self.schema.leaves.push(Leaf { column: TableColumn::new(name, encoding), stored });
    }

    /// Gives structs of `bytes` and `path`, which are pictures, the name of the struct.
    fn name_pictures(&mut self) {
        let structs: HashMap<&str, Features<'f>> = self
            .roles
            .values()
            .filter_map(|role| match role {
                Role::Struct { name, features } => Some((&self.names[*name][..], *features)),
                _ => None,
            })
            .collect();
        let leaves = &mut self.schema.leaves;
        for place in 1..leaves.len() {
            let [bytes, path] = [&leaves[place - 1].column.column, &leaves[place].column.column];
            let Some(name) = bytes.name.strip_suffix(".bytes") else { continue };
            let is_picture = path.name.strip_suffix(".path") == Some(name)
                && (&bytes.encoding, &path.encoding) == (&Encoding::Bytes, &Encoding::Text);
            let below = |leaf: &&Leaf| {
                leaf.column.column.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            };
            // The struct has no other part.
            let near = &leaves[place.saturating_sub(2)..leaves.len().min(place + 2)];
            if !is_picture || near.iter().filter(below).count() != 2 {
                continue;
            }
            let name = name.to_owned();
            let is_image =
                structs.get(&name[..]).is_some_and(|own| own.feature() == Feature::Image);
            leaves[place].column.is_path = true;
            let column = &mut leaves[place - 1].column;
            column.is_known = is_image;
            if is_image {
                column.column.encoding = Encoding::Image;
            }
            column.column.name = name;
        }
    }
}

fn is_of_structs(kind: &str) -> bool {
    matches!(kind, "list.struct" | "large_list.struct")
}

/// The encoding of values of a logical type. `lists`: the lists around a value.
fn encoding(kind: &str, lists: &[Option<u64>], feature: &Feature<'_>) -> Encoding {
    let unread = |why: &str| Encoding::Unread(why.to_owned());
    let mut kind = kind;
    let mut sizes = lists.to_vec();
    // `fixed_size_list:TYPE:SIZE`
    while let Some((of, size)) =
        kind.strip_prefix("fixed_size_list:").and_then(|rest| rest.rsplit_once(':'))
    {
        match size.parse() {
            Ok(size) if sizes.len() < MAX_SIZES => sizes.push(Some(size)),
            _ => return unread("it is a list of a size that is not read"),
        }
        kind = of;
    }
    // `dict:TYPE:INDICES:ORDERED`
    if let Some(rest) = kind.strip_prefix("dict:") {
        kind = rest.split(':').next().unwrap_or_default();
    }
    let number = match kind {
        "bool" => "bool",
        "int8" => "int8",
        "int16" => "int16",
        "int32" => "int32",
        "int64" => "int64",
        "uint8" => "uint8",
        "uint16" => "uint16",
        "uint32" => "uint32",
        "uint64" => "uint64",
        "halffloat" => "float16",
        "float" => "float32",
        "double" => "float64",
        _ => match kind.split(':').next().unwrap_or_default() {
            "date32" | "time32" => "int32",
            "date64" | "time64" | "timestamp" | "duration" => "int64",
            "string" | "large_string" if sizes.is_empty() => return Encoding::Text,
            "binary" | "large_binary" | "fixed_size_binary" if sizes.is_empty() => {
                return Encoding::Bytes;
            }
            "string" | "large_string" | "binary" | "large_binary" | "fixed_size_binary" => {
                return unread("it is a list of texts or bytes, which are not read of Lance");
            }
            "null" => return unread("it has no values"),
            "decimal" => return unread("it is a decimal; write it as a float or as text"),
            _ => {
                return Encoding::Unread(format!(
                    "it has values of the type {}",
                    kind.escape_debug()
                ));
            }
        },
    };
    if sizes.is_empty() {
        return Encoding::Number(number.to_owned());
    }
    match array_form(number, &sizes, feature) {
        Ok(form) => Encoding::Array(form),
        Err(why) => unread(why),
    }
}
