use pilot_model::Telemetry;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> Telemetry {
    check.not_yet("spec");
    Telemetry {}
}
