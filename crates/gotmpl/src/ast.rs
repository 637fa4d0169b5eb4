use std::sync::Arc;

use crate::Value;

/// Where in the text something stands, in bytes.
pub(crate) type At = usize;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Node {
    Text(Arc<str>),
    Action(Pipeline),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// `template` and the place of a `block`.
    Call {
        name: Arc<str>,
        argument: Option<Pipeline>,
        at: At,
    },
    Break,
    Continue,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Branch {
    pub(crate) pipeline: Pipeline,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pipeline {
    pub(crate) at: At,
    pub(crate) binding: Binding,
    pub(crate) commands: Vec<Command>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Binding {
    Nothing,
    Declare(Vec<String>),
    Assign(Vec<String>),
}

/// Something, and what it is given.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Command {
    pub(crate) at: At,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Operand {
    pub(crate) at: At,
    pub(crate) term: Term,
    /// `.a.b` behind it.
    pub(crate) fields: Vec<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Term {
    Dot,
    /// Without the `$`; empty for `$` itself.
    Variable(String),
    Literal(Value),
    Function(String),
    Pipeline(Box<Pipeline>),
}
