//! Routes that one VirtualService leaves to another.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_model::{ConfigId, Delegate, HttpMatch, HttpRoute, MeshConfig, Percent, StringMatch};

use crate::routes::RouteRule;

/// Why a route that was left to another VirtualService is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DelegateProblem {
    /// There is none of this name.
    Missing,
    /// It has hosts, so it routes them itself.
    HasHosts,
    /// It is not exported to the namespace that asks for it.
    Hidden,
}

/// Which object a route is left to.
pub fn delegate_id(delegate: &Delegate, root: &ConfigId) -> ConfigId {
    let namespace = if delegate.namespace.is_empty() { &root.namespace } else { &delegate.namespace };
    ConfigId::new(namespace.clone(), delegate.name.clone())
}

/// Can the routes of `found` be used where `root` names it?
pub fn check_delegate(
    found: Option<&RouteRule>,
    root: &ConfigId,
    mesh: &MeshConfig,
) -> Result<(), DelegateProblem> {
    let rule = found.ok_or(DelegateProblem::Missing)?;
    if !rule.spec.hosts.is_empty() {
        return Err(DelegateProblem::HasHosts);
    }
    let export = rule.spec.export_to.or(&mesh.virtual_service_export_to);
    let visible = export.is_public() || export.namespaces(&rule.id.namespace).contains(&root.namespace);
    if visible { Ok(()) } else { Err(DelegateProblem::Hidden) }
}

/// The rule with the routes of others in place of those that it leaves to them. Where that cannot be, the route is gone.
pub fn merge_delegates<'a>(
    rule: &RouteRule,
    mesh: &MeshConfig,
    find: impl Fn(&ConfigId) -> Option<&'a RouteRule>,
) -> RouteRule {
    let mut out = rule.clone();
    if rule.spec.http.iter().all(|route| route.delegate.is_none()) {
        return out;
    }
    out.spec.http.clear();
    for route in &rule.spec.http {
        let Some(delegate) = &route.delegate else {
            out.spec.http.push(route.clone());
            continue;
        };
        let found = find(&delegate_id(delegate, &rule.id));
        let usable = found.filter(|_| check_delegate(found, &rule.id, mesh).is_ok());
        let leaves = usable.into_iter().flat_map(|rule| &rule.spec.http);
        let leaves = leaves.filter(|leaf| leaf.delegate.is_none());
        out.spec.http.extend(leaves.filter_map(|leaf| merge_route(route, leaf)));
    }
    out
}

/// What the delegate says counts; what it does not say is the root's. Nothing, if no request could match both.
fn merge_route(root: &HttpRoute, leaf: &HttpRoute) -> Option<HttpRoute> {
    Some(HttpRoute {
        name: joined(&root.name, &leaf.name),
        matches: merge_matches(&root.matches, &leaf.matches)?,
        route: leaf.route.clone(),
        redirect: leaf.redirect.clone(),
        direct_response: leaf.direct_response.clone().or_else(|| root.direct_response.clone()),
        delegate: None,
        rewrite: leaf.rewrite.clone().or_else(|| root.rewrite.clone()),
        timeout: leaf.timeout.or(root.timeout),
        retries: leaf.retries.clone().or_else(|| root.retries.clone()),
        fault: leaf.fault.clone().or_else(|| root.fault.clone()),
        mirror: leaf.mirror.clone().or_else(|| root.mirror.clone()),
        // The old field for whole percents gives way to the new one, whoever says it.
        mirror_percent: match (leaf.mirror_percent, root.mirror_percent) {
            (None | Some(Percent::Whole(_)), root @ Some(Percent::Exact(_))) | (None, root) => root,
            (leaf, _) => leaf,
        },
        mirrors: if leaf.mirrors.is_empty() { root.mirrors.clone() } else { leaf.mirrors.clone() },
        cors: leaf.cors.clone().or_else(|| root.cors.clone()),
        headers: leaf.headers.clone().or_else(|| root.headers.clone()),
    })
}

