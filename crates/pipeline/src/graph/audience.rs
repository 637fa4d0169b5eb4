//! Who is connected, reduced to what can influence what they are sent.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Keyed, Labels, Name, SharedMap};
use pilot_envoy::{
    ChainTraits, ClusterTraits, EndpointTraits, FixedTraits, GrpcTraits, HttpTraits, ListenerTraits,
    NameTraits, Outbound, PatchSet, Patches, PolicyTraits, ProxyPatches, RouteTraits, SecretServer, Settings,
    TracingTraits,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{
    ClusterName, ExtensionUse, GatewaySet, Layer, PeerModes, Place, TracingPlan, compared_labels,
};
use pilot_model::{
    Caller, Config, ConfigId, ConnectionSettings, DefaultEndpoint, Destination, GatewayTopology,
    IngressListener, Interception, OutboundMode, OutboundTrafficPolicy, Proxy, ProxyConfig, ProxyHeaders,
    ProxyId, ProxyType, Resolution, SecretAccess, Sidecar, Version,
};

use super::envoy_filters::EnvoyFilters;
use super::gateways::{GatewayIndex, ListenerAsker, RouteAsker};
use super::inputs::Inputs;
use super::on_demand;
use super::registry::Registry;
use super::rules::Rules;
use super::security::Policies;
use super::serving::Served;
use super::telemetry::{Side, Telemetries, otel_service};

/// All that can influence what a proxy is sent. Proxies with equal audiences share every byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Audience {
    /// What they can see.
    pub scope: Layer,
    pub kind: ProxyType,
    pub namespace: Name,
    /// Where they are.
    pub place: Place,
    pub cluster: ClusterTraits,
    pub endpoint: EndpointTraits,
    pub listener: Arc<ListenerTraits>,
    pub http: Arc<HttpTraits>,
    /// For what is served by themselves.
    pub inbound_chain: Arc<ChainTraits>,
    pub inbound_http: Arc<HttpTraits>,
    pub route: Arc<RouteTraits>,
    pub fixed: FixedTraits,
    /// What names they are told, if they answer DNS queries.
    pub names: Option<NameTraits>,
    /// Who is let in to them.
    pub peers: PeerModes,
    pub policies: Arc<PolicyTraits>,
    /// For routers: the Gateways they serve.
    pub gateways: Option<Arc<GatewaySet>>,
    /// For gRPC libraries, who are told nothing else.
    pub grpc: Option<Arc<GrpcTraits>>,
    /// Do all who call them speak mutual TLS?
    pub(super) grpc_is_mutual: bool,
    /// What EnvoyFilters change for them.
    pub patches: Option<Arc<ProxyPatches>>,
    /// Do they ask for clusters when a request needs them?
    pub on_demand: bool,
    /// The namespaces whose extensions they may run.
    pub(super) extension_namespaces: Vec<Name>,
    /// Which Secrets they may read, and where these are.
    pub(super) secrets: (SecretAccess, super::secrets::Place),
    /// Where they listen as a forward proxy; zero if they do not.
    pub(super) http_proxy_port: u16,
    /// What they serve themselves.
    pub(super) served: Vec<Served>,
    /// Outbound listeners of the workload's own addresses, which it has no use for.
    pub(super) hidden: Vec<Name>,
    /// Its own addresses, where they shape what a Sidecar has it serve.
    pub(super) addresses: Vec<IpAddr>,
}

/// What is known of a proxy beside what it says itself.
struct Around<'a> {
    sidecar: Option<&'a Config<Sidecar>>,
    rules: Vec<ConfigId>,
    place: Place,
    served: Vec<Served>,
    hidden: Vec<Name>,
    request_labels: Labels,
    connection_labels: Labels,
    peers: PeerModes,
    policies: Arc<PolicyTraits>,
    patches: Option<Arc<ProxyPatches>>,
    /// As a client and as a server.
    sides: [Side; 2],
}

/// Where it is looked up what counts for a workload.
#[derive(Clone, Copy)]
pub(super) struct Choices {
    pub(super) rules: Rules,
    pub(super) policies: Policies,
    pub(super) gateways: GatewayIndex,
    pub(super) envoy_filters: EnvoyFilters,
    pub(super) telemetries: Telemetries,
}

