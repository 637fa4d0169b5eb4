//! Which keys policies ask for, and what is wrong with those that came.

use pilot_base::{Issue, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{TokenKeys, token_keys};
use pilot_model::{ConfigId, KeySource, Kind, Span};

use super::inputs::Inputs;
use super::registry::Registry;

/// A rule that needs keys from elsewhere, by its place in its policy.
#[derive(Clone, PartialEq)]
struct Request {
    rule: usize,
    source: KeySource,
    timeout: Span,
}

#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// What has to be fetched, and how long each rule that asks for it is ready to wait.
    pub(super) wanted: Table<KeySource, SharedMap<(ConfigId, usize), Span>>,
    pub(super) issues: Table<ConfigId, Vec<Issue>>,
}

impl Keys {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs, registry: Registry) -> Self {
        let requests =
            graph.map("rules without keys", &inputs.request_authentications, move |id: &ConfigId, reader| {
                let policy = reader.get(&inputs.request_authentications, id)?;
                let fetch = reader.get(&inputs.options, &())?.features.jwks_fetch;
                let rules = policy.spec.rules.iter().enumerate();
                let request = |(place, rule)| match token_keys(rule, fetch, |host| {
                    registry.is_known(reader, None, host)
                }) {
                    TokenKeys::Fetched(source) => {
                        Some(Request { rule: place, source, timeout: rule.fetch_timeout() })
                    }
                    TokenKeys::Written(_) | TokenKeys::ByProxy { .. } => None,
                };
                let requests: Vec<Request> = rules.filter_map(request).collect();
                (!requests.is_empty()).then_some(requests)
            });
        let wanted = graph.group("wanted keys", |feeds| {
            feeds.from(&requests, |id: &ConfigId, requests, out| {
                for Request { rule, source, timeout } in requests {
                    out.emit(source.clone(), (id.clone(), *rule), *timeout);
                }
            });
        });
        let issues = graph.map("request authentication issues", &requests, move |id, reader| {
            let issues: Vec<Issue> = reader
                .get(&requests, id)?
                .iter()
                .filter_map(|request| failure(id, request, inputs, reader))
                .collect();
            (!issues.is_empty()).then_some(issues)
        });
        Self { wanted, issues }
    }
}

fn failure(id: &ConfigId, request: &Request, inputs: Inputs, reader: &Reader<'_>) -> Option<Issue> {
    let set = reader.get(&inputs.key_sets, &request.source)?;
    let reason: &Name = set.failure.as_ref()?;
    let field = match request.source {
        KeySource::Uri(_) => "jwksUri",
        KeySource::Issuer(_) => "issuer",
    };
    let meanwhile = match set.keys {
        Some(_) => "the last keys that came are still used",
        None => "all tokens of this issuer are refused meanwhile",
    };
    Some(Issue::warning(
        id.object(Kind::RequestAuthentication),
        format!("spec.jwtRules[{}].{field}", request.rule),
        format!(
            "no keys came from {}: {reason}; {meanwhile}, and they are asked for again",
            request.source.as_str()
        ),
    ))
}
