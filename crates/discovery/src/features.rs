//! Istio's environment variables that shape what proxies are sent.

use std::collections::BTreeMap;

use pilot_base::{parse_bool, parse_span};
use pilot_model::Features;

/// The environment, read once.
pub(crate) struct Environment(BTreeMap<String, String>);

impl Environment {
    #[allow(clippy::disallowed_methods, reason = "here the environment is read once and becomes options")]
    pub(crate) fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    fn read<T>(&self, name: &str, default: T, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        match self.0.get(name).filter(|text| !text.is_empty()).map(|text| parse(text)) {
            None => default,
            Some(Ok(value)) => value,
            Some(Err(error)) => {
                tracing::warn!("environment variable {name}: {error}; the default counts");
                default
            }
        }
    }

    pub(crate) fn features(&self) -> Features {
        let default = Features::default();
        let switch = |name: &str, default| self.read(name, default, parse_bool);
        let span = |name: &str, default| self.read(name, default, parse_span);
        Features {
            alpn_filter: switch("PILOT_ENABLE_ALPN_FILTER", default.alpn_filter),
            metadata_exchange: switch("PILOT_ENABLE_METADATA_EXCHANGE", default.metadata_exchange),
            disable_metadata_exchange_alpn: switch(
                "PILOT_DISABLE_MX_ALPN",
                default.disable_metadata_exchange_alpn,
            ),
            http10: switch("PILOT_HTTP10", default.http10),
            telemetry_label: switch("PILOT_ENABLE_TELEMETRY_LABEL", default.telemetry_label),
            endpoint_telemetry_label: switch(
                "PILOT_ENDPOINT_TELEMETRY_LABEL",
                default.endpoint_telemetry_label,
            ),
            trace_sampling: self.read("PILOT_TRACE_SAMPLING", default.trace_sampling, |text| {
                text.parse().map_err(|_| format!("{text:?} is not a number"))
            }),
            use_remote_address: switch("PILOT_SIDECAR_USE_REMOTE_ADDRESS", default.use_remote_address),
            skip_validate_trust_domain: switch(
                "PILOT_SKIP_VALIDATE_TRUST_DOMAIN",
                default.skip_validate_trust_domain,
            ),
            send_unhealthy_endpoints: switch(
                "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS",
                default.send_unhealthy_endpoints,
            ),
            dual_stack: switch("ISTIO_DUAL_STACK", default.dual_stack),
            continue_headers: switch("ENABLE_100_CONTINUE_HEADERS", default.continue_headers),
            absolute_fqdn: switch("PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN", default.absolute_fqdn),
            max_connections_per_event: self.read(
                "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP",
                default.max_connections_per_event,
                |text| text.parse().map_err(|_| format!("{text:?} is not a number")),
            ),
            transport_connect_timeout: span(
                "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT",
                default.transport_connect_timeout,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Environment;
    use pilot_model::Features;

    #[test]
    fn switches_are_read_and_bad_ones_change_nothing() {
        let set = |pairs: &[(&str, &str)]| {
            Environment(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).features()
        };
        assert_eq!(set(&[]), Features::default());
        assert!(!set(&[("PILOT_ENABLE_ALPN_FILTER", "false")]).alpn_filter);
        assert_eq!(set(&[("PILOT_TRACE_SAMPLING", "12.5")]).trace_sampling, 12.5);
        assert_eq!(set(&[("PILOT_ENABLE_ALPN_FILTER", "maybe"), ("PILOT_HTTP10", "")]), Features::default());
    }
}
