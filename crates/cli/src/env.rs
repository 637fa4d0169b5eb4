use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pilot_base::{parse_bool, parse_span};

/// The environment as data. A variable that is empty counts as one that is not set.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<String, String>,
    /// What anybody has looked for; copies share it.
    looked_for: Arc<Mutex<BTreeSet<String>>>,
}

impl Env {
    /// What this process was given. Whoever needs something of it is handed it.
    pub fn of_process() -> Self {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        Self::new(std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect())
    }

    pub fn new(variables: BTreeMap<String, String>) -> Self {
        Self { variables, looked_for: Arc::default() }
    }

    /// The same with one more variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        if let Ok(mut names) = self.looked_for.lock() {
            names.insert(name.to_owned());
        }
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Was it set to nothing, on purpose? Some switches are turned off like that.
    pub fn is_emptied(&self, name: &str) -> bool {
        self.get(name).is_none() && self.variables.contains_key(name)
    }

    /// The names of all variables that were looked for by now, whether they are set or not: what a program understands.
    pub fn looked_for(&self) -> BTreeSet<String> {
        self.looked_for.lock().map(|names| names.clone()).unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> Option<bool> {
        self.parsed(name, "true or false", |text| parse_bool(text).ok())
    }

    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.parsed(name, "a number in range", |text| text.parse().ok())
    }

    pub fn span(&self, name: &str) -> Option<Duration> {
        self.parsed(name, "a duration such as 5s", |text| parse_span(text).ok())
    }

    /// Like Istio, a variable that cannot be read does not stop a start.
    fn parsed<T>(&self, name: &str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.get(name)?;
        let value = parse(text);
        if value.is_none() {
            tracing::warn!(name, value = text, expected, "environment variable has no effect");
        }
        value
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Env {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self::new(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Env;

    #[test]
    fn what_cannot_be_read_is_as_if_it_were_not_set() {
        let env =
            Env::from([("A", ""), ("B", "T"), ("C", "maybe"), ("D", "15021"), ("E", "70000"), ("F", "7s")]);
        assert_eq!((env.get("A"), env.get("none")), (None, None));
        assert!(env.is_emptied("A") && !env.is_emptied("B") && !env.is_emptied("none"));
        assert_eq!((env.flag("B"), env.flag("C")), (Some(true), None));
        assert_eq!((env.number::<u16>("D"), env.number::<u16>("E")), (Some(15021), None));
        assert_eq!(env.span("F").map(|d| d.as_secs()), Some(7));
        assert!(env.looked_for().iter().eq(["A", "B", "C", "D", "E", "F", "none"]));
    }
}
