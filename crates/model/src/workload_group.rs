/// What workloads outside the platform have in common.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkloadGroup {}