/// Who asks for the listener that traffic is redirected to; what matters to HTTP, only where it serves any.
pub(super) type RedirectAsker = (Arc<ListenerTraits>, Option<Arc<HttpTraits>>);

/// All that can influence which endpoints a proxy is told: its scope, what it is, and where.
pub(super) type EndpointView = (Layer, (EndpointTraits, Place));

/// Connected proxies by what they ask for.
pub(super) type Askers = SharedMap<ProxyId, ()>;

#[derive(Clone, Copy)]
pub(super) struct Audiences {
    pub(super) of_proxy: Table<ProxyId, Keyed<Audience>>,
    pub(super) all: Table<Keyed<Audience>, Askers>,
    pub(super) layers: Table<Layer, Askers>,
    pub(super) cluster: Table<(Layer, ClusterTraits), Askers>,
    pub(super) on_demand: Table<(Layer, ClusterTraits), Askers>,
    pub(super) endpoint: Table<(Layer, EndpointTraits), Askers>,
    pub(super) cluster_place: Table<(Layer, (ClusterTraits, Place)), Askers>,
    pub(super) place: Table<(Layer, (EndpointTraits, Place)), Askers>,
    /// As `place`, but by scope.
    pub(super) endpoint_view: Table<EndpointView, Askers>,
    pub(super) listener: Table<(Layer, Arc<ListenerTraits>), Askers>,
    pub(super) http: Table<((Layer, Arc<ListenerTraits>), Arc<HttpTraits>), Askers>,
    pub(super) route: Table<(Layer, Arc<RouteTraits>), Askers>,
    pub(super) fixed: Table<FixedTraits, Askers>,
    pub(super) cluster_patches: Table<(Layer, (ClusterTraits, Arc<Patches>)), Askers>,
    pub(super) listener_patches: Table<((Layer, Arc<ListenerTraits>), Arc<Patches>), Askers>,
    pub(super) http_patches: Table<((Layer, Arc<ListenerTraits>), (Arc<HttpTraits>, Arc<Patches>)), Askers>,
    pub(super) host_patches: Table<(Layer, (Arc<RouteTraits>, Arc<Patches>)), Askers>,
    pub(super) route_patches: Table<((Layer, Arc<RouteTraits>), Arc<Patches>), Askers>,
    pub(super) grpc: Table<super::grpc::Asker, Askers>,
    pub(super) names: Table<(Layer, NameTraits), Askers>,
    pub(super) names_in_layer: Table<(Layer, NameTraits), Askers>,
    pub(super) listener_traits: Table<RedirectAsker, Askers>,
    pub(super) policies: Table<Arc<PolicyTraits>, Askers>,
    pub(super) gateway_sets: Table<Arc<GatewaySet>, Askers>,
    pub(super) gateway_listener: Table<ListenerAsker, Askers>,
    pub(super) gateway_route: Table<RouteAsker, Askers>,
}