fn joined(root: &Name, leaf: &Name) -> Name {
    match (root.is_empty(), leaf.is_empty()) {
        (_, true) => root.clone(),
        (true, false) => leaf.clone(),
        (false, false) => Name::from(format!("{root}-{leaf}")),
    }
}

/// Each match of the delegate must lie within at least one of the root's.
fn merge_matches(root: &[HttpMatch], leaf: &[HttpMatch]) -> Option<Vec<HttpMatch>> {
    if root.is_empty() {
        return Some(leaf.to_vec());
    }
    if leaf.is_empty() {
        return Some(root.to_vec());
    }
    let mut out = Vec::new();
    for leaf in leaf {
        let before = out.len();
        out.extend(root.iter().filter(|root| !conflicts(root, leaf)).map(|root| merge_match(root, leaf)));
        if out.len() == before {
            return None;
        }
    }
    Some(out)
}

fn merge_match(root: &HttpMatch, leaf: &HttpMatch) -> HttpMatch {
    let either =
        |leaf: &Option<StringMatch>, root: &Option<StringMatch>| leaf.clone().or_else(|| root.clone());
    let name = |leaf: &Name, root: &Name| if leaf.is_empty() { root.clone() } else { leaf.clone() };
    HttpMatch {
        name: joined(&root.name, &leaf.name),
        uri: either(&leaf.uri, &root.uri),
        scheme: either(&leaf.scheme, &root.scheme),
        method: either(&leaf.method, &root.method),
        authority: either(&leaf.authority, &root.authority),
        headers: both(&root.headers, &leaf.headers),
        without_headers: both(&root.without_headers, &leaf.without_headers),
        query_params: both(&root.query_params, &leaf.query_params),
        ignore_uri_case: leaf.ignore_uri_case,
        port: leaf.port.or(root.port),
        source_labels: root.source_labels.iter().chain(leaf.source_labels.iter()).map(owned).collect(),
        source_namespace: name(&leaf.source_namespace, &root.source_namespace),
        gateways: if leaf.gateways.is_empty() { root.gateways.clone() } else { leaf.gateways.clone() },
        stat_prefix: name(&leaf.stat_prefix, &root.stat_prefix),
    }
}

fn owned((key, value): (&Name, &Name)) -> (Name, Name) {
    (key.clone(), value.clone())
}

type Wanted = BTreeMap<Name, Option<StringMatch>>;

fn both(root: &Wanted, leaf: &Wanted) -> Wanted {
    root.iter().chain(leaf).map(|(name, wanted)| (name.clone(), wanted.clone())).collect()
}

fn conflicts(root: &HttpMatch, leaf: &HttpMatch) -> bool {
    let pairs = [
        (&root.uri, &leaf.uri),
        (&root.scheme, &leaf.scheme),
        (&root.method, &leaf.method),
        (&root.authority, &leaf.authority),
    ];
    let texts = pairs.into_iter().any(|(root, leaf)| match (root, leaf) {
        (Some(root), Some(leaf)) => text_conflicts(root, leaf),
        _ => false,
    });
    let maps = [
        (&root.headers, &leaf.headers),
        (&root.without_headers, &leaf.without_headers),
        (&root.query_params, &leaf.query_params),
    ];
    let named = maps.into_iter().any(|(root, leaf)| map_conflicts(root, leaf));
    let port = matches!((root.port, leaf.port), (Some(root), Some(leaf)) if root != leaf);
    let namespace = !root.source_namespace.is_empty() && root.source_namespace != leaf.source_namespace;
    let labels =
        leaf.source_labels.iter().any(|(k, v)| root.source_labels.get(k).is_some_and(|other| other != v));
    let gateways = !root.gateways.is_empty()
        && (root.gateways.len() < leaf.gateways.len()
            || leaf.gateways.iter().any(|gateway| !root.gateways.contains(gateway)));
    texts || named || port || namespace || labels || gateways || root.ignore_uri_case != leaf.ignore_uri_case
}

