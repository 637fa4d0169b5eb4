use std::time::Duration;

/// Far more than a busy machine needs.
const TRIES: u32 = 3_000;
const BETWEEN: Duration = Duration::from_millis(20);

/// Waits for a thing to be so, never for time to pass.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..TRIES {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(BETWEEN);
    }
    panic!("waited in vain for {what}")
}
