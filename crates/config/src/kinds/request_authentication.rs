use pilot_model::RequestAuthentication;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> RequestAuthentication {
    check.not_yet("spec");
    RequestAuthentication {}
}
