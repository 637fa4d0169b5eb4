//! Tokens become a tree. Names of variables and functions are checked here, so that a template that was read holds together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::TemplateError;
use crate::Value;
use crate::ast::{At, Binding, Branch, Command, Node, Operand, Pipeline, Term};
use crate::functions::Functions;
use crate::lex::{Placed, Token, error_at, lex};

/// Deeper than people write, and shallow enough for any stack.
const DEEPEST: usize = 100;

/// A template that was read, with those that are defined in it.
#[derive(Clone, Debug)]
pub struct Template {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
    pub(crate) body: Arc<Vec<Node>>,
    pub(crate) defined: BTreeMap<Arc<str>, Arc<Vec<Node>>>,
}

impl Template {
    /// Only functions that are known can be named.
    pub fn parse(name: &str, text: &str, functions: &Functions) -> Result<Self, TemplateError> {
        let tokens = lex(name, text)?;
        let mut parser = Parser {
            name,
            text,
            tokens: &tokens,
            next: 0,
            functions,
            variables: vec![String::new()],
            defined: BTreeMap::new(),
            depth: 0,
            loops: 0,
        };
        let (body, end) = parser.list()?;
        if let Some((word, at)) = end {
            return parser.error(at, format!("unexpected {{{{{word}}}}}"));
        }
        let defined = parser.defined;
        Ok(Self { name: name.into(), text: text.into(), body: Arc::new(body), defined })
    }
}

struct Parser<'t> {
    name: &'t str,
    text: &'t str,
    tokens: &'t [Placed],
    next: usize,
    functions: &'t Functions,
    /// Those that can be named here, the inmost last.
    variables: Vec<String>,
    defined: BTreeMap<Arc<str>, Arc<Vec<Node>>>,
    depth: usize,
    loops: usize,
}

/// What ended a list: `end` or `else`, and where.
type Ending = Option<(String, At)>;

impl<'t> Parser<'t> {
    fn error<T>(&self, at: At, message: impl Into<String>) -> Result<T, TemplateError> {
        Err(error_at(self.name, self.text, at, message))
    }

