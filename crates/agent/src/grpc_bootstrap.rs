//! What a client of gRPC without a proxy starts with: a file that names the agent's socket as its xDS server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Env;
use crate::bootstrap::{self, WriteError};
use crate::node::Node;

const VARIABLE: &str = "GRPC_XDS_BOOTSTRAP";
const DEFAULT: &str = "./etc/istio/proxy/grpc-bootstrap.json";
/// The agent's own server, in the directory of the proxy's files.
const SOCKET: &str = "XDS";
/// Where servers find their listeners; the library puts its address into it.
const SERVER_LISTENERS: &str = "xds.istio.io/grpc/lds/inbound/%s";
/// The files change when certificates do, hours apart.
const REFRESH: &str = "900s";

pub(crate) struct GrpcBootstrap {
    pub(crate) path: PathBuf,
    text: String,
}

impl GrpcBootstrap {
    /// None if the variable is set to nothing.
    pub(crate) fn build(node: &Node, config_path: &Path, env: &Env) -> Option<Self> {
        let path = match env.iter().find(|(name, _)| *name == VARIABLE) {
            Some((_, "")) => return None,
            Some((_, path)) => path,
            None => DEFAULT,
        };
        let text = format!("{:#}\n", content(node, config_path, env.get("OUTPUT_CERTS")));
        Some(Self { path: path.into(), text })
    }

    pub(crate) fn write(&self) -> Result<(), WriteError> {
        bootstrap::write_text(&self.path, &self.text)
    }
}

fn content(node: &Node, config_path: &Path, certificates: Option<&str>) -> Value {
    let socket = config_path.join(SOCKET);
    // A client may run in another directory than the agent.
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let mut metadata = node.metadata.clone();
    metadata.insert("GENERATOR".to_owned(), json!("grpc"));
    let mut content = json!({
        "xds_servers": [{
            "server_uri": format!("unix://{}", socket.display()),
            "channel_creds": [{ "type": "insecure" }],
            "server_features": ["xds_v3"],
        }],
        "node": { "id": node.id, "locality": bootstrap::locality(node), "metadata": metadata },
        "server_listener_resource_name_template": SERVER_LISTENERS,
    });
    if let Some(directory) = certificates {
        let file = |name: &str| json!(Path::new(directory).join(name));
        content["certificate_providers"] = json!({ "default": {
            "plugin_name": "file_watcher",
            "config": {
                "private_key_file": file("key.pem"),
                "certificate_file": file("cert-chain.pem"),
                "ca_certificate_file": file("root-cert.pem"),
                "refresh_interval": REFRESH,
            },
        }});
    }
    content
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, Value, json};

    use super::GrpcBootstrap;
    use crate::Env;
    use crate::node::{Locality, Node};

    fn node() -> Node {
        Node {
            id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local".to_owned(),
            namespace: "b".to_owned(),
            domain: "b.svc.cluster.local".to_owned(),
            cluster: "a.b".to_owned(),
            locality: Locality { region: "eu".to_owned(), ..Locality::default() },
            metadata: Map::from_iter([("NAMESPACE".to_owned(), json!("b"))]),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn clients_are_sent_to_the_agent() {
        let env = Env::from([("OUTPUT_CERTS", "/var/lib/istio/data")]);
        let built = GrpcBootstrap::build(&node(), Path::new("/etc/istio/proxy"), &env).unwrap();
        assert_eq!(built.path, Path::new("./etc/istio/proxy/grpc-bootstrap.json"));
        let content: Value = serde_json::from_str(&built.text).unwrap();
        assert_eq!(content["xds_servers"][0]["server_uri"], "unix:///etc/istio/proxy/XDS");
        assert_eq!(content["node"]["metadata"], json!({"NAMESPACE": "b", "GENERATOR": "grpc"}));
        assert_eq!(content["node"]["locality"], json!({"region": "eu"}));
        let provider = &content["certificate_providers"]["default"]["config"];
        assert_eq!(provider["private_key_file"], "/var/lib/istio/data/key.pem");
        assert_eq!(provider["refresh_interval"], "900s");
    }

    #[test]
    fn it_can_be_elsewhere_or_nowhere() {
        let build = |value: &str| {
            let env = Env::from([("GRPC_XDS_BOOTSTRAP", value)]);
            GrpcBootstrap::build(&node(), Path::new("/c"), &env)
        };
        assert_eq!(build("/x/y.json").unwrap().path, Path::new("/x/y.json"));
        assert!(!build("/x/y.json").unwrap().text.contains("certificate_providers"));
        assert!(build("").is_none());
    }
}
