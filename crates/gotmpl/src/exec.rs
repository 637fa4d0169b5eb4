//! A template meets its data.

use std::sync::Arc;

use crate::ast::{At, Binding, Branch, Command, Node, Operand, Pipeline, Term};
use crate::functions::Functions;
use crate::lex::error_at;
use crate::parse::Template;
use crate::{TemplateError, Value};

/// How much a template may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of text.
    pub output: usize,
    /// Templates that call each other.
    pub depth: usize,
    /// Nodes that are looked at, however often.
    pub steps: u64,
}

impl Default for Limits {
    /// Far more than templates of people need.
    fn default() -> Self {
        Self { output: 16 << 20, depth: 100, steps: 10_000_000 }
    }
}

impl Template {
    pub fn render(
        &self,
        data: &Value,
        functions: &Functions,
        limits: Limits,
    ) -> Result<String, TemplateError> {
        let mut run = Run {
            template: self,
            functions,
            limits,
            variables: vec![(String::new(), data.clone())],
            output: String::new(),
            depth: 0,
        };
        run.list(&self.body, data)?;
        Ok(run.output)
    }
}

struct Run<'t> {
    template: &'t Template,
    functions: &'t Functions,
    limits: Limits,
    /// The inmost last.
    variables: Vec<(String, Value)>,
    output: String,
    depth: usize,
}

