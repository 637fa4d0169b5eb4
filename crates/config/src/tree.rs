//! JSON of an API server becomes the same tree that YAML becomes, so that it is read by the same code.
//!
//! What only Kubernetes itself has a use for is passed over before it takes any room.

use std::borrow::Cow;
use std::fmt;

use pilot_model::Kind;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::object::{Reading, read_known};
use crate::yaml::{MAX_DEPTH, Node, Value};
use crate::{ReadOptions, yaml};

/// A value that an API server told.
pub struct Document<'a>(Node<'a>);

impl<'a> Document<'a> {
    /// Reads an object, a list of objects, an event about one, or a question about one. What stands too deep in an object
    /// is cut off, and is a mistake to whoever reads it.
    pub fn parse(json: &'a [u8]) -> Result<Self, String> {
        let mut parser = serde_json::Deserializer::from_slice(json);
        let seed = Seed { depth: 0, within: Within::Envelope };
        let node = seed.deserialize(&mut parser).map_err(|error| error.to_string())?;
        parser.end().map_err(|error| error.to_string())?;
        Ok(Self(node))
    }

    pub fn tree(&self) -> Tree<'_> {
        Tree(&self.0)
    }
}

/// Part of a document.
#[derive(Clone, Copy)]
pub struct Tree<'a>(&'a Node<'a>);

impl<'a> Tree<'a> {
    pub fn get(self, key: &str) -> Option<Self> {
        self.0.get(key).map(Tree)
    }

    /// What stands below several keys.
    pub fn at(self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self, |tree, key| tree.get(key))
    }

    pub fn text(self) -> Option<&'a str> {
        self.0.as_str()
    }

    /// The text below several keys; empty if there is none.
    pub fn text_at(self, path: &[&str]) -> &'a str {
        self.at(path).and_then(Tree::text).unwrap_or_default()
    }

    pub fn number(self) -> Option<i64> {
        match self.0.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    pub fn is_true(self) -> bool {
        self.0.value == Value::Bool(true)
    }

    pub fn items(self) -> impl Iterator<Item = Tree<'a>> {
        let items: &'a [Node<'a>] = match &self.0.value {
            Value::List(items) => items,
            _ => &[],
        };
        items.iter().map(Tree)
    }

    pub fn entries(self) -> impl Iterator<Item = (&'a str, Tree<'a>)> {
        let entries: &'a [(Cow<'a, str>, Node<'a>)] = match &self.0.value {
            Value::Map(entries) => entries,
            _ => &[],
        };
        entries.iter().map(|(key, node)| (key.as_ref(), Tree(node)))
    }
}

impl Tree<'_> {
    /// The same as a value that can be changed and written.
    pub fn to_value(self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.0.value {
            Value::Null | Value::Cut => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Int(number) => (*number).into(),
            Value::Float(number) => (*number).into(),
            Value::Text(text) => Json::String(text.to_string()),
            Value::List(items) => items.iter().map(|item| Tree(item).to_value()).collect(),
            Value::Map(entries) => {
                entries.iter().map(|(key, node)| (key.to_string(), Tree(node).to_value())).collect()
            }
        }
    }
}

/// Reads one object whose kind is known, because it was asked for. `place` is where it was found.
pub fn read_object(tree: Tree<'_>, kind: Kind, place: &str, options: &ReadOptions) -> Reading {
    let mut reading = Reading::default();
    read_known(kind, tree.0, place, options, &mut reading);
    reading
}

/// Whose entries are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// An object, or what objects come in.
    Envelope,
    Objects,
    Metadata,
    Annotations,
    Other,
}

impl Within {
    fn skips(self, key: &str) -> bool {
        match self {
            Self::Metadata => key == "managedFields",
            Self::Annotations => key == "kubectl.kubernetes.io/last-applied-configuration",
            Self::Envelope | Self::Objects | Self::Other => false,
        }
    }

    fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Envelope, "items") => Self::Objects,
            (Self::Envelope, "object" | "oldObject" | "request") => Self::Envelope,
            (Self::Envelope, "metadata") => Self::Metadata,
            (Self::Metadata, "annotations") => Self::Annotations,
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Copy)]
struct Seed {
    /// In the object, whatever it came in.
    depth: usize,
    within: Within,
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Node<'de>;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Node<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Seed {
    /// For what stands below; nothing if that is too deep.
    fn deeper(self, within: Within) -> Option<Self> {
        let depth = if within == Within::Envelope { 0 } else { self.depth + 1 };
        (self.depth < MAX_DEPTH).then_some(Self { depth, within })
    }
}

