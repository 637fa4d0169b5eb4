//! How an extension provider is reached.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_mesh::ClusterName;
use pilot_model::{ProviderService, Span};

use crate::convert::duration;

pub(crate) fn cluster_of(service: &ProviderService) -> Name {
    ClusterName::outbound(service.port, "", &service.host)
}

pub(crate) fn grpc_service(service: &ProviderService) -> core::GrpcService {
    use core::grpc_service::{EnvoyGrpc, TargetSpecifier};
    let grpc = EnvoyGrpc {
        cluster_name: cluster_of(service).to_string(),
        authority: service.host.to_string(),
        ..EnvoyGrpc::default()
    };
    core::GrpcService {
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(grpc)),
        ..core::GrpcService::default()
    }
}

pub(crate) fn http_service(
    uri: String,
    service: &ProviderService,
    timeout: Option<Span>,
    headers: &[(Name, Name)],
) -> core::HttpService {
    core::HttpService {
        http_uri: Some(core::HttpUri {
            uri,
            http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster(
                cluster_of(service).to_string(),
            )),
            timeout: timeout.map(duration),
        }),
        request_headers_to_add: headers.iter().map(overwrite).collect(),
        ..core::HttpService::default()
    }
}

fn overwrite(header: &(Name, Name)) -> core::HeaderValueOption {
    core::HeaderValueOption {
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        header: Some(header_value(header)),
        ..core::HeaderValueOption::default()
    }
}

pub(crate) fn header_value((name, value): &(Name, Name)) -> core::HeaderValue {
    core::HeaderValue { key: name.to_string(), value: value.to_string(), ..core::HeaderValue::default() }
}