    fn peek(&self) -> &'t Placed {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Placed {
        let placed = self.peek().clone();
        self.next += 1;
        placed
    }

    fn deeper<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        if self.depth == DEEPEST {
            return self.error(self.peek().at, format!("nested more than {DEEPEST} deep"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Everything up to an `end` or `else` that belongs to somebody else, or the end of the text.
    fn list(&mut self) -> Result<(Vec<Node>, Ending), TemplateError> {
        let mut nodes = Vec::new();
        loop {
            let Placed { token, at, .. } = self.take();
            match token {
                Token::Text(text) => nodes.push(Node::Text(text)),
                Token::End => return Ok((nodes, None)),
                _ => match self.deeper(|parser| parser.action(at))? {
                    Parsed::Node(node) => nodes.push(node),
                    Parsed::Nothing => (),
                    Parsed::Ending(word) => return Ok((nodes, Some((word, at)))),
                },
            }
        }
    }

    fn action(&mut self, open: At) -> Result<Parsed, TemplateError> {
        let Token::Word(word) = &self.peek().token else {
            let pipeline = self.pipeline("command")?;
            self.close("command")?;
            return Ok(Parsed::Node(Node::Action(pipeline)));
        };
        let word = word.clone();
        let node = match word.as_str() {
            "if" | "with" | "range" => {
                self.take();
                return self.branch(&word, open).map(Parsed::Node);
            }
            "end" => {
                self.take();
                self.close("end")?;
                return Ok(Parsed::Ending(word));
            }
            // What follows `else` is read by whoever it belongs to.
            "else" => {
                self.take();
                return Ok(Parsed::Ending(word));
            }
            "define" => {
                self.take();
                let (name, body) = self.definition(open)?;
                self.define(name, body);
                return Ok(Parsed::Nothing);
            }
            "block" => {
                self.take();
                self.block(open)?
            }
            "template" => {
                self.take();
                let name = self.template_name("template")?;
                let argument = self.argument("template")?;
                Node::Call { name, argument, at: open }
            }
            "break" | "continue" if !self.functions.has(&word) => {
                self.take();
                if self.loops == 0 {
                    return self.error(open, format!("{{{{{word}}}}} outside {{{{range}}}}"));
                }
                self.close(&word)?;
                if word == "break" { Node::Break } else { Node::Continue }
            }
            _ => {
                let pipeline = self.pipeline("command")?;
                self.close("command")?;
                Node::Action(pipeline)
            }
        };
        Ok(Parsed::Node(node))
    }

    fn close(&mut self, what: &str) -> Result<(), TemplateError> {
        let Placed { token, at, .. } = self.take();
        if token == Token::Close {
            Ok(())
        } else {
            self.error(at, format!("unexpected {} in {what}", shown(&token)))
        }
    }

    fn branch(&mut self, word: &str, open: At) -> Result<Node, TemplateError> {
        let scope = self.variables.len();
        let pipeline = self.pipeline(word)?;
        self.close(word)?;
        self.loops += usize::from(word == "range");
        let (body, ending) = self.list()?;
        self.loops -= usize::from(word == "range");
        let otherwise = match ending {
            None => return self.error(open, format!("{{{{{word}}}}} without {{{{end}}}}")),
            Some((end, _)) if end == "end" => Vec::new(),
            Some((_, at)) => self.otherwise(word, at)?,
        };
        self.variables.truncate(scope);
        let branch = Branch { pipeline, body, otherwise };
        Ok(match word {
            "if" => Node::If(branch),
            "with" => Node::With(branch),
            _ => Node::Range(branch),
        })
    }

    /// Behind `{{else`: its end, or one more condition.
    fn otherwise(&mut self, word: &str, at: At) -> Result<Vec<Node>, TemplateError> {
        if let Token::Word(next) = &self.peek().token
            && next == word
            && word != "range"
        {
            self.take();
            return Ok(vec![self.deeper(|parser| parser.branch(word, at))?]);
        }
        self.close("else")?;
        match self.list()? {
            (nodes, Some((end, _))) if end == "end" => Ok(nodes),
            (_, Some((_, at))) => self.error(at, "{{else}} after {{else}}"),
            (_, None) => self.error(at, "{{else}} without {{end}}"),
        }
    }

    fn template_name(&mut self, what: &str) -> Result<Arc<str>, TemplateError> {
        let Placed { token, at, .. } = self.take();
        match token {
            Token::Literal(Value::Text(name)) => Ok(name),
            token => self.error(at, format!("{what} needs a name in quotes, not {}", shown(&token))),
        }
    }

    fn argument(&mut self, what: &str) -> Result<Option<Pipeline>, TemplateError> {
        let argument = match self.peek().token {
            Token::Close => None,
            _ => Some(self.pipeline(what)?),
        };
        self.close(what)?;
        Ok(argument)
    }

    fn definition(&mut self, open: At) -> Result<(Arc<str>, Vec<Node>), TemplateError> {
        let name = self.template_name("define")?;
        self.close("define")?;
        let body = self.own_body("define", open)?;
        Ok((name, body))
    }

    /// The inside of something that is a template of its own: it sees no variables but `$`.
    fn own_body(&mut self, what: &str, open: At) -> Result<Vec<Node>, TemplateError> {
        let outside = std::mem::replace(&mut self.variables, vec![String::new()]);
        let loops = std::mem::take(&mut self.loops);
        let (body, ending) = self.list()?;
        (self.variables, self.loops) = (outside, loops);
        match ending {
            Some((end, _)) if end == "end" => Ok(body),
            Some((_, at)) => self.error(at, format!("unexpected {{{{else}}}} in {what}")),
            None => self.error(open, format!("{{{{{what}}}}} without {{{{end}}}}")),
        }
    }

    fn block(&mut self, open: At) -> Result<Node, TemplateError> {
        let name = self.template_name("block")?;
        let argument = self.argument("block")?;
        let body = self.own_body("block", open)?;
        self.define(Arc::clone(&name), body);
        Ok(Node::Call { name, argument, at: open })
    }

    /// As in Go, an empty definition does not take the place of one that is not.
    fn define(&mut self, name: Arc<str>, body: Vec<Node>) {
        let blank = |node: &Node| matches!(node, Node::Text(text) if text.trim().is_empty());
        if self.defined.contains_key(&name) && body.iter().all(blank) {
            return;
        }
        self.defined.insert(name, Arc::new(body));
    }

    fn pipeline(&mut self, what: &str) -> Result<Pipeline, TemplateError> {
        let at = self.peek().at;
        let (binding, bound) = self.binding(what)?;
        let mut commands = vec![self.command()?];
        while self.peek().token == Token::Pipe {
            self.take();
            commands.push(self.command()?);
        }
        for command in &commands[1..] {
            let first = &command.operands[0];
            if let Term::Literal(value) = &first.term {
                return self.error(first.at, format!("{value} cannot be given anything by a pipe"));
            }
        }
        self.variables.extend(bound);
        Ok(Pipeline { at, binding, commands })
    }

    /// `$a :=`, `$a =`, and in a range `$a, $b :=`. Also the names that are new.
    fn binding(&mut self, what: &str) -> Result<(Binding, Vec<String>), TemplateError> {
        let begin = self.next;
        let mut names = Vec::new();
        while let Token::Variable(name) = &self.peek().token {
            let (name, at) = (name.clone(), self.peek().at);
            self.take();
            match self.peek().token {
                Token::Declare => {
                    self.take();
                    names.push(name);
                    return Ok((Binding::Declare(names.clone()), names));
                }
                Token::Assign => {
                    self.take();
                    names.push(name);
                    for name in &names {
                        self.known(name, at)?;
                    }
                    return Ok((Binding::Assign(names), Vec::new()));
                }
                Token::Comma if what == "range" && names.is_empty() => {
                    self.take();
                    names.push(name);
                }
                _ => break,
            }
        }
        self.next = begin;
        Ok((Binding::Nothing, Vec::new()))
    }

    fn known(&self, name: &str, at: At) -> Result<(), TemplateError> {
        if self.variables.iter().any(|known| known == name) {
            return Ok(());
        }
        self.error(at, format!("undefined variable \"${name}\""))
    }

    fn command(&mut self) -> Result<Command, TemplateError> {
        let at = self.peek().at;
        let mut operands = Vec::new();
        loop {
            let Placed { token, at, apart } = self.peek().clone();
            match token {
                Token::Pipe | Token::Close | Token::RightParen => break,
                _ if !operands.is_empty() && !apart && token != Token::LeftParen => {
                    return self.error(at, format!("unexpected {} without a space before it", shown(&token)));
                }
                _ => operands.push(self.deeper(Self::operand)?),
            }
        }
        if operands.is_empty() {
            return self.error(at, "missing value for a command");
        }
        Ok(Command { at, operands })
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        let Placed { token, at, .. } = self.take();
        let mut fields = Vec::new();
        let term = match token {
            Token::Dot => Term::Dot,
            Token::Field(name) => {
                fields.push(name);
                Term::Dot
            }
            Token::Variable(name) => {
                self.known(&name, at)?;
                Term::Variable(name)
            }
            Token::Literal(value) => Term::Literal(value),
            Token::Word(name) if self.functions.has(&name) => Term::Function(name),
            Token::Word(name) => return self.error(at, format!("function \"{name}\" not defined")),
            Token::LeftParen => {
                let pipeline = self.pipeline("parentheses")?;
                let Placed { token, at, .. } = self.take();
                if token != Token::RightParen {
                    return self.error(at, format!("unexpected {}, expected )", shown(&token)));
                }
                Term::Pipeline(Box::new(pipeline))
            }
            token => return self.error(at, format!("unexpected {} in operand", shown(&token))),
        };
        while let Placed { token: Token::Field(name), apart: false, at } = self.peek().clone() {
            if matches!(term, Term::Literal(_)) || (term == Term::Dot && fields.is_empty()) {
                return self.error(at, format!("unexpected .{name} after a term that has no fields"));
            }
            fields.push(name);
            self.take();
        }
        Ok(Operand { at, term, fields })
    }
}

enum Parsed {
    Node(Node),
    Nothing,
    Ending(String),
}

fn shown(token: &Token) -> String {
    match token {
        Token::Text(_) => "text".to_owned(),
        Token::Open => "{{".to_owned(),
        Token::Close => "}}".to_owned(),
        Token::Word(word) => format!("\"{word}\""),
        Token::Field(name) => format!(".{name}"),
        Token::Variable(name) => format!("${name}"),
        Token::Literal(value) => format!("{value}"),
        Token::Dot => ".".to_owned(),
        Token::Pipe => "|".to_owned(),
        Token::LeftParen => "(".to_owned(),
        Token::RightParen => ")".to_owned(),
        Token::Comma => ",".to_owned(),
        Token::Declare => ":=".to_owned(),
        Token::Assign => "=".to_owned(),
        Token::End => "the end of the template".to_owned(),
    }
}
