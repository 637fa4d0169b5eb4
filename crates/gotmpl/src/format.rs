//! Go's `fmt`, as far as templates reach it.

use crate::escape::quoted;
use crate::number::{shortest, with_exponent};
use crate::value::Value;

/// A width or a number of digits beyond this is a mistake or malice.
const WIDEST: usize = 10_000;

/// A space stands between two that are no texts.
pub(crate) fn print(values: &[Value]) -> String {
    let mut text = String::new();
    for (at, value) in values.iter().enumerate() {
        if at > 0 && value.as_text().is_none() && values[at - 1].as_text().is_none() {
            text.push(' ');
        }
        text.push_str(&value.to_string());
    }
    text
}

pub(crate) fn println(values: &[Value]) -> String {
    let words: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{}\n", words.join(" "))
}

#[derive(Default)]
struct Directive {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

pub(crate) fn printf(form: &str, values: &[Value]) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = form;
    let mut next = values.iter();
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let directive = Directive::read(&mut rest, &mut next)?;
        let Some(verb) = rest.chars().next() else {
            text.push_str("%!(NOVERB)");
            break;
        };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            text.push('%');
            continue;
        }
        match next.next() {
            Some(value) => text.push_str(&directive.write(verb, value)),
            None => text.push_str(&format!("%!{verb}(MISSING)")),
        }
    }
    text.push_str(rest);
    let extra: Vec<String> = next.map(typed).collect();
    if !extra.is_empty() {
        text.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    Ok(text)
}

fn typed(value: &Value) -> String {
    match value {
        Value::Absent | Value::Nil => "<nil>".to_owned(),
        value => format!("{}={value}", value.kind()),
    }
}

impl Directive {
    fn read<'v>(rest: &mut &str, next: &mut impl Iterator<Item = &'v Value>) -> Result<Self, String> {
        let mut directive = Self::default();
        while let Some(flag) = rest.chars().next() {
            match flag {
                '-' => directive.minus = true,
                '+' => directive.plus = true,
                '#' => directive.sharp = true,
                ' ' => directive.space = true,
                '0' => directive.zero = true,
                _ => break,
            }
            *rest = &rest[1..];
        }
        directive.width = size(rest, next)?;
        if let Some(behind) = rest.strip_prefix('.') {
            *rest = behind;
            directive.precision = Some(size(rest, next)?.unwrap_or(0));
        }
        Ok(directive)
    }

    fn write(&self, verb: char, value: &Value) -> String {
        let wrong = || match value {
            Value::Absent | Value::Nil => format!("%!{verb}(<nil>)"),
            value => format!("%!{verb}({}={value})", value.kind()),
        };
        let written = match (verb, value) {
            ('v' | 's', Value::Text(_)) => self.cut(&value.to_string()),
            ('v', Value::Float(number)) => self.signed(shortest(*number)),
            ('v', Value::Int(number)) => self.signed(number.to_string()),
            ('v', Value::Bool(_) | Value::Absent | Value::Nil) => value.to_string(),
            ('T', value) => value.kind().to_owned(),
            ('t', Value::Bool(_)) => value.to_string(),
            ('q', Value::Text(text)) if self.sharp && !text.contains('`') => format!("`{text}`"),
            ('q', Value::Text(text)) => quoted(&self.cut(text)),
            ('x', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('X', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
            ('d', Value::Int(number)) => self.signed(number.to_string()),
            ('b' | 'o' | 'x' | 'X' | 'c' | 'q' | 'U', Value::Int(number)) => self.integer(verb, *number),
            ('e' | 'E' | 'f' | 'F' | 'g' | 'G', Value::Float(number)) => self.float(verb, *number),
            // Each member by itself.
            (_, Value::List(items)) => {
                let bare = Self { width: None, ..*self };
                let words: Vec<String> = items.iter().map(|item| bare.write(verb, item)).collect();
                format!("[{}]", words.join(" "))
            }
            (_, Value::Map(entries)) => {
                let bare = Self { width: None, ..*self };
                let word = |(key, item): (&String, &Value)| {
                    format!("{}:{}", bare.write(verb, &Value::text(key)), bare.write(verb, item))
                };
                format!("map[{}]", entries.iter().map(word).collect::<Vec<_>>().join(" "))
            }
            _ => wrong(),
        };
        self.pad(&written, value)
    }

    fn cut(&self, text: &str) -> String {
        match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text.to_owned(),
        }
    }

    fn signed(&self, number: String) -> String {
        match (number.starts_with(['-', '+']), self.plus, self.space) {
            (false, true, _) => format!("+{number}"),
            (false, false, true) => format!(" {number}"),
            _ => number,
        }
    }

    fn integer(&self, verb: char, number: i64) -> String {
        let (sign, size) = (if number < 0 { "-" } else { "" }, number.unsigned_abs());
        let character = u32::try_from(number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
        let (prefix, digits) = match verb {
            'b' => ("0b", format!("{size:b}")),
            'o' => ("0", format!("{size:o}")),
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'U' => return format!("U+{size:04X}"),
            'c' => return character.to_string(),
            _ => return format!("'{character}'"),
        };
        self.signed(format!("{sign}{}{digits}", if self.sharp { prefix } else { "" }))
    }

    fn float(&self, verb: char, number: f64) -> String {
        let digits = self.precision.unwrap_or(6);
        let written = match verb {
            'f' | 'F' => format!("{number:.digits$}"),
            'e' => with_exponent(&format!("{number:.digits$e}")),
            'E' => with_exponent(&format!("{number:.digits$e}")).to_uppercase(),
            _ => match self.precision {
                None => shortest(number),
                Some(digits) => {
                    let rounded = format!("{number:.0$e}", digits.max(1) - 1);
                    shortest(rounded.parse().unwrap_or(number))
                }
            },
        };
        self.signed(written)
    }

    /// Zeros stand behind the sign, and only before numbers.
    fn pad(&self, text: &str, value: &Value) -> String {
        let missing = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        if missing == 0 {
            return text.to_owned();
        }
        if self.minus {
            return format!("{text}{}", " ".repeat(missing));
        }
        let number = matches!(value, Value::Int(_) | Value::Float(_));
        if self.zero && number {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+', ' '])));
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        let filler = if self.zero { "0" } else { " " };
        format!("{}{text}", filler.repeat(missing))
    }
}

fn size<'v>(rest: &mut &str, next: &mut impl Iterator<Item = &'v Value>) -> Result<Option<usize>, String> {
    let number = if let Some(behind) = rest.strip_prefix('*') {
        *rest = behind;
        match next.next() {
            Some(Value::Int(number)) => usize::try_from(*number).ok(),
            _ => return Err("* wants a whole number".to_owned()),
        }
    } else {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..digits].parse().ok();
        if digits > 0 && number.is_none() {
            return Err(format!("a width of {} is too much", &rest[..digits]));
        }
        *rest = &rest[digits..];
        number
    };
    match number {
        Some(number) if number > WIDEST => Err(format!("a width of {number} is too much")),
        number => Ok(number),
    }
}
