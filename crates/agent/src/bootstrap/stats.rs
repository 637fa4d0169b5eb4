use pilot_base::parse_span;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{BootstrapError, BootstrapOptions};
use crate::duration;
use crate::node::Node;
use crate::proxy_config::ProxyConfig;

/// How Istio's dashboards expect names of statistics to be taken apart: tag and the part of the name that holds it.
const TAGS_FIRST: [(&str, &str); 9] = [
    ("cluster_name", r"^cluster(\.(.+);)"),
    ("http_conn_manager_prefix", r"^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)"),
    ("thread_name", r"^server(\.(.+))\.watchdog"),
    ("tcp_prefix", r"^tcp\.((.*?)\.)\w+?$"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    (
        "http_conn_manager_listener_prefix",
        r"^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)",
    ),
    ("listener_address", r"^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)"),
    ("mongo_prefix", r"^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$"),
];
const TAGS_LAST: [(&str, &str); 7] = [
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];

/// Readiness and dashboards need these whatever the user wants.
const PREFIXES: [&str; 5] = ["cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm"];
const SUFFIXES: [&str; 4] = ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
const CONNECTIONS: &str = "downstream_cx_active";
const REGEXPS: [&str; 1] = [r"vhost\..*\.route\..*"];

/// Envoy's own, which eviction is counted in if nobody says otherwise.
const DEFAULT_FLUSH: Duration = Duration::from_secs(5);

const EXTRA_TAGS: &str = "sidecar.istio.io/extraStatTags";
const FLUSH: &str = "sidecar.istio.io/statsFlushInterval";
const EVICTION: &str = "sidecar.istio.io/statsEvictionInterval";
const BUCKETS: &str = "sidecar.istio.io/statsHistogramBuckets";
const INCLUSION_PREFIXES: &str = "sidecar.istio.io/statsInclusionPrefixes";
const INCLUSION_SUFFIXES: &str = "sidecar.istio.io/statsInclusionSuffixes";
const INCLUSION_REGEXPS: &str = "sidecar.istio.io/statsInclusionRegexps";

/// The fields of the bootstrap that are about statistics.
pub(super) fn parts(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
) -> Result<Map<String, Value>, BootstrapError> {
    let mut stats = Map::new();
    stats.insert("use_all_default_tags".to_owned(), json!(false));
    stats.insert("stats_tags".to_owned(), tags(node, config));
    stats.insert(
        "stats_matcher".to_owned(),
        json!({ "inclusion_list": { "patterns": patterns(node, config, options) } }),
    );
    if let Some(text) = node.annotation(BUCKETS) {
        stats.insert("histogram_bucket_settings".to_owned(), buckets(text)?);
    }
    let mut parts = Map::from_iter([("stats_config".to_owned(), Value::Object(stats))]);
    let flush = interval(node, FLUSH)?;
    if let Some(flush) = flush {
        parts.insert("stats_flush_interval".to_owned(), json!(duration::to_json(flush)));
    }
    if let Some(eviction) = interval(node, EVICTION)? {
        let flush = flush.unwrap_or(DEFAULT_FLUSH).as_nanos();
        if flush > 0 && eviction.as_nanos() % flush == 0 {
            parts.insert("stats_eviction_interval".to_owned(), json!(duration::to_json(eviction)));
        } else {
            tracing::warn!(annotation = EVICTION, "is no multiple of {FLUSH} (5s if not told): no effect");
        }
    }
    Ok(parts)
}

/// Tags of the user's own, each once.
pub(super) fn extra_tags(node: &Node, config: &ProxyConfig) -> Vec<String> {
    let annotated = node.annotation(EXTRA_TAGS).unwrap_or_default().split(',').map(str::to_owned);
    let mut extra: Vec<String> = Vec::new();
    for tag in config.stats.extra_tags.iter().cloned().chain(annotated) {
        if !tag.is_empty() && !extra.contains(&tag) {
            extra.push(tag);
        }
    }
    extra
}

fn tags(node: &Node, config: &ProxyConfig) -> Value {
    let extra = extra_tags(node, config);
    let known = |(tag, regex): &(&str, &str)| json!({ "tag_name": tag, "regex": regex });
    let extra = extra.iter().map(|tag| json!({ "tag_name": tag, "regex": format!(r"({tag}=\.=(.*?);\.;)") }));
    TAGS_FIRST.iter().map(known).chain(extra).chain(TAGS_LAST.iter().map(known)).collect()
}

fn interval(node: &Node, name: &'static str) -> Result<Option<Duration>, BootstrapError> {
    let Some(text) = node.annotation(name) else { return Ok(None) };
    let wrong =
        |_| BootstrapError::Annotation { name, value: text.to_owned(), expected: "a duration such as 5s" };
    parse_span(text).map(Some).map_err(wrong)
}

/// Statistics that are kept, by what their names begin with, end with or match.
pub(super) struct Inclusions {
    pub(super) prefixes: Vec<String>,
    pub(super) suffixes: Vec<String>,
    pub(super) regexps: Vec<String>,
}

pub(super) fn inclusions(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> Inclusions {
    // An annotation takes the place of what the settings say.
    let wanted = |annotation: &str, settings: &[String]| -> Vec<String> {
        match node.annotation(annotation).filter(|text| !text.is_empty()) {
            Some(text) => text.split(',').map(str::to_owned).collect(),
            None => settings.to_vec(),
        }
    };
    let with_pod_ip = |patterns: Vec<String>| -> Vec<String> {
        patterns.into_iter().flat_map(|pattern| substitute(pattern, node)).collect()
    };
    let required = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let prefixes = [wanted(INCLUSION_PREFIXES, &config.stats.prefixes), required(&PREFIXES)].concat();
    let mut suffixes = [wanted(INCLUSION_SUFFIXES, &config.stats.suffixes), required(&SUFFIXES)].concat();
    if options.counts_connections {
        suffixes.push(CONNECTIONS.to_owned());
    }
    let regexps = [wanted(INCLUSION_REGEXPS, &config.stats.regexps), required(&REGEXPS)].concat();
    Inclusions {
        prefixes: with_pod_ip(prefixes),
        suffixes: with_pod_ip(suffixes),
        regexps: with_pod_ip(regexps),
    }
}

fn patterns(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> Vec<Value> {
    let Inclusions { prefixes, suffixes, regexps } = inclusions(node, config, options);
    let mut patterns = vec![json!({ "prefix": "reporter=" })];
    if super::discovers_metadata(node, options).is_some() {
        patterns.push(json!({ "prefix": "workload_discovery" }));
    }
    patterns.extend(prefixes.iter().map(|text| json!({ "prefix": text })));
    patterns.extend(suffixes.iter().map(|text| json!({ "suffix": text })));
    patterns.extend(regexps.iter().map(|text| json!({ "safe_regex": { "regex": text } })));
    patterns.extend(["component", "istio"].map(|text| json!({ "prefix": text })));
    patterns
}

/// A sidecar's inbound listeners have its address in their names.
fn substitute(pattern: String, node: &Node) -> Vec<String> {
    const POD_IP: &str = "{pod_ip}";
    if !pattern.contains(POD_IP) {
        return vec![pattern];
    }
    node.addresses.iter().map(|address| pattern.replace(POD_IP, &address.to_string())).collect()
}

fn buckets(text: &str) -> Result<Value, BootstrapError> {
    let by_prefix: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(text).map_err(|_| BootstrapError::Annotation {
            name: BUCKETS,
            value: text.to_owned(),
            expected: "a JSON object of lists of numbers",
        })?;
    let setting =
        |(prefix, buckets): (String, Vec<f64>)| json!({ "match": { "prefix": prefix }, "buckets": buckets });
    Ok(by_prefix.into_iter().map(setting).collect())
}
