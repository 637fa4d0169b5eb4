//! Reads typed messages from a YAML tree with serde, and remembers where it stood: an error names the field as its user
//! wrote it, and fields that nobody asked for are listed.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use pilot_api::parse_duration;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::yaml::{Node, Value};

/// The key under which a message of any kind says which kind it is.
const KIND_OF_ANY: &str = "@type";

/// What is wrong, where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

/// A typed message, and the fields in its source that it has no place for.
pub(crate) struct Typed<T> {
    pub(crate) value: T,
    pub(crate) unknown: Vec<FieldError>,
}

/// Reads a message from the value under `root`, which is also how paths begin.
pub(crate) fn read<T: de::DeserializeOwned>(node: &Node<'_>, root: &str) -> Result<Typed<T>, FieldError> {
    read_seed(node, root, Nulls::Absent, std::marker::PhantomData)
}

/// Reads what `seed` makes of the value under `root`. It may ask for a null, where a null is a value.
pub(crate) fn read_with<S: for<'de> DeserializeSeed<'de, Value = T>, T>(
    node: &Node<'_>,
    root: &str,
    seed: S,
) -> Result<Typed<T>, FieldError> {
    read_seed(node, root, Nulls::Values, seed)
}

fn read_seed<S: for<'de> DeserializeSeed<'de, Value = T>, T>(
    node: &Node<'_>,
    root: &str,
    nulls: Nulls,
    seed: S,
) -> Result<Typed<T>, FieldError> {
    let place = Place {
        root,
        nulls,
        path: RefCell::default(),
        unknown: RefCell::default(),
        error: RefCell::default(),
    };
    match seed.deserialize(At { node, place: &place }) {
        Ok(value) => Ok(Typed { value, unknown: place.unknown.into_inner() }),
        Err(Error(message)) => {
            let (path, line) = place.error.into_inner().unwrap_or_else(|| (root.to_owned(), node.line));
            Err(FieldError { path, line, message })
        }
    }
}

/// What a key without a value means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nulls {
    /// A field that is not there.
    Absent,
    Values,
}

/// Where the reader is.
struct Place<'a> {
    root: &'a str,
    nulls: Nulls,
    path: RefCell<Vec<Step<'a>>>,
    unknown: RefCell<Vec<FieldError>>,
    /// The innermost place at which something went wrong.
    error: RefCell<Option<(String, usize)>>,
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl Place<'_> {
    fn show(&self) -> String {
        let mut text = self.root.to_owned();
        for step in self.path.borrow().iter() {
            // Writing to a string cannot fail.
            let _ = match step {
                Step::Key(key) if text.is_empty() => write!(text, "{key}"),
                Step::Key(key) => write!(text, ".{key}"),
                Step::Index(index) => write!(text, "[{index}]"),
            };
        }
        text
    }

    fn note_error(&self, line: usize) {
        let mut error = self.error.borrow_mut();
        if error.is_none() {
            *error = Some((self.show(), line));
        }
    }
}

#[derive(Debug)]
struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

struct At<'a, 'p> {
    node: &'a Node<'a>,
    place: &'p Place<'a>,
}

impl<'a, 'p, 'de> Deserializer<'de> for At<'a, 'p> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let result = match &self.node.value {
            Value::Cut => Err(de::Error::custom(Value::cut())),
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => {
                visitor.visit_seq(Items { items: items.iter().enumerate(), place: self.place })
            }
            Value::Map(entries) => {
                let kind = entries.iter().find(|(key, _)| key == KIND_OF_ANY);
                visitor.visit_map(Entries { kind, entries: entries.iter(), value: None, place: self.place })
            }
        };
        result.map_err(|Error(mut message)| {
            self.place.note_error(self.node.line);
            let is_word = matches!(self.node.value, Value::Bool(_) | Value::Int(_) | Value::Float(_));
            if is_word && message.ends_with("expected a string") {
                message.push_str("; put it in quotes");
            }
            Error(message)
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    /// Durations of Envoy's messages come here too, and users write them in more forms than protobuf's own.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Text(text) = &self.node.value else { return self.deserialize_any(visitor) };
        match parse_duration(text) {
            Some(duration) => visitor.visit_string(duration.to_string()),
            None => self.deserialize_any(visitor),
        }
    }

    /// Enums are read from their names.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_enum(de::value::StrDeserializer::<Error>::new(text)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Only fields that the message does not have come here.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (path, line) = (self.place.show(), self.node.line);
        self.place.unknown.borrow_mut().push(FieldError { path, line, message: "unknown field".to_owned() });
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char string
        bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

struct Items<'a, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node<'a>>>,
    place: &'p Place<'a>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Error;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        self.place.path.borrow_mut().push(Step::Index(index));
        let value = seed.deserialize(At { node, place: self.place });
        if value.is_err() {
            self.place.note_error(node.line);
        }
        self.place.path.borrow_mut().pop();
        value.map(Some)
    }
}

