//! A text becomes tokens. Outside of `{{` and `}}` everything is text; inside, white space only parts what stands beside it.

use std::sync::Arc;

use crate::TemplateError;
use crate::Value;
use crate::number;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Token {
    Text(Arc<str>),
    /// `{{` and `}}`; trimming is done.
    Open,
    Close,
    Word(String),
    /// `.name`
    Field(String),
    /// `$` or `$name`
    Variable(String),
    Literal(Value),
    Dot,
    Pipe,
    LeftParen,
    RightParen,
    Comma,
    /// `:=`
    Declare,
    /// `=`
    Assign,
    End,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Placed {
    pub(crate) token: Token,
    /// Byte in the text.
    pub(crate) at: usize,
    /// Does white space stand before it?
    pub(crate) apart: bool,
}

pub(crate) struct Lexer<'t> {
    name: &'t str,
    text: &'t str,
    at: usize,
    tokens: Vec<Placed>,
}

/// Where in the text a byte stands, from 1.
pub(crate) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at.min(text.len())).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

pub(crate) fn error_at(name: &str, text: &str, at: usize, message: impl Into<String>) -> TemplateError {
    let (line, column) = position(text, at);
    TemplateError { template: name.to_owned(), line, column, message: message.into() }
}

const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

pub(crate) fn lex(name: &str, text: &str) -> Result<Vec<Placed>, TemplateError> {
    let mut lexer = Lexer { name, text, at: 0, tokens: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

impl<'t> Lexer<'t> {
    fn error<T>(&self, at: usize, message: impl Into<String>) -> Result<T, TemplateError> {
        Err(error_at(self.name, self.text, at, message))
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn push(&mut self, token: Token, at: usize) {
        self.tokens.push(Placed { token, at, apart: false });
    }

    fn run(&mut self) -> Result<(), TemplateError> {
        let mut trim_next = false;
        loop {
            let start = self.at;
            let found = self.rest().find("{{");
            let end = found.map_or(self.text.len(), |offset| start + offset);
            let opener = self.text.get(end + 2..).unwrap_or_default();
            let trims = found.is_some() && opener.starts_with('-') && opener[1..].starts_with(SPACE);
            let mut piece = self.text.get(start..end).unwrap_or_default();
            if trim_next {
                piece = piece.trim_start_matches(SPACE);
            }
            if trims {
                piece = piece.trim_end_matches(SPACE);
            }
            if !piece.is_empty() {
                let piece = piece.into();
                self.push(Token::Text(piece), start);
            }
            if found.is_none() {
                self.push(Token::End, self.text.len());
                return Ok(());
            }
            self.at = end + if trims { 3 } else { 2 };
            trim_next = match self.comment(end)? {
                Some(trim) => trim,
                None => self.action(end)?,
            };
        }
    }

    /// Whether what follows is to be trimmed, if this was a comment.
    fn comment(&mut self, open: usize) -> Result<Option<bool>, TemplateError> {
        let inside = self.rest().trim_start_matches(SPACE);
        if !inside.starts_with("/*") {
            return Ok(None);
        }
        let begin = self.text.len() - inside.len();
        let Some(length) = inside.find("*/") else { return self.error(open, "unclosed comment") };
        self.at = begin + length + 2;
        match self.close() {
            Some((length, trims)) => {
                self.at += length;
                Ok(Some(trims))
            }
            None => self.error(begin, "comment ends before closing delimiter"),
        }
    }

    /// The length of a closing delimiter that stands here, and whether it trims.
    fn close(&self) -> Option<(usize, bool)> {
        let rest = self.rest();
        let inner = rest.trim_start_matches(SPACE);
        let space = rest.len() - inner.len();
        if space > 0 && inner.starts_with("-}}") {
            return Some((space + 3, true));
        }
        inner.starts_with("}}").then_some((space + 2, false))
    }

    fn action(&mut self, open: usize) -> Result<bool, TemplateError> {
        self.push(Token::Open, open);
        loop {
            if let Some((length, trims)) = self.close() {
                self.push(Token::Close, self.at);
                self.at += length;
                return Ok(trims);
            }
            let rest = self.rest();
            let inner = rest.trim_start_matches(SPACE);
            let apart = inner.len() != rest.len();
            self.at += rest.len() - inner.len();
            let at = self.at;
            let Some(first) = inner.chars().next() else { return self.error(open, "unclosed action") };
            let token = self.token(first)?;
            self.tokens.push(Placed { token, at, apart });
        }
    }

    fn token(&mut self, first: char) -> Result<Token, TemplateError> {
        let at = self.at;
        let next = self.rest().chars().nth(1);
        let single = match first {
            '|' => Some(Token::Pipe),
            '(' => Some(Token::LeftParen),
            ')' => Some(Token::RightParen),
            ',' => Some(Token::Comma),
            '=' => Some(Token::Assign),
            _ => None,
        };
        if let Some(token) = single {
            self.at += 1;
            return Ok(token);
        }
        match first {
            ':' if next == Some('=') => {
                self.at += 2;
                Ok(Token::Declare)
            }
            '"' => self.quoted(),
            '`' => self.raw(),
            '\'' => self.character(),
            '$' => {
                self.at += 1;
                Ok(Token::Variable(self.name_here()))
            }
            '.' if next.is_none_or(|c| !c.is_ascii_digit()) => {
                self.at += 1;
                let name = self.name_here();
                Ok(if name.is_empty() { Token::Dot } else { Token::Field(name) })
            }
            '.' | '+' | '-' | '0'..='9' => self.number(),
            c if is_letter(c) => {
                let word = self.name_here();
                Ok(match word.as_str() {
                    "true" => Token::Literal(Value::Bool(true)),
                    "false" => Token::Literal(Value::Bool(false)),
                    "nil" => Token::Literal(Value::Nil),
                    _ => Token::Word(word),
                })
            }
            c => self.error(at, format!("unexpected {c:?} in an action")),
        }
    }

    fn name_here(&mut self) -> String {
        let rest = self.rest();
        let length = rest.find(|c: char| !is_letter(c) && !c.is_numeric()).unwrap_or(rest.len());
        let name = rest[..length].to_owned();
        self.at += length;
        name
    }

    fn number(&mut self) -> Result<Token, TemplateError> {
        let rest = self.rest();
        let mut before = ' ';
        let ends = |c: char| {
            let exponent = matches!(before, 'e' | 'E' | ' ') && matches!(c, '+' | '-');
            before = c;
            !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || exponent)
        };
        let length = rest.find(ends).unwrap_or(rest.len());
        let word = rest[..length].to_owned();
        match number::parse(&word) {
            Some(value) => {
                self.at += length;
                Ok(Token::Literal(value))
            }
            None => self.error(self.at, format!("\"{word}\" is not a number")),
        }
    }

    fn quoted(&mut self) -> Result<Token, TemplateError> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.unquoted('"', start)? {
                Some(c) => text.push(c),
                None => return Ok(Token::Literal(Value::from(text))),
            }
        }
    }

    fn character(&mut self) -> Result<Token, TemplateError> {
        let start = self.at;
        self.at += 1;
        let first = self.unquoted('\'', start)?;
        let second = if first.is_some() { self.unquoted('\'', start)? } else { None };
        match (first, second) {
            (Some(c), None) => Ok(Token::Literal(Value::Int(i64::from(u32::from(c))))),
            _ => self.error(start, "a character constant holds one character"),
        }
    }

    /// One character of a quoted text; none at its end.
    fn unquoted(&mut self, quote: char, start: usize) -> Result<Option<char>, TemplateError> {
        let mut rest = self.rest().chars();
        let c = match rest.next() {
            None | Some('\n') => return self.error(start, "unterminated quoted string"),
            Some(c) if c == quote => {
                self.at += 1;
                return Ok(None);
            }
            Some('\\') => return self.escaped(start).map(Some),
            Some(c) => c,
        };
        self.at += c.len_utf8();
        Ok(Some(c))
    }

    fn escaped(&mut self, start: usize) -> Result<char, TemplateError> {
        let rest = self.rest();
        let wrong = || error_at(self.name, self.text, start, "invalid escape in a quoted string");
        let kind = rest.chars().nth(1).ok_or_else(wrong)?;
        let hex = |digits: usize| {
            let number = u32::from_str_radix(rest.get(2..2 + digits)?, 16).ok()?;
            Some((char::from_u32(number)?, 2 + digits))
        };
        let (c, length) = match kind {
            'n' => ('\n', 2),
            't' => ('\t', 2),
            'r' => ('\r', 2),
            'a' => ('\u{7}', 2),
            'b' => ('\u{8}', 2),
            'f' => ('\u{c}', 2),
            'v' => ('\u{b}', 2),
            '\\' | '"' | '\'' => (kind, 2),
            'x' => hex(2).ok_or_else(wrong)?,
            'u' => hex(4).ok_or_else(wrong)?,
            'U' => hex(8).ok_or_else(wrong)?,
            '0'..='7' => {
                let number = rest.get(1..4).and_then(|octal| u32::from_str_radix(octal, 8).ok());
                (number.and_then(char::from_u32).ok_or_else(wrong)?, 4)
            }
            _ => return Err(wrong()),
        };
        self.at += length;
        Ok(c)
    }

    fn raw(&mut self) -> Result<Token, TemplateError> {
        let rest = &self.rest()[1..];
        match rest.find('`') {
            Some(length) => {
                let text = rest[..length].replace('\r', "");
                self.at += length + 2;
                Ok(Token::Literal(Value::from(text)))
            }
            None => self.error(self.at, "unterminated raw quoted string"),
        }
    }
}

fn is_letter(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}
