//! `[dataset.fields]`: the definition of a sample's fields, for containers with several files or values per sample.
//!
//! A [`FieldRule`] has the members (or columns) that a field is read from, their type, and the treatment of a sample
//! without them. The container locates the bytes; this module converts them to values. `columns` reads the table, and
//! adds to the rule what only columns have: classes, lists of numbers, and a form that the data determine. The index
//! of an archive contains the plain rule, because the name of a member determines its form.

mod words;

use std::borrow::Cow;

use forebay_keys::{Value, toml_key};
use forebay_protocol::counted::counted;
use forebay_protocol::tensor::{DType, MAX_NAME_BYTES, MAX_TENSORS};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use forebay_dataset::npy_header::read_array;
use words::{FORMS, MISSING, word_of};
pub(super) use words::{
    FieldsTable, Form, FormWord, Missing, MissingWord, Names, SoundChannels, SoundRate, SoundTime,
};

use forebay_dataset::sound::{self, SoundHeader};
use forebay_dataset::{ArrayValue, Defect, Field, FieldKind, FieldValue, Sound, SoundForm};

/// The extensions that an image decoder supports.
pub(super) const IMAGES: [&str; 8] = ["jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "gif"];
/// An inferred image field always accepts the first extensions; of the others, it accepts those in the first samples.
/// So a dataset without them keeps its fields and its fingerprint from before they were supported.
const USUAL_IMAGES: usize = 4;
/// Whether bytes begin like a file that `decode-image` supports.
pub(super) fn begins_as_picture(bytes: &[u8]) -> bool {
    let magic: [&[u8]; 6] =
        [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II\x2a\0", b"MM\0\x2a", b"GIF87a", b"GIF89a"];
    magic.iter().any(|magic| bytes.starts_with(magic))
        || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"))
        // The two letters alone also begin many texts.
        || (bytes.starts_with(b"BM") && bytes.get(6..10) == Some(&[0; 4]))
}

/// Names that every batch already uses.
pub(super) const RESERVED: [&str; 2] = ["index", "valid"];

/// The definition of one field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FieldRule {
    pub(super) name: String,
    /// The members or columns; the first one that a sample has is used.
    pub(super) from: Vec<String>,
    /// The key within a JSON object.
    pub(super) key: Option<String>,
    pub(super) form: Form,
    pub(super) missing: Missing,
    /// The conversion of a sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sound: Option<SoundForm>,
}

/// A key of a field that is refused, and what the message says after the key.
pub(super) type Refusal = (&'static str, String);

/// The rules in the syntax of the configuration, each with additional entries of its table.
pub(super) fn fields_table<'r>(rules: impl Iterator<Item = (&'r FieldRule, String)>) -> String {
    let mut text = "[dataset.fields]    # what each field is made of; remove those that the trainer does not need\n".to_owned();
    for (FieldRule { name, from, key, form, missing, sound }, more) in rules {
        let key = key.as_ref().map(|key| format!(":{key}")).unwrap_or_default();
        let from: Vec<_> =
            from.iter().map(|from| Value::String(format!("{from}{key}")).to_toml()).collect();
        let from = match &from[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let missing = match missing {
            Missing::Error => String::new(),
            missing => format!(", missing = \"{}\"", word_of(&MISSING, *missing)),
        };
        let sound = sound.map_or_else(String::new, SoundForm::keys);
        text += &format!(
            "{} = {{ from = {from}, as = \"{}\"{sound}{missing}{more} }}\n",
            toml_key(name),
            word_of(&FORMS, *form)
        );
    }
    text
}

/// The rules as text, for the index.
pub(super) fn rules_text(rules: &[impl Serialize]) -> String {
    // Cannot fail: the rules contain only strings and words.
    serde_json::to_string(rules).unwrap_or_default()
}

/// Parses the text from [`rules_text`].
pub(super) fn parse_rules(text: &str) -> Option<Vec<FieldRule>> {
    let rules: Vec<FieldRule> = serde_json::from_str(text).ok()?;
    let is_sound = rules.iter().all(|rule| !rule.from.is_empty());
    (is_sound && !rules.is_empty()).then_some(rules)
}

/// Why a name is invalid for a field.
pub(super) fn name_fault(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("the field `{name}` is made by Forebay; use another name"));
    }
    (name.is_empty() || name.len() > MAX_NAME_BYTES)
        .then(|| format!("a field's name has 1 to {MAX_NAME_BYTES} bytes, and {name:?} has not"))
}