impl Audiences {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs, registry: Registry, choices: Choices) -> Self {
        let Choices { rules, policies, gateways, envoy_filters, telemetries } = choices;
        let of_proxy = graph.map("audiences", &inputs.proxies, move |id, reader| {
            let (proxy, pod) = &registry.seats.seated(reader, reader.get(&inputs.proxies, id)?);
            let settings = inputs.settings(reader)?;
            let served = registry.serving.of(reader, proxy, *pod);
            let gateways = gateways.set_of(proxy, &served, registry, reader);
            let around = Around {
                sidecar: sidecar_of(proxy, settings, rules, reader).map(|sidecar| &**sidecar),
                rules: rules.selecting(reader, &proxy.namespace, &proxy.labels),
                place: place(proxy, settings, registry.compared(reader).chain(rules.compared(reader))),
                served,
                hidden: hidden(proxy, registry, reader),
                request_labels: rules.request_labels(reader, proxy),
                connection_labels: rules.connection_labels(reader, proxy),
                peers: policies.peers(reader, &proxy.namespace).modes(&proxy.labels),
                policies: Arc::new(policies.traits(proxy, reader)?),
                patches: envoy_filters.of(proxy, settings, reader),
                sides: telemetries.sides(proxy, settings, reader),
            };
            let audience = audience(proxy, around, settings).at_edge(gateways);
            Some(Keyed::new(settled(audience, proxy, (inputs, registry), reader)))
        });
        // A table of the proxies that ask for something, for each thing that can be asked for.
        macro_rules! askers {
            ($name:literal, |$audience:ident| $keys:expr) => {
                graph.group($name, |feeds| {
                    feeds.from(&of_proxy, |id: &ProxyId, $audience: &Keyed<Audience>, out| {
                        $keys.into_iter().for_each(|key| out.emit(key, *id, ()));
                    });
                })
            };
        }
        Self {
            of_proxy,
            all: askers!("audience members", |a| [a.clone()]),
            layers: askers!("layers", |a| a.scope.stack()),
            cluster: askers!("cluster askers", |a| a.of_envoy(&a.cluster)),
            on_demand: askers!("on-demand askers", |a| a.clusters_on_demand()),
            endpoint: askers!("endpoint askers", |a| a.in_each_layer(&a.endpoint)),
            place: askers!("endpoint askers by locality", |a| {
                a.in_each_layer(&(a.endpoint.clone(), a.place.clone()))
            }),
            endpoint_view: askers!("endpoint views", |a| a.grpc.is_none().then(|| a.endpoint_view())),
            cluster_place: askers!("cluster askers by locality", |a| {
                a.of_envoy(&(a.cluster.clone(), a.place.clone()))
            }),
            listener: askers!("listener askers", |a| a.of_sidecar(&a.listener)),
            http: askers!("http listener askers", |a| {
                a.of_sidecar(&a.listener).into_iter().map(|asker| (asker, Arc::clone(&a.http)))
            }),
            route: askers!("route askers", |a| a.of_sidecar(&a.route)),
            names: askers!("name table askers", |a| a.names.iter().map(|t| (a.scope.clone(), t.clone()))),
            names_in_layer: askers!("name askers", |a| a.names.iter().flat_map(|t| a.in_each_layer(t))),
            fixed: askers!("fixed cluster askers", |a| a.grpc.is_none().then(|| a.fixed.clone())),
            grpc: askers!("grpc askers", |a| {
                let traits = a.grpc.iter().map(|grpc| (Arc::clone(grpc), Arc::clone(&a.route)));
                traits.flat_map(|traits| a.in_each_layer(&traits))
            }),
            cluster_patches: askers!("cluster patch askers", |a| {
                a.with(|set| &set.clusters, |patches| a.in_each_layer(&(a.cluster.clone(), patches)))
            }),
            listener_patches: askers!("listener patch askers", |a| {
                a.with(|set| &set.listeners, |patches| a.each(&a.listener, patches))
            }),
            http_patches: askers!("http listener patch askers", |a| {
                a.with(|set| &set.listeners, |patches| a.each(&a.listener, (Arc::clone(&a.http), patches)))
            }),
            host_patches: askers!("virtual host patch askers", |a| {
                a.with(|set| &set.routes, |patches| a.of_sidecar(&(Arc::clone(&a.route), patches)))
            }),
            route_patches: askers!("route patch askers", |a| {
                a.with(|set| &set.routes, |patches| a.each(&a.route, patches))
            }),
            listener_traits: askers!("virtual listener askers", |a| {
                (a.is_sidecar()).then(|| a.redirect())
            }),
            policies: askers!("policy askers", |a| [Arc::clone(&a.policies)]),
            gateway_sets: askers!("gateway sets", |a| a.gateways.clone()),
            gateway_listener: askers!("gateway listener askers", |a| a.gateway_listener()),
            gateway_route: askers!("gateway route askers", |a| a.gateway_route()),
        }
    }
}

/// An audience with what depends on more than the proxy and the rules for it.
fn settled(
    mut audience: Audience,
    proxy: &Proxy,
    (inputs, registry): (Inputs, Registry),
    reader: &Reader<'_>,
) -> Audience {
    if on_demand::is_wanted(inputs, &proxy.namespace, reader) && proxy.takes_changes {
        audience = audience.on_demand();
    }
    // Where it is counts for endpoints only: clusters whose names are looked up know no networks.
    audience.endpoint.network =
        registry.networks.has_gateways(reader).then(|| (proxy.network.clone(), proxy.ip_mode()));
    audience
}