fn node(value: Value<'_>) -> Node<'_> {
    Node { line: yaml::NO_LINE, value }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(node(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
        Ok(node(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
        Ok(node(Value::Int(value)))
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a number that is too large for an integer is a float in YAML too"
    )]
    fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
        Ok(node(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
        Ok(node(Value::Float(value)))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
        Ok(node(Value::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
        Ok(node(Value::Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node<'de>, A::Error> {
        let within = if self.within == Within::Objects { Within::Envelope } else { Within::Other };
        let Some(inner) = self.deeper(within) else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(node(Value::Cut));
        };
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            all.push(item);
        }
        Ok(node(Value::List(all)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node<'de>, A::Error> {
        if self.depth >= MAX_DEPTH {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(node(Value::Cut));
        }
        let mut all = Vec::new();
        while let Some(key) = entries.next_key_seed(Key)? {
            match self.deeper(self.within.below(&key)).filter(|_| !self.within.skips(&key)) {
                Some(inner) => all.push((key, entries.next_value_seed(inner)?)),
                None => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(node(Value::Map(all)))
    }
}

/// Keys are borrowed too, where they are written plainly.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::{Kind, Object};

    use super::{Document, read_object};
    use crate::ReadOptions;

    const SERVICE: &str = r#"{"metadata": {"name": "shop", "namespace": "a", "managedFields": [{"f:x": {}}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "yes"}},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": 80}], "managedFields": 1}}"#;

    #[test]
    fn what_only_kubernetes_needs_is_passed_over() {
        let document = Document::parse(SERVICE.as_bytes()).unwrap();
        let metadata = document.tree().get("metadata").unwrap();
        assert!(metadata.get("managedFields").is_none());
        let annotations: Vec<_> =
            metadata.get("annotations").unwrap().entries().map(|(key, _)| key).collect();
        assert_eq!(annotations, ["kept"]);
        assert_eq!(document.tree().at(&["spec", "managedFields"]).and_then(super::Tree::number), Some(1));
    }

    #[test]
    fn objects_without_a_kind_are_read_as_what_was_asked_for() {
        let document = Document::parse(SERVICE.as_bytes()).unwrap();
        let reading = read_object(document.tree(), Kind::Service, "Kubernetes", &ReadOptions::default());
        assert!(reading.issues.is_empty(), "{:?}", reading.issues);
        let [(Kind::Service, id, Object::Service(_, service))] = &reading.objects[..] else { panic!() };
        assert_eq!((id.to_string().as_str(), service.ports[0].number), ("a/shop", 80));
    }

    #[test]
    fn an_issue_names_object_field_and_place() {
        let json = r#"{"metadata": {"name": "r", "namespace": "a"}, "spec": {"hosts": ["a"], "http": [{"timeout": "soon"}]}}"#;
        let document = Document::parse(json.as_bytes()).unwrap();
        let reading = read_object(document.tree(), Kind::VirtualService, "east", &ReadOptions::default());
        let issue = reading.issues[0].to_string();
        assert!(issue.starts_with("east: error: VirtualService a/r: spec.http[0].timeout: "), "{issue}");
        assert_eq!(reading.broken.len(), 1);
    }

    /// A filter whose value is so deep, all in all.
    fn filter(name: &str, depth: usize) -> String {
        let below = depth - 5;
        let value = format!("{}1{}", "{\"a\":".repeat(below), "}".repeat(below));
        format!(
            r#"{{"metadata": {{"name": "{name}", "namespace": "a"}}, "spec": {{"configPatches": [
                {{"applyTo": "CLUSTER", "match": {{"cluster": {{}}}}, "patch": {{"operation": "MERGE", "value": {value}}}}}]}}}}"#
        )
    }

    /// What is wrong with each of several objects.
    fn issues(objects: super::Tree<'_>) -> Vec<String> {
        let read = |object| read_object(object, Kind::EnvoyFilter, "", &ReadOptions::default());
        objects.items().map(|object| read(object).issues.iter().map(ToString::to_string).collect()).collect()
    }

    #[test]
    fn what_is_too_deep_is_a_mistake_of_its_object_and_of_no_other() {
        for far in [70, 500, 100_000] {
            let list =
                format!(r#"{{"items": [{}, {}, {}]}}"#, filter("a", 20), filter("b", far), filter("c", 20));
            let document = Document::parse(list.as_bytes()).unwrap();
            let said = issues(document.tree().get("items").unwrap());
            let deep = |text: &String| text.contains("levels deep");
            assert_eq!(said.iter().map(deep).collect::<Vec<_>>(), [false, true, false], "{far}: {said:?}");
            assert!(said[1].contains("EnvoyFilter a/b: spec.configPatches[0].patch.value.a.a"), "{said:?}");
        }
    }

    #[test]
    fn how_deep_an_object_may_be_is_the_same_however_it_is_told() {
        let said = |text: &str, path: &[&str]| {
            let document = Document::parse(text.as_bytes()).unwrap();
            let object = document.tree().at(path).unwrap();
            let object = if path == ["items"] { object.items().next().unwrap() } else { object };
            let reading = read_object(object, Kind::EnvoyFilter, "", &ReadOptions::default());
            reading.issues.iter().any(|issue| issue.message.contains("levels deep"))
        };
        for (depth, is_too_deep) in [(60, false), (64, false), (65, true), (66, true)] {
            let object = filter("a", depth);
            assert_eq!(said(&object, &[]), is_too_deep, "{depth} by itself");
            assert_eq!(
                said(&format!(r#"{{"items": [{object}]}}"#), &["items"]),
                is_too_deep,
                "{depth} listed"
            );
            let event = format!(r#"{{"type": "ADDED", "object": {object}}}"#);
            assert_eq!(said(&event, &["object"]), is_too_deep, "{depth} watched");
            let question = format!(r#"{{"request": {{"object": {object}}}}}"#);
            assert_eq!(said(&question, &["request", "object"]), is_too_deep, "{depth} asked about");
        }
    }

    #[test]
    fn what_is_broken_is_refused() {
        assert!(Document::parse(b"{\"a\": ").is_err());
        assert!(Document::parse(b"{} {}").is_err());
        assert!(Document::parse(b"\xff").is_err());
    }
}
