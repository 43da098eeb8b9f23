//! The entry point of a fuzzer: a condition and rows out of any bytes.

use crate::expression::{Expression, Type, Value};

/// A condition's text, read, checked with columns of types that the bytes choose, and evaluated.
///
/// # Panics
/// A mistake is outside of the text, or a condition and its negation are both true.
pub fn condition(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let point = |mistake: crate::Mistake, text: &str| {
        assert!(mistake.span.start <= mistake.span.end && mistake.span.end <= text.len());
        assert_eq!(mistake.pointed(text).lines().count(), 2);
    };
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(mistake) => return point(mistake, text),
    };
    let negated = format!("not ({text})");
    // It may be one level too deep.
    let negated = Expression::parse(&negated).ok();
    for seed in 0..4_usize {
        let chosen = |place: usize| seed + place + bytes.len();
        let types = [Type::Number, Type::Text, Type::Boolean, Type::Written].map(Some);
        let of = |place: usize| types[chosen(place) % types.len()];
        let types: Vec<_> = (0..expression.columns().len()).map(of).collect();
        let condition = match expression.with_columns(&types) {
            Ok(condition) => condition,
            Err(mistake) => {
                point(mistake, text);
                continue;
            }
        };
        let values = |row: usize| {
            types.iter().enumerate().map(move |(place, of)| match (of, (row + place) % 3) {
                (_, 0) => Value::Null,
                (Some(Type::Number), 1) => Value::Integer(row as i64 - 3),
                (Some(Type::Number), _) => Value::Float(f64::NAN),
                (Some(Type::Boolean), number) => Value::Boolean(number == 1),
                (_, 1) => Value::Text(text),
                _ => Value::Text("1"),
            })
        };
        for row in 0..6 {
            let row: Vec<_> = values(row).collect();
            let Ok(found) = condition.holds(&row) else { continue };
            let negation = negated.as_ref().and_then(|negated| negated.with_columns(&types).ok());
            if let Some(negation) = negation {
                assert_eq!(negation.holds(&row), Ok(found.map(|value| !value)), "{text}");
            }
        }
    }
}