struct Entries<'a, 'p> {
    /// What tells how to read the rest, wherever it was written.
    kind: Option<&'a (std::borrow::Cow<'a, str>, Node<'a>)>,
    entries: std::slice::Iter<'a, (std::borrow::Cow<'a, str>, Node<'a>)>,
    value: Option<(&'a str, &'a Node<'a>)>,
    place: &'p Place<'a>,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let nulls = self.place.nulls;
        let others = |(key, node): &&(std::borrow::Cow<'_, str>, Node<'_>)| {
            (nulls == Nulls::Values || node.value != Value::Null) && key != KIND_OF_ANY
        };
        let Some((key, node)) = self.kind.take().or_else(|| self.entries.by_ref().find(others)) else {
            return Ok(None);
        };
        self.value = Some((key, node));
        seed.deserialize(de::value::StrDeserializer::<Error>::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (key, node) = self.value.take().ok_or_else(|| Error("a value without a key".to_owned()))?;
        self.place.path.borrow_mut().push(Step::Key(key));
        let value = seed.deserialize(At { node, place: self.place });
        if value.is_err() {
            self.place.note_error(node.line);
        }
        self.place.path.borrow_mut().pop();
        value
    }
}

#[cfg(test)]
mod tests {
    use pilot_api::networking::VirtualService;
    use pilot_envoy_api::reflect::{Json, Unknown};

    use super::{FieldError, read, read_with};
    use crate::yaml::parse;

    fn vs(text: &str) -> Result<(VirtualService, Vec<String>), FieldError> {
        let documents = parse(text).unwrap();
        let typed = read::<VirtualService>(&documents[0], "spec")?;
        Ok((typed.value, typed.unknown.into_iter().map(|u| format!("{}:{}", u.path, u.line)).collect()))
    }

    #[test]
    fn messages_are_read_with_their_json_names() {
        let (vs, unknown) =
            vs("hosts: [a]\nhttp:\n- timeout: 1m30s\n  route:\n  - destination: {host: b}\n    weight: 5\n")
                .unwrap();
        assert_eq!(vs.http[0].timeout.unwrap().seconds, 90);
        assert_eq!(vs.http[0].route[0].weight, 5);
        assert!(unknown.is_empty());
    }

    #[test]
    fn durations_of_envoy_are_written_like_those_of_istio() {
        let cluster = |text: &str| {
            let json = Json { message: "envoy.config.cluster.v3.Cluster", unknown: Unknown::Refuse };
            read_with(&parse(text).unwrap()[0], "value", json).map(|typed| typed.value.encode())
        };
        assert_eq!(cluster("connect_timeout: 250ms"), cluster("connect_timeout: 0.25s"));
        assert_eq!(cluster("connect_timeout: 1m30s"), cluster("connect_timeout: 90s"));
        assert_eq!(cluster("connect_timeout: soon").unwrap_err().path, "value.connect_timeout");
    }

    #[test]
    fn unknown_fields_are_listed_and_the_rest_is_read() {
        let (vs, unknown) = vs("hosts: [a]\nhttp:\n- timout: 5s\n  name: one\nextra: {deep: 1}\n").unwrap();
        assert_eq!(vs.http[0].name, "one");
        assert_eq!(unknown, ["spec.http[0].timout:3", "spec.extra:5"]);
    }

    #[test]
    fn a_wrong_type_names_its_field_and_line() {
        let error =
            vs("hosts: [a]\nhttp:\n- route:\n  - destination: {host: b}\n    weight: lots\n").unwrap_err();
        assert_eq!((error.path.as_str(), error.line), ("spec.http[0].route[0].weight", 5));
        let error = vs("hosts: nope\n").unwrap_err();
        assert_eq!(error.path, "spec.hosts");
        assert!(error.message.contains("sequence"), "{}", error.message);
        let error = vs("http:\n- retries: {attempts: 3, perTryTimeout: soon}\n").unwrap_err();
        assert_eq!(error.path, "spec.http[0].retries.perTryTimeout");
        let error = vs("http:\n- match:\n  - headers: {end-user: {exact: yes}}\n").unwrap_err();
        assert_eq!(error.path, "spec.http[0].match[0].headers.end-user.exact");
        assert!(error.message.contains("quotes"), "{}", error.message);
    }
}
