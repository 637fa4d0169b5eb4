use std::collections::VecDeque;

use pilot_base::{FastMap, Millis, Name};
use pilot_model::ProxyId;

/// Proxies that left a moment ago and whose rows are still there.
///
/// A proxy whose stream broke off mostly comes back, and when a network does, all of them come back at once. What was
/// worked out for them would be thrown away and worked out again. So a row goes when its proxy has come back, under the
/// same name and with a row of its own, or has stayed away for a while.
#[derive(Default)]
pub(super) struct Leavers {
    by_name: FastMap<Name, Vec<ProxyId>>,
    /// In the order of leaving. Those who came back still stand here.
    order: VecDeque<(Millis, Name, ProxyId)>,
}

/// Envoy and Istio's agent come back within seconds, or after a long time.
const WAIT: Millis = 10_000;

/// More than one server looks after. Who opens streams under made-up names gets no more rows than that.
const MOST: usize = 16_384;

impl Leavers {
    /// Tells who is not waited for any longer, because there are too many.
    pub(super) fn leave(&mut self, proxy: ProxyId, name: Name, now: Millis) -> Option<ProxyId> {
        let first = if self.order.len() >= MOST { self.order.pop_front() } else { None };
        self.by_name.entry(name.clone()).or_default().push(proxy);
        self.order.push_back((now, name, proxy));
        first.and_then(|(_, name, proxy)| self.take(&name, |other| other == proxy))
    }

    /// Somebody came: tells whose place that is, if one of this name had left.
    pub(super) fn come(&mut self, name: &Name) -> Option<ProxyId> {
        self.take(name, |_| true)
    }

    /// Those who have stayed away for too long.
    pub(super) fn gone(&mut self, now: Millis) -> Vec<ProxyId> {
        let mut gone = Vec::new();
        while let Some((_, name, proxy)) = self.order.pop_front_if(|(left, ..)| *left + WAIT <= now) {
            gone.extend(self.take(&name, |other| other == proxy));
        }
        gone
    }

    /// When the next one has stayed away for too long.
    pub(super) fn due_at(&self) -> Option<Millis> {
        self.order.front().map(|(left, ..)| *left + WAIT)
    }

    fn take(&mut self, name: &Name, is_meant: impl Fn(ProxyId) -> bool) -> Option<ProxyId> {
        let of_name = self.by_name.get_mut(name)?;
        let at = of_name.iter().position(|proxy| is_meant(*proxy))?;
        let proxy = of_name.remove(at);
        if of_name.is_empty() {
            self.by_name.remove(name);
        }
        Some(proxy)
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_model::ProxyId;

    use super::{Leavers, MOST, WAIT};

    #[test]
    fn who_comes_back_takes_its_old_place_once() {
        let mut leavers = Leavers::default();
        let name = Name::new("pod.shop");
        assert_eq!(leavers.come(&name), None);
        leavers.leave(ProxyId(1), name.clone(), 0);
        leavers.leave(ProxyId(2), name.clone(), 5);
        assert_eq!(leavers.come(&Name::new("other.shop")), None);
        assert_eq!(
            [leavers.come(&name), leavers.come(&name), leavers.come(&name)],
            [Some(ProxyId(1)), Some(ProxyId(2)), None]
        );
        assert_eq!(leavers.gone(5 + WAIT), [], "they are here");
        assert_eq!(leavers.due_at(), None);
    }

    #[test]
    fn nobody_is_waited_for_without_end() {
        let mut leavers = Leavers::default();
        leavers.leave(ProxyId(1), Name::new("a"), 0);
        leavers.leave(ProxyId(2), Name::new("b"), 7);
        assert_eq!(leavers.due_at(), Some(WAIT));
        assert_eq!(leavers.gone(WAIT), [ProxyId(1)]);
        assert_eq!(leavers.come(&Name::new("a")), None);
        assert_eq!(leavers.due_at(), Some(7 + WAIT));
        assert_eq!(leavers.gone(7 + WAIT), [ProxyId(2)]);
        assert!(leavers.by_name.is_empty());
    }

    #[test]
    fn made_up_names_take_no_more_room_than_real_ones() {
        let mut leavers = Leavers::default();
        let leave = |n: usize, leavers: &mut Leavers| {
            leavers.leave(ProxyId(n as u64), Name::from(format!("made-up-{n}")), 0)
        };
        for n in 0..MOST {
            assert_eq!(leave(n, &mut leavers), None);
        }
        assert_eq!(leave(MOST, &mut leavers), Some(ProxyId(0)));
        assert_eq!((leavers.order.len(), leavers.by_name.len()), (MOST, MOST));
    }
}
