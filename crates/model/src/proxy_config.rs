use std::collections::BTreeMap;

use pilot_base::{Labels, Name};

/// Settings for the proxies of some workloads. All of them count when a proxy is started, and none for what it is sent.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkloadProxyConfig {
    pub selector: Option<Labels>,
    pub concurrency: Option<u32>,
    pub environment: BTreeMap<Name, Name>,
    pub image_type: Option<Name>,
}
