//! How long somebody is waited for who comes and goes.

use std::time::Duration;

use tokio::time::Instant;

/// A grace that begins anew with every loss, but not for ever: a registry that breaks off again and again would otherwise
/// never give up what it does not have. Only the time counts in which it can be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    spent: Duration,
    since: Option<Instant>,
}

/// So many times the grace all losses together may take.
const AT_MOST: u32 = 4;

impl Patience {
    /// Until when to wait, from now on.
    pub fn until(&mut self, grace: Duration) -> Instant {
        self.rest();
        let now = Instant::now();
        self.since = Some(now);
        now + grace.min((grace * AT_MOST).saturating_sub(self.spent))
    }

    /// Nobody can be asked for a while.
    pub fn rest(&mut self) {
        self.spent += self.since.take().map(|since| since.elapsed()).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::Patience;

    #[tokio::test(start_paused = true)]
    async fn a_grace_begins_anew_but_not_for_ever() {
        let (mut patience, grace) = (Patience::default(), Duration::from_secs(90));
        for _ in 0..4 {
            assert_eq!(patience.until(grace), Instant::now() + grace);
            advance(Duration::from_secs(80)).await;
            patience.rest();
            // While nobody can be asked no time is spent.
            advance(Duration::from_secs(3600)).await;
        }
        assert_eq!(patience.until(grace), Instant::now() + Duration::from_secs(40));
        advance(Duration::from_secs(50)).await;
        assert_eq!(patience.until(grace), Instant::now());
    }
}
