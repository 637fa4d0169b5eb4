use pilot_envoy_api::envoy::config::core::v3::HeaderValueOption;
use pilot_envoy_api::envoy::config::core::v3::header_value_option::HeaderAppendAction;

/// Changes of headers, in the order in which they are made.
#[derive(Clone, Default, Debug)]
pub struct HeaderOps {
    ops: Vec<Op>,
}

#[derive(Clone, Debug)]
enum Op {
    Append(String, String),
    AddIfAbsent(String, String),
    Overwrite(String, String),
    OverwriteIfExists(String, String),
    Remove(String),
}

impl HeaderOps {
    /// What one level of a route table asks for. Levels are added from the most specific one on, as Envoy applies them.
    pub(super) fn level(mut self, add: &[HeaderValueOption], remove: &[String]) -> Self {
        for option in add {
            let Some(header) = &option.header else { continue };
            let (name, value) = (header.key.to_lowercase(), header.value.clone());
            self.ops.push(match option.append_action() {
                HeaderAppendAction::AppendIfExistsOrAdd => Op::Append(name, value),
                HeaderAppendAction::AddIfAbsent => Op::AddIfAbsent(name, value),
                HeaderAppendAction::OverwriteIfExistsOrAdd => Op::Overwrite(name, value),
                HeaderAppendAction::OverwriteIfExists => Op::OverwriteIfExists(name, value),
            });
        }
        self.ops.extend(remove.iter().map(|name| Op::Remove(name.to_lowercase())));
        self
    }

    /// Puts a header in the place of all of its name.
    pub(super) fn set(mut self, name: &str, value: &str) -> Self {
        self.ops.push(Op::Overwrite(name.to_owned(), value.to_owned()));
        self
    }

    pub fn apply(&self, headers: &mut Vec<(String, String)>) {
        for op in &self.ops {
            let has =
                |name: &str, headers: &[(String, String)]| headers.iter().any(|(header, _)| header == name);
            match op {
                Op::Append(name, value) => headers.push((name.clone(), value.clone())),
                Op::AddIfAbsent(name, value) if !has(name, headers) => {
                    headers.push((name.clone(), value.clone()));
                }
                Op::OverwriteIfExists(name, _) if !has(name, headers) => {}
                Op::Overwrite(name, value) | Op::OverwriteIfExists(name, value) => {
                    headers.retain(|(header, _)| header != name);
                    headers.push((name.clone(), value.clone()));
                }
                Op::Remove(name) => headers.retain(|(header, _)| header != name),
                Op::AddIfAbsent(..) => {}
            }
        }
    }
}
