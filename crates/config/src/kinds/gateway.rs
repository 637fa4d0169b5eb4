use pilot_model::Gateway;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> Gateway {
    check.not_yet("spec");
    Gateway {}
}
