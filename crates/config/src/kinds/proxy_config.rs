use pilot_model::WorkloadProxyConfig;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> WorkloadProxyConfig {
    check.not_yet("spec");
    WorkloadProxyConfig {}
}