#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run<'_> {
    fn error<T>(&self, at: At, message: impl Into<String>) -> Result<T, TemplateError> {
        Err(error_at(&self.template.name, &self.template.text, at, message))
    }

    fn step(&mut self, at: At) -> Result<(), TemplateError> {
        match self.limits.steps.checked_sub(1) {
            Some(left) => {
                self.limits.steps = left;
                Ok(())
            }
            None => self.error(at, "the template takes too many steps"),
        }
    }

    fn write(&mut self, text: &str, at: At) -> Result<(), TemplateError> {
        if self.output.len() + text.len() > self.limits.output {
            return self.error(at, format!("the template gives more than {} bytes", self.limits.output));
        }
        self.output.push_str(text);
        Ok(())
    }

    fn list(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, TemplateError> {
        for node in nodes {
            match self.node(node, dot)? {
                Flow::On => (),
                flow => return Ok(flow),
            }
        }
        Ok(Flow::On)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow, TemplateError> {
        match node {
            Node::Text(text) => self.write(text, 0)?,
            Node::Action(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                if pipeline.binding == Binding::Nothing {
                    self.write(&printed(&value), pipeline.at)?;
                }
            }
            Node::If(branch) => {
                return self.scoped(|run| {
                    let chosen = run.pipeline(&branch.pipeline, dot)?.is_true();
                    run.list(if chosen { &branch.body } else { &branch.otherwise }, dot)
                });
            }
            Node::With(branch) => {
                return self.scoped(|run| {
                    let value = run.pipeline(&branch.pipeline, dot)?;
                    if value.is_true() {
                        run.list(&branch.body, &value)
                    } else {
                        run.list(&branch.otherwise, dot)
                    }
                });
            }
            Node::Range(branch) => return self.scoped(|run| run.range(branch, dot)),
            Node::Call { name, argument, at } => self.call(name, argument.as_ref(), *at, dot)?,
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// What is declared inside is gone outside.
    fn scoped<T>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        let before = self.variables.len();
        let result = inside(self);
        self.variables.truncate(before);
        result
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Result<Flow, TemplateError> {
        let at = branch.pipeline.at;
        // Its variables are bound to members, and not to the whole.
        let whole = self.commands(&branch.pipeline, dot)?;
        let members: Box<dyn Iterator<Item = (Value, Value)>> = match &whole {
            Value::Absent | Value::Nil => Box::new(std::iter::empty()),
            Value::List(items) => {
                let items = Arc::clone(items);
                Box::new((0..items.len()).map(move |index| {
                    (Value::Int(i64::try_from(index).unwrap_or(i64::MAX)), items[index].clone())
                }))
            }
            Value::Map(entries) => {
                let pairs: Vec<_> =
                    entries.iter().map(|(key, value)| (Value::text(key), value.clone())).collect();
                Box::new(pairs.into_iter())
            }
            Value::Int(number) => Box::new((0..*number).map(|index| (Value::Int(index), Value::Int(index)))),
            other => {
                return self.error(at, format!("range can't iterate over {other} of type {}", other.kind()));
            }
        };
        let mut empty = true;
        for (key, value) in members {
            empty = false;
            self.step(at)?;
            let flow = self.scoped(|run| {
                run.bind_member(&branch.pipeline.binding, &key, &value);
                run.list(&branch.body, &value)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        if empty { self.list(&branch.otherwise, dot) } else { Ok(Flow::On) }
    }

    fn bind_member(&mut self, binding: &Binding, key: &Value, value: &Value) {
        let pairs = |names: &[String]| -> Vec<(String, Value)> {
            match names {
                [one] => vec![(one.clone(), value.clone())],
                [first, second] => vec![(first.clone(), key.clone()), (second.clone(), value.clone())],
                _ => Vec::new(),
            }
        };
        match binding {
            Binding::Nothing => (),
            Binding::Declare(names) => self.variables.extend(pairs(names)),
            Binding::Assign(names) => {
                for (name, value) in pairs(names) {
                    self.assign(&name, value);
                }
            }
        }
    }

    fn assign(&mut self, name: &str, value: Value) {
        if let Some((_, place)) = self.variables.iter_mut().rev().find(|(known, _)| known == name) {
            *place = value;
        }
    }

    fn call(
        &mut self,
        name: &str,
        argument: Option<&Pipeline>,
        at: At,
        dot: &Value,
    ) -> Result<(), TemplateError> {
        let Some(body) = self.template.defined.get(name).map(Arc::clone) else {
            return self.error(at, format!("template \"{name}\" not defined"));
        };
        let data = match argument {
            Some(pipeline) => self.pipeline(pipeline, dot)?,
            None => Value::Nil,
        };
        if self.depth == self.limits.depth {
            return self.error(at, format!("templates call each other more than {} deep", self.limits.depth));
        }
        self.depth += 1;
        let outside = std::mem::replace(&mut self.variables, vec![(String::new(), data.clone())]);
        let result = self.list(&body, &data);
        self.variables = outside;
        self.depth -= 1;
        result.map(|_| ())
    }

    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, TemplateError> {
        let value = self.commands(pipeline, dot)?;
        match &pipeline.binding {
            Binding::Nothing => (),
            Binding::Declare(names) => {
                self.variables.extend(names.iter().map(|name| (name.clone(), value.clone())));
            }
            Binding::Assign(names) => {
                for name in names {
                    self.assign(name, value.clone());
                }
            }
        }
        Ok(value)
    }

    fn commands(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, TemplateError> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(command, dot, last)?);
        }
        Ok(last.unwrap_or_default())
    }

    fn command(
        &mut self,
        command: &Command,
        dot: &Value,
        piped: Option<Value>,
    ) -> Result<Value, TemplateError> {
        self.step(command.at)?;
        let (first, rest) = command.operands.split_first().expect("a command has an operand");
        if let Term::Function(name) = &first.term {
            let value = self.function(name, (first, rest), dot, piped)?;
            return self.fields(value, first);
        }
        if rest.is_empty() && piped.is_none() {
            return self.operand(first, dot);
        }
        let what = if first.fields.is_empty() { "a value".to_owned() } else { first.fields.join(".") };
        self.error(first.at, format!("can't give arguments to {what}: it is not a function"))
    }

    fn function(
        &mut self,
        name: &str,
        (first, rest): (&Operand, &[Operand]),
        dot: &Value,
        piped: Option<Value>,
    ) -> Result<Value, TemplateError> {
        if name == "and" || name == "or" {
            return self.first_that_decides(name, (first, rest), dot, piped);
        }
        let mut arguments = Vec::with_capacity(rest.len() + 1);
        for operand in rest {
            arguments.push(self.argument(operand, dot)?);
        }
        arguments.extend(piped.map(nil_if_absent));
        match self.functions.call(name, &arguments) {
            Ok(value) => Ok(value),
            Err(message) => self.error(first.at, format!("{name}: {message}")),
        }
    }

    fn first_that_decides(
        &mut self,
        name: &str,
        (first, rest): (&Operand, &[Operand]),
        dot: &Value,
        piped: Option<Value>,
    ) -> Result<Value, TemplateError> {
        let mut last = None;
        for operand in rest {
            let value = self.argument(operand, dot)?;
            if value.is_true() == (name == "or") {
                return Ok(value);
            }
            last = Some(value);
        }
        match piped.map(nil_if_absent).or(last) {
            Some(value) => Ok(value),
            None => self.error(first.at, format!("{name}: wants at least one argument")),
        }
    }

    fn argument(&mut self, operand: &Operand, dot: &Value) -> Result<Value, TemplateError> {
        self.operand(operand, dot).map(nil_if_absent)
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, TemplateError> {
        let value = match &operand.term {
            Term::Dot => dot.clone(),
            Term::Literal(value) => value.clone(),
            Term::Variable(name) => {
                let found = self.variables.iter().rev().find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            }
            Term::Pipeline(pipeline) => self.pipeline(pipeline, dot)?,
            Term::Function(name) => self.function(name, (operand, &[]), dot, None)?,
        };
        self.fields(value, operand)
    }

    fn fields(&self, mut value: Value, operand: &Operand) -> Result<Value, TemplateError> {
        for name in &operand.fields {
            value = match &value {
                Value::Absent => Value::Absent,
                Value::Map(entries) => entries.get(name).cloned().unwrap_or_default(),
                Value::Nil => return self.error(operand.at, format!("nil has no field {name}")),
                other => {
                    return self
                        .error(operand.at, format!("can't evaluate field {name} in type {}", other.kind()));
                }
            };
        }
        Ok(value)
    }
}

fn nil_if_absent(value: Value) -> Value {
    if value == Value::Absent { Value::Nil } else { value }
}

fn printed(value: &Value) -> String {
    match value {
        Value::Absent | Value::Nil => "<no value>".to_owned(),
        value => value.to_string(),
    }
}
