//! What one proxy has, in the form in which Envoy itself tells it.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pilot_envoy_api::envoy::admin::v3 as admin;
use pilot_envoy_api::envoy::config::core::v3::{DataSource, data_source::Specifier};
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::reflect::{Dynamic, type_name};
use pilot_envoy_api::to_any;
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;
use prost_types::Any;
use serde_json::{Value, json};

use super::{Pages, written};
use crate::debug::Viewer;
use crate::standing::{Holding, Standings};

/// Who does not read for longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

const NO_PROXY: &str = "You must provide a proxyID in the query string\n";
const NOT_HERE: &str =
    "Proxy not connected to this Pilot instance. It may be connected to another instance.\n";

/// Everything it has: `?proxyID=`, `&types=cds,eds` for the resources of some types alone, `&include_eds`.
pub(super) async fn config(pages: State<Pages>, viewer: Extension<Viewer>, query: Asking) -> Response {
    let types = query.iter().find(|(key, _)| key == "types").map(|(_, types)| types.clone());
    let types = types.unwrap_or_default().split(',').filter_map(short).collect();
    shown(pages, viewer, query, types).await
}

pub(super) async fn endpoints(pages: State<Pages>, viewer: Extension<Viewer>, query: Asking) -> Response {
    shown(pages, viewer, query, vec![TypeUrl::Endpoint]).await
}

pub(super) async fn names(pages: State<Pages>, viewer: Extension<Viewer>, query: Asking) -> Response {
    shown(pages, viewer, query, vec![TypeUrl::NameTable]).await
}

pub(super) async fn extensions(pages: State<Pages>, viewer: Extension<Viewer>, query: Asking) -> Response {
    shown(pages, viewer, query, vec![TypeUrl::ExtensionConfig]).await
}

type Asking = Query<Vec<(String, String)>>;

/// What people call types, as in `istioctl proxy-config`.
fn short(name: &str) -> Option<TypeUrl> {
    match name.trim().to_ascii_lowercase().as_str() {
        "cds" => Some(TypeUrl::Cluster),
        "eds" => Some(TypeUrl::Endpoint),
        "lds" => Some(TypeUrl::Listener),
        "rds" => Some(TypeUrl::Route),
        "sds" => Some(TypeUrl::Secret),
        "ecds" => Some(TypeUrl::ExtensionConfig),
        "nds" => Some(TypeUrl::NameTable),
        _ => None,
    }
}

async fn shown(
    State(pages): State<Pages>,
    Extension(viewer): Extension<Viewer>,
    Query(query): Asking,
    types: Vec<TypeUrl>,
) -> Response {
    let Some((_, proxy)) = query.iter().find(|(key, value)| key == "proxyID" && !value.is_empty()) else {
        return (StatusCode::BAD_REQUEST, NO_PROXY).into_response();
    };
    let Some(holding) = holding(pages.engine.standings(), &viewer, proxy).await else {
        return (StatusCode::NOT_FOUND, NOT_HERE).into_response();
    };
    let configs: Value = if types.is_empty() {
        let endpoints = query.iter().any(|(key, _)| key == "include_eds");
        sections(&holding)
            .filter(|(of, _)| endpoints || *of != Some(TypeUrl::Endpoint))
            .map(|(_, v)| v)
            .collect()
    } else {
        let of = |t: TypeUrl| holding[t.index()].iter().map(move |resource| as_json(&any(t, resource)));
        types.into_iter().flat_map(of).collect()
    };
    written(&json!({ "configs": configs }), &query)
}

/// The parts of Envoy's own page, in its order. Those that only Envoy knows are empty. Each resource is written for itself,
/// so that one that cannot be takes no other along.
fn sections(holding: &Holding) -> impl Iterator<Item = (Option<TypeUrl>, Value)> {
    let of = |type_url: TypeUrl, section: &str, list: &str, field: &str| {
        let one = |resource: &Arc<Encoded>| {
            let mut state = serde_json::Map::new();
            state.insert("versionInfo".to_owned(), json!(resource.version().to_string()));
            state.insert(field.to_owned(), as_json(&any(type_url, resource)));
            match type_url {
                TypeUrl::Listener => json!({"name": resource.name().as_str(), "activeState": state}),
                _ => Value::Object(state),
            }
        };
        let all: Value = holding[type_url.index()].iter().map(one).collect();
        (Some(type_url), json!({"@type": format!("{ADMIN}{section}"), list: all}))
    };
    let empty = |section: &str| (None, json!({"@type": format!("{ADMIN}{section}")}));
    [
        empty("BootstrapConfigDump"),
        of(TypeUrl::Cluster, "ClustersConfigDump", "dynamicActiveClusters", "cluster"),
        of(TypeUrl::Endpoint, "EndpointsConfigDump", "dynamicEndpointConfigs", "endpointConfig"),
        of(TypeUrl::Listener, "ListenersConfigDump", "dynamicListeners", "listener"),
        empty("ScopedRoutesConfigDump"),
        of(TypeUrl::Route, "RoutesConfigDump", "dynamicRouteConfigs", "routeConfig"),
        of(TypeUrl::Secret, "SecretsConfigDump", "dynamicActiveSecrets", "secret"),
        of(TypeUrl::ExtensionConfig, "EcdsConfigDump", "ecdsFilters", "ecdsFilter"),
    ]
    .into_iter()
}

