//! The syntax of CEL, in which logs are filtered. Whether names are known is Envoy's business; whether it can be read at
//! all is ours, because Envoy refuses a listener with an expression that cannot.
//!
//! Written by hand: what crates there are for CEL also run it, which is far more than this.

/// Deeper than anybody nests, shallower than any stack.
const MAX_DEPTH: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    /// Numbers, texts, `true` and the like.
    Literal,
    Name(&'a str),
    Sign(&'a str),
}

const SIGNS: [&str; 26] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "?", ":", ".", ",", "(", ")",
    "[", "]", "{", "}", "|", "&",
];
const RESERVED: [&str; 16] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "while",
];
/// From what binds least to what binds most.
const OPERATORS: [&[&str]; 5] =
    [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">", "in"], &["+", "-"], &["*", "/", "%"]];

/// Is it an expression? If not, why.
pub(crate) fn parse(text: &str) -> Result<(), String> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, depth: 0 };
    parser.expression()?;
    match parser.tokens.first() {
        None => Ok(()),
        Some(token) => Err(format!("{} is not expected", show(Some(*token)))),
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        if rest.is_empty() {
            return Ok(out);
        }
        let (token, after) = token(rest)?;
        out.push(token);
        rest = after;
    }
}

fn token(text: &str) -> Result<(Token<'_>, &str), String> {
    if let Some(after) = text_literal(text)? {
        return Ok((Token::Literal, after));
    }
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    if text.starts_with(begins) {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        let token =
            if matches!(name, "true" | "false" | "null") { Token::Literal } else { Token::Name(name) };
        return Ok((token, after));
    }
    let is_digit = |c: char| c.is_ascii_digit();
    if text.starts_with(is_digit) || text.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_digit)) {
        return Ok((Token::Literal, after_number(text)));
    }
    let sign = SIGNS.into_iter().find(|sign| text.starts_with(sign));
    match sign {
        Some(sign) if sign != "|" && sign != "&" => Ok((Token::Sign(sign), &text[sign.len()..])),
        _ => Err(format!("{:?} is not expected", text.chars().next().unwrap_or_default())),
    }
}

fn after_number(text: &str) -> &str {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return hex.trim_start_matches(|c: char| c.is_ascii_hexdigit()).trim_start_matches(['u', 'U']);
    }
    let digits = |text| str::trim_start_matches(text, |c: char| c.is_ascii_digit());
    let mut rest = digits(text);
    if let Some(fraction) = rest.strip_prefix('.').filter(|f| f.starts_with(|c: char| c.is_ascii_digit())) {
        rest = digits(fraction);
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if exponent.starts_with(|c: char| c.is_ascii_digit()) {
            rest = digits(exponent);
        }
    }
    rest.strip_prefix(['u', 'U']).unwrap_or(rest)
}

/// What comes behind a text or bytes, such as `'a'`, `r"b"` or `"""c"""`.
fn text_literal(text: &str) -> Result<Option<&str>, String> {
    let marks = text.find(|c: char| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(text.len());
    let (mark, body) = text.split_at(marks);
    let raw = mark.contains(['r', 'R']);
    if mark.len() > 2 || !body.starts_with(['\'', '"']) {
        return Ok(None);
    }
    let quote = match body.get(..3) {
        Some(quote @ ("'''" | "\"\"\"")) => quote,
        _ => &body[..1],
    };
    let mut rest = &body[quote.len()..];
    loop {
        if let Some(after) = rest.strip_prefix(quote) {
            return Ok(Some(after));
        }
        let mut chars = rest.chars();
        match chars.next() {
            None => return Err("a text does not end".to_owned()),
            Some('\n') if quote.len() == 1 => return Err("a text has a line break in it".to_owned()),
            Some('\\') if !raw => {
                chars.next();
            }
            Some(_) => (),
        }
        rest = chars.as_str();
    }
}

fn show(token: Option<Token<'_>>) -> String {
    match token {
        None => "the end".to_owned(),
        Some(Token::Literal) => "a value".to_owned(),
        Some(Token::Name(text) | Token::Sign(text)) => format!("{text:?}"),
    }
}

struct Parser<'t, 'a> {
    tokens: &'t [Token<'a>],
    depth: usize,
}

impl Parser<'_, '_> {
    fn eat(&mut self, sign: &str) -> bool {
        let here = match self.tokens.first() {
            Some(Token::Sign(text) | Token::Name(text)) => *text == sign,
            _ => false,
        };
        if here {
            self.tokens = &self.tokens[1..];
        }
        here
    }

    fn need(&mut self, sign: &str) -> Result<(), String> {
        if self.eat(sign) {
            return Ok(());
        }
        Err(format!("{sign:?} is expected in place of {}", show(self.tokens.first().copied())))
    }

    fn expression(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        self.binary(0)?;
        if self.eat("?") {
            self.binary(0)?;
            self.need(":")?;
            self.expression()?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn binary(&mut self, level: usize) -> Result<(), String> {
        let Some(operators) = OPERATORS.get(level) else { return self.unary() };
        self.binary(level + 1)?;
        while operators.iter().any(|operator| self.eat(operator)) {
            self.binary(level + 1)?;
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<(), String> {
        while self.eat("!") || self.eat("-") {}
        self.primary()?;
        loop {
            if self.eat(".") {
                self.name()?;
                if self.eat("(") {
                    self.list(")", Self::expression)?;
                }
            } else if self.eat("[") {
                self.expression()?;
                self.need("]")?;
            } else if self.eat("{") {
                self.list("}", |parser| parser.name().and_then(|()| parser.entry()))?;
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Result<(), String> {
        if self.eat("(") {
            self.expression()?;
            return self.need(")");
        }
        if self.eat("[") {
            return self.list("]", Self::expression);
        }
        if self.eat("{") {
            return self.list("}", |parser| parser.expression().and_then(|()| parser.entry()));
        }
        if let Some((Token::Literal, rest)) = self.tokens.split_first() {
            self.tokens = rest;
            return Ok(());
        }
        self.eat(".");
        self.name()?;
        if self.eat("(") { self.list(")", Self::expression) } else { Ok(()) }
    }

    fn name(&mut self) -> Result<(), String> {
        match self.tokens.split_first() {
            Some((Token::Name(name), rest)) if !RESERVED.contains(name) && *name != "in" => {
                self.tokens = rest;
                Ok(())
            }
            other => Err(format!("a name is expected in place of {}", show(other.map(|(token, _)| *token)))),
        }
    }

    fn entry(&mut self) -> Result<(), String> {
        self.need(":")?;
        self.expression()
    }

    fn list(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        while !self.eat(end) {
            item(self)?;
            if !self.eat(",") {
                return self.need(end);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn expressions_are_told_from_what_is_none() {
        let good = [
            "response.code >= 400",
            "response.code >= 400 && connection.mtls == false",
            "!has(request.headers['x-a']) || request.url_path.startsWith(r'/a\\d') ? true : 1u < 0x1F",
            "request.headers[\"user-agent\"] in ['a', b'b', '''c\n'''] // why not",
            "{'a': 1, 'b': 2.5e-3}.a == -1 && Type{field: .x}.field == null",
        ];
        for text in good {
            assert_eq!(parse(text), Ok(()), "{text}");
        }
        for text in [
            "",
            "response.code >= ",
            "a b",
            "a &",
            "(a",
            "'a",
            "a.[0]",
            "1 +* 2",
            "if == 1",
            "response.code = 400",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
