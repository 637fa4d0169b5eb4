//! What each proxy was sent and has accepted, in the form that istioctl and others read.

use axum::extract::{Query, State};
use axum::response::Response;
use pilot_base::Millis;
use pilot_model::ProxyType;
use pilot_xds::TypeUrl;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::{Pages, written};
use crate::clock::unix_seconds;
use crate::standing::{Progress, Standing, Step};

/// Every connected proxy; `?namespace=` shows those of one namespace.
pub(super) async fn page(State(pages): State<Pages>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let namespace = query.iter().find(|(key, _)| key == "namespace").map(|(_, value)| value.as_str());
    let now = pages.clock.now();
    let unix = unix_seconds();
    let at = |millis: Millis| {
        let ago = i64::try_from(now.saturating_sub(millis) / 1000).unwrap_or(i64::MAX);
        Timestamp { seconds: unix.saturating_sub(ago), nanos: 0 }.to_string()
    };
    let all = pages.engine.standings().all();
    let asked =
        all.iter().filter(|(_, standing)| namespace.is_none_or(|n| standing.proxy.namespace.as_str() == n));
    let list: Value = asked.map(|(_, standing)| shown(standing, at)).collect();
    written(&list, &query)
}

/// How the fields of a type are called.
fn field(type_url: TypeUrl) -> Option<&'static str> {
    match type_url {
        TypeUrl::Cluster => Some("cluster"),
        TypeUrl::Listener => Some("listener"),
        TypeUrl::Route => Some("route"),
        TypeUrl::Endpoint => Some("endpoint"),
        TypeUrl::ExtensionConfig => Some("extensionconfig"),
        TypeUrl::Secret | TypeUrl::NameTable => None,
    }
}

fn shown(standing: &Standing, at: impl Fn(Millis) -> String) -> Value {
    let Progress { types, .. } = standing.progress();
    let proxy = &standing.proxy;
    let kind = if proxy.kind == ProxyType::Router { "router" } else { "sidecar" };
    let mut out = Map::new();
    out.insert("proxy".to_owned(), json!(proxy.name.as_str()));
    out.insert("proxy_type".to_owned(), json!(kind));
    out.insert("cluster_id".to_owned(), json!(proxy.cluster.as_str()));
    out.insert("istio_version".to_owned(), json!(proxy.version_text.as_str()));
    let mut resources = Map::new();
    for type_url in TypeUrl::ALL {
        let Step { sent, acked, sent_at, error, .. } = &types[type_url.index()];
        if sent.is_empty() {
            continue;
        }
        if let Some(field) = field(type_url) {
            out.insert(format!("{field}_sent"), json!(sent));
            out.insert(format!("{field}_acked"), json!(acked));
        }
        let mut resource = json!({"sent": sent, "acked": acked, "sentTime": at(*sent_at)});
        if let Some(error) = error {
            resource["lastError"] = json!(error);
        }
        resources.insert(type_url.as_str().to_owned(), resource);
    }
    out.insert("resources".to_owned(), Value::Object(resources));
    Value::Object(out)
}
