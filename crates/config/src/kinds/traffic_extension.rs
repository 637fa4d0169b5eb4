use pilot_model::TrafficExtension;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> TrafficExtension {
    check.not_yet("spec");
    TrafficExtension {}
}
