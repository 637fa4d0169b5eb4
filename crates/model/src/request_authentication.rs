/// Which tokens requests may carry.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestAuthentication {}
