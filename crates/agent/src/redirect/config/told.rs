use pilot_base::Cidr;

use super::super::rule::Ports;
use super::MOST_VALUES;
use crate::Env;

/// The kernel's limit for the name of a network interface.
const LONGEST_INTERFACE: usize = 15;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: \"{text}\" is not {expected}")]
pub(crate) struct Wrong {
    place: String,
    text: String,
    expected: String,
}

/// Reads flags, and where they are silent their environment variables.
pub(crate) struct Told<'a> {
    pub(crate) env: &'a Env,
}

/// What was written, and where.
pub(crate) struct Text {
    pub(crate) place: String,
    pub(crate) text: String,
}

impl Told<'_> {
    pub(crate) fn text(&self, flag: &Option<String>, name: &str, default: &str) -> Text {
        let variable = name.to_uppercase().replace('-', "_");
        match (flag, self.env.get(&variable)) {
            (None, Some(text)) => Text { place: variable, text: text.trim().to_owned() },
            _ => Self::flag_only(flag, name, default),
        }
    }

    pub(super) fn flag_only(flag: &Option<String>, name: &str, default: &str) -> Text {
        let text = flag.as_deref().unwrap_or(default).trim().to_owned();
        Text { place: format!("--{name}"), text }
    }

    /// The variable of another component, if there is one, wins over our own.
    pub(crate) fn flag(&self, flag: Option<bool>, name: &str, other: Option<&str>) -> bool {
        let variable = name.to_uppercase().replace('-', "_");
        let other = other.and_then(|name| self.env.flag(name));
        flag.or(other).or_else(|| self.env.flag(&variable)).unwrap_or(false)
    }

    pub(super) fn list<T>(
        &self,
        flag: &Option<String>,
        name: &str,
        read: fn(&str) -> Result<T, &'static str>,
    ) -> Result<Vec<T>, Wrong> {
        self.text(flag, name, "").list(read)
    }
}

impl Text {
    pub(crate) fn wrong(&self, expected: &str) -> Wrong {
        Wrong { place: self.place.clone(), text: self.text.clone(), expected: expected.to_owned() }
    }

    pub(crate) fn port(&self) -> Result<u16, Wrong> {
        let port = self.text.parse().ok().filter(|port| *port != 0);
        port.ok_or_else(|| self.wrong("a port: a number from 1 to 65535"))
    }

    /// Decimal, or hexadecimal with 0x before it.
    pub(super) fn number(&self) -> Result<u32, Wrong> {
        let number = match self.text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => self.text.parse().ok(),
        };
        number.ok_or_else(|| self.wrong("a number of 32 bits"))
    }

    /// Values between commas; nothing between two commas is nothing.
    pub(super) fn list<T>(&self, read: fn(&str) -> Result<T, &'static str>) -> Result<Vec<T>, Wrong> {
        let values = self.text.split(',').map(str::trim).filter(|value| !value.is_empty());
        if values.clone().count() > MOST_VALUES {
            let expected = format!("a list of at most {MOST_VALUES} values");
            return Err(Wrong { place: self.place.clone(), text: "…".to_owned(), expected });
        }
        let one = |value: &str| {
            read(value).map_err(|expected| Wrong {
                place: self.place.clone(),
                text: value.to_owned(),
                expected: expected.to_owned(),
            })
        };
        values.map(one).collect()
    }
}

pub(super) fn ports(text: &str) -> Result<Ports, &'static str> {
    let (first, last) = text.split_once([':', '-']).unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(Ports { first, last }),
        _ => Err("a port: a number up to 65535, or a range such as 8000:8080"),
    }
}

pub(super) fn range(text: &str) -> Result<Cidr, &'static str> {
    Cidr::parse(text).ok_or("a range of addresses such as 10.0.0.0/8 or 2001:db8::/32")
}

/// A user or a group: a number, a range of them, or a name.
pub(super) fn name(text: &str) -> Result<String, &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.$".contains(c);
    let named = text.chars().all(fits) && !text.starts_with('-');
    if named { Ok(text.to_owned()) } else { Err("a number or a name of a user or group") }
}

/// A plus at the end stands for anything.
pub(super) fn interface(text: &str) -> Result<String, &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:@+".contains(c);
    let named = text.len() <= LONGEST_INTERFACE && text.chars().all(fits) && !text.starts_with('-');
    if named { Ok(text.to_owned()) } else { Err("a name of a network interface") }
}
