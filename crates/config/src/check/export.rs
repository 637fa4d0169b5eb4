//! Who sees an object, and by which labels it is found: lists and maps that many kinds have.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::host::is_label;

/// Who may be named in `exportTo`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exported {
    /// A rule for everyone.
    Rule,
    /// A rule for some workloads of its namespace, which can be for nobody else.
    SelectiveRule,
    /// A service, which may also be for nobody.
    Service,
}

impl Check<'_> {
    pub(crate) fn export_to(&mut self, list: &[String], what: Exported) {
        let own = self.object().namespace.to_string();
        let mut seen = BTreeSet::new();
        for (i, entry) in list.iter().enumerate() {
            let path = format!("spec.exportTo[{i}]");
            let namespace = if entry == "." { own.as_str() } else { entry.as_str() };
            let known = matches!(namespace, "*" | ".") || is_label(namespace);
            if seen.contains(namespace) {
                self.reject(path, format!("{entry:?} is given twice"));
            } else if known || (what == Exported::Service && entry == "~") {
                seen.insert(namespace);
            } else {
                self.reject(path, format!("{entry:?} is neither \".\", \"*\" nor a namespace"));
            }
        }
        if what == Exported::SelectiveRule
            && !seen.is_empty()
            && (!seen.contains(own.as_str()) || seen.len() > 1)
        {
            self.reject("spec.exportTo", "a rule with a workloadSelector can only be for its own namespace");
        }
        if list.len() > 1 && seen.contains("*") {
            self.reject("spec.exportTo", "\"*\" means everyone: nobody else can be named");
        }
        if list.len() > 1 && seen.contains("~") {
            self.reject("spec.exportTo", "\"~\" means nobody: nobody else can be named");
        }
    }

    /// Labels that an endpoint or a subset has.
    pub(crate) fn label_map(&mut self, path: &str, labels: &BTreeMap<String, String>) {
        for (key, value) in labels {
            if !is_label_key(key) {
                self.reject(format!("{path}.{key}"), format!("{key:?} cannot be the key of a label"));
            }
            if !value.is_empty() && !is_label_name(value) {
                self.reject(format!("{path}.{key}"), format!("{value:?} cannot be the value of a label"));
            }
        }
    }

    /// A selector that every workload or object has to fit.
    pub(crate) fn selector_map(&mut self, path: &str, labels: &BTreeMap<String, String>) {
        for (key, value) in labels {
            if key.is_empty() {
                self.reject(path, "a label needs a key");
            }
            if key.contains('*') || value.contains('*') {
                self.reject(format!("{path}.{key}"), "a selector knows no wildcards");
            }
        }
    }
}

/// A name, or one behind the domain of who gave it.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_label_name(key),
        Some((domain, name)) => {
            domain.len() <= 253 && domain.split('.').all(is_lower_label) && is_label_name(name)
        }
    }
}

fn is_lower_label(text: &str) -> bool {
    is_label(text) && !text.bytes().any(|b| b.is_ascii_uppercase())
}

fn is_label_name(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63 && ends(text.bytes().next()) && ends(text.bytes().next_back()) && text.bytes().all(inner)
}
