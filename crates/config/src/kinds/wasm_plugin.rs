use pilot_model::WasmPlugin;
use serde::de::IgnoredAny;

use crate::check::Check;

pub(crate) fn decode(_message: IgnoredAny, check: &mut Check<'_>) -> WasmPlugin {
    check.not_yet("spec");
    WasmPlugin {}
}
