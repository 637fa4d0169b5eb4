use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::clusters;
use crate::node::Node;
use crate::proxy_config::{Tls, TlsMode};

/// What Envoy says that it speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

/// Certificates come from the agent, by names that tell it in which files they are. `name` is what a server in the mesh is
/// called unless told otherwise.
pub(super) fn transport_socket(tls: &Tls, node: &Node, name: &str, speaks: Speaks) -> Value {
    let own = |field: &str, told: &Option<PathBuf>| -> Option<String> {
        let metadata = node.metadata.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        let told = told.as_ref().map(|path| path.to_string_lossy().into_owned());
        metadata.map(str::to_owned).or(told)
    };
    let root = own("TLS_CLIENT_ROOT_CERT", &tls.ca_certificates).map(|file| format!("file-root:{file}"));
    let certificate = own("TLS_CLIENT_CERT_CHAIN", &tls.client_certificate)
        .zip(own("TLS_CLIENT_KEY", &tls.private_key))
        .map(|(certificate, key)| format!("file-cert:{certificate}~{key}"));
    let (certificate, root, in_mesh) = match tls.mode {
        TlsMode::Simple => (None, root, false),
        TlsMode::Mutual => (certificate, root, false),
        TlsMode::IstioMutual => (Some("default".to_owned()), Some("ROOTCA".to_owned()), true),
    };
    let mut common = Map::new();
    if speaks == Speaks::Http2 {
        let words = if in_mesh { json!(["istio", "h2"]) } else { json!(["h2"]) };
        common.insert("alpn_protocols".to_owned(), words);
    }
    if let Some(certificate) = certificate {
        common.insert("tls_certificate_sds_secret_configs".to_owned(), json!([secret(&certificate)]));
    }
    common.insert("combined_validation_context".to_owned(), validation(tls, root.as_deref()));
    let mut context = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": common,
    });
    let sni = tls.sni.as_deref().or(in_mesh.then_some(name));
    if let Some(sni) = sni {
        context["sni"] = json!(sni);
    }
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

fn validation(tls: &Tls, root: Option<&str>) -> Value {
    let names: Vec<Value> = tls.names.iter().map(|name| json!({ "exact": name })).collect();
    let default = if names.is_empty() { json!({}) } else { json!({ "match_subject_alt_names": names }) };
    let mut validation = json!({ "default_validation_context": default });
    if let Some(root) = root {
        validation["validation_context_sds_secret_config"] = secret(root);
    }
    validation
}

/// A secret that the agent has.
pub(super) fn secret(name: &str) -> Value {
    json!({
        "name": name,
        "sds_config": {
            "api_config_source": {
                "api_type": "GRPC",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": clusters::SECRETS } }],
                "set_node_on_first_message_only": true,
                "transport_api_version": "V3",
            },
            "resource_api_version": "V3",
        },
    })
}
