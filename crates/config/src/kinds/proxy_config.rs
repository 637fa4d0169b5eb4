use pilot_api::proxy_config as api;
use pilot_model::WorkloadProxyConfig;

use crate::check::Check;

pub(crate) fn decode(message: api::ProxyConfig, check: &mut Check<'_>) -> WorkloadProxyConfig {
    if message.concurrency.is_some_and(|concurrency| concurrency < 0) {
        check.reject("spec.concurrency", "must not be negative");
    }
    WorkloadProxyConfig {
        selector: message.selector.map(|selector| check.selector(selector.match_labels)),
        concurrency: message.concurrency.and_then(|concurrency| u32::try_from(concurrency).ok()),
        environment: message.environment_variables.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        image_type: message.image.map(|image| image.image_type.into()),
    }
}
