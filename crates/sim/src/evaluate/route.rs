use pilot_envoy_api::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;

use super::{HttpCall, Snapshot, matching};

/// The route table of a listener; nothing while the proxy waits for it.
pub(super) fn table<'a>(
    snapshot: &'a Snapshot,
    manager: &'a HttpConnectionManager,
) -> Result<Option<&'a RouteConfiguration>, String> {
    match &manager.route_specifier {
        Some(RouteSpecifier::Rds(rds)) => Ok(snapshot.routes.get(&rds.route_config_name)),
        Some(RouteSpecifier::RouteConfig(table)) => Ok(Some(table)),
        other => Err(format!("listener {} has no routes: {other:?}", manager.stat_prefix)),
    }
}

pub(super) fn find<'a>(
    table: &'a RouteConfiguration,
    call: &HttpCall,
) -> Result<Option<(&'a VirtualHost, &'a Route)>, String> {
    let Some(host) = virtual_host(table, &call.authority) else { return Ok(None) };
    for route in &host.routes {
        let matcher =
            route.r#match.as_ref().ok_or_else(|| format!("route {} matches nothing", route.name))?;
        if matching::route(matcher, call)? {
            return Ok(Some((host, route)));
        }
    }
    Ok(None)
}

/// Exact names count more than suffixes, those more than prefixes, those more than everything; longer ones more than
/// shorter ones.
pub(super) fn virtual_host<'a>(table: &'a RouteConfiguration, authority: &str) -> Option<&'a VirtualHost> {
    let mut name = authority.to_lowercase();
    if table.ignore_port_in_host_matching
        && let Some((host, port)) = name.rsplit_once(':')
        && port.chars().all(|c| c.is_ascii_digit())
    {
        name = host.to_owned();
    }
    let rank = |domain: &str| {
        let domain = domain.to_lowercase();
        if domain == "*" {
            return Some((0, 0));
        }
        if let Some(suffix) = domain.strip_prefix('*') {
            return (name.len() > suffix.len() && name.ends_with(suffix)).then_some((2, suffix.len()));
        }
        if let Some(prefix) = domain.strip_suffix('*') {
            return (name.len() > prefix.len() && name.starts_with(prefix)).then_some((1, prefix.len()));
        }
        (domain == name).then_some((3, 0))
    };
    let best = |host: &'a VirtualHost| Some((host.domains.iter().filter_map(|d| rank(d)).max()?, host));
    table.virtual_hosts.iter().filter_map(best).max_by_key(|(rank, _)| *rank).map(|(_, host)| host)
}
