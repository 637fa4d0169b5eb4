//! Tracing of requests: how many, what is said about the workload, and who is told.

mod provider;

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
use pilot_envoy_api::envoy::r#type::metadata::v3 as metadata;
use pilot_envoy_api::envoy::r#type::tracing::v3 as api;
use pilot_envoy_api::envoy::r#type::v3::Percent;
use pilot_mesh::{TraceTo, TracingPlan};
use pilot_model::{TraceTag, Version};

use crate::settings::{Settings, TracingTraits};

/// What dry runs of authorization policies would have done: tag, and key in the filter's metadata.
const DRY_RUN_TAGS: [(&str, &str); 4] = [
    ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
    ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
    ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
];

pub(crate) fn tracing(traits: &TracingTraits, settings: Settings<'_>) -> Option<Tracing> {
    let default_sampling = settings.options.features.trace_sampling;
    let sampling = traits.proxy.sampling.map_or(default_sampling, |sampling| sampling.0);
    let istio_tags = traits.proxy.istio_tags.unwrap_or(true);
    match &traits.plan {
        TracingPlan::Off => None,
        TracingPlan::OfMesh if !settings.mesh.tracing => None,
        TracingPlan::OfMesh => Some(Tracing {
            random_sampling: percent(sampling),
            custom_tags: tags(istio_tags.then(|| self::istio_tags(traits)), &traits.proxy.custom_tags),
            max_path_tag_length: length(traits.proxy.max_path_tag_length),
            ..everything()
        }),
        TracingPlan::To(to) => Some(provided(to, traits, sampling)),
    }
}

/// Does the id by which a request is known decide whether it is traced?
pub(crate) fn uses_request_id(traits: &TracingTraits) -> bool {
    match &traits.plan {
        TracingPlan::To(to) => to.use_request_id,
        TracingPlan::OfMesh | TracingPlan::Off => true,
    }
}

fn provided(to: &TraceTo, traits: &TracingTraits, sampling: f64) -> Tracing {
    let target = provider::target(&to.provider, traits);
    let of_provider = to.sampling.map_or(sampling, |sampling| sampling.0);
    // A tag of a newer kind would be refused by an older proxy.
    let formats = traits.version >= Version { major: 1, minor: 29, patch: 0 };
    let mut own = to.custom_tags.clone();
    own.retain(|_, tag| formats || !matches!(tag, TraceTag::Formatter(_)));
    let custom = if to.custom_tags.is_empty() { &traits.proxy.custom_tags } else { &own };
    Tracing {
        // A sampler of the provider's decides by itself, so it must be asked every time.
        random_sampling: percent(if target.samples { 100.0 } else { of_provider }),
        custom_tags: tags(to.istio_tags.then(|| istio_tags(traits)), custom),
        max_path_tag_length: length(target.max_tag_length)
            .or_else(|| length(traits.proxy.max_path_tag_length)),
        no_context_propagation: to.no_context_propagation
            && traits.version >= Version { major: 1, minor: 30, patch: 0 },
        spawn_upstream_span: target.spawns_span.then_some(true),
        provider: Some(target.provider),
        ..everything()
    }
}

fn everything() -> Tracing {
    Tracing { client_sampling: percent(100.0), overall_sampling: percent(100.0), ..Tracing::default() }
}

fn percent(value: f64) -> Option<Percent> {
    Some(Percent { value })
}

fn length(length: u32) -> Option<u32> {
    (length > 0).then_some(length)
}

/// Tags are sorted by name, and so are those of the same name by whose they are.
fn tags(istio: Option<Vec<api::CustomTag>>, own: &BTreeMap<Name, TraceTag>) -> Vec<api::CustomTag> {
    let mut tags = istio.unwrap_or_default();
    tags.extend(own.iter().map(|(tag, value)| custom(tag, value)));
    tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    tags
}

fn istio_tags(traits: &TracingTraits) -> Vec<api::CustomTag> {
    let or =
        |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
    let mut tags = vec![
        literal("istio.canonical_revision", or(&traits.canonical_revision, "latest")),
        literal("istio.canonical_service", or(&traits.canonical_service, "unknown")),
        literal("istio.cluster_id", or(&traits.cluster, "unknown")),
        literal("istio.mesh_id", or(&traits.mesh_id, "unknown")),
        literal("istio.namespace", or(&traits.namespace, "default")),
    ];
    tags.extend(DRY_RUN_TAGS.iter().map(|(tag, key)| dry_run(tag, key)));
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
