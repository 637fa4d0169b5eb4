//! Texts that Envoy looks at itself. One that it cannot read makes it refuse everything that arrives together with it, so
//! it must not get that far.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Flag, FlagsItemKind, RepetitionKind, RepetitionRange, Visitor, visit};

use super::Check;

/// RE2 refuses to repeat something more often.
const MOST_REPEATS: u32 = 1000;

impl Check<'_> {
    /// A regular expression in RE2's syntax. An object with one that is none cannot be used.
    pub(crate) fn regex(&mut self, path: impl AsRef<str>, pattern: &str) {
        // The parser here knows neither of them, and RE2 does.
        if pattern.contains("\\Q") || pattern.contains("\\C") {
            return;
        }
        match Parser::new().parse(pattern) {
            Err(error) => {
                self.reject(path, format!("{pattern:?} is not a regular expression: {}", error.kind()));
            }
            Ok(ast) => {
                if let Err(why) = visit(&ast, Refused) {
                    self.reject(path, format!("{pattern:?} is not a regular expression for Envoy: {why}"));
                }
            }
        }
    }

    /// The name or the value of a header, or what becomes part of one.
    pub(crate) fn header_text(&mut self, path: impl AsRef<str>, text: &str) {
        if text.contains(['\0', '\r', '\n']) {
            self.reject(path, format!("{text:?} has a line break or a null in it, which no header can have"));
        }
    }
}

/// What the parser takes and RE2 does not.
struct Refused;

impl Visitor for Refused {
    type Output = ();
    type Err = &'static str;

    fn finish(self) -> Result<(), Self::Err> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        match ast {
            Ast::Repetition(repetition) => match repetition.op.kind {
                RepetitionKind::Range(
                    RepetitionRange::Exactly(most)
                    | RepetitionRange::AtLeast(most)
                    | RepetitionRange::Bounded(_, most),
                ) if most > MOST_REPEATS => Err("nothing can be repeated more than 1000 times"),
                _ => Ok(()),
            },
            Ast::Flags(set) => known_flags(&set.flags),
            Ast::Group(group) => group.flags().map_or(Ok(()), known_flags),
            _ => Ok(()),
        }
    }
}

fn known_flags(flags: &regex_syntax::ast::Flags) -> Result<(), &'static str> {
    let is_known = |kind: &FlagsItemKind| match kind {
        FlagsItemKind::Negation => true,
        FlagsItemKind::Flag(flag) => matches!(
            flag,
            Flag::CaseInsensitive | Flag::MultiLine | Flag::DotMatchesNewLine | Flag::SwapGreed
        ),
    };
    let all = flags.items.iter().all(|item| is_known(&item.kind));
    if all { Ok(()) } else { Err("the only flags are i, m, s and U") }
}
