//! Go's `text/template`, for templates that users wrote for Istio: bootstraps of proxies, and what is injected into pods.
//!
//! ```text
//!   text ──lex──► tokens ──parse──► Template ──exec with a Value and Functions──► text
//! ```
//!
//! Everything is as Go does it, but for types: data is like JSON, so a number is a whole one or not, and a field is a key of
//! a map. There are no methods and no channels. Mistakes are told with line and column. A template that came from somewhere
//! cannot take all memory or time: [`Limits`] has how much it may use.
//!
//! **Invariant:** no I/O, no clock, no chance.

mod ast;
mod builtins;
mod compare;
mod escape;
mod exec;
mod format;
mod functions;
mod lex;
mod number;
mod parse;
mod sprig;
mod value;

#[cfg(test)]
mod tests;

pub use exec::Limits;
pub use functions::Functions;
pub use parse::Template;
pub use value::Value;

/// What is wrong with a template or came up while it ran.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{template}:{line}:{column}: {message}")]
pub struct TemplateError {
    pub template: String,
    pub line: usize,
    pub column: usize,
    pub message: String,
}
