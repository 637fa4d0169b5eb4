use crate::node::metadata::Metadata;
use crate::proxy_config::{DEFAULT_SERVICE_CLUSTER, ProxyConfig};

const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
const KUBERNETES_NAME: &str = "app.kubernetes.io/name";

/// The name under which traces and Envoy's own requests show this workload.
pub(super) fn name(config: &ProxyConfig, metadata: &Metadata, namespace: &str) -> String {
    let workload = metadata.text("WORKLOAD_NAME");
    let canonical = || {
        label(metadata, [CANONICAL_NAME, KUBERNETES_NAME, "app"])
            .or(workload)
            .unwrap_or(DEFAULT_SERVICE_CLUSTER)
    };
    let given = match config.tracing_service_name.as_deref() {
        Some("CANONICAL_NAME_AND_NAMESPACE") => return format!("{}.{namespace}", canonical()),
        Some("CANONICAL_NAME_ONLY") => canonical(),
        _ => config.service_cluster.as_deref().unwrap_or(DEFAULT_SERVICE_CLUSTER),
    };
    if given != DEFAULT_SERVICE_CLUSTER {
        return given.to_owned();
    }
    let app = label(metadata, ["app", KUBERNETES_NAME, CANONICAL_NAME]);
    format!("{}.{namespace}", app.or(workload).unwrap_or(DEFAULT_SERVICE_CLUSTER))
}

fn label<'a>(metadata: &'a Metadata, names: [&str; 3]) -> Option<&'a str> {
    names.into_iter().find_map(|name| metadata.labels().get(name)).map(String::as_str)
}
