//! Who is let through: the filters that policies put before routes and proxies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use pilot_envoy_api::envoy::config::listener::v3::{FilterChain, filter};
use pilot_envoy_api::envoy::extensions::filters::http::ext_authz::v3::ExtAuthz;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3::JwtAuthentication;
use pilot_envoy_api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_filter,
};
use pilot_envoy_api::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use pilot_envoy_api::from_any;
use serde_json::Value;

use super::rbac::{Peer, allows};
use super::{Answer, Call, HttpCall, jwt};

/// All calls are made from here.
const CALLER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) enum Verdict {
    /// The request goes on, as the filters left it.
    Pass(HttpCall),
    Answer(Answer),
}

/// Is a connection let through to what its chain ends in?
pub(super) fn connection(chain: &FilterChain, call: &Call) -> Result<bool, String> {
    // Envoy decides when the first byte comes, so that nobody keeps a server from speaking first.
    if call.tls.is_none() && call.http.is_none() {
        return Ok(true);
    }
    let claims = BTreeMap::new();
    for filter in &chain.filters {
        let Some(filter::ConfigType::TypedConfig(any)) = &filter.config_type else { continue };
        if filter.name == "envoy.filters.network.ext_authz" {
            return Err("nobody can be asked about connections here".to_owned());
        }
        let Some(rbac) = from_any::<NetworkRbac>(any) else { continue };
        let peer = Peer { call, http: None, direct: CALLER, remote: CALLER, claims: &claims };
        if let Some(rules) = &rbac.rules
            && !allows(rules, &peer)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the filters before the router do with a request.
pub(super) fn request(
    manager: &HttpConnectionManager,
    call: &Call,
    http: &HttpCall,
) -> Result<Verdict, String> {
    let remote = remote(manager, http);
    let mut http = http.clone();
    let mut claims: BTreeMap<String, Value> = BTreeMap::new();
    for filter in &manager.http_filters {
        let Some(http_filter::ConfigType::TypedConfig(any)) = &filter.config_type else { continue };
        if let Some(config) = from_any::<JwtAuthentication>(any) {
            match jwt::check(&config, &http)? {
                jwt::Outcome::Passed { http: changed, payload } => {
                    http = changed;
                    claims.extend(payload.map(|payload| ("payload".to_owned(), payload)));
                }
                jwt::Outcome::Refused(status) => return Ok(Verdict::Answer(Answer::status(status))),
            }
        } else if let Some(rbac) = from_any::<HttpRbac>(any) {
            let peer = Peer { call, http: Some(&http), direct: CALLER, remote, claims: &claims };
            if let Some(rules) = &rbac.rules
                && !allows(rules, &peer)?
            {
                return Ok(Verdict::Answer(Answer::status(403)));
            }
        } else if from_any::<ExtAuthz>(any).is_some() {
            return Err("nobody can be asked about requests here".to_owned());
        }
    }
    Ok(Verdict::Pass(http))
}

/// Whom a proxy takes for the client, by what other proxies say.
fn remote(manager: &HttpConnectionManager, http: &HttpCall) -> IpAddr {
    let said = http.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-for"));
    let said: Vec<IpAddr> =
        said.flat_map(|(_, value)| value.split(',')).filter_map(|ip| ip.trim().parse().ok()).collect();
    let hops = usize::try_from(manager.xff_num_trusted_hops).unwrap_or(0);
    // Whoever is called by clients directly believes only as many hops as it is told to.
    let from_end = if manager.use_remote_address.unwrap_or(false) { hops } else { hops + 1 };
    match from_end {
        0 => CALLER,
        n => said.len().checked_sub(n).map_or(CALLER, |at| said[at]),
    }
}
