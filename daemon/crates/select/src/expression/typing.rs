//! Checks the types of a condition before its first row.

use std::ops::Range;

use super::eval::{Condition, Operand, Test};
use super::like::Pattern;
use super::parser::{Comparison, Literal, Node, Tree};
use super::{Mistake, Type};

/// The condition of a tree over columns of these types.
pub(super) fn check(
    tree: &Tree,
    names: &[String],
    types: &[Option<Type>],
) -> Result<Condition, Mistake> {
    let test = Checker { names, types }.test(tree)?;
    Ok(Condition { test })
}

struct Checker<'c> {
    names: &'c [String],
    types: &'c [Option<Type>],
}

impl Checker<'_> {
    /// The type of a column.
    fn column(&self, column: usize, span: &Range<usize>) -> Result<Type, Mistake> {
        let found = self.types.get(column).copied().flatten();
        found.ok_or_else(|| {
            let name = self.names.get(column).cloned().unwrap_or_default();
            let message = format!("there is no column `{name}`");
            Mistake { missing: Some(name), ..Mistake::new(span.clone(), message) }
        })
    }

    /// The type of a value.
    fn type_of(&self, tree: &Tree) -> Result<Type, Mistake> {
        match &tree.node {
            Node::Column(column) => self.column(*column, &tree.span),
            Node::Literal(literal) => Ok(type_of(literal)),
            _ => Ok(Type::Boolean),
        }
    }

    /// A value as this type.
    fn operand(&self, tree: &Tree, wanted: Type) -> Result<Operand, Mistake> {
        Ok(match &tree.node {
            Node::Column(column) => {
                let is_written = self.column(*column, &tree.span)? == Type::Written;
                let reads = (is_written && wanted != Type::Text).then_some(wanted);
                Operand::Column { column: *column, reads, span: tree.span.clone() }
            }
            Node::Literal(literal) => Operand::Literal(literal.clone()),
            _ => Operand::Test(Box::new(self.test(tree)?)),
        })
    }

    /// Whether something is true, false or null.
    fn test(&self, tree: &Tree) -> Result<Test, Mistake> {
        Ok(match &tree.node {
            Node::Column(_) | Node::Literal(_) => {
                let found = self.type_of(tree)?;
                if !matches!(found, Type::Boolean | Type::Written) {
                    let message = format!(
                        "it is {}, and a condition is true or false; compare it with something",
                        found.word()
                    );
                    return Err(Mistake::new(tree.span.clone(), message));
                }
                Test::Is(self.operand(tree, Type::Boolean)?)
            }
            Node::Not(inner) => Test::Not(Box::new(self.test(inner)?)),
            Node::And(parts) => Test::And(self.tests(parts)?),
            Node::Or(parts) => Test::Or(self.tests(parts)?),
            Node::Compare(comparison, sides) => self.compare(*comparison, sides, &tree.span)?,
            Node::Between(sides) => self.between(sides, &tree.span)?,
            Node::IsNull(inner) => {
                let wanted = match self.type_of(inner)? {
                    // As text every value can be read.
                    Type::Written => Type::Text,
                    other => other,
                };
                Test::IsNull(self.operand(inner, wanted)?)
            }
            Node::In(inner, literals) => self.is_in(inner, literals)?,
            Node::Like(inner, pattern) => {
                let found = self.type_of(inner)?;
                if !matches!(found, Type::Text | Type::Written) {
                    let message = format!("it is {}, and `like` is for text", found.word());
                    return Err(Mistake::new(inner.span.clone(), message));
                }
                Test::Like(self.operand(inner, Type::Text)?, Pattern::new(pattern))
            }
        })
    }

    fn tests(&self, parts: &[Tree]) -> Result<Vec<Test>, Mistake> {
        parts.iter().map(|part| self.test(part)).collect()
    }

    fn compare(
        &self,
        comparison: Comparison,
        sides: &[Tree; 2],
        span: &Range<usize>,
    ) -> Result<Test, Mistake> {
        let [left, right] = sides;
        let wanted = common(self.type_of(left)?, self.type_of(right)?, span)?;
        let is_equality = matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        if wanted == Type::Boolean && !is_equality {
            let message = "booleans are equal or not, and none is less than the other";
            return Err(Mistake::new(span.clone(), message));
        }
        let (left, right) = (self.operand(left, wanted)?, self.operand(right, wanted)?);
        Ok(Test::Compare(comparison, left, right))
    }

    fn between(&self, sides: &[Tree; 3], span: &Range<usize>) -> Result<Test, Mistake> {
        let [value, low, high] = sides;
        let wanted = common(self.type_of(value)?, self.type_of(low)?, span)?;
        let wanted = common(wanted, self.type_of(high)?, span)?;
        if wanted == Type::Boolean {
            return Err(Mistake::new(span.clone(), "booleans have no order, and so no bounds"));
        }
        let operand = |tree| self.operand(tree, wanted);
        Ok(Test::Between(operand(value)?, operand(low)?, operand(high)?))
    }

    fn is_in(&self, inner: &Tree, literals: &[(Literal, Range<usize>)]) -> Result<Test, Mistake> {
        let mut wanted = self.type_of(inner)?;
        for (literal, span) in literals {
            wanted = common(wanted, type_of(literal), span)?;
        }
        let literals = literals.iter().map(|(literal, _)| literal.clone()).collect();
        Ok(Test::In(self.operand(inner, wanted)?, literals))
    }
}

const fn type_of(literal: &Literal) -> Type {
    match literal {
        Literal::Boolean(_) => Type::Boolean,
        Literal::Integer(_) | Literal::Float(_) => Type::Number,
        Literal::Text(_) => Type::Text,
    }
}

/// The type in which two values are compared.
fn common(one: Type, other: Type, span: &Range<usize>) -> Result<Type, Mistake> {
    match (one, other) {
        (Type::Written, Type::Written) => Ok(Type::Text),
        (Type::Written, known) | (known, Type::Written) => Ok(known),
        (one, other) if one == other => Ok(one),
        (one, other) => {
            let message = format!("{} and {} are not compared", one.word(), other.word());
            Err(Mistake::new(span.clone(), message))
        }
    }
}
