use pilot_base::{Host, Labels, Name};

use crate::Protocol;

/// Ports that a proxy at the edge of the mesh opens, and what it accepts there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gateway {
    /// Which workloads open them; all that ask for gateways, if it is empty.
    pub selector: Labels,
    pub servers: Vec<GatewayServer>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct GatewayServer {
    /// What statistics call it.
    pub name: Name,
    /// As clients know it: the workload may listen at another one.
    pub port: u16,
    pub port_name: Name,
    pub protocol: Protocol,
    /// An address, or `unix://` and a path; empty for all addresses.
    pub bind: Name,
    pub hosts: Vec<ServerHost>,
    pub tls: Option<ServerTls>,
}

/// A host that is served, and where VirtualServices for it may live.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerHost {
    pub namespace: HostNamespace,
    pub host: Host,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HostNamespace {
    /// `*/host`, or nothing said.
    Any,
    /// `./host`: that of the Gateway.
    Own,
    Named(Name),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerTls {
    /// Clients that come without TLS are told to come back with it.
    pub https_redirect: bool,
    pub mode: ServerTlsMode,
    /// Files in the proxy's own file system, each a certificate and its key.
    pub certificates: Vec<CertificatePair>,
    pub ca_certificates: Name,
    pub ca_crl: Name,
    /// Secrets that are fetched by name instead of files.
    pub credentials: Vec<Name>,
    /// The secret with the authority of clients, if it is not that of the first credential.
    pub ca_credential: Name,
    pub subject_alt_names: Vec<Name>,
    pub verify_spki: Vec<Name>,
    pub verify_hash: Vec<Name>,
    pub min_version: Option<ServerTlsVersion>,
    pub max_version: Option<ServerTlsVersion>,
    /// Without those that Envoy does not know.
    pub cipher_suites: Vec<Name>,
    /// Clients whose certificate nobody vouches for are let in.
    pub skip_verify: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CertificatePair {
    pub certificate: Name,
    pub private_key: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServerTlsMode {
    /// Passed on as it is, by the server name that the client asks for.
    #[default]
    Passthrough,
    Simple,
    Mutual,
    /// Passed on to the cluster that the server name spells out.
    AutoPassthrough,
    IstioMutual,
    OptionalMutual,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ServerTlsVersion {
    V1_0,
    V1_1,
    V1_2,
    V1_3,
}

impl GatewayServer {
    /// Is TLS passed on without a look inside?
    pub fn passes_tls(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| {
            matches!(tls.mode, ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough)
        })
    }

    /// HTTPS that is decrypted here.
    pub fn ends_https(&self) -> bool {
        self.protocol == Protocol::Https && !self.passes_tls()
    }

    /// Are requests routed, encrypted or not?
    pub fn serves_http(&self) -> bool {
        self.protocol.is_http() || self.ends_https()
    }

    /// Are its connections told apart by TLS? A server of plain HTTP may have TLS settings only to redirect.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some() && !self.protocol.is_http()
    }

    pub fn redirects(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.https_redirect)
    }

    pub fn is_auto_passthrough(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.mode == ServerTlsMode::AutoPassthrough)
    }
}
