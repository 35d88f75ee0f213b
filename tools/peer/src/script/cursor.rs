//! The tokens of one statement, and the expressions in them.

use super::ast::{Area, Expression, Operator, Piece};
use super::lexer::Token;

/// Maximum depth of parentheses and signs in an expression.
const MOST_DEPTH: usize = 32;

/// Reads the tokens of one statement from left to right.
pub(super) struct Cursor {
    tokens: std::vec::IntoIter<Token>,
    depth: usize,
}

pub(super) type Parsed<T> = Result<T, String>;

impl Cursor {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens: tokens.into_iter(), depth: 0 }
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.as_slice().first()
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        self.tokens.next()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.as_slice().is_empty()
    }

    /// Takes this sign, if it is next.
    pub(super) fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(next)) if *next == sign);
        if found {
            self.next();
        }
        found
    }

    /// Takes this word, if it is next.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(next)) if next == word);
        if found {
            self.next();
        }
        found
    }

    /// Requires this sign.
    pub(super) fn sign(&mut self, sign: &str) -> Parsed<()> {
        if self.take(sign) { Ok(()) } else { Err(format!("expected `{sign}` {}", self.here())) }
    }

    /// Requires this word.
    pub(super) fn keyword(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) { Ok(()) } else { Err(format!("expected `{word}` {}", self.here())) }
    }

    /// Requires a word. `what` describes it.
    pub(super) fn word(&mut self, what: &str) -> Parsed<String> {
        if let Some(Token::Word(_)) = self.peek()
            && let Some(Token::Word(word)) = self.next()
        {
            return Ok(word);
        }
        Err(format!("expected {what} {}", self.here()))
    }

    /// Requires a new name: a word without a dot.
    pub(super) fn name(&mut self, what: &str) -> Parsed<String> {
        let word = self.word(what)?;
        if word.contains('.') {
            return Err(format!("`{word}` contains a dot; choose {what} of letters, digits and `_`"));
        }
        Ok(word)
    }

    /// Requires a string. `what` describes it.
    pub(super) fn text(&mut self, what: &str) -> Parsed<String> {
        if let Some(Token::Text(_)) = self.peek()
            && let Some(Token::Text(text)) = self.next()
        {
            return Ok(text);
        }
        Err(format!("expected {what} in quotes {}", self.here()))
    }

    /// Requires the end of the line.
    pub(super) fn end(&self) -> Parsed<()> {
        match self.peek() {
            None => Ok(()),
            Some(token) => Err(format!("`{token}` is not expected here; end the line before it")),
        }
    }

    /// Describes the current position.
    pub(super) fn here(&self) -> String {
        self.peek().map_or_else(|| "at the end of the line".to_owned(), |token| format!("before `{token}`"))
    }

    /// Reads an expression with `+` and `-`.
    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Sign("+")) => Operator::Add,
                Some(Token::Sign("-")) => Operator::Subtract,
                _ => break,
            };
            self.next();
            left = Expression::Binary(Box::new(left), operator, Box::new(self.product()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn product(&mut self) -> Parsed<Expression> {
        let mut left = self.atom()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Sign("*")) => Operator::Multiply,
                Some(Token::Sign("/")) => Operator::Divide,
                Some(Token::Sign("%")) => Operator::Remainder,
                _ => return Ok(left),
            };
            self.next();
            left = Expression::Binary(Box::new(left), operator, Box::new(self.atom()?));
        }
    }

    fn atom(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let here = self.here();
        let atom = match self.next() {
            Some(Token::Number(number)) => Expression::Number(number),
            Some(Token::Time(nanos)) => Expression::Time(nanos),
            Some(Token::Word(name)) => Expression::Name(name),
            Some(Token::Sign("-")) => Expression::Negative(Box::new(self.atom()?)),
            Some(Token::Sign("(")) => {
                let inside = self.expression()?;
                self.sign(")")?;
                inside
            }
            _ => return Err(format!("expected a number, a time or a variable {here}")),
        };
        self.depth -= 1;
        Ok(atom)
    }

    /// Descends one level. The caller leaves it, except after an error.
    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > 2 * MOST_DEPTH {
            return Err(format!(
                "the expression is nested more than {MOST_DEPTH} deep; use a variable (`let`)"
            ));
        }
        Ok(())
    }

    /// Reads contents: pieces joined with `+`.
    pub(super) fn bytes(&mut self) -> Parsed<Vec<Piece>> {
        let mut pieces = vec![self.piece()?];
        while self.take("+") {
            pieces.push(self.piece()?);
        }
        Ok(pieces)
    }

    fn piece(&mut self) -> Parsed<Piece> {
        if matches!(self.peek(), Some(Token::Text(_))) {
            return Ok(Piece::Literal(self.text("bytes")?.into_bytes()));
        }
        if self.take_word("hex") {
            return Ok(Piece::Literal(hex(&self.text("hexadecimal digits")?)?));
        }
        if self.take_word("pattern") {
            let (from, to) = self.range()?;
            return Ok(Piece::Pattern(from, to));
        }
        if self.take_word("u64") {
            self.sign("(")?;
            let value = self.expression()?;
            self.sign(")")?;
            return Ok(Piece::Word(value));
        }
        let byte = self.atom()?;
        let count = if self.take("*") { Some(self.atom()?) } else { None };
        Ok(Piece::Repeated(byte, count))
    }

    /// Reads `[FROM..TO]`.
    fn range(&mut self) -> Parsed<(Expression, Expression)> {
        self.sign("[")?;
        let from = self.expression()?;
        self.sign("..")?;
        let to = self.expression()?;
        self.sign("]")?;
        Ok((from, to))
    }

    /// Returns whether a name with a range is next.
    pub(super) fn is_area(&self) -> bool {
        matches!(self.tokens.as_slice(), [Token::Word(_), Token::Sign("["), ..])
    }

    /// Reads `NAME[FROM..TO]`.
    pub(super) fn area(&mut self) -> Parsed<Area> {
        let memory = self.name("the name of a memory, such as remote[0..16]")?;
        let (from, to) = self.range()?;
        Ok(Area { memory, from, to })
    }
}

/// Reads hexadecimal digits, between which spaces are allowed.
fn hex(text: &str) -> Parsed<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|sign| !sign.is_whitespace())
        .map(|sign| sign.to_digit(16).ok_or_else(|| format!("`{sign}` is not a hexadecimal digit")))
        .collect::<Parsed<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err(format!("{} hexadecimal digits are not whole bytes; add one", digits.len()));
    }
    let byte = |pair: &[u32]| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8);
    Ok(digits.chunks_exact(2).map(byte).collect())
}