/// The Sidecar for a proxy: one of its namespace that selects it, else one of its namespace for all, else the root
/// namespace's for all.
fn sidecar_of<'a>(
    proxy: &Proxy,
    settings: Settings<'_>,
    rules: Rules,
    reader: &Reader<'a>,
) -> Option<&'a Arc<Config<Sidecar>>> {
    if proxy.kind != ProxyType::Sidecar {
        return None;
    }
    let selects = |sidecar: &&Arc<Config<Sidecar>>| {
        sidecar.spec.workload_selector.as_ref().is_some_and(|selector| selector.subset_of(&proxy.labels))
    };
    let for_all = |sidecar: &&Arc<Config<Sidecar>>| sidecar.spec.workload_selector.is_none();
    let own = || rules.sidecars(reader, &proxy.namespace);
    own()
        .find(selects)
        .or_else(|| own().find(for_all))
        .or_else(|| rules.sidecars(reader, &settings.mesh.root_namespace).find(for_all))
}

/// Where a proxy is: its locality, and those of its labels that somebody compares.
fn place<'a>(proxy: &Proxy, settings: Settings<'_>, compared: impl Iterator<Item = &'a Name>) -> Place {
    let mesh = settings.mesh;
    let locality = mesh.locality.iter().flat_map(|setting| compared_labels(&setting.failover_priority));
    let zone_aware = mesh.zone_aware.iter().flat_map(|setting| compared_labels(&setting.failover_priority));
    let keys = compared.cloned().chain(locality).chain(zone_aware);
    let labels = keys.filter_map(|key| proxy.labels.get(&key).cloned().map(|value| (key, value)));
    Place { locality: proxy.locality.clone(), labels: labels.collect() }
}

/// A headless service has an outbound listener for each endpoint, but an application that calls itself does not get there.
fn hidden(proxy: &Proxy, registry: Registry, reader: &Reader<'_>) -> Vec<Name> {
    let Some(ip) = proxy.ips.first() else { return Vec::new() };
    let mut out = BTreeSet::new();
    for (_, served) in registry.serving.at(reader, *ip) {
        let services = registry.services(reader, &served.host);
        let headless = services.iter().filter(|service| {
            service.namespace == served.namespace && service.resolution == Resolution::Passthrough
        });
        let ports = headless.flat_map(|service| &service.ports);
        let named = ports.filter(|port| port.name == served.port_name);
        out.extend(named.map(|port| Name::from(format!("{ip}_{}", port.number))));
    }
    out.into_iter().collect()
}

