//! Endpoints that are asked from time to time whether they are well.

use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::core::v3::health_check as api;
use pilot_envoy_api::envoy::r#type::v3::CodecClientType;
use pilot_model::{HealthCheck, HealthProbe, Service, ServicePort};

use super::Draft;
use crate::convert::duration;

/// For clusters that have endpoints of their own: where traffic goes where it was going there is nobody to ask.
pub(super) fn apply(draft: &mut Draft, check: Option<&HealthCheck>, service: &Service, port: &ServicePort) {
    let Some(check) = check.filter(|check| check.ports.is_empty() || check.ports.contains(&port.number))
    else {
        return;
    };
    if draft.is_dynamic || draft.is_original_dst() {
        return;
    }
    let codec = if draft.is_http2() { CodecClientType::Http2 } else { CodecClientType::Http1 };
    let Some(checker) = checker(&check.probe, service, codec) else { return };
    draft.cluster.health_checks = vec![core::HealthCheck {
        timeout: Some(duration(check.timeout)),
        interval: Some(duration(check.interval)),
        unhealthy_threshold: Some(check.unhealthy_threshold),
        healthy_threshold: Some(check.healthy_threshold),
        health_checker: Some(checker),
        ..core::HealthCheck::default()
    }];
    // Who is taken away is gone, also if it is still well.
    draft.cluster.ignore_health_on_host_removal = true;
}

/// Nothing where Envoy would refuse the cluster: gRPC is asked over HTTP/2 only, and a pattern is nobody's name.
fn checker(probe: &HealthProbe, service: &Service, codec: CodecClientType) -> Option<api::HealthChecker> {
    let own = || (!service.host.is_wildcard()).then(|| service.host.to_string());
    Some(match probe {
        HealthProbe::Http { path, host } => api::HealthChecker::HttpHealthCheck(api::HttpHealthCheck {
            path: path.to_string(),
            host: if host.is_empty() { own()? } else { host.to_string() },
            codec_client_type: codec as i32,
            ..api::HttpHealthCheck::default()
        }),
        HealthProbe::Grpc { .. } if codec != CodecClientType::Http2 => return None,
        HealthProbe::Grpc { service: name } => api::HealthChecker::GrpcHealthCheck(api::GrpcHealthCheck {
            service_name: name.to_string(),
            authority: own()?,
            ..api::GrpcHealthCheck::default()
        }),
        HealthProbe::Tcp => api::HealthChecker::TcpHealthCheck(api::TcpHealthCheck::default()),
    })
}
