//! Those who are asked whether a request may pass.

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::filters::http::ext_authz::v3 as http_api;
use pilot_envoy_api::envoy::extensions::filters::network::ext_authz::v3 as network_api;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::envoy::r#type::matcher::v3 as matcher;
use pilot_envoy_api::envoy::r#type::v3::HttpStatus;
use pilot_envoy_api::to_any;
use pilot_mesh::ClusterName;
use pilot_model::{
    ExtAuthzBody, ExtAuthzGrpc, ExtAuthzHttp, MeshConfig, ProviderKind, ProviderService, Span,
};

use crate::authorization::{ASKED, ASKED_NAME, HTTP_RBAC, NETWORK_RBAC};
use crate::convert::duration;
use crate::http_filter::http_filter;
use crate::network_filter::filter;

/// An answer may take long, since a person may be asked.
const TIMEOUT: Span = Span::from_secs(600);

/// Providers of the mesh configuration, and which hosts there are.
pub(crate) struct Providers<'a> {
    pub(crate) mesh: &'a MeshConfig,
    /// Is there exactly one service with a host, or one in the namespace that is named?
    pub(crate) is_known: &'a dyn Fn(Option<&Name>, &Host) -> bool,
}

/// Filters that ask.
pub(crate) struct Asked {
    pub(crate) http: HttpFilter,
    /// Only those who are asked over gRPC can be asked about connections.
    pub(crate) network: Option<listener::Filter>,
}

impl Providers<'_> {
    /// Nothing, if there is no such provider or if its service is not known.
    pub(crate) fn find(&self, name: &Name) -> Option<Asked> {
        let provider = self.mesh.extension_providers.iter().find(|provider| provider.name == *name)?;
        if !is_label(name) {
            return None;
        }
        match &provider.kind {
            ProviderKind::ExtAuthzHttp(http) if self.knows(&http.service) && is_usable(http) => {
                Some(Asked { http: over_http(name, http), network: None })
            }
            ProviderKind::ExtAuthzGrpc(grpc) if self.knows(&grpc.service) => Some(over_grpc(name, grpc)),
            _ => None,
        }
    }

    fn knows(&self, service: &ProviderService) -> bool {
        (self.is_known)(service.namespace.as_ref(), &service.host)
    }
}

/// The name becomes part of metadata, metrics and names of rules.
fn is_label(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 63 && name.chars().all(plain) && !name.starts_with('-') && !name.ends_with('-')
}

/// A lone wildcard in a list of headers is not supported.
fn is_usable(http: &ExtAuthzHttp) -> bool {
    let lists = [
        &http.include_request_headers_in_check,
        &http.include_headers_in_check,
        &http.headers_to_downstream_on_deny,
        &http.headers_to_downstream_on_allow,
        &http.headers_to_upstream_on_allow,
    ];
    !lists.into_iter().flatten().any(|header| header == "*")
}

fn cluster(service: &ProviderService) -> String {
    ClusterName::outbound(service.port, "", &service.host).to_string()
}

fn over_http(name: &Name, provider: &ExtAuthzHttp) -> HttpFilter {
    use core::http_uri::HttpUpstreamType;
    let uri = core::HttpUri {
        uri: format!("http://{}", provider.service.host),
        timeout: Some(duration(provider.timeout.unwrap_or(TIMEOUT))),
        http_upstream_type: Some(HttpUpstreamType::Cluster(cluster(&provider.service))),
    };
    let to_add = provider.include_additional_headers_in_check.iter();
    let to_add: Vec<core::HeaderValue> = to_add
        .map(|(key, value)| core::HeaderValue {
            key: key.to_string(),
            value: value.to_string(),
            ..core::HeaderValue::default()
        })
        .collect();
    let answered = [
        &provider.headers_to_upstream_on_allow,
        &provider.headers_to_downstream_on_deny,
        &provider.headers_to_downstream_on_allow,
    ];
    let service = http_api::HttpService {
        server_uri: Some(uri),
        path_prefix: provider.path_prefix.to_string(),
        authorization_request: (!to_add.is_empty()).then(|| http_api::AuthorizationRequest {
            headers_to_add: to_add,
            ..http_api::AuthorizationRequest::default()
        }),
        authorization_response: answered.iter().any(|list| !list.is_empty()).then(|| {
            http_api::AuthorizationResponse {
                allowed_upstream_headers: headers(answered[0]),
                allowed_client_headers: headers(answered[1]),
                allowed_client_headers_on_success: headers(answered[2]),
                ..http_api::AuthorizationResponse::default()
            }
        }),
        ..http_api::HttpService::default()
    };
    let shown = headers(&provider.include_request_headers_in_check);
    let config = http_api::ExtAuthz {
        services: Some(http_api::ext_authz::Services::HttpService(service)),
        allowed_headers: shown.or_else(|| headers(&provider.include_headers_in_check)),
        failure_mode_allow: provider.fail_open,
        ..common(name, provider.status_on_error, provider.include_request_body_in_check)
    };
    http_filter("envoy.filters.http.ext_authz", to_any(&config))
}