fn audience(proxy: &Proxy, around: Around<'_>, settings: Settings<'_>) -> Audience {
    let Around {
        sidecar,
        rules,
        place,
        served,
        hidden,
        request_labels,
        connection_labels,
        peers,
        policies,
        patches,
        sides: [client, server],
    } = around;
    let config = proxy.config.as_ref().unwrap_or(&settings.mesh.default_config);
    let headers = &config.headers;
    let policy = sidecar.and_then(|s| s.spec.outbound_traffic_policy.as_ref());
    let outbound = outbound(policy.unwrap_or(&settings.mesh.outbound), proxy);
    let ip_mode = proxy.ip_mode();
    let http_proxy_port = proxy.http_proxy_port.unwrap_or(settings.mesh.proxy_http_port);
    Audience {
        scope: match sidecar {
            None if rules.is_empty() => Layer::Namespace(proxy.namespace.clone()),
            sidecar => Layer::Sidecar {
                namespace: proxy.namespace.clone(),
                id: sidecar.map(|sidecar| sidecar.id.clone()),
                rules,
            },
        },
        kind: proxy.kind,
        namespace: proxy.namespace.clone(),
        place,
        cluster: cluster_traits(proxy, headers),
        endpoint: endpoint_traits(proxy),
        listener: Arc::new(listener_traits(
            proxy,
            (connection_labels, outbound.clone()),
            client.chain,
            settings,
        )),
        http: Arc::new(http_traits(proxy, settings, client.tracing, client.extensions)),
        inbound_chain: Arc::new(server.chain),
        inbound_http: Arc::new(http_traits(proxy, settings, server.tracing, server.extensions)),
        route: Arc::new(RouteTraits {
            ip_mode,
            caller: caller(proxy, settings),
            dns_suffix: dns_suffix(proxy),
            labels: request_labels,
            outbound: outbound.clone(),
            http_proxy: http_proxy_port != 0,
            local: proxy.interception == Interception::None,
            attempt_count: !headers.no_attempt_count,
            x_forwarded_host: headers.x_forwarded_host,
            proxyless: proxy.proxyless,
        }),
        fixed: FixedTraits {
            kind: proxy.kind,
            ip_mode,
            preserve_case: headers.preserve_case,
            credentials: SecretServer::of(proxy.external_secrets),
            dynamic: Some(outbound).filter(|o| o.mode == OutboundMode::AllowAnyDynamicDns),
        },
        peers,
        policies,
        gateways: None,
        grpc: proxy.proxyless.then(|| Arc::new(grpc_traits(proxy, settings))),
        grpc_is_mutual: proxy.proxyless && super::grpc::is_mutual(&proxy.labels),
        patches: patches.filter(|_| !proxy.proxyless),
        on_demand: false,
        names: proxy.dns_capture.then(|| name_traits(proxy, settings)),
        extension_namespaces: extension_namespaces(proxy, settings),
        secrets: secrets(proxy, settings),
        http_proxy_port,
        served,
        hidden: if proxy.interception == Interception::None { Vec::new() } else { hidden },
        addresses: if asks_address(sidecar, proxy) { proxy.ips.clone() } else { Vec::new() },
    }
}

fn grpc_traits(proxy: &Proxy, settings: Settings<'_>) -> GrpcTraits {
    GrpcTraits {
        caller: caller(proxy, settings),
        dns_domain: proxy.dns_domain.clone(),
        namespace: proxy.namespace.clone(),
    }
}

fn cluster_traits(proxy: &Proxy, headers: &ProxyHeaders) -> ClusterTraits {
    ClusterTraits {
        kind: proxy.kind,
        preserve_case: headers.preserve_case,
        ip_mode: proxy.ip_mode(),
        certs: proxy.client_files.clone(),
        credentials: SecretServer::of(proxy.external_secrets),
        endpoint: endpoint_traits(proxy),
    }
}

fn name_traits(proxy: &Proxy, settings: Settings<'_>) -> NameTraits {
    NameTraits {
        caller: caller(proxy, settings),
        network: proxy.network.clone(),
        all_clusters: settings.options.features.multicluster_headless,
    }
}

fn caller(proxy: &Proxy, settings: Settings<'_>) -> Caller {
    let allocates = proxy.dns_auto_allocate || settings.options.features.ip_autoallocate;
    Caller {
        cluster: proxy.cluster.clone(),
        ip_mode: proxy.ip_mode(),
        allocated: allocates && proxy.dns_capture,
        dual_stack: settings.options.features.dual_stack,
    }
}

fn endpoint_traits(proxy: &Proxy) -> EndpointTraits {
    EndpointTraits {
        kind: proxy.kind,
        cluster: proxy.cluster.clone(),
        network: None,
        view: proxy.network_view.clone(),
        passes_tls: false,
    }
}

fn secrets(proxy: &Proxy, settings: Settings<'_>) -> (SecretAccess, super::secrets::Place) {
    if proxy.secrets == SecretAccess::None {
        return Default::default();
    }
    let home = proxy.cluster == settings.options.cluster || proxy.cluster.is_empty();
    let cluster = if home { Name::empty() } else { proxy.cluster.clone() };
    (proxy.secrets, (cluster, proxy.namespace.clone()))
}

fn extension_namespaces(proxy: &Proxy, settings: Settings<'_>) -> Vec<Name> {
    let mut out = vec![settings.mesh.root_namespace.clone(), proxy.namespace.clone()];
    out.dedup();
    out
}

