use crate::TrafficExtension;

/// Code that proxies run on requests: the older form of a `TrafficExtension`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WasmPlugin(pub TrafficExtension);
