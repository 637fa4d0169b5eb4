//! Who a proxy says it is.

use crate::mesh::Mesh;
use crate::wire::put_bytes;

/// A `Node` as Istio's agent describes a sidecar.
pub(crate) fn encode(mesh: &Mesh, proxy: usize) -> Vec<u8> {
    let (service, address) = mesh.seat(proxy);
    let (namespace, app) = (mesh.namespace(service), mesh.services[service].name());
    let address = address.to_string();
    let id = format!("sidecar~{address}~{app}-{proxy}.{namespace}~{namespace}.svc.cluster.local");
    let labels = structure(&[("app", text(&app)), ("version", text("v2"))]);
    let metadata = structure(&[
        ("CLUSTER_ID", text("Kubernetes")),
        ("INSTANCE_IPS", text(&address)),
        ("INTERCEPTION_MODE", text("REDIRECT")),
        ("ISTIO_VERSION", text("1.30.0")),
        ("LABELS", nested(&labels)),
        ("MESH_ID", text("cluster.local")),
        ("NAMESPACE", text(&namespace)),
        ("SERVICE_ACCOUNT", text("default")),
    ]);
    let mut out = Vec::new();
    put_bytes(&mut out, 1, id.as_bytes());
    put_bytes(&mut out, 2, format!("{app}.{namespace}").as_bytes());
    put_bytes(&mut out, 3, &metadata);
    put_bytes(&mut out, 6, b"envoy");
    out
}

/// `google.protobuf.Struct`
fn structure(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in fields {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, key.as_bytes());
        put_bytes(&mut entry, 2, value);
        put_bytes(&mut out, 1, &entry);
    }
    out
}

/// `google.protobuf.Value` with a text.
fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 3, text.as_bytes());
    out
}

/// `google.protobuf.Value` with a struct.
fn nested(structure: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 5, structure);
    out
}