fn http_traits(
    proxy: &Proxy,
    settings: Settings<'_>,
    plan: TracingPlan,
    extensions: Vec<ExtensionUse>,
) -> HttpTraits {
    let mesh = &settings.mesh.default_config;
    let config = proxy.config.as_ref().unwrap_or(mesh);
    let connections = config.connection_settings.as_ref().or(mesh.connection_settings.as_ref()).cloned();
    HttpTraits {
        headers: config.headers.clone(),
        http10: proxy.http10,
        topology: match proxy.kind {
            ProxyType::Router => config.topology,
            ProxyType::Sidecar => GatewayTopology::default(),
        },
        tracing: tracing(proxy, config, plan),
        extensions,
        on_demand: false,
        connections: match proxy.kind {
            ProxyType::Router => connections.map(ConnectionSettings::at_the_edge),
            ProxyType::Sidecar => connections,
        },
    }
}

fn listener_traits(
    proxy: &Proxy,
    (labels, outbound): (Labels, Outbound),
    chain: ChainTraits,
    settings: Settings<'_>,
) -> ListenerTraits {
    ListenerTraits {
        ip_mode: proxy.ip_mode(),
        interception: proxy.interception,
        dns_suffix: dns_suffix(proxy),
        caller: caller(proxy, settings),
        labels,
        outbound,
        exact_balance: proxy.outbound_exact_balance,
        inbound_exact_balance: proxy.inbound_exact_balance,
        unprivileged: proxy.unprivileged,
        own_ports: proxy.own_ports.clone(),
        idle_timeout: proxy.idle_timeout,
        server_files: proxy.server_files.clone(),
        external_secrets: proxy.external_secrets,
        chain: Arc::new(chain),
    }
}

/// Do the proxy's own addresses shape what a Sidecar has it serve?
fn asks_address(sidecar: Option<&Config<Sidecar>>, proxy: &Proxy) -> bool {
    let lacks = |v6: bool| proxy.ips.iter().all(|ip| ip.is_ipv6() != v6);
    let asks = |listener: &IngressListener| {
        listener.bind.is_empty()
            || match &listener.default_endpoint {
                Some(DefaultEndpoint::Instance { .. }) => true,
                Some(DefaultEndpoint::Local { v6, .. }) => lacks(*v6),
                Some(DefaultEndpoint::Unix(_)) | None => false,
            }
    };
    sidecar.is_some_and(|sidecar| sidecar.spec.ingress.iter().any(asks))
}

fn outbound(policy: &OutboundTrafficPolicy, proxy: &Proxy) -> Outbound {
    let cluster = |to: &Destination| ClusterName::outbound(to.port.unwrap_or(0), &to.subset, &to.host);
    // Looking names up is for those beside applications.
    let mode = match policy.mode {
        OutboundMode::AllowAnyDynamicDns if proxy.kind == ProxyType::Router => OutboundMode::AllowAny,
        mode => mode,
    };
    let asks = mode == OutboundMode::AllowAnyDynamicDns && proxy.dns_capture;
    Outbound {
        mode,
        proxy: policy.egress_proxy.as_ref().map(cluster),
        dns_proxy: asks.then(|| proxy.dns_proxy.clone()),
    }
}

/// `.svc.cluster.local` of `namespace.svc.cluster.local`; elsewhere, where names are made in another way, all of it.
fn dns_suffix(proxy: &Proxy) -> Name {
    let domain = proxy.dns_domain.as_str();
    domain.find(".svc.").map_or_else(|| proxy.dns_domain.clone(), |at| Name::new(&domain[at..]))
}

/// Most of it matters only to those who trace, and some only to those who are told.
fn tracing(proxy: &Proxy, config: &ProxyConfig, plan: TracingPlan) -> TracingTraits {
    let label = |key: &str| proxy.labels.get(key).cloned().unwrap_or_default();
    let told = matches!(plan, TracingPlan::To(_));
    let if_told = |name: &Name| if told { name.clone() } else { Name::empty() };
    TracingTraits {
        plan,
        proxy: config.tracing.clone(),
        canonical_service: label("service.istio.io/canonical-name"),
        canonical_revision: label("service.istio.io/canonical-revision"),
        mesh_id: proxy.mesh_id.clone(),
        namespace: proxy.namespace.clone(),
        cluster: proxy.cluster.clone(),
        service_cluster: if_told(&proxy.service_cluster),
        otel_service: if_told(&otel_service(proxy)),
        kind: proxy.kind,
        version: if told { proxy.version } else { Version::NEWEST },
    }
}

