use pilot_model::WorkloadGroup;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> WorkloadGroup {
    check.not_yet("spec");
    WorkloadGroup {}
}
