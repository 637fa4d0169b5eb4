use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_envoy_api::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use pilot_envoy_api::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use pilot_envoy_api::to_any;
use pilot_model::Retries;

use crate::convert::duration;

/// What is worth another try: nothing that the server may have begun to work on.
const RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
const BY_STATUS: &str = "retriable-status-codes";
const DEFAULT_RETRIES: u32 = 2;
/// How often another endpoint is looked for that was not tried yet.
const HOST_ATTEMPTS: i64 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spread {
    /// Another endpoint than before, if there is one.
    Anywhere,
    /// The endpoint that the request belongs to.
    SameHost,
}

/// How often and when a request is tried again. No rule means Istio's default; a rule may also say never.
pub(super) fn policy(retries: Option<&Retries>, spread: Spread) -> Option<api::RetryPolicy> {
    let elsewhere = spread == Spread::Anywhere;
    let mut out = api::RetryPolicy {
        retry_on: RETRY_ON.to_owned(),
        num_retries: Some(DEFAULT_RETRIES),
        host_selection_retry_max_attempts: HOST_ATTEMPTS,
        ..api::RetryPolicy::default()
    };
    let Some(retries) = retries else {
        if elsewhere {
            out.retry_host_predicate.push(previous_hosts());
        }
        return Some(out);
    };
    out.num_retries = Some(u32::try_from(retries.attempts).ok().filter(|attempts| *attempts > 0)?);
    if !retries.retry_on.is_empty() {
        (out.retry_on, out.retriable_status_codes) = split(&retries.retry_on);
    }
    out.per_try_timeout = retries.per_try_timeout.map(duration);
    if retries.ignore_previous_hosts.unwrap_or(elsewhere) {
        out.retry_host_predicate.push(previous_hosts());
    }
    if retries.remote_localities == Some(true) {
        out.retry_priority = Some(previous_priorities());
    }
    out.retry_back_off = retries.backoff.map(|base| api::retry_policy::RetryBackOff {
        base_interval: Some(duration(base)),
        ..api::retry_policy::RetryBackOff::default()
    });
    Some(out)
}

/// Conditions, and numbers among them that are status codes.
fn split(retry_on: &str) -> (String, Vec<u32>) {
    let (mut conditions, mut codes) = (Vec::new(), Vec::new());
    for part in retry_on.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse().ok().filter(|code| is_http_status(*code)) {
            Some(code) => codes.push(code),
            None => conditions.push(part),
        }
    }
    if !codes.is_empty() && !conditions.iter().any(|condition| condition.contains(BY_STATUS)) {
        conditions.push(BY_STATUS);
    }
    (conditions.join(","), codes)
}

/// Codes that have a meaning in HTTP's registry.
fn is_http_status(code: u32) -> bool {
    matches!(code, 100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451
        | 500..=508 | 510 | 511)
}

fn previous_hosts() -> api::retry_policy::RetryHostPredicate {
    use api::retry_policy::{RetryHostPredicate, retry_host_predicate::ConfigType};
    RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(&PreviousHostsPredicate {}))),
    }
}

fn previous_priorities() -> api::retry_policy::RetryPriority {
    use api::retry_policy::{RetryPriority, retry_priority::ConfigType};
    let config = PreviousPrioritiesConfig { update_frequency: 2 };
    RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(&config))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Spread, policy, split};
    use pilot_model::Retries;

    #[test]
    fn codes_are_told_from_conditions() {
        assert_eq!(
            split("5xx, 503,gateway-error"),
            ("5xx,gateway-error,retriable-status-codes".into(), vec![503])
        );
        assert_eq!(split("retriable-status-codes,429"), ("retriable-status-codes".into(), vec![429]));
        assert_eq!(split("reset,999"), ("reset,999".into(), vec![]));
    }

    #[test]
    fn zero_attempts_mean_never() {
        let retries = |attempts| Retries { attempts, ..Retries::default() };
        assert!(policy(Some(&retries(0)), Spread::Anywhere).is_none());
        assert_eq!(policy(Some(&retries(7)), Spread::Anywhere).unwrap().num_retries, Some(7));
        assert_eq!(policy(None, Spread::SameHost).unwrap().retry_host_predicate, []);
    }
}