/// Whether a further field can be inferred under this name.
pub(super) fn is_free<'r>(
    name: &str,
    mut others: impl ExactSizeIterator<Item = &'r FieldRule>,
) -> bool {
    let is_full = others.len() + RESERVED.len() >= MAX_TENSORS;
    name_fault(name).is_none() && !is_full && others.all(|other| other.name != name)
}

/// Whether a member with this name may contain code that reading it would run.
fn holds_code(name: &str) -> bool {
    let last = name.strip_suffix(".gz").unwrap_or(name).rsplit('.').next();
    last.is_some_and(|last| ["pyd", "pickle", "pkl", "pth", "pt"].contains(&last))
}

/// The type of a member by its last extension, as webdataset decodes it.
fn usual_form(name: &str) -> Form {
    match name.rsplit('.').next().unwrap_or_default() {
        last if IMAGES.contains(&last) => Form::Image,
        "cls" | "cls2" | "class" | "count" | "index" | "inx" | "id" => Form::Integer,
        "txt" | "text" | "transcript" | "html" | "json" | "jsn" => Form::Text,
        "npy" => Form::Array,
        _ => Form::Bytes,
    }
}

/// Infers the fields of samples with these members, in their order: images are `image`, `cls` is `label`, other members
/// keep their names. Also returns the members without a field.
pub(super) fn infer_rules(
    members: &[String],
    has_several_images: bool,
) -> (Vec<FieldRule>, Vec<String>) {
    let (mut rules, mut left_out) = (Vec::<FieldRule>::new(), Vec::new());
    let is_image = |name: &str| IMAGES.contains(&name) && !has_several_images;
    if members.iter().any(|name| is_image(name)) {
        let usual = |place, name: &str| place < USUAL_IMAGES || members.iter().any(|it| it == name);
        let from = IMAGES.iter().enumerate().filter(|(place, name)| usual(*place, name));
        let from = from.map(|(_, name)| (*name).to_owned()).collect();
        rules.push(FieldRule::new("image", from, Form::Image));
    }
    for name in members.iter().filter(|name| !is_image(name)) {
        let field = if name == "cls" { "label" } else { name };
        if holds_code(name) || !is_free(field, rules.iter()) {
            left_out.push(name.clone());
        } else {
            let form = if name.ends_with(".gz") { Form::Bytes } else { usual_form(name) };
            rules.push(FieldRule::new(field, vec![name.clone()], form));
        }
    }
    (rules, left_out)
}

impl FieldRule {
    /// A field that each sample must have.
    pub(super) fn new(name: &str, from: Vec<String>, form: Form) -> Self {
        let (name, missing) = (name.to_owned(), Missing::Error);
        Self { name, from, key: None, form, missing, sound: None }
    }

    /// Completes the rule of a configuration for the members of samples. `form`: the form that the configuration sets.
    ///
    /// # Errors
    /// A key does not apply to members.
    pub(super) fn set_members(&mut self, form: Option<Form>) -> Result<(), Refusal> {
        let refuse = |key, message: &str| Err((key, message.to_owned()));
        let key = self.from.iter().find_map(|from| from.split_once(':'));
        if let Some((member, key)) = key {
            if self.from.len() > 1 {
                return refuse(
                    "from",
                    "has several names, of which one is a key of JSON; such a name stands alone",
                );
            }
            if member.rsplit('.').next() != Some("json") {
                return refuse(
                    "from",
                    "has a colon, which is for keys of JSON, as in \"json:caption\"",
                );
            }
            (self.key, self.from) = (Some(key.to_owned()), vec![member.to_owned()]);
        }
        self.from.iter_mut().for_each(|name| *name = name.to_lowercase());
        if let Some(code) = self.from.iter().find(|name| holds_code(name)) {
            return Err((
                "from",
                format!(
                    "names {code:?}: pickles and code in data are never run; save the values in another form, such as .npy or .json"
                ),
            ));
        }
        let has_key = self.key.is_some();
        self.form = form.unwrap_or(if has_key { Form::Text } else { usual_form(&self.from[0]) });
        let is_packed = self.from.iter().any(|name| name.ends_with(".gz"));
        if is_packed && self.form != Form::Bytes {
            return refuse(
                "from",
                "names a compressed member; read it `as = \"bytes\"`, or store it as it is",
            );
        }
        if self.missing == Missing::Empty && !self.form.may_be_empty() {
            return refuse(
                "missing",
                "can be \"empty\" for text and bytes alone; use \"error\" or \"skip\"",
            );
        }
        if has_key && self.missing == Missing::Skip {
            return refuse(
                "missing",
                "cannot be \"skip\" for a key of JSON, since all members would have to be read for it; use \"error\" or \"empty\"",
            );
        }
        if has_key && self.form.is_of_bytes() {
            return refuse(
                "as",
                "is of no value that JSON has; use \"text\", \"bytes\", \"integer\" or \"float\"",
            );
        }
        Ok(())
    }

