/// What is measured, logged and traced.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Telemetry {}
