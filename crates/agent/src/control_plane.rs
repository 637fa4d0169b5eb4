//! Where the control plane is and how the agent proves who it is: what settings and files say.

use std::path::{Path, PathBuf};

use crate::Env;
use crate::grpc::{Credentials, Identification, Roots, Upstream};
use crate::proxy_config::{HostPort, ProxyConfig};

/// The port at which Istio's servers speak without TLS.
const PLAIN_PORT: u16 = 15010;
/// Places that Istio's users mount things at. Relative, as in Istio: containers start in `/`.
const TOKEN: &str = "./var/run/secrets/tokens/istio-token";
const ROOT: &str = "./var/run/secrets/istio/root-cert.pem";
const MOUNTED_ROOT: &str = "./etc/certs/root-cert.pem";
/// Names in folders of certificates.
pub(crate) const ROOT_FILE: &str = "root-cert.pem";
pub(crate) const CHAIN_FILE: &str = "cert-chain.pem";
pub(crate) const KEY_FILE: &str = "key.pem";
/// Instead of a file: what the machine trusts.
const SYSTEM: &str = "SYSTEM";
/// Where files of the proxy's own certificate are told.
const CLIENT_KEY: &str = "ISTIO_META_TLS_CLIENT_KEY";
const CLIENT_CHAIN: &str = "ISTIO_META_TLS_CLIENT_CERT_CHAIN";
const CLIENT_ROOT: &str = "ISTIO_META_TLS_CLIENT_ROOT_CERT";

/// What would have to be another.
#[derive(thiserror::Error, Debug)]
pub(crate) enum ControlPlaneError {
    #[error("{place} \"{address}\" is not host:port")]
    Address { place: &'static str, address: String },
    #[error(
        "the root certificate of {what}, {path}, does not exist; put it there, name another file in {variable}, or, \
         if the connection needs no TLS, set controlPlaneAuthPolicy to NONE in PROXY_CONFIG"
    )]
    NoRoot { what: &'static str, path: PathBuf, variable: &'static str },
    #[error(
        "PILOT_CERT_PROVIDER is none, so there is no root certificate to check {0} with; name a file in {1}"
    )]
    NoProvider(&'static str, &'static str),
    #[error("PROV_CERT and FILE_MOUNTED_CERTS cannot both be set")]
    TwoKinds,
}

/// Settings that both connections share.
struct Told<'a> {
    env: &'a Env,
    config: &'a ProxyConfig,
    provisioned: Option<PathBuf>,
    mounted: bool,
}

/// The server of configuration.
pub(crate) fn xds(config: &ProxyConfig, env: &Env) -> Result<Upstream, ControlPlaneError> {
    let told = Told::read(config, env)?;
    let server = host_port("discoveryAddress", &config.discovery_address)?;
    let tls = if told.is_plain(&server) {
        None
    } else {
        Some(Credentials {
            roots: told.xds_roots()?,
            own: told.own_for_xds(),
            server_name: told.server_name(),
        })
    };
    Ok(told.upstream(server, tls, "XDS_HEADER_"))
}

/// The server of certificates, which is the same unless another is told.
pub(crate) fn authority(config: &ProxyConfig, env: &Env) -> Result<Upstream, ControlPlaneError> {
    let told = Told::read(config, env)?;
    let (server, is_plain, server_name) = match env.get("CA_ADDR") {
        Some(address) => {
            let server = host_port("CA_ADDR", address)?;
            let is_plain = server.port == PLAIN_PORT;
            (server, is_plain, None)
        }
        None => {
            let server = host_port("discoveryAddress", &config.discovery_address)?;
            let is_plain = told.is_plain(&server);
            (server, is_plain, told.server_name())
        }
    };
    let tls = if is_plain {
        None
    } else {
        let own = told.provisioned.as_deref().map(identification);
        Some(Credentials { roots: told.authority_roots()?, own, server_name })
    };
    Ok(told.upstream(server, tls, "CA_HEADER_"))
}

impl<'a> Told<'a> {
    fn read(config: &'a ProxyConfig, env: &'a Env) -> Result<Self, ControlPlaneError> {
        let provisioned = env.get("PROV_CERT").map(PathBuf::from);
        let mounted = env.flag("FILE_MOUNTED_CERTS") == Some(true);
        if provisioned.is_some() && mounted {
            return Err(ControlPlaneError::TwoKinds);
        }
        Ok(Self { env, config, provisioned, mounted })
    }

    fn is_plain(&self, server: &HostPort) -> bool {
        !self.config.mutual_tls || server.port == PLAIN_PORT
    }

    fn server_name(&self) -> Option<String> {
        self.env.get("ISTIOD_SAN").map(str::to_owned)
    }

    fn metadata(&self, name: &str) -> PathBuf {
        self.config.metadata.get(name).map(PathBuf::from).unwrap_or_default()
    }

    fn xds_roots(&self) -> Result<Roots, ControlPlaneError> {
        const VARIABLE: &str = "XDS_ROOT_CA";
        let what = "the xDS server";
        let path = match self.env.get(VARIABLE) {
            Some(SYSTEM) => return Ok(Roots::System),
            Some(path) => path.into(),
            None if Path::new(MOUNTED_ROOT).is_file() => MOUNTED_ROOT.into(),
            None => match &self.provisioned {
                // On a virtual machine the file may be put there later.
                Some(folder) => return Ok(Roots::File(folder.join(ROOT_FILE))),
                None if self.mounted => self.metadata(CLIENT_ROOT),
                None => self.default_root(what, VARIABLE)?,
            },
        };
        existing(what, path, VARIABLE)
    }