    /// A warning about samples without a value, unless the configuration leaves them out or fills them in. `noun`: the
    /// word for one of them.
    pub(super) fn lacking_warning(&self, lacking: u64, noun: &str) -> Option<String> {
        (lacking > 0 && self.missing == Missing::Error).then(|| {
            format!(
                "{} without {}, which are bad samples; set dataset.fields.{}.missing to \"skip\" to leave them out",
                counted(lacking, noun),
                self.from.join(" or "),
                self.name
            )
        })
    }

    /// The field of the rule; for an array, the first sample determines its type and shape.
    ///
    /// # Errors
    /// The first sample does not have the array.
    pub(super) fn field(&self, first: Option<&[u8]>) -> Result<Field, Defect> {
        let kind = match self.form {
            Form::Image => FieldKind::EncodedImage,
            Form::Images => FieldKind::EncodedImages,
            Form::Text => FieldKind::Text,
            Form::Bytes | Form::Video => FieldKind::Bytes,
            Form::Integer => FieldKind::Integer,
            Form::Float => FieldKind::Float,
            Form::Bool => FieldKind::Array { dtype: DType::Bool, shape: Vec::new() },
            Form::Array => {
                let array = read_array(first.ok_or_else(|| self.absent())?)?;
                FieldKind::Array { dtype: array.dtype, shape: array.shape.to_vec() }
            }
            Form::Audio => {
                let may_be_aac = self.from.iter().any(|name| sound::may_be_aac(name));
                self.sound.unwrap_or_default().kind(may_be_aac)
            }
            Form::SampleRate => FieldKind::Integer,
        };
        Ok(Field { name: self.name.clone(), kind })
    }

