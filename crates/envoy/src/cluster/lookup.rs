//! Clusters whose addresses a proxy looks up: names that are known, and names that are found out as they are called.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::extensions::clusters::dynamic_forward_proxy::v3 as dynamic;
use pilot_envoy_api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilot_envoy_api::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use pilot_envoy_api::to_any;
use pilot_mesh::{LbSetting, effective_locality};
use pilot_model::{Endpoint, IpMode, LocalityLb, Protocol, Resolution, Subset, TrafficPolicy};

use super::{Draft, Maker};
use crate::convert::{duration, stat_prefix};
use crate::dynamic_forward_proxy::{dynamic_host, names_of};
use crate::endpoint_group::{Group, GroupMaker, arrange};
use crate::settings::Settings;

const DYNAMIC: &str = "envoy.clusters.dynamic_forward_proxy";

impl Maker<'_> {
    /// How names are looked up, and which; nothing if there are none.
    pub(super) fn look_up(
        &self,
        draft: &mut Draft,
        name: &Name,
        subset: Option<&Subset>,
        policy: Option<&TrafficPolicy>,
    ) -> Option<()> {
        let groups = self.groups(subset, policy);
        if groups.is_empty() {
            return None;
        }
        let cluster = &mut draft.cluster;
        cluster.load_assignment = Some(ClusterLoadAssignment {
            cluster_name: name.to_string(),
            endpoints: groups.into_iter().map(|group| group.message).collect(),
            ..ClusterLoadAssignment::default()
        });
        let family = lookup_family(self.traits.ip_mode, self.settings);
        let family = if self.service.race_connect { api::cluster::DnsLookupFamily::All } else { family };
        cluster.dns_lookup_family = family as i32;
        let features = &self.settings.options.features;
        let resolver = CaresDnsResolverConfig {
            udp_max_queries: Some(features.dns_max_queries),
            ..CaresDnsResolverConfig::default()
        };
        cluster.typed_dns_resolver_config = Some(core::TypedExtensionConfig {
            name: "envoy.network.dns_resolver.cares".to_owned(),
            typed_config: Some(to_any(&resolver)),
        });
        set_refresh(cluster, self.settings);
        Some(())
    }

    fn groups(&self, subset: Option<&Subset>, policy: Option<&TrafficPolicy>) -> Vec<Group<'_>> {
        let maker = GroupMaker {
            plan: self.host.plan,
            service: self.service,
            port: self.port.number,
            takes_mtls: self.host.endpoints.takes_mtls,
            subset,
            gateways: self.host.endpoints.gateways,
            traits: &self.traits.endpoint,
            settings: self.settings,
            reached: self.reached,
        };
        let is_here = |e: &&Endpoint| match e.entry_port {
            Some(number) => number == self.port.number,
            None => e.port_name == self.port.name,
        };
        let here = self.host.endpoints.all.iter().copied().filter(is_here);
        // A name that has several addresses is one endpoint, and there can be only one.
        let most = if self.service.resolution == Resolution::DnsRoundRobin { 1 } else { usize::MAX };
        let groups = maker.groups(here.take(most), policy);
        let lb = policy.and_then(|p| p.load_balancer.as_ref());
        let setting = effective_locality(lb, self.service, self.settings.mesh);
        let (Some(place), Some(setting)) = (self.host.endpoints.place, setting) else { return groups };
        let ejection = policy.and_then(|p| p.outlier_detection.as_ref());
        // Subsets of looked-up names are not compared by labels.
        let setting = if subset.is_some() { without_labels(setting) } else { Some(setting) };
        match setting {
            Some(setting) => arrange(groups, &setting, place, ejection),
            None => groups,
        }
    }

    /// Are hosts found out as they are called?
    pub(super) fn is_dynamic(&self) -> bool {
        dynamic_host(self.service).is_some()
    }

    /// A cluster for everything a wildcard stands for; nothing for a protocol in which no host is named.
    pub(super) fn dynamic(&self, name: &Name) -> Option<Draft> {
        let names_host =
            matches!(self.port.protocol, Protocol::Http | Protocol::Tls | Protocol::Grpc | Protocol::Http2);
        let names = names_of(dynamic_host(self.service)?, self.traits.ip_mode, self.settings);
        names_host.then(|| dynamic_cluster(name, names))
    }
}

fn without_labels(setting: LbSetting<'_>) -> Option<LbSetting<'_>> {
    match setting {
        LbSetting::Locality { setting, force } if !setting.failover_priority.is_empty() => {
            let rest = LocalityLb { failover_priority: Vec::new(), ..setting.into_owned() };
            // Without the labels only an explicit failover is left.
            let left = !rest.failover.is_empty() || !rest.distribute.is_empty();
            left.then(|| LbSetting::Locality { setting: std::borrow::Cow::Owned(rest), force })
        }
        other => Some(other),
    }
}

/// A cluster that connects to the host a request names.
pub(super) fn dynamic_cluster(name: &Name, cache: DnsCacheConfig) -> Draft {
    let mut draft = Draft::new(name, api::cluster::DiscoveryType::Static);
    draft.is_dynamic = true;
    draft.cluster.common_lb_config = None;
    draft.cluster.alt_stat_name = stat_prefix(name);
    draft.cluster.lb_policy = api::cluster::LbPolicy::ClusterProvided as i32;
    let config = dynamic::ClusterConfig {
        cluster_implementation_specifier: Some(
            dynamic::cluster_config::ClusterImplementationSpecifier::DnsCacheConfig(cache),
        ),
        ..dynamic::ClusterConfig::default()
    };
    draft.set_dynamic(&config);
    draft
}

impl Draft {
    fn set_dynamic(&mut self, config: &dynamic::ClusterConfig) {
        use api::cluster::{ClusterDiscoveryType, CustomClusterType};
        self.cluster.cluster_discovery_type = Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
            name: DYNAMIC.to_owned(),
            typed_config: Some(to_any(config)),
        }));
    }

    /// Envoy insists on checking whom it found, unless it is told that this is on purpose.
    pub(super) fn allow_unchecked_hosts(&mut self) {
        use api::cluster::ClusterDiscoveryType;
        use prost::Message as _;
        let Some(ClusterDiscoveryType::ClusterType(custom)) = &self.cluster.cluster_discovery_type else {
            return;
        };
        let Some(any) = &custom.typed_config else { return };
        if let Ok(mut config) = dynamic::ClusterConfig::decode(any.value.as_slice()) {
            config.allow_insecure_cluster_options = true;
            self.set_dynamic(&config);
        }
    }
}

/// Which addresses of a name are looked up: those that the proxy can connect to.
pub(crate) fn lookup_family(mode: IpMode, settings: Settings<'_>) -> api::cluster::DnsLookupFamily {
    match mode {
        IpMode::V4 => api::cluster::DnsLookupFamily::V4Only,
        IpMode::V6 if settings.options.features.ipv4_outbound_for_ipv6 => api::cluster::DnsLookupFamily::All,
        IpMode::V6 => api::cluster::DnsLookupFamily::V6Only,
        IpMode::Dual if settings.options.features.dual_stack => api::cluster::DnsLookupFamily::All,
        IpMode::Dual => api::cluster::DnsLookupFamily::V4Only,
    }
}

#[allow(deprecated, reason = "Istio's proxies of all supported versions read these fields")]
fn set_refresh(cluster: &mut api::Cluster, settings: Settings<'_>) {
    cluster.dns_jitter = Some(duration(settings.options.features.dns_jitter));
    cluster.dns_refresh_rate = Some(duration(settings.mesh.dns_refresh_rate));
    cluster.respect_dns_ttl = true;
}
