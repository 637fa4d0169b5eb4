use pilot_base::Millis;

/// How many streams may begin a second, for those who ask for a limit (`PILOT_MAX_REQUESTS_PER_SECOND`).
///
/// Without one there is none: what a crowd costs is bounded by [`Lanes`](crate::lanes::Lanes), which do not let the server
/// idle while proxies wait.
#[derive(Debug)]
pub(crate) struct Admission {
    per_second: f64,
    /// When the next stream may begin, in milliseconds.
    next: f64,
}

/// As long as istiod lets a stream wait.
const PATIENCE: f64 = 1000.0;

impl Admission {
    /// Nothing if the limit is none.
    pub(crate) fn new(per_second: f64) -> Option<Self> {
        (per_second.is_finite() && per_second > 0.0).then_some(Self { per_second, next: 0.0 })
    }

    /// How long a stream that comes now waits; nothing if that is too long and it should come again.
    pub(crate) fn wait(&mut self, now: Millis) -> Option<Millis> {
        #[allow(clippy::cast_precision_loss, reason = "a process does not run for 2^52 milliseconds")]
        let now = now as f64;
        let begin = self.next.max(now);
        let wait = begin - now;
        if wait > PATIENCE {
            return None;
        }
        self.next = begin + 1000.0 / self.per_second;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between nothing and a second"
        )]
        let wait = wait.ceil() as Millis;
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::Admission;

    #[test]
    fn streams_begin_at_the_rate_and_the_rest_is_sent_away() {
        let mut admission = Admission::new(4.0).unwrap();
        let waits: Vec<_> = (0..7).map(|_| admission.wait(10_000)).collect();
        assert_eq!(waits, [Some(0), Some(250), Some(500), Some(750), Some(1000), None, None]);
        assert_eq!(admission.wait(10_250), Some(1000), "who was sent away has not used up anything");
        assert_eq!(admission.wait(60_000), Some(0), "what was not used is not saved up");
        assert_eq!(admission.wait(60_000), Some(250));
    }

    #[test]
    fn a_limit_of_nothing_is_none() {
        for none in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Admission::new(none).is_none(), "{none}");
        }
    }
}