impl Audience {
    fn at_edge(mut self, gateways: Option<Arc<GatewaySet>>) -> Self {
        self.endpoint.passes_tls = gateways.as_ref().is_some_and(|set| !set.auto_hosts.is_empty());
        self.cluster.endpoint = self.endpoint.clone();
        self.gateways = gateways;
        self
    }

    /// Asks for clusters when a request needs them, if it is known who names any: not where users' own code runs, or
    /// where they changed what is sent, either of which may call a cluster by its name.
    fn on_demand(mut self) -> Self {
        let chains = [&self.listener.chain, &self.inbound_chain];
        let http = [&self.http, &self.inbound_http];
        let runs_code = chains.iter().any(|chain| !chain.extensions.is_empty())
            || http.iter().any(|http| !http.extensions.is_empty());
        if self.is_sidecar() && self.patches.is_none() && !runs_code {
            self.on_demand = true;
            Arc::make_mut(&mut self.http).on_demand = true;
        }
        self
    }

    fn in_each_layer<T: Clone>(&self, traits: &T) -> Vec<(Layer, T)> {
        self.scope.stack().into_iter().map(|layer| (layer, traits.clone())).collect()
    }

    fn clusters_on_demand(&self) -> Vec<(Layer, ClusterTraits)> {
        if self.on_demand { self.of_sidecar(&self.cluster) } else { Vec::new() }
    }

    /// Only sidecars are called by applications for everything that there is.
    fn of_sidecar<T: Clone>(&self, traits: &T) -> Vec<(Layer, T)> {
        if self.is_sidecar() { self.in_each_layer(traits) } else { Vec::new() }
    }

    fn of_envoy<T: Clone>(&self, traits: &T) -> Vec<(Layer, T)> {
        if self.grpc.is_none() { self.in_each_layer(traits) } else { Vec::new() }
    }

    /// An Envoy beside a workload.
    pub(super) fn is_sidecar(&self) -> bool {
        self.kind == ProxyType::Sidecar && self.grpc.is_none()
    }

    pub(super) fn endpoint_view(&self) -> EndpointView {
        (self.scope.clone(), (self.endpoint.clone(), self.place.clone()))
    }

    pub(super) fn redirect(&self) -> RedirectAsker {
        let by_name = self.listener.outbound.mode == OutboundMode::AllowAnyDynamicDns;
        (Arc::clone(&self.listener), by_name.then(|| Arc::clone(&self.http)))
    }

    pub(super) fn gateway_listener(&self) -> Option<ListenerAsker> {
        let set = Arc::clone(self.gateways.as_ref()?);
        let traits = (Arc::clone(&self.listener), Arc::clone(&self.http), Arc::clone(&self.policies));
        Some((self.namespace.clone(), set, traits.0, traits.1, traits.2))
    }

    pub(super) fn gateway_route(&self) -> Option<RouteAsker> {
        Some((self.namespace.clone(), Arc::clone(self.gateways.as_ref()?), Arc::clone(&self.route)))
    }

    /// Who asks, in each layer, together with something else.
    fn each<T: Clone, U: Clone>(&self, traits: &T, more: U) -> Vec<((Layer, T), U)> {
        self.of_sidecar(traits).into_iter().map(|asker| (asker, more.clone())).collect()
    }

    /// Askers with patches of one kind; nobody, if there are none.
    fn with<K>(
        &self,
        kind: fn(&PatchSet) -> &Option<Arc<Patches>>,
        askers: impl FnOnce(Arc<Patches>) -> Vec<K>,
    ) -> Vec<K> {
        let patches = self.patches.as_ref().and_then(|patches| kind(&patches.outbound).clone());
        patches.map(askers).unwrap_or_default()
    }

    /// The ports they serve themselves.
    pub(super) fn served(&self) -> &[Served] {
        &self.served
    }
}
