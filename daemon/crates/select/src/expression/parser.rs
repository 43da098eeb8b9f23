//! Reads tokens into a tree.

use std::ops::Range;

use super::lexer::{Token, TokenKind, tokens};
use super::{MAX_DEPTH, Mistake};

/// A part of a condition, with its place in the text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tree {
    pub(super) node: Node,
    pub(super) span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// A column by its number.
    Column(usize),
    Literal(Literal),
    Not(Box<Tree>),
    /// Of two or more.
    And(Vec<Tree>),
    Or(Vec<Tree>),
    Compare(Comparison, Box<[Tree; 2]>),
    /// A value and its bounds, which are included.
    Between(Box<[Tree; 3]>),
    IsNull(Box<Tree>),
    In(Box<Tree>, Vec<(Literal, Range<usize>)>),
    Like(Box<Tree>, String),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn of(sign: &str) -> Option<Self> {
        Some(match sign {
            "==" => Self::Equal,
            "!=" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            _ => return None,
        })
    }
}

/// The tree of a text, and the names of its columns.
pub(super) fn parse(text: &str) -> Result<(Tree, Vec<String>), Mistake> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, columns: Vec::new() };
    if parser.next().kind == TokenKind::End {
        return Err(Mistake::new(
            0..text.len(),
            "it is empty; leave the key out to keep all samples",
        ));
    }
    let tree = parser.any()?;
    match parser.next().kind {
        TokenKind::End => Ok((tree, parser.columns)),
        _ => Err(parser.unexpected("`and`, `or` or a comparison")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    columns: Vec<String>,
}

impl Parser {
    fn next(&self) -> &Token {
        // The last token is the end, and is never passed.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token {
        let token = self.next().clone();
        self.at += 1;
        token
    }

    fn take_if(&mut self, kind: &TokenKind) -> bool {
        let is_next = self.next().kind == *kind;
        self.at += usize::from(is_next);
        is_next
    }

    fn take_word(&mut self, word: &'static str) -> bool {
        self.take_if(&TokenKind::Word(word))
    }

    fn expect(&mut self, kind: &TokenKind, expected: &str) -> Result<(), Mistake> {
        if self.take_if(kind) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn unexpected(&self, expected: &str) -> Mistake {
        let Token { kind, span } = self.next();
        let found = match kind {
            TokenKind::End => "it ends here, and ".to_owned(),
            TokenKind::Word(word) => format!("`{word}` is here, and "),
            TokenKind::Sign(sign) => format!("`{sign}` is here, and "),
            TokenKind::Column(_)
            | TokenKind::Text(_)
            | TokenKind::Integer(_)
            | TokenKind::Float(_) => String::new(),
        };
        Mistake::new(span.clone(), format!("{found}{expected} is expected"))
    }

    /// Calls `read` one level deeper.
    fn deeper(&mut self, read: fn(&mut Self) -> Result<Tree, Mistake>) -> Result<Tree, Mistake> {
        if self.depth == MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} parentheses and `not` are in each other");
            return Err(Mistake::new(self.next().span.clone(), message));
        }
        self.depth += 1;
        let tree = read(self);
        self.depth -= 1;
        tree
    }

    fn any(&mut self) -> Result<Tree, Mistake> {
        self.several("or", Self::all, Node::Or)
    }

    fn all(&mut self) -> Result<Tree, Mistake> {
        self.several("and", Self::not, Node::And)
    }

    /// Parts with a word between them; one part is itself.
    fn several(
        &mut self,
        word: &'static str,
        read: fn(&mut Self) -> Result<Tree, Mistake>,
        node: fn(Vec<Tree>) -> Node,
    ) -> Result<Tree, Mistake> {
        let first = read(self)?;
        if self.next().kind != TokenKind::Word(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take_word(word) {
            parts.push(read(self)?);
        }
        let span = spanned(&parts[0], &parts[parts.len() - 1]);
        Ok(Tree { node: node(parts), span })
    }

    fn not(&mut self) -> Result<Tree, Mistake> {
        let start = self.next().span.start;
        if !self.take_word("not") {
            return self.test();
        }
        let tree = self.deeper(Self::not)?;
        Ok(negated(tree, start))
    }

    fn test(&mut self) -> Result<Tree, Mistake> {
        let left = self.value()?;
        let start = left.span.start;
        if let TokenKind::Sign(sign) = self.next().kind
            && let Some(comparison) = Comparison::of(sign)
        {
            self.take();
            self.refuse_null()?;
            let right = self.value()?;
            if let TokenKind::Sign(sign) = self.next().kind
                && Comparison::of(sign).is_some()
            {
                let message = "comparisons have two sides; join two of them with `and`";
                return Err(Mistake::new(self.next().span.clone(), message));
            }
            return Ok(compared(comparison, left, right));
        }
        if self.take_word("is") {
            let is_negated = self.take_word("not");
            let end = self.next().span.end;
            self.expect(&TokenKind::Word("null"), "`null` or `not null`")?;
            let tree = Tree { node: Node::IsNull(Box::new(left)), span: start..end };
            return Ok(if is_negated { negated(tree, start) } else { tree });
        }
        let is_negated = self.take_word("not");
        let tree = if self.take_word("in") {
            self.is_in(left)?
        } else if self.take_word("between") {
            self.between(left)?
        } else if self.take_word("like") {
            let end = self.next().span.end;
            match self.take().kind {
                TokenKind::Text(pattern) => {
                    Tree { node: Node::Like(Box::new(left), pattern), span: start..end }
                }
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected("a pattern in single quotes"));
                }
            }
        } else if is_negated {
            return Err(self.unexpected("`in`, `between` or `like`"));
        } else {
            left
        };
        Ok(if is_negated { negated(tree, start) } else { tree })
    }

    fn is_in(&mut self, left: Tree) -> Result<Tree, Mistake> {
        self.expect(&TokenKind::Sign("("), "a list in parentheses, such as ('a', 'b'),")?;
        let mut literals = Vec::new();
        loop {
            self.refuse_null()?;
            let span = self.next().span.clone();
            match literal(&self.next().kind) {
                Some(literal) => literals.push((literal, span)),
                None => return Err(self.unexpected("a number, a text, `true` or `false`")),
            }
            self.take();
            if !self.take_if(&TokenKind::Sign(",")) {
                break;
            }
        }
        let span = left.span.start..self.next().span.end;
        self.expect(&TokenKind::Sign(")"), "`,` or `)`")?;
        Ok(Tree { node: Node::In(Box::new(left), literals), span })
    }

    fn between(&mut self, left: Tree) -> Result<Tree, Mistake> {
        self.refuse_null()?;
        let low = self.value()?;
        self.expect(&TokenKind::Word("and"), "`and` and the greater bound of `between`")?;
        self.refuse_null()?;
        let high = self.value()?;
        let span = spanned(&left, &high);
        Ok(Tree { node: Node::Between(Box::new([left, low, high])), span })
    }

    fn value(&mut self) -> Result<Tree, Mistake> {
        let Token { kind, span } = self.next().clone();
        if let Some(literal) = literal(&kind) {
            self.take();
            return Ok(Tree { node: Node::Literal(literal), span });
        }
        match kind {
            TokenKind::Column(name) => {
                self.take();
                let place = self.columns.iter().position(|known| *known == name);
                let place = place.unwrap_or_else(|| {
                    self.columns.push(name);
                    self.columns.len() - 1
                });
                Ok(Tree { node: Node::Column(place), span })
            }
            TokenKind::Sign("(") => {
                self.take();
                let tree = self.deeper(Self::any)?;
                let end = self.next().span.end;
                self.expect(&TokenKind::Sign(")"), "`)`")?;
                Ok(Tree { node: tree.node, span: span.start..end })
            }
            _ => Err(self.unexpected("a column, a number, a text, `true` or `false`")),
        }
    }

    fn refuse_null(&self) -> Result<(), Mistake> {
        let Token { kind, span } = self.next();
        match kind {
            TokenKind::Word("null") => Err(Mistake::new(
                span.clone(),
                "nothing is equal to null; use `is null` or `is not null`",
            )),
            _ => Ok(()),
        }
    }
}

fn literal(kind: &TokenKind) -> Option<Literal> {
    Some(match kind {
        TokenKind::Word("true") => Literal::Boolean(true),
        TokenKind::Word("false") => Literal::Boolean(false),
        TokenKind::Integer(number) => Literal::Integer(*number),
        TokenKind::Float(number) => Literal::Float(*number),
        TokenKind::Text(text) => Literal::Text(text.clone()),
        _ => return None,
    })
}

const fn spanned(first: &Tree, last: &Tree) -> Range<usize> {
    first.span.start..last.span.end
}

fn compared(comparison: Comparison, left: Tree, right: Tree) -> Tree {
    let span = spanned(&left, &right);
    Tree { node: Node::Compare(comparison, Box::new([left, right])), span }
}

fn negated(tree: Tree, start: usize) -> Tree {
    let span = start..tree.span.end;
    Tree { node: Node::Not(Box::new(tree)), span }
}