const ADMIN: &str = "type.googleapis.com/envoy.admin.v3.";

/// What a proxy has whose connection has this in its name (`<pod>.<namespace>-<n>`). Nothing if there is none, or none that
/// may be seen.
pub(crate) async fn holding(standings: &Standings, viewer: &Viewer, proxy: &str) -> Option<Holding> {
    let all = standings.all();
    let is_it = |(id, standing): &&(pilot_model::ProxyId, Arc<crate::standing::Standing>)| {
        format!("{}-{id}", standing.proxy.name).contains(proxy)
    };
    let (_, standing) = all.iter().find(is_it).filter(|(_, standing)| viewer.sees(&standing.proxy))?;
    tokio::time::timeout(PATIENCE, standing.ask()).await.ok()?.ok()
}

/// The same as messages, without endpoints.
pub(crate) fn messages(holding: &Holding) -> Vec<Any> {
    let of = |type_url: TypeUrl| {
        let version = |resource: &Arc<Encoded>| resource.version().to_string();
        let one = move |r: &Arc<Encoded>| (r.name().to_string(), version(r), Some(any(type_url, r)));
        holding[type_url.index()].iter().map(one)
    };
    let clusters = of(TypeUrl::Cluster).map(|(_, version_info, cluster)| {
        admin::clusters_config_dump::DynamicCluster { version_info, cluster, ..Default::default() }
    });
    let listeners = of(TypeUrl::Listener).map(|(name, version_info, listener)| {
        let active_state = admin::listeners_config_dump::DynamicListenerState {
            version_info,
            listener,
            ..Default::default()
        };
        let active_state = Some(active_state);
        admin::listeners_config_dump::DynamicListener { name, active_state, ..Default::default() }
    });
    let routes = of(TypeUrl::Route).map(|(_, version_info, route_config)| {
        admin::routes_config_dump::DynamicRouteConfig { version_info, route_config, ..Default::default() }
    });
    let filters = of(TypeUrl::ExtensionConfig).map(|(_, version_info, ecds_filter)| {
        admin::ecds_config_dump::EcdsFilterConfig { version_info, ecds_filter, ..Default::default() }
    });
    let secrets = of(TypeUrl::Secret).map(|(name, version_info, secret)| {
        admin::secrets_config_dump::DynamicSecret { name, version_info, secret, ..Default::default() }
    });
    let dynamic_active_clusters = clusters.collect();
    let dynamic_listeners = listeners.collect();
    let dynamic_route_configs = routes.collect();
    vec![
        to_any(&admin::BootstrapConfigDump::default()),
        to_any(&admin::ClustersConfigDump { dynamic_active_clusters, ..Default::default() }),
        to_any(&admin::ListenersConfigDump { dynamic_listeners, ..Default::default() }),
        to_any(&admin::ScopedRoutesConfigDump::default()),
        to_any(&admin::RoutesConfigDump { dynamic_route_configs, ..Default::default() }),
        to_any(&admin::SecretsConfigDump { dynamic_active_secrets: secrets.collect(), ..Default::default() }),
        to_any(&admin::EcdsConfigDump { ecds_filters: filters.collect() }),
    ]
}

/// A key is nobody's business.
fn any(type_url: TypeUrl, resource: &Encoded) -> Any {
    let mut value = resource.message();
    if type_url == TypeUrl::Secret {
        value = without_key(&value);
    }
    Any { type_url: type_url.as_str().to_owned(), value }
}

fn without_key(message: &[u8]) -> Vec<u8> {
    let mut secret = tls::Secret::decode(message).unwrap_or_default();
    if let Some(tls::secret::Type::TlsCertificate(certificate)) = &mut secret.r#type {
        let specifier = Some(Specifier::InlineString("[redacted]".to_owned()));
        certificate.private_key = Some(DataSource { specifier, ..DataSource::default() });
    }
    secret.encode_to_vec()
}

/// What cannot be said as JSON, because something in it is of a type that only Istio's Envoy knows, is named.
fn as_json(any: &Any) -> Value {
    let said = Dynamic::decode(type_name(&any.type_url), &any.value)
        .and_then(|message| message.to_json(serde_json::value::Serializer).ok());
    let mut said = match said {
        Some(Value::Object(said)) => said,
        _ => serde_json::Map::from_iter([("unreadable".to_owned(), json!(any.value.len()))]),
    };
    said.insert("@type".to_owned(), json!(any.type_url));
    Value::Object(said)
}
