//! The cursor: a position in a text that is being parsed.
use crate::kernel::MAX_DEPTH;
use std::fmt;

/// A text that cannot be parsed: the position of the mistake, and what was expected there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Position in the line in characters, from 1.
    pub column: usize,
    /// Description of the text that was expected at the position.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}
impl std::error::Error for ParseError {}

/// Result of a parsing step.
pub(crate) type ParseResult<T> = Result<T, ParseError>;

/// A text and the position up to which it is read. Spaces and line ends only separate tokens.
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// Depth of nesting at the position.
    depth: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Cursor { text, at: 0, depth: 0 }
    }
    /// Parses a whole text; refuses a remainder.
    pub(crate) fn parse_whole<T>(text: &'a str, read: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        let cursor = &mut Cursor::new(text);
        let found = read(cursor)?;
        if cursor.is_at_end() { Ok(found) } else { cursor.error_at_position("expected the end") }
    }
    /// The rest of the text from the next token on. After a token the position is its end, to which errors refer.
    fn rest(&self) -> &'a str {
        self.text[self.at..].trim_start()
    }
    /// Advances past the first `count` bytes of the rest.
    fn skip_bytes(&mut self, count: usize) {
        self.at = self.text.len() - self.rest().len() + count;
    }
    /// Reads text that may contain itself. The depth of nesting is limited, so that no text exhausts the stack.
    pub(crate) fn parse_nested<T>(&mut self, read: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth == MAX_DEPTH {
            return self.error_at_position(format!("nested more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }
    /// Returns true if the next token is in the same line.
    pub(crate) fn is_on_same_line(&self) -> bool {
        let spaces = self.text.len() - self.at - self.rest().len();
        !self.text[self.at..self.at + spaces].contains('\n')
    }
    /// Returns an error with this message at the line and column that are read next.
    pub(crate) fn error_at_position<T>(&self, message: impl Into<String>) -> ParseResult<T> {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        Err(ParseError { line, column, message: message.into() })
    }
    /// Returns true if the next token is `token`; a word matches only as a whole.
    pub(crate) fn peek(&self, token: &str) -> bool {
        let rest = self.rest();
        let word = token.chars().all(is_word_char);
        rest.strip_prefix(token).is_some_and(|after| !(word && after.starts_with(is_word_char)))
    }
    /// Reads `token` if it is next, and returns whether it was; a word matches only as a whole.
    pub(crate) fn eat(&mut self, token: &str) -> bool {
        let found = self.peek(token);
        if found {
            self.skip_bytes(token.len());
        }
        found
    }
    /// Reads `token`, or returns an error.
    pub(crate) fn expect(&mut self, token: &str) -> ParseResult<()> {
        if self.eat(token) { Ok(()) } else { self.error_at_position(format!("expected `{token}`")) }
    }
    /// Returns true if the next token is a word followed directly by an opening bracket.
    pub(crate) fn peek_call(&self) -> bool {
        let rest = self.rest();
        let end = rest.find(|c| !is_word_char(c)).unwrap_or(rest.len());
        end > 0 && rest[end..].starts_with('(')
    }
    /// Reads everything up to the next comma outside of brackets.
    pub(crate) fn read_argument(&mut self) -> &'a str {
        let rest = self.rest();
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ',' && depth == 0
        });
        let end = end.unwrap_or(rest.len());
        self.skip_bytes(end);
        rest[..end].trim_end()
    }
    /// Returns true if nothing is left but spaces.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }
    /// Reads characters as long as `accepts` returns true, at least one; `expected` names them in the error.
    pub(crate) fn read_while(&mut self, expected: &str, accepts: impl Fn(char) -> bool) -> ParseResult<&'a str> {
        let rest = self.rest();
        let end = rest.find(|c| !accepts(c)).unwrap_or(rest.len());
        if end == 0 {
            return self.error_at_position(format!("expected {expected}"));
        }
        self.skip_bytes(end);
        Ok(&rest[..end])
    }
    /// Reads a word: letters, digits and `_`.
    pub(crate) fn read_word(&mut self, expected: &str) -> ParseResult<&'a str> {
        self.read_while(expected, is_word_char)
    }
    /// Reads a word and parses it as a `T`.
    pub(crate) fn read_value<T: std::str::FromStr>(&mut self, expected: &str) -> ParseResult<T> {
        let start = self.at;
        let word = self.read_while(expected, |c| is_word_char(c) || c == '-')?;
        match word.parse() {
            Ok(x) => Ok(x),
            Err(_) => {
                self.at = start;
                self.error_at_position(format!("expected {expected}, found `{word}`"))
            }
        }
    }
    /// Reads a parenthesised text, and returns what is between the brackets.
    pub(crate) fn read_parenthesised(&mut self) -> ParseResult<&'a str> {
        self.expect("(")?;
        let rest = &self.text[self.at..];
        let mut depth = 1;
        for (i, c) in rest.char_indices() {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            if depth == 0 {
                self.at += i + 1;
                return Ok(&rest[..i]);
            }
        }
        self.error_at_position("this `(` is not closed")
    }
    /// Reads a string literal as `{:?}` writes it.
    pub(crate) fn read_string(&mut self) -> ParseResult<String> {
        self.expect("\"")?;
        let rest = &self.text[self.at..];
        let mut out = String::new();
        let mut chars = rest.char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, 'r')) => out.push('\r'),
                    Some((_, '0')) => out.push('\0'),
                    Some((_, 'u')) => {
                        let digits: String = chars.by_ref().map(|(_, c)| c).skip(1).take_while(|&c| c != '}').collect();
                        let c = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        let Some(c) = c else { return self.error_at_position("expected a character's code") };
                        out.push(c);
                    }
                    Some((_, c)) => out.push(c),
                    None => break,
                },
                c => out.push(c),
            }
        }
        self.error_at_position("this string is not closed")
    }
    /// Reads items separated by commas up to `end`, which is read too.
    pub(crate) fn read_list<T>(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> ParseResult<T>,
    ) -> ParseResult<Vec<T>> {
        let mut items = vec![];
        if self.eat(end) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(end) {
                return Ok(items);
            }
            self.expect(",")?;
        }
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
