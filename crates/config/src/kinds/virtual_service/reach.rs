//! Rules that no request can get to, because others before them take everything.

use std::collections::BTreeMap;

use pilot_api::networking as api;
use pilot_api::networking::string_match::MatchType;

use crate::check::Check;

pub(super) fn warn(message: &api::VirtualService, check: &mut Check<'_>) {
    let http: Vec<Rule<'_, api::HttpMatchRequest>> = message.http.iter().map(http_rule).collect();
    unreachable("http", &http, check);
    covered(&message.http, check);
    let tcp = message.tcp.iter().map(|route| Rule { name: "", matches: route.r#match.clone() });
    unreachable("tcp", &tcp.collect::<Vec<_>>(), check);
    let tls = message.tls.iter().map(|route| Rule { name: "", matches: route.r#match.clone() });
    unreachable("tls", &tls.collect::<Vec<_>>(), check);
}

struct Rule<'a, M> {
    name: &'a str,
    matches: Vec<M>,
}

impl<M> Rule<'_, M> {
    fn label(&self, at: usize) -> String {
        label(self.name, at)
    }
}

fn label(name: &str, at: usize) -> String {
    if name.is_empty() { format!("#{at}") } else { format!("{name:?}") }
}

/// Names make no difference to what a match takes.
fn http_rule(route: &api::HttpRoute) -> Rule<'_, api::HttpMatchRequest> {
    let nameless = |m: &api::HttpMatchRequest| api::HttpMatchRequest { name: String::new(), ..m.clone() };
    Rule { name: &route.name, matches: route.r#match.iter().map(nameless).collect() }
}

fn unreachable<M: PartialEq>(kind: &str, rules: &[Rule<'_, M>], check: &mut Check<'_>) {
    let mut takes_all = false;
    let mut seen: Vec<(&M, usize)> = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let path = format!("spec.{kind}[{i}]");
        if rule.matches.is_empty() {
            if takes_all {
                check.warn(
                    path,
                    format!("rule {} is never used: only the last can have no match", rule.label(i)),
                );
            }
            takes_all = true;
            continue;
        }
        let mut repeated = 0;
        for (j, wanted) in rule.matches.iter().enumerate() {
            if takes_all {
                let message = format!("rule {} is never used: one before it has no match", rule.label(i));
                check.warn(format!("{path}.match[{j}]"), message);
            } else if let Some((_, first)) = seen.iter().find(|(other, _)| *other == wanted) {
                repeated += 1;
                let (rule, first) = (rule.label(i), rules[*first].label(*first));
                let message = format!("match #{j} of rule {rule} is never used: rule {first} has the same");
                check.warn(format!("{path}.match[{j}]"), message);
            } else {
                seen.push((wanted, i));
            }
        }
        if repeated == rule.matches.len() {
            let message =
                format!("rule {} is never used: others before it have all its matches", rule.label(i));
            check.warn(path, message);
        }
    }
}

/// What can be compared of a match by the beginning of the path.
struct ByPrefix<'a> {
    path: String,
    label: String,
    prefix: &'a str,
    port: u32,
    method: String,
    authority: String,
    named: [BTreeMap<&'a str, String>; 3],
}

fn covered(routes: &[api::HttpRoute], check: &mut Check<'_>) {
    let mut seen: Vec<ByPrefix<'_>> = Vec::new();
    let takes_all = routes.iter().position(|route| route.r#match.is_empty()).unwrap_or(routes.len());
    for (i, route) in routes[..takes_all].iter().enumerate() {
        for (j, wanted) in route.r#match.iter().enumerate() {
            let Some(MatchType::Prefix(prefix)) = wanted.uri.as_ref().and_then(|uri| uri.match_type.as_ref())
            else {
                continue;
            };
            if prefix.is_empty() {
                continue;
            }
            let label = format!("match {} of rule {}", label(&wanted.name, j), label(&route.name, i));
            let here = by_prefix(wanted, prefix, format!("spec.http[{i}].match[{j}].uri"), label);
            for before in seen.iter().filter(|before| before.prefix != here.prefix && before.covers(&here)) {
                let message = format!(
                    "{} with prefix {} is never used: {} with prefix {} takes its requests",
                    here.label, here.prefix, before.label, before.prefix
                );
                check.warn(&here.path, message);
            }
            seen.push(here);
        }
    }
}

fn by_prefix<'a>(
    wanted: &'a api::HttpMatchRequest,
    prefix: &'a str,
    path: String,
    label: String,
) -> ByPrefix<'a> {
    let texts = |map: &'a BTreeMap<String, api::StringMatch>| {
        map.iter().map(|(name, text)| (name.as_str(), comparable(Some(text)))).collect()
    };
    let method = comparable(wanted.method.as_ref());
    ByPrefix {
        path,
        label,
        prefix,
        port: wanted.port,
        method: if method.is_empty() { "=GET".to_owned() } else { method },
        authority: comparable(wanted.authority.as_ref()),
        named: [texts(&wanted.headers), texts(&wanted.query_params), texts(&wanted.without_headers)],
    }
}

/// Regular expressions are not compared.
fn comparable(text: Option<&api::StringMatch>) -> String {
    match text.and_then(|text| text.match_type.as_ref()) {
        Some(MatchType::Exact(text)) if !text.is_empty() => format!("={text}"),
        Some(MatchType::Prefix(text)) if !text.is_empty() => format!("^{text}"),
        _ => String::new(),
    }
}

impl ByPrefix<'_> {
    fn covers(&self, later: &Self) -> bool {
        let same = |own: &str, later: &str| own.starts_with(later);
        let all = |own: &BTreeMap<&str, String>, later: &BTreeMap<&str, String>| {
            let each =
                |(name, text): (&&str, &String)| later.get(name).is_some_and(|later| same(text, later));
            own.len() == later.len() && own.iter().all(each)
        };
        later.prefix.starts_with(self.prefix)
            && self.port == later.port
            && same(&self.method, &later.method)
            && same(&self.authority, &later.authority)
            && self.named.iter().zip(&later.named).all(|(own, later)| all(own, later))
    }
}
