/// Do servers ask for mutual TLS?
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerAuthentication {}