fn map_conflicts(root: &Wanted, leaf: &Wanted) -> bool {
    leaf.iter().any(|(name, leaf)| match (root.get(name), leaf) {
        (None, _) => false,
        (Some(Some(root)), Some(leaf)) => text_conflicts(root, leaf),
        // Where one only asks for presence and the other for more, Istio has always seen a conflict.
        (Some(_), _) => true,
    })
}

/// Is the delegate's wish no part of the root's? Patterns cannot be compared, so they always conflict.
fn text_conflicts(root: &StringMatch, leaf: &StringMatch) -> bool {
    match (root, leaf) {
        (StringMatch::Exact(root), StringMatch::Exact(leaf)) => root != leaf || root.is_empty(),
        (StringMatch::Prefix(root), StringMatch::Prefix(leaf) | StringMatch::Exact(leaf)) => {
            root.is_empty() || leaf.is_empty() || !leaf.starts_with(root.as_str())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{check_delegate, merge_delegates};
    use crate::delegate::DelegateProblem;
    use crate::routes::RouteRule;
    use pilot_base::Host;
    use pilot_model::{
        ConfigId, Delegate, ExportTo, HttpMatch, HttpRoute, MeshConfig, StringMatch, VirtualService,
    };

    fn rule(name: &str, hosts: &[&str], http: Vec<HttpRoute>) -> RouteRule {
        let spec = VirtualService {
            hosts: hosts.iter().map(|host| Host::new(host)).collect(),
            http,
            ..VirtualService::default()
        };
        RouteRule {
            id: ConfigId::new("ns", name),
            created: pilot_model::Created(0),
            labels: pilot_base::Labels::default(),
            annotations: pilot_base::Labels::default(),
            spec,
        }
    }

    fn at(name: &str, prefix: &str) -> HttpRoute {
        let uri = Some(StringMatch::Prefix(prefix.into()));
        let matches = vec![HttpMatch { uri, ..HttpMatch::default() }];
        HttpRoute { name: name.into(), matches, ..HttpRoute::default() }
    }

    fn to(name: &str, prefix: &str, delegate: &str) -> HttpRoute {
        let delegate = Some(Delegate { name: delegate.into(), namespace: "".into() });
        HttpRoute { delegate, ..at(name, prefix) }
    }

    #[test]
    fn a_delegate_fills_in_what_lies_within_the_root() {
        let root =
            rule("root", &["a.com"], vec![to("r", "/a", "leaf"), to("", "/b", "gone"), at("own", "/")]);
        let leaf = rule("leaf", &[], vec![at("l", "/a/x"), at("", "/other"), HttpRoute::default()]);
        let merged =
            merge_delegates(&root, &MeshConfig::default(), |id| (id.name == "leaf").then_some(&leaf));
        let names: Vec<_> = merged.spec.http.iter().map(|route| route.name.to_string()).collect();
        assert_eq!(names, ["r-l", "r", "own"], "what lies outside or is missing is left out");
        assert_eq!(merged.spec.http[1].matches, root.spec.http[0].matches);
    }

    #[test]
    fn a_delegate_must_have_no_hosts_and_be_exported() {
        let mesh = MeshConfig::default();
        let root = ConfigId::new("other", "root");
        let mut leaf = rule("leaf", &["a.com"], vec![]);
        assert_eq!(check_delegate(Some(&leaf), &root, &mesh), Err(DelegateProblem::HasHosts));
        leaf.spec.hosts.clear();
        assert_eq!(check_delegate(Some(&leaf), &root, &mesh), Ok(()));
        leaf.spec.export_to = ExportTo::parse(["."]);
        assert_eq!(check_delegate(Some(&leaf), &root, &mesh), Err(DelegateProblem::Hidden));
        assert_eq!(check_delegate(None, &root, &mesh), Err(DelegateProblem::Missing));
    }
}
