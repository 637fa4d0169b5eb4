use pilot_model::EnvoyFilter;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> EnvoyFilter {
    check.not_yet("spec");
    EnvoyFilter {}
}