    /// Converts a sample's bytes to a value.
    ///
    /// # Errors
    /// Required bytes are missing or malformed.
    pub(super) fn value<'a>(&self, bytes: Option<&'a [u8]>) -> Result<FieldValue<'a>, Defect> {
        let Some(bytes) = bytes else { return self.empty() };
        let Some(key) = &self.key else { return self.plain_value(bytes.into()) };
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let found = KeyOf(key).deserialize(&mut json).and_then(|found| json.end().map(|()| found));
        let found = found.map_err(|error| {
            Defect(format!("`{}`: its JSON cannot be read: {error}", self.name))
        })?;
        let refuse = |what| Err(Defect(format!("`{}`: {key:?} is {what} in its JSON", self.name)));
        match (self.form, found) {
            (_, None | Some(serde_json::Value::Null)) => self.empty(),
            (Form::Text, Some(serde_json::Value::String(text))) => {
                Ok(FieldValue::Text(text.into()))
            }
            (Form::Bytes, Some(serde_json::Value::String(text))) => {
                Ok(FieldValue::Bytes(text.into_bytes().into()))
            }
            (Form::Integer, Some(serde_json::Value::Bool(value))) => {
                Ok(FieldValue::Integer(value.into()))
            }
            (Form::Integer, Some(serde_json::Value::Number(number))) => match number.as_i64() {
                Some(value) => Ok(FieldValue::Integer(value)),
                None => refuse("no whole number"),
            },
            (Form::Bool, Some(serde_json::Value::Bool(value))) => Ok(bool_value(value)),
            (Form::Float, Some(serde_json::Value::Number(number))) => {
                Ok(FieldValue::Float(number.as_f64().unwrap_or(f64::NAN)))
            }
            _ => refuse(match self.form {
                Form::Integer | Form::Float => "no number",
                Form::Bool => "neither true nor false",
                _ => "no text",
            }),
        }
    }

    fn plain_value<'a>(&self, bytes: Cow<'a, [u8]>) -> Result<FieldValue<'a>, Defect> {
        let Cow::Borrowed(bytes) = bytes else { return Ok(FieldValue::Bytes(bytes)) };
        let number = || std::str::from_utf8(bytes).map_or("", str::trim);
        let refuse = |what: &str| {
            let shown =
                String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).escape_debug().to_string();
            Defect(format!("`{}` is {what}: \"{shown}\"", self.name))
        };
        Ok(match self.form {
            Form::Image if bytes.is_empty() => {
                return Err(Defect(format!("`{}` is empty", self.name)));
            }
            Form::Image => FieldValue::EncodedImage(bytes),
            // One image counts as a list of one.
            Form::Images => FieldValue::EncodedImages(vec![bytes]),
            Form::Bytes | Form::Video => FieldValue::Bytes(bytes.into()),
            Form::Text => {
                FieldValue::Text(std::str::from_utf8(bytes).map_err(|_| refuse("no UTF-8"))?.into())
            }
            Form::Integer => {
                FieldValue::Integer(number().parse().map_err(|_| refuse("no whole number"))?)
            }
            Form::Float => FieldValue::Float(number().parse().map_err(|_| refuse("no number"))?),
            Form::Bool => match number() {
                "true" | "True" | "1" => bool_value(true),
                "false" | "False" | "0" => bool_value(false),
                _ => return Err(refuse("neither true nor false")),
            },
            Form::Array => FieldValue::Array(read_array(bytes)?),
            Form::Audio => {
                FieldValue::Sound(Sound { file: bytes, form: self.sound.unwrap_or_default() })
            }
            Form::SampleRate => {
                let header = SoundHeader::read(bytes)
                    .map_err(|Defect(reason)| Defect(format!("`{}`: {reason}", self.name)))?;
                FieldValue::Integer(header.rate.into())
            }
        })
    }

    /// The value for a sample without the member.
    fn empty<'a>(&self) -> Result<FieldValue<'a>, Defect> {
        match (self.missing, self.form) {
            (Missing::Empty, Form::Text) => Ok(FieldValue::Text("".into())),
            (Missing::Empty, Form::Images) => Ok(FieldValue::EncodedImages(Vec::new())),
            (Missing::Empty, _) => Ok(FieldValue::Bytes(Cow::Borrowed(&[]))),
            _ => Err(self.absent()),
        }
    }

    fn absent(&self) -> Defect {
        let from = self.from.join(", ");
        let key = self.key.as_ref().map(|key| format!(":{key}")).unwrap_or_default();
        Defect(format!("it has no {from}{key} for the field `{}`", self.name))
    }
}

/// A boolean as an array without dimensions.
fn bool_value(value: bool) -> FieldValue<'static> {
    FieldValue::Array(ArrayValue::scalar(DType::Bool, if value { &[1] } else { &[0] }))
}

/// Reads the key `a` as every type that JSON values can have.
#[doc(hidden)]
pub(super) fn read_json_key(bytes: &[u8]) {
    for form in [Form::Text, Form::Bytes, Form::Integer, Form::Float, Form::Bool] {
        let rule = FieldRule::new("a", vec!["json".to_owned()], form);
        let rule = FieldRule { key: Some("a".to_owned()), ..rule };
        let _ = rule.value(Some(bytes));
    }
}

/// Reads one key of a JSON object and ignores the others; of a repeated key, the last one counts, as in Python.
struct KeyOf<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for KeyOf<'_> {
    type Value = Option<serde_json::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for KeyOf<'_> {
    type Value = Option<serde_json::Value>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inferred_image_field_has_the_usual_and_the_seen_extensions() {
        let from = |members: &[&str]| {
            let members: Vec<_> = members.iter().map(|name| (*name).to_owned()).collect();
            infer_rules(&members, false).0.remove(0).from
        };
        assert_eq!(from(&["jpg", "cls"]), ["jpg", "jpeg", "png", "webp"]);
        assert_eq!(from(&["jpg", "tiff", "gif"]), ["jpg", "jpeg", "png", "webp", "tiff", "gif"]);
    }

    #[test]
    fn images_are_distinguished_from_sounds_and_texts() {
        let wave = b"RIFF\x24\0\0\0WAVEfmt ";
        for (bytes, expected) in [
            (&b"II\x2a\0\x08\0\0\0"[..], true),
            (b"MM\0\x2a", true),
            (b"GIF89a\x01", true),
            (b"BM\x46\0\0\0\0\0\0\0\x36\0", true),
            (b"RIFF\x24\0\0\0WEBPVP8 ", true),
            (wave, false),
            (b"BMW is a car", false),
            (b"", false),
        ] {
            assert_eq!(begins_as_picture(bytes), expected, "{bytes:?}");
        }
    }
}