    fn authority_roots(&self) -> Result<Roots, ControlPlaneError> {
        const VARIABLE: &str = "CA_ROOT_CA";
        let what = "the server of certificates";
        let path = match (self.env.get(VARIABLE), &self.provisioned) {
            (Some(SYSTEM), _) => return Ok(Roots::System),
            (Some(path), _) => path.into(),
            (None, _) if self.env.get("PILOT_CERT_PROVIDER") == Some("custom") => MOUNTED_ROOT.into(),
            (None, Some(folder)) => return Ok(Roots::File(folder.join(ROOT_FILE))),
            (None, None) => self.default_root(what, VARIABLE)?,
        };
        existing(what, path, VARIABLE)
    }

    fn default_root(&self, what: &'static str, variable: &'static str) -> Result<PathBuf, ControlPlaneError> {
        match self.env.get("PILOT_CERT_PROVIDER") {
            Some("none") => Err(ControlPlaneError::NoProvider(what, variable)),
            _ => Ok(ROOT.into()),
        }
    }

    fn own_for_xds(&self) -> Option<Identification> {
        match &self.provisioned {
            Some(folder) => Some(identification(folder)),
            None if self.mounted => {
                let (chain, key) = (self.metadata(CLIENT_CHAIN), self.metadata(CLIENT_KEY));
                let is_told = !chain.as_os_str().is_empty() && !key.as_os_str().is_empty();
                is_told.then_some(Identification { chain, key })
            }
            None => None,
        }
    }

    fn upstream(&self, server: HostPort, tls: Option<Credentials>, prefix: &str) -> Upstream {
        let cluster = self.env.get("ISTIO_META_CLUSTER_ID").unwrap_or_default();
        let mut headers = vec![("clusterid".to_owned(), cluster.to_owned())];
        for (name, value) in self.env.iter() {
            if let Some(name) = name.strip_prefix(prefix) {
                headers.push((name.to_owned(), value.to_owned()));
            }
        }
        Upstream { server, tls, token: Some(TOKEN.into()), headers, keepalive: Upstream::KEEPALIVE }
    }
}

fn existing(what: &'static str, path: PathBuf, variable: &'static str) -> Result<Roots, ControlPlaneError> {
    if path.is_file() {
        Ok(Roots::File(path))
    } else {
        Err(ControlPlaneError::NoRoot { what, path, variable })
    }
}

fn identification(folder: &Path) -> Identification {
    Identification { chain: folder.join(CHAIN_FILE), key: folder.join(KEY_FILE) }
}

fn host_port(place: &'static str, address: &str) -> Result<HostPort, ControlPlaneError> {
    let wrong = || ControlPlaneError::Address { place, address: address.to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // A colon is part of an address only in brackets.
    if bare.is_empty() || (bare == host && host.contains(':')) {
        return Err(wrong());
    }
    Ok(HostPort { host: bare.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::{host_port, xds};
    use crate::Env;
    use crate::proxy_config::{HostPort, Places, effective};

    fn upstream<const N: usize>(
        config: &str,
        variables: [(&str, &str); N],
    ) -> Result<crate::grpc::Upstream, String> {
        let env = Env::from(variables);
        let annotations = Default::default();
        let mesh = format!("defaultConfig: {config}");
        let places = Places {
            mesh: Some(("mesh", &mesh)),
            env: &env,
            annotations: &annotations,
            concurrency: 0,
            service_cluster: "",
        };
        xds(&effective(&places).unwrap(), &env).map_err(|error| error.to_string())
    }

    #[test]
    fn tls_is_left_out_only_where_somebody_says_so() {
        assert!(upstream("{discoveryAddress: 'p:15010'}", []).unwrap().tls.is_none());
        assert!(
            upstream("{discoveryAddress: 'p:1', controlPlaneAuthPolicy: NONE}", []).unwrap().tls.is_none()
        );
        let error = upstream("{discoveryAddress: 'p:1'}", []).unwrap_err();
        assert!(
            error.contains("./var/run/secrets/istio/root-cert.pem") && error.contains("XDS_ROOT_CA"),
            "{error}"
        );
        let tls = upstream("{}", [("XDS_ROOT_CA", "SYSTEM"), ("ISTIOD_SAN", "me")]).unwrap().tls.unwrap();
        assert_eq!(tls.server_name.as_deref(), Some("me"));
    }

    #[test]
    fn headers_are_told_by_the_environment() {
        let told = [("XDS_HEADER_A_b", "1"), ("CA_HEADER_C", "2"), ("ISTIO_META_CLUSTER_ID", "c")];
        let headers = upstream("{discoveryAddress: 'p:15010'}", told).unwrap().headers;
        assert_eq!(headers, [("clusterid", "c"), ("A_b", "1")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let ok = |host: &str, port| HostPort { host: host.to_owned(), port };
        assert_eq!(host_port("it", "[fd00::1]:1").unwrap(), ok("fd00::1", 1));
        assert_eq!(host_port("it", "pilot:15012").unwrap(), ok("pilot", 15012));
        for wrong in ["", "pilot", "pilot:", ":1", "fd00::1:1", "pilot:70000"] {
            let error = host_port("it", wrong).unwrap_err().to_string();
            assert_eq!(error, format!("it \"{wrong}\" is not host:port"));
        }
    }
}
