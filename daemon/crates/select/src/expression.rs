//! Conditions over columns: `score > 0.5 and split in ('train', 'extra')`.
//!
//! ```text
//! condition  = and { "or" and }
//! and        = not { "and" not }
//! not        = [ "not" ] test
//! test       = value [ comparison value
//!                    | "is" [ "not" ] "null"
//!                    | [ "not" ] "in" "(" literal { "," literal } ")"
//!                    | [ "not" ] "between" value "and" value
//!                    | [ "not" ] "like" text ]
//! comparison = "==" | "!=" | "<" | "<=" | ">" | ">="
//! value      = literal | column | "(" condition ")"
//! literal    = number | text | "true" | "false"
//! column     = a name of letters, digits, `_` and `.`, or any text in double quotes
//! text       = in single quotes; '' is a quote
//! ```
//! Words may be in capitals. Three values as in SQL: a comparison with null is null, `false and null` is false, `true or null`
//! is true, everything else with null is null; a sample is kept if the condition is true. Types are checked before the first
//! row: [`Expression::with_columns`]. Depth, length and the number of comparisons are bounded, and evaluation does not allocate.

mod eval;
mod lexer;
mod like;
mod mistake;
mod parser;
#[cfg(test)]
mod tests;
mod typing;

pub use self::eval::{Condition, Fault};
pub use self::mistake::Mistake;
use self::parser::Tree;

/// The longest text of a condition.
pub const MAX_BYTES: usize = 64 << 10;
/// The deepest nesting of parentheses and `not`.
pub const MAX_DEPTH: usize = 64;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// True or false.
    Boolean,
    /// A whole number or a float.
    Number,
    /// Text, compared by its bytes.
    Text,
    /// Text of a file without types, such as CSV: it is what it is compared with.
    Written,
}

impl Type {
    /// The word in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Text => "text",
            Self::Written => "text that is read as what it is compared with",
        }
    }
}

/// A value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'v> {
    /// No value.
    Null,
    /// A boolean.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A float.
    Float(f64),
    /// Text.
    Text(&'v str),
}

/// A condition that was read, without the types of its columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    text: String,
    tree: Tree,
    /// Each column once, in the order of their first occurrence.
    columns: Vec<String>,
}

impl Expression {
    /// Reads a condition.
    ///
    /// # Errors
    /// It is not one; the mistake has its position.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        let (tree, columns) = parser::parse(text)?;
        Ok(Self { text: text.to_owned(), tree, columns })
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of its columns, each once.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The condition over columns of these types, in the order of [`columns`](Self::columns); `None`: there is no such
    /// column.
    ///
    /// # Errors
    /// A column is missing, or types do not fit.
    pub fn with_columns(&self, types: &[Option<Type>]) -> Result<Condition, Mistake> {
        typing::check(&self.tree, &self.columns, types)
    }
}
