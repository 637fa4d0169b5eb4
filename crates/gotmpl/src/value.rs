use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What templates work on. Copies are cheap.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Value {
    /// A key that its map does not have. Its own keys are absent as well, where those of `Nil` are a mistake.
    #[default]
    Absent,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    List(Arc<Vec<Value>>),
    Map(Arc<BTreeMap<String, Value>>),
}

impl Value {
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    pub fn list(items: Vec<Value>) -> Self {
        Self::List(Arc::new(items))
    }

    pub fn map(entries: BTreeMap<String, Value>) -> Self {
        Self::Map(Arc::new(entries))
    }

    /// What `if` asks.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Absent | Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Map(entries) => !entries.is_empty(),
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The word for its type in messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Absent | Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Absent | Self::Nil => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(number) => (*number).into(),
            Self::Float(number) => (*number).into(),
            Self::Text(text) => text.as_ref().into(),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(entries) => serde_json::Value::Object(
                entries.iter().map(|(key, value)| (key.clone(), value.to_json())).collect(),
            ),
        }
    }
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(number) => {
                number.as_i64().map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN)), Self::Int)
            }
            serde_json::Value::String(text) => Self::Text(text.into()),
            serde_json::Value::Array(items) => Self::list(items.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(fields) => {
                Self::map(fields.into_iter().map(|(key, value)| (key, Self::from(value))).collect())
            }
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// As Go prints it with `%v`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent | Self::Nil => f.write_str("<nil>"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => f.write_str(&crate::number::shortest(*number)),
            Self::Text(text) => f.write_str(text),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { " " })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("map[")?;
                for (at, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{key}:{value}", if at == 0 { "" } else { " " })?;
                }
                f.write_str("]")
            }
        }
    }
}
