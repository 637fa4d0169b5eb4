/// Changes to what proxies are sent, in Envoy's own words.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EnvoyFilter {}
