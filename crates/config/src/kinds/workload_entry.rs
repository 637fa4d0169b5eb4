use pilot_api::networking as api;
use pilot_model::WorkloadEntry;

use crate::check::Check;
use crate::kinds::service_entry::workload;

pub(crate) fn decode(message: api::WorkloadEntry, check: &mut Check<'_>) -> WorkloadEntry {
    if message.address.is_empty() && message.network.is_empty() {
        check.reject("spec.address", "is missing; only a workload behind another network's gateway has none");
    }
    workload(message, "spec", check)
}
