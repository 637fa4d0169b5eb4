use pilot_model::AuthorizationPolicy;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> AuthorizationPolicy {
    check.not_yet("spec");
    AuthorizationPolicy {}
}
