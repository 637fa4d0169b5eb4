use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3 as api;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::to_any;
use pilot_mesh::{ClusterName, TokenKeys, token_keys};
use pilot_model::{JwksFetch, JwtRule, KeySource, NOBODYS_KEYS, ProxyType};

use crate::convert::{duration, seconds};
use crate::rbac::JWT_PAYLOAD;

/// How long Envoy keeps keys that it fetched itself.
const KEEP_KEYS: i64 = 300;
/// Claims that are lists in the form of a text, whatever a rule says.
const LISTS: [&str; 2] = ["permission", "scope"];
/// What the rules need to know of the world.
pub(crate) struct Keys<'a> {
    pub(crate) fetch: JwksFetch,
    pub(crate) kind: ProxyType,
    /// Keys that were fetched.
    pub(crate) fetched: &'a dyn Fn(&KeySource) -> Option<Name>,
    pub(crate) is_known: &'a dyn Fn(Option<&Name>, &Host) -> bool,
}

/// Tokens are checked if they are there; whether one must be is for AuthorizationPolicies to say.
pub(crate) fn filter(rules: &[&JwtRule], keys: &Keys<'_>) -> Option<HttpFilter> {
    use api::jwt_requirement::RequiresType;
    if rules.is_empty() {
        return None;
    }
    let of = |kind: RequiresType| api::JwtRequirement { requires_type: Some(kind) };
    let any = |requirements| of(RequiresType::RequiresAny(api::JwtRequirementOrList { requirements }));
    let mut providers = BTreeMap::new();
    let (mut alone, mut if_sent) = (Vec::new(), Vec::new());
    for (i, rule) in rules.iter().enumerate() {
        let name = format!("origins-{i}");
        let this = of(RequiresType::ProviderName(name.clone()));
        if_sent.push(any(vec![this.clone(), of(RequiresType::AllowMissing(()))]));
        alone.push(this);
        providers.insert(name, provider(rule, keys));
    }
    // Every token that is sent must be good. Where issuers look for theirs in the same place, one that is good for one of
    // them is enough.
    let requires = if if_sent.len() == 1 {
        if_sent.remove(0)
    } else {
        let all = api::JwtRequirementAndList { requirements: if_sent };
        alone.push(of(RequiresType::RequiresAll(all)));
        any(alone)
    };
    let everything = route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix("/".to_owned())),
        ..route::RouteMatch::default()
    };
    let config = api::JwtAuthentication {
        providers,
        rules: vec![api::RequirementRule {
            r#match: Some(everything),
            requirement_type: Some(api::requirement_rule::RequirementType::Requires(requires)),
        }],
        bypass_cors_preflight: true,
        ..api::JwtAuthentication::default()
    };
    Some(super::http_filter("envoy.filters.http.jwt_authn", to_any(&config)))
}

fn provider(rule: &JwtRule, keys: &Keys<'_>) -> api::JwtProvider {
    let texts = |names: &[Name]| names.iter().map(Name::to_string).collect::<Vec<_>>();
    let lists: BTreeSet<&str> = rule.space_delimited_claims.iter().map(Name::as_str).chain(LISTS).collect();
    let headers = rule.from_headers.iter();
    let outputs = rule.output_claims.iter();
    api::JwtProvider {
        issuer: rule.issuer.to_string(),
        audiences: texts(&rule.audiences),
        forward: rule.forward_original_token,
        forward_payload_header: rule.output_payload_to_header.to_string(),
        payload_in_metadata: JWT_PAYLOAD.to_owned(),
        normalize_payload_in_metadata: Some(api::jwt_provider::NormalizePayload {
            space_delimited_claims: lists.into_iter().map(str::to_owned).collect(),
        }),
        // At a gateway, claims can choose the route.
        clear_route_cache: keys.kind != ProxyType::Sidecar,
        claim_to_headers: outputs
            .map(|output| api::JwtClaimToHeader {
                header_name: output.header.to_string(),
                claim_name: output.claim.to_string(),
                ..api::JwtClaimToHeader::default()
            })
            .collect(),
        from_headers: headers
            .map(|(name, prefix)| api::JwtHeader { name: name.to_string(), value_prefix: prefix.to_string() })
            .collect(),
        from_params: texts(&rule.from_params),
        from_cookies: texts(&rule.from_cookies),
        jwks_source_specifier: Some(source(rule, keys)),
        ..api::JwtProvider::default()
    }
}

/// The keys, or where Envoy finds them.
fn source(rule: &JwtRule, keys: &Keys<'_>) -> api::jwt_provider::JwksSourceSpecifier {
    use api::jwt_provider::JwksSourceSpecifier as Source;
    let local = |text: String| {
        let specifier = Some(core::data_source::Specifier::InlineString(text));
        Source::LocalJwks(core::DataSource { specifier, ..core::DataSource::default() })
    };
    match token_keys(rule, keys.fetch, |host| (keys.is_known)(None, host)) {
        TokenKeys::Written(text) => local(text.to_string()),
        TokenKeys::Fetched(source) => {
            local((keys.fetched)(&source).map_or_else(|| NOBODYS_KEYS.to_owned(), |keys| keys.to_string()))
        }
        TokenKeys::ByProxy { host, port } => Source::RemoteJwks(remote(rule, &host, port)),
    }
}

fn remote(rule: &JwtRule, host: &Host, port: u16) -> api::RemoteJwks {
    use core::http_uri::HttpUpstreamType;
    let cluster = ClusterName::outbound(port, "", host).to_string();
    api::RemoteJwks {
        http_uri: Some(core::HttpUri {
            uri: rule.jwks_uri.to_string(),
            timeout: Some(duration(rule.fetch_timeout())),
            http_upstream_type: Some(HttpUpstreamType::Cluster(cluster)),
        }),
        cache_duration: Some(seconds(KEEP_KEYS)),
        ..api::RemoteJwks::default()
    }
}
