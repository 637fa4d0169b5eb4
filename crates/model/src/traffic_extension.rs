/// Code that proxies run on traffic.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrafficExtension {}
