use pilot_model::PeerAuthentication;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> PeerAuthentication {
    check.not_yet("spec");
    PeerAuthentication {}
}
