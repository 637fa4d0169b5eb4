/// Settings for the proxies of some workloads.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkloadProxyConfig {}
