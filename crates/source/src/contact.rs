//! When somebody was last heard of, whether or not there was anything new.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Shared by an adapter, which notes that it heard of its backend, and by who shows that to people.
#[derive(Clone, Debug)]
pub struct Contact {
    since: Instant,
    /// Milliseconds since then, and one; zero for never.
    last: Arc<AtomicU64>,
}

impl Default for Contact {
    fn default() -> Self {
        Self { since: Instant::now(), last: Arc::default() }
    }
}

impl Contact {
    pub fn heard(&self) {
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.last.store(millis + 1, Ordering::Relaxed);
    }

    /// How long ago that was; nothing if it never was.
    pub fn age(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.since.elapsed().saturating_sub(Duration::from_millis(last)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Contact;

    #[tokio::test(start_paused = true)]
    async fn an_age_grows_until_somebody_is_heard_again() {
        let contact = Contact::default();
        assert_eq!(contact.age(), None);
        contact.heard();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(contact.age(), Some(Duration::from_secs(5)));
        contact.clone().heard();
        assert_eq!(contact.age(), Some(Duration::ZERO));
    }
}
