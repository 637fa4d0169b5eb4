//! Tracing of requests: how many, and what is said about the workload.

use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
use pilot_envoy_api::envoy::r#type::metadata::v3 as metadata;
use pilot_envoy_api::envoy::r#type::tracing::v3 as api;
use pilot_envoy_api::envoy::r#type::v3::Percent;

use pilot_model::TraceTag;

use crate::settings::{Settings, TracingTraits};

/// What dry runs of authorization policies would have done: tag, and key in the filter's metadata.
const DRY_RUN_TAGS: [(&str, &str); 4] = [
    ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
    ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
];

pub(crate) fn tracing(traits: &TracingTraits, settings: Settings<'_>) -> Option<Tracing> {
    if !settings.mesh.tracing {
        return None;
    }
    let percent = |value: f64| Some(Percent { value });
    Some(Tracing {
        client_sampling: percent(100.0),
        overall_sampling: percent(100.0),
        random_sampling: percent(traits.sampling.0),
        custom_tags: tags(traits),
        max_path_tag_length: (traits.max_path_tag_length > 0).then_some(traits.max_path_tag_length),
        ..Tracing::default()
    })
}

fn tags(traits: &TracingTraits) -> Vec<api::CustomTag> {
    let mut tags = Vec::new();
    if traits.istio_tags {
        tags.extend(DRY_RUN_TAGS.iter().map(|(tag, key)| dry_run(tag, key)));
        let or =
            |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
        tags.push(literal("istio.canonical_revision", or(&traits.canonical_revision, "latest")));
        tags.push(literal("istio.canonical_service", or(&traits.canonical_service, "unknown")));
        tags.push(literal("istio.cluster_id", or(&traits.cluster, "unknown")));
        tags.push(literal("istio.mesh_id", or(&traits.mesh_id, "unknown")));
        tags.push(literal("istio.namespace", or(&traits.namespace, "default")));
    }
    tags.extend(traits.custom_tags.iter().map(|(tag, value)| custom(tag, value)));
    tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    tags
}

fn custom(tag: &str, value: &TraceTag) -> api::CustomTag {
    use api::custom_tag::{Environment, Header, Literal, Type};
    let value = match value {
        TraceTag::Literal(value) => Type::Literal(Literal { value: value.to_string() }),
        TraceTag::Environment { name, default } => {
            Type::Environment(Environment { name: name.to_string(), default_value: default.to_string() })
        }
        TraceTag::Header { name, default } => {
            Type::RequestHeader(Header { name: name.to_string(), default_value: default.to_string() })
        }
        TraceTag::Formatter(value) => Type::Value(value.to_string()),
    };
    api::CustomTag { tag: tag.to_owned(), r#type: Some(value) }
}

fn literal(tag: &str, value: String) -> api::CustomTag {
    use api::custom_tag::{Literal, Type};
    api::CustomTag { tag: tag.to_owned(), r#type: Some(Type::Literal(Literal { value })) }
}

fn dry_run(tag: &str, key: &str) -> api::CustomTag {
    use api::custom_tag::{Metadata, Type};
    use metadata::metadata_key::{PathSegment, path_segment::Segment};
    use metadata::metadata_kind::{Kind, Request};
    let path = vec![PathSegment { segment: Some(Segment::Key(key.to_owned())) }];
    let value = Metadata {
        kind: Some(metadata::MetadataKind { kind: Some(Kind::Request(Request {})) }),
        metadata_key: Some(metadata::MetadataKey { key: "envoy.filters.http.rbac".to_owned(), path }),
        ..Metadata::default()
    };
    api::CustomTag { tag: tag.to_owned(), r#type: Some(Type::Metadata(value)) }
}
