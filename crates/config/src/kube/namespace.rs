use pilot_model::Namespace;

use crate::check::Check;
use crate::object::Meta;

const ON_DEMAND: &str = "pilot.dev/on-demand";

pub(crate) fn decode(meta: &Meta, check: &mut Check<'_>) -> Namespace {
    Namespace {
        labels: meta.labels.clone(),
        annotations: meta.annotations.clone(),
        on_demand: on_demand(meta, check),
    }
}

fn on_demand(meta: &Meta, check: &mut Check<'_>) -> Option<bool> {
    match meta.annotations.get(ON_DEMAND)?.as_str() {
        "true" => Some(true),
        "false" => Some(false),
        other => {
            let path = format!("metadata.annotations[{ON_DEMAND}]");
            check.leave_out(path, format!("{other:?} is not known; use \"true\" or \"false\""));
            None
        }
    }
}
