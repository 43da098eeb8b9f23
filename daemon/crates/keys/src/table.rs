//! The table of a section's keys: the single definition of each key's name, kind, unit, default and description.
//!
//! [`keys!`](crate::keys) declares a struct and its table at once. Reading, the resolved configuration, the reference
//! in docs/reference/config*.md and the JSON schema all derive from it, in this crate and in those of formats and operations.

use crate::error::ConfigError;
use crate::kind::Kind;
use crate::section::Section;
use crate::value::Value;

/// Description of a section's keys.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// The section's path, such as `ring`; for an operation its name.
    pub path: &'static str,
    /// The section's subject.
    pub words: &'static str,
    /// In the order of reading and printing.
    pub keys: &'static [Key],
}

/// Description of a key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name within the section.
    pub name: &'static str,
    /// Its description, for the reference and the schema.
    pub words: &'static str,
    /// Its unit; may be empty.
    pub unit: &'static str,
    /// Its type in words.
    pub kind: &'static str,
    /// Its type as a JSON schema.
    pub schema: fn() -> crate::Json,
    /// The default.
    pub default: KeyDefault,
}

/// The default of a key.
#[derive(Debug, Clone, Copy)]
pub enum KeyDefault {
    /// The key is required; with an additional description.
    Required(&'static str),
    /// Unset, which means this.
    Absent(&'static str),
    /// This value; with a description if the value alone would mislead.
    Value(fn() -> Value, &'static str),
}

impl Key {
    /// The default in the reference.
    pub fn default_words(&self) -> String {
        match self.default {
            KeyDefault::Required("") => "required".to_owned(),
            KeyDefault::Value(value, "") => format!("`{}`", value().to_toml()),
            KeyDefault::Required(words)
            | KeyDefault::Absent(words)
            | KeyDefault::Value(_, words) => words.to_owned(),
        }
    }

    /// The default value.
    pub fn default_value(&self) -> Option<Value> {
        match self.default {
            KeyDefault::Value(value, _) => Some(value()),
            _ => None,
        }
    }
}

/// The keys of a section, read.
pub trait Keys: Sized {
    /// Their description.
    const TABLE: Table;

    /// Takes them from a section; other keys remain.
    ///
    /// # Errors
    /// The first key whose value is not of its kind, or that is required and missing.
    fn take(section: &mut Section) -> Result<Self, ConfigError>;

    /// Names and resolved values, in the table's order.
    fn entries(&self) -> Vec<(&'static str, Value)>;

    /// Checks them against each other, and fills in defaults that depend on other keys.
    ///
    /// # Errors
    /// Keys contradict each other.
    fn check(&mut self, section: &Section) -> Result<(), ConfigError>;

    /// Reads a section that has only these keys.
    ///
    /// # Errors
    /// As [`take`](Self::take) and [`check`](Self::check), or an unknown key.
    fn read(section: &mut Section) -> Result<Self, ConfigError> {
        let mut keys = Self::take(section)?;
        section.finish()?;
        keys.check(section)?;
        Ok(keys)
    }
}

impl Section {
    /// Takes a sub-table that has only the keys of `T`; a missing one is empty.
    pub fn table<T: Keys>(&mut self) -> Result<T, ConfigError> {
        T::read(&mut self.take_section(T::TABLE.path)?)
    }

    /// Reads all remaining keys as `T`'s and replaces them by resolved ones: defaults filled in, paths absolute.
    pub fn resolve<T: Keys>(&mut self) -> Result<(), ConfigError> {
        let keys = T::read(&mut self.clone())?;
        self.replace_entries(keys.entries());
        Ok(())
    }
}

/// The kind of a key, for [`keys!`](crate::keys).
#[doc(hidden)]
pub type Out<K> = <K as Kind>::Out;

/// Declares a struct of keys and its [`Table`].
///
/// A key's comment is its text in the reference; its kind is followed by its unit and `required`, `absent("meaning")`
/// or `default(value)`. Words after a value replace it in the reference. Fields after `with` are not keys; they begin
/// with their own default.
#[macro_export]
macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        $vis:vis struct $Name:ident = $path:literal $(, check $check:path)? {
            $(
                $(#[doc = $words:literal])+
                $key_vis:vis $key:ident $(as $name:literal)?: $kind:ty, $unit:literal, $how:ident $(($($default:tt)*))?;
            )*
        }
        $(with { $($(#[$more_meta:meta])* $more_vis:vis $more:ident: $more_type:ty,)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq $($(, $derive)+)?)]
        $vis struct $Name {
            $($(#[doc = $words])+ $key_vis $key: $crate::keys!(@type $kind, $how),)*
            $($($(#[$more_meta])* $more_vis $more: $more_type,)+)?
        }

        impl $crate::Keys for $Name {
            const TABLE: $crate::Table = $crate::Table {
                path: $path,
                words: concat!($($about),+).trim_ascii(),
                keys: &[$($crate::Key {
                    name: $crate::keys!(@name $key $($name)?),
                    words: concat!($($words),+).trim_ascii(),
                    unit: $unit,
                    kind: <$kind as $crate::Kind>::TYPE,
                    schema: <$kind as $crate::Kind>::schema,
                    default: $crate::keys!(@default $kind, $how $(($($default)*))?),
                }),*],
            };

            fn take(section: &mut $crate::Section) -> Result<Self, $crate::ConfigError> {
                Ok(Self {
                    $($key: $crate::keys!(@take section, $crate::keys!(@name $key $($name)?), $kind, $how $(($($default)*))?),)*
                    $($($more: ::core::default::Default::default(),)+)?
                })
            }

            fn entries(&self) -> Vec<(&'static str, $crate::Value)> {
                let entries = [$((
                    $crate::keys!(@name $key $($name)?),
                    $crate::keys!(@entry self, $key, $kind, $how),
                )),*];
                let given = |(key, value): (&'static str, Option<$crate::Value>)| Some((key, value?));
                entries.into_iter().filter_map(given).collect()
            }

            fn check(&mut self, section: &$crate::Section) -> Result<(), $crate::ConfigError> {
                let _ = section;
                $($check(self, section)?;)?
                Ok(())
            }
        }
    };

    // A key that is a word of Rust has its name in `as`.
    (@name $key:ident) => { stringify!($key) };
    (@name $key:ident $name:literal) => { $name };

    (@type $kind:ty, absent) => { Option<$crate::Out<$kind>> };
    (@type $kind:ty, $how:ident) => { $crate::Out<$kind> };

    (@default $kind:ty, required) => { $crate::KeyDefault::Required("") };
    (@default $kind:ty, required($words:literal)) => { $crate::KeyDefault::Required($words) };
    (@default $kind:ty, absent($words:literal)) => { $crate::KeyDefault::Absent($words) };
    (@default $kind:ty, default($value:expr)) => {
        $crate::keys!(@default $kind, default($value, ""))
    };
    (@default $kind:ty, default($value:expr, $words:literal)) => {
        $crate::KeyDefault::Value(|| <$kind as $crate::Kind>::write(&$value), $words)
    };

    (@take $section:ident, $key:expr, $kind:ty, required $(($words:literal))?) => {
        $section.require::<$kind>($key)?
    };
    (@take $section:ident, $key:expr, $kind:ty, absent($words:literal)) => {
        $section.take::<$kind>($key)?
    };
    (@take $section:ident, $key:expr, $kind:ty, default($value:expr $(, $words:literal)?)) => {
        match $section.take::<$kind>($key)? {
            Some(value) => value,
            None => $value,
        }
    };

    (@entry $keys:ident, $key:ident, $kind:ty, absent) => {
        $keys.$key.as_ref().map(|value| <$kind as $crate::Kind>::write(value))
    };
    (@entry $keys:ident, $key:ident, $kind:ty, $how:ident) => {
        Some(<$kind as $crate::Kind>::write(&$keys.$key))
    };
}
