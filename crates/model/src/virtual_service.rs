use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name};

use crate::{ExportTo, Span};

/// Routing rules for hosts. Host names are as written; `mesh` makes them whole.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VirtualService {
    pub hosts: Vec<Host>,
    /// Empty means the sidecars of the mesh.
    pub gateways: Vec<Name>,
    pub http: Vec<HttpRoute>,
    pub tls: Vec<TlsRoute>,
    pub tcp: Vec<TcpRoute>,
    pub export_to: ExportTo,
}

impl HttpRoute {
    /// Everyone who is sent a copy of the requests, and of how many.
    pub fn copies(&self) -> impl Iterator<Item = (&Destination, Percent)> {
        let share = self.mirror_percent.unwrap_or(Percent::Whole(100));
        let first = self.mirror.iter().map(move |destination| (destination, share));
        first.chain(self.mirrors.iter().map(|mirror| (&mirror.destination, mirror.percent)))
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct HttpRoute {
    pub name: Name,
    /// Any of them; none means everything.
    pub matches: Vec<HttpMatch>,
    pub route: Vec<WeightedDestination>,
    pub redirect: Option<Redirect>,
    pub direct_response: Option<DirectResponse>,
    pub delegate: Option<Delegate>,
    pub rewrite: Option<Rewrite>,
    pub timeout: Option<Span>,
    pub retries: Option<Retries>,
    pub fault: Option<Fault>,
    pub mirror: Option<Destination>,
    pub mirror_percent: Option<Percent>,
    pub mirrors: Vec<Mirror>,
    pub cors: Option<Cors>,
    pub headers: Option<Headers>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct HttpMatch {
    pub name: Name,
    pub uri: Option<StringMatch>,
    pub scheme: Option<StringMatch>,
    pub method: Option<StringMatch>,
    pub authority: Option<StringMatch>,
    /// `None` asks only that the header is there.
    pub headers: BTreeMap<Name, Option<StringMatch>>,
    pub without_headers: BTreeMap<Name, Option<StringMatch>>,
    pub query_params: BTreeMap<Name, Option<StringMatch>>,
    pub ignore_uri_case: bool,
    pub port: Option<u16>,
    pub source_labels: Labels,
    pub source_namespace: Name,
    pub gateways: Vec<Name>,
    pub stat_prefix: Name,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StringMatch {
    Exact(Name),
    Prefix(Name),
    /// Whole segments of a path: `/a` and `/a/b`, but not `/ab`.
    Segments(Name),
    Regex(Name),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct WeightedDestination {
    pub destination: Destination,
    pub weight: u32,
    pub headers: Option<Headers>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    pub host: Host,
    pub subset: Name,
    pub port: Option<u16>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Redirect {
    pub uri: Name,
    pub authority: Name,
    pub port: Option<RedirectPort>,
    pub scheme: Name,
    pub code: u32,
    pub prefix_rewrite: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedirectPort {
    Number(u16),
    FromProtocolDefault,
    FromRequestPort,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DirectResponse {
    pub status: u32,
    pub body: Option<Body>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    Text(Name),
    Bytes(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delegate {
    pub name: Name,
    pub namespace: Name,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rewrite {
    pub uri: Option<UriRewrite>,
    pub authority: Name,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UriRewrite {
    Prefix(Name),
    Regex { pattern: Name, substitution: Name },
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Retries {
    pub attempts: i32,
    pub per_try_timeout: Option<Span>,
    pub retry_on: Name,
    pub remote_localities: Option<bool>,
    pub ignore_previous_hosts: Option<bool>,
    pub backoff: Option<Span>,
}

/// A share of requests. Kept in the form it was written in, because that is how it is sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Percent {
    Whole(u32),
    Exact(f64),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fault {
    pub delay: Option<Delay>,
    pub abort: Option<Abort>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Delay {
    pub percent: Percent,
    pub fixed: Span,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Abort {
    /// Without one nothing is aborted: Envoy takes a missing share for none.
    pub percent: Option<Percent>,
    pub error: AbortError,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbortError {
    Http(u32),
    Grpc(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Mirror {
    pub destination: Destination,
    pub percent: Percent,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cors {
    pub allow_origins: Vec<StringMatch>,
    pub allow_methods: Vec<Name>,
    pub allow_headers: Vec<Name>,
    pub expose_headers: Vec<Name>,
    pub max_age: Option<Span>,
    pub allow_credentials: Option<bool>,
    pub ignore_unmatched_preflights: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    pub request: HeaderOps,
    pub response: HeaderOps,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeaderOps {
    pub set: BTreeMap<Name, Name>,
    pub add: BTreeMap<Name, Name>,
    pub remove: Vec<Name>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct TlsRoute {
    pub matches: Vec<TlsMatch>,
    pub route: Vec<L4Destination>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct TcpRoute {
    pub matches: Vec<L4Match>,
    pub route: Vec<L4Destination>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct L4Destination {
    pub destination: Destination,
    pub weight: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsMatch {
    pub sni_hosts: Vec<Name>,
    pub base: L4Match,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct L4Match {
    pub destination_subnets: Vec<Name>,
    pub port: Option<u16>,
    pub source_labels: Labels,
    pub gateways: Vec<Name>,
    pub source_namespace: Name,
}
