use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Value, builtins, sprig};

type Function = Arc<dyn Fn(&[Value]) -> Result<Value, String> + Send + Sync>;

/// Functions by name. Go's own are always there.
#[derive(Clone)]
pub struct Functions(BTreeMap<&'static str, Function>);

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Default for Functions {
    fn default() -> Self {
        Self::go()
    }
}

impl Functions {
    /// Go's own. `and` and `or` do not look at what they need not, so they are known to whoever runs a template.
    pub fn go() -> Self {
        let mut functions = Self(BTreeMap::new());
        for (name, function) in builtins::ALL {
            functions.0.insert(name, Arc::new(function));
        }
        functions
    }

    /// And those of the library Sprig that are about texts, lists, maps and defaults, as far as they are known here.
    pub fn with_sprig() -> Self {
        let mut functions = Self::go();
        for (name, function) in sprig::ALL {
            functions.0.insert(name, Arc::new(function));
        }
        functions
    }

    /// One more, or another in place of one that is there.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        function: impl Fn(&[Value]) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name, Arc::new(function));
        self
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn call(&self, name: &str, arguments: &[Value]) -> Result<Value, String> {
        match self.0.get(name) {
            Some(function) => function(arguments),
            None => Err(format!("function \"{name}\" not defined")),
        }
    }
}

/// Exactly so many arguments.
pub(crate) fn take<const N: usize>(arguments: &[Value]) -> Result<&[Value; N], String> {
    arguments.try_into().map_err(|_| format!("wants {N} arguments and got {}", arguments.len()))
}

pub(crate) fn text_of(value: &Value) -> Result<&str, String> {
    value.as_text().ok_or_else(|| format!("wants a string and got {}", value.kind()))
}

pub(crate) fn int_of(value: &Value) -> Result<i64, String> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(format!("wants an integer and got {}", other.kind())),
    }
}
