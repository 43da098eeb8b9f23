//! Evaluates a checked condition for a row.

use std::cmp::Ordering;
use std::ops::Range;

use super::like::Pattern;
use super::parser::{Comparison, Literal};
use super::{Type, Value};

/// A condition whose columns have types.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    pub(super) test: Test,
}

/// A value that is not of the type that the condition needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The column's place in the condition's text.
    pub span: Range<usize>,
    /// The column, in the order of [`Expression::columns`](super::Expression::columns).
    pub column: usize,
    /// The type.
    pub wanted: Type,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Test {
    /// A boolean.
    Is(Operand),
    Not(Box<Self>),
    And(Vec<Self>),
    Or(Vec<Self>),
    Compare(Comparison, Operand, Operand),
    /// A value and its bounds.
    Between(Operand, Operand, Operand),
    IsNull(Operand),
    In(Operand, Vec<Literal>),
    Like(Operand, Pattern),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    Column {
        column: usize,
        /// The type as which text is read.
        reads: Option<Type>,
        span: Range<usize>,
    },
    Literal(Literal),
    Test(Box<Test>),
}

impl Condition {
    /// Whether the condition is true for a row, with the values of its columns in their order; `None`: it is null.
    ///
    /// # Errors
    /// A text cannot be read as what it is compared with.
    pub fn holds(&self, row: &[Value<'_>]) -> Result<Option<bool>, Fault> {
        self.test.holds(row)
    }
}

impl Test {
    fn holds(&self, row: &[Value<'_>]) -> Result<Option<bool>, Fault> {
        Ok(match self {
            Self::Is(operand) => match operand.value(row)? {
                Value::Boolean(value) => Some(value),
                _ => None,
            },
            Self::Not(inner) => inner.holds(row)?.map(|value| !value),
            Self::And(parts) => several(parts, row, false)?,
            Self::Or(parts) => several(parts, row, true)?,
            Self::Compare(comparison, left, right) => {
                compared(*comparison, left.value(row)?, right.value(row)?)
            }
            Self::Between(value, low, high) => {
                let value = value.value(row)?;
                let from = compared(Comparison::GreaterOrEqual, value, low.value(row)?);
                let to = compared(Comparison::LessOrEqual, value, high.value(row)?);
                match (from, to) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                }
            }
            Self::IsNull(operand) => Some(operand.value(row)? == Value::Null),
            Self::In(operand, literals) => {
                match operand.value(row)? {
                    Value::Null => None,
                    value => Some(literals.iter().any(|literal| {
                        compare(value, Value::of(literal)) == Some(Ordering::Equal)
                    })),
                }
            }
            Self::Like(operand, pattern) => match operand.value(row)? {
                Value::Text(text) => Some(pattern.matches(text)),
                _ => None,
            },
        })
    }
}

fn compared(comparison: Comparison, left: Value<'_>, right: Value<'_>) -> Option<bool> {
    if left == Value::Null || right == Value::Null {
        return None;
    }
    let order = compare(left, right);
    Some(match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => order.is_some_and(Ordering::is_le),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
    })
}

/// `and` (`decides`: false) or `or` (true): one part that decides is enough, otherwise one null makes all null.
fn several(parts: &[Test], row: &[Value<'_>], decides: bool) -> Result<Option<bool>, Fault> {
    let mut all = Some(!decides);
    for part in parts {
        match part.holds(row)? {
            Some(value) if value == decides => return Ok(Some(decides)),
            Some(_) => {}
            None => all = None,
        }
    }
    Ok(all)
}

impl Operand {
    fn value<'v>(&'v self, row: &[Value<'v>]) -> Result<Value<'v>, Fault> {
        match self {
            Self::Literal(literal) => Ok(Value::of(literal)),
            Self::Test(test) => Ok(test.holds(row)?.map_or(Value::Null, Value::Boolean)),
            Self::Column { column, reads, span } => {
                let value = row.get(*column).copied().unwrap_or(Value::Null);
                match (reads, value) {
                    (Some(wanted), Value::Text(text)) => read(text, *wanted).ok_or_else(|| Fault {
                        span: span.clone(),
                        column: *column,
                        wanted: *wanted,
                    }),
                    _ => Ok(value),
                }
            }
        }
    }
}

/// A text as a type. Rows of JSON have booleans as 1 and 0.
fn read(text: &str, wanted: Type) -> Option<Value<'_>> {
    let text = text.trim();
    match wanted {
        Type::Boolean if text == "1" || text.eq_ignore_ascii_case("true") => {
            Some(Value::Boolean(true))
        }
        Type::Boolean if text == "0" || text.eq_ignore_ascii_case("false") => {
            Some(Value::Boolean(false))
        }
        Type::Boolean => None,
        Type::Number => {
            let integer = text.parse().map(Value::Integer).ok();
            integer.or_else(|| text.parse().map(Value::Float).ok())
        }
        Type::Text | Type::Written => Some(Value::Text(text)),
    }
}

impl<'l> Value<'l> {
    const fn of(literal: &'l Literal) -> Self {
        match literal {
            Literal::Boolean(value) => Self::Boolean(*value),
            Literal::Integer(value) => Self::Integer(*value),
            Literal::Float(value) => Self::Float(*value),
            Literal::Text(value) => Self::Text(value.as_str()),
        }
    }
}

/// The order of two values of one type; `None`: a NaN.
fn compare(one: Value<'_>, other: Value<'_>) -> Option<Ordering> {
    match (one, other) {
        (Value::Integer(one), Value::Integer(other)) => Some(one.cmp(&other)),
        (Value::Float(one), Value::Float(other)) => one.partial_cmp(&other),
        (Value::Integer(one), Value::Float(other)) => compare_mixed(one, other),
        (Value::Float(one), Value::Integer(other)) => {
            compare_mixed(other, one).map(Ordering::reverse)
        }
        (Value::Text(one), Value::Text(other)) => Some(one.cmp(other)),
        (Value::Boolean(one), Value::Boolean(other)) => Some(one.cmp(&other)),
        _ => None,
    }
}

/// Exact, also for integers that no float has.
fn compare_mixed(integer: i64, float: f64) -> Option<Ordering> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if float.is_nan() {
        return None;
    }
    if float >= LIMIT {
        return Some(Ordering::Less);
    }
    if float < -LIMIT {
        return Some(Ordering::Greater);
    }
    #[expect(clippy::cast_possible_truncation, reason = "within the bounds, and truncated")]
    let whole = float.trunc() as i64;
    Some(integer.cmp(&whole).then_with(|| 0.0_f64.total_cmp(&(float.fract() + 0.0))))
}