fn over_grpc(name: &Name, provider: &ExtAuthzGrpc) -> Asked {
    use core::grpc_service::{EnvoyGrpc, TargetSpecifier};
    let grpc = core::GrpcService {
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(EnvoyGrpc {
            cluster_name: cluster(&provider.service),
            authority: provider.service.host.to_string(),
            ..EnvoyGrpc::default()
        })),
        timeout: Some(duration(provider.timeout.unwrap_or(TIMEOUT))),
        ..core::GrpcService::default()
    };
    let http = http_api::ExtAuthz {
        services: Some(http_api::ext_authz::Services::GrpcService(grpc.clone())),
        failure_mode_allow: provider.fail_open,
        ..common(name, provider.status_on_error, provider.include_request_body_in_check)
    };
    let network = network_api::ExtAuthz {
        stat_prefix: "tcp.".to_owned(),
        grpc_service: Some(grpc),
        failure_mode_allow: provider.fail_open,
        transport_api_version: core::ApiVersion::V3 as i32,
        filter_enabled_metadata: Some(where_a_rule_matched(NETWORK_RBAC, name)),
        ..network_api::ExtAuthz::default()
    };
    Asked {
        http: http_filter("envoy.filters.http.ext_authz", to_any(&http)),
        network: Some(filter("envoy.filters.network.ext_authz", to_any(&network))),
    }
}

fn common(name: &Name, status_on_error: Option<u32>, body: Option<ExtAuthzBody>) -> http_api::ExtAuthz {
    http_api::ExtAuthz {
        status_on_error: status_on_error
            .map(|code| HttpStatus { code: i32::try_from(code).unwrap_or_default() }),
        transport_api_version: core::ApiVersion::V3 as i32,
        filter_enabled_metadata: Some(where_a_rule_matched(HTTP_RBAC, name)),
        with_request_body: body.map(|body| http_api::BufferSettings {
            max_request_bytes: body.max_request_bytes,
            allow_partial_message: body.allow_partial_message,
            pack_as_bytes: body.pack_as_bytes,
        }),
        ..http_api::ExtAuthz::default()
    }
}

/// The filter before left the name of the rule that matched, which begins with the provider's.
fn where_a_rule_matched(filter: &str, provider: &Name) -> matcher::MetadataMatcher {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::string_matcher::MatchPattern;
    let key = Segment::Key(format!("{ASKED}shadow_effective_policy_id"));
    let prefix = MatchPattern::Prefix(format!("{ASKED_NAME}-{provider}"));
    let text = matcher::StringMatcher { match_pattern: Some(prefix), ignore_case: false };
    matcher::MetadataMatcher {
        filter: filter.to_owned(),
        path: vec![PathSegment { segment: Some(key) }],
        value: Some(matcher::ValueMatcher {
            match_pattern: Some(matcher::value_matcher::MatchPattern::StringMatch(text)),
        }),
        ..matcher::MetadataMatcher::default()
    }
}

fn headers(names: &[Name]) -> Option<matcher::ListStringMatcher> {
    use matcher::string_matcher::MatchPattern;
    let one = |name: &Name| {
        let pattern = if let Some(suffix) = name.strip_prefix('*') {
            MatchPattern::Suffix(suffix.to_owned())
        } else if let Some(prefix) = name.strip_suffix('*') {
            MatchPattern::Prefix(prefix.to_owned())
        } else {
            MatchPattern::Exact(name.to_string())
        };
        matcher::StringMatcher { match_pattern: Some(pattern), ignore_case: true }
    };
    (!names.is_empty()).then(|| matcher::ListStringMatcher { patterns: names.iter().map(one).collect() })
}
