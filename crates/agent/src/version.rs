/// The version of Istio whose behaviour this agent has; servers make their answers fit it.
pub(crate) const ISTIO_VERSION: &str = "1.31.0";

/// What `pilot-agent version` prints.
pub(crate) fn long() -> String {
    format!("pilot-agent {} (Istio {ISTIO_VERSION})", env!("CARGO_PKG_VERSION"))
}
