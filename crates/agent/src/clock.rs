use std::time::SystemTime;

/// What certificates and snapshots are compared with.
#[allow(
    clippy::disallowed_methods,
    reason = "others count in seconds since 1970, which no clock of ours tells"
)]
pub(crate) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
