use std::sync::Arc;

use pilot_base::Micros;
use pilot_xds::TypeUrl;

use crate::cause::{Cause, Causes, News};

/// What a stream has heard of and not yet sent, so that what it sends is put on the right bill.
pub(crate) struct Heard {
    /// Changes of each type, the newest last.
    pending: [Vec<Arc<Cause>>; TypeUrl::ALL.len()],
    /// The newest change of each type that is known. What was there before the stream is nobody's doing.
    epochs: [u64; TypeUrl::ALL.len()],
    /// Who pays for what no change asked for: a proxy that comes, or asks for more.
    guests: Arc<Cause>,
    /// When the oldest change came that is not wholly sent, and whether anything of it was sent.
    under_way: Option<(Micros, bool)>,
}

/// A client that is so far behind is sent everything at once, so the older of its reasons do not matter.
const MOST_PENDING: usize = 2;

impl Heard {
    pub(crate) fn new(news: &News, guests: Arc<Cause>) -> Self {
        let epochs = TypeUrl::ALL.map(|t| news.causes[t.index()].epoch);
        Self { pending: Default::default(), epochs, guests, under_way: None }
    }

    /// The manifests of the audience changed. Answers with the newest reason, if it is new.
    pub(crate) fn update(&mut self, causes: &Causes) -> Option<Arc<Cause>> {
        let mut newest: Option<&Arc<Cause>> = None;
        for (at, cause) in causes.iter().enumerate() {
            if cause.epoch > self.epochs[at] {
                self.hear(at, cause);
                newest = newest.filter(|known| known.epoch >= cause.epoch).or(Some(cause));
            }
        }
        self.begin(newest?.arrived);
        newest.cloned()
    }

    /// The proxy belongs to another audience: all that differs there is due to what moved it.
    pub(crate) fn moved(&mut self, cause: &Arc<Cause>, causes: &Causes) {
        for (at, there) in causes.iter().enumerate() {
            self.hear(at, cause);
            self.epochs[at] = cause.epoch.max(there.epoch);
        }
        self.begin(cause.arrived);
    }

    /// Something was sent, as of a moment. Puts it on the bill of the newest change of that type which the moment has.
    pub(crate) fn sent(&mut self, type_url: TypeUrl, version: &str, bytes: usize) {
        let epoch = version.parse().unwrap_or(u64::MAX);
        let pending = &mut self.pending[type_url.index()];
        let known = pending.partition_point(|cause| cause.epoch <= epoch);
        let cause = pending.drain(..known).next_back();
        cause.as_ref().unwrap_or(&self.guests).pushed(bytes);
        if let Some((_, sent)) = &mut self.under_way {
            *sent = true;
        }
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Everything was sent: answers when the first of it was told, if there was anything to send.
    pub(crate) fn arrived(&mut self) -> Option<Micros> {
        self.under_way.take().filter(|(_, sent)| *sent).map(|(arrived, _)| arrived)
    }

    fn hear(&mut self, at: usize, cause: &Arc<Cause>) {
        self.epochs[at] = cause.epoch;
        let pending = &mut self.pending[at];
        if pending.len() == MOST_PENDING {
            pending.remove(0);
        }
        pending.push(Arc::clone(cause));
    }

    fn begin(&mut self, arrived: Micros) {
        let (first, sent) = self.under_way.unwrap_or((arrived, false));
        self.under_way = Some((first.min(arrived), sent));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_xds::{Encoded, Manifest, Manifests, TypeUrl};

    use super::Heard;
    use crate::cause::{Cause, News};

    fn cause(epoch: u64) -> Arc<Cause> {
        Arc::new(Cause::new(epoch, (epoch * 10, epoch * 10), Vec::new()))
    }

    fn manifests(version: u64, of: &[(TypeUrl, &str)]) -> Arc<Manifests> {
        let mut manifests = Manifests { version, ..Manifests::default() };
        for (type_url, text) in of {
            let encoded = Arc::new(Encoded::new(*type_url, "a".into(), text.as_bytes()));
            let layer = [("a".into(), Some(encoded))].into_iter().collect();
            manifests.by_type[type_url.index()] = Manifest::new([layer]);
        }
        Arc::new(manifests)
    }

    #[test]
    fn who_comes_pays_for_what_was_there_and_a_change_for_what_it_changed() {
        let (first, second, guests) = (cause(1), cause(2), cause(0));
        let mut news = News::new(manifests(1, &[]), &first);
        let mut heard = Heard::new(&news, Arc::clone(&guests));
        heard.sent(TypeUrl::Cluster, "1", 100);
        assert_eq!((first.take(), guests.take()), ((0, 0), (100, 1)));
        news.replace(manifests(2, &[(TypeUrl::Route, "new")]), &second);
        let newest = heard.update(&news.causes).map(|cause| cause.epoch);
        assert_eq!(newest, Some(2));
        heard.sent(TypeUrl::Route, "2", 30);
        assert_eq!((second.take(), guests.take()), ((30, 1), (0, 0)));
        // Clusters did not change; and what is asked for after a change was sent is a wish of the client's.
        heard.sent(TypeUrl::Cluster, "2", 5);
        heard.sent(TypeUrl::Route, "2", 6);
        assert_eq!((second.take(), guests.take()), ((0, 0), (11, 2)));
        assert!(heard.update(&news.causes).is_none(), "nothing is new");
    }

    #[test]
    fn an_older_moment_is_on_the_bill_of_an_older_change() {
        let (one, two, guests) = (cause(1), cause(2), cause(0));
        let mut news = News::new(manifests(0, &[]), &guests);
        let mut heard = Heard::new(&news, Arc::clone(&guests));
        for (cause, text) in [(&one, "1"), (&two, "2")] {
            news.replace(manifests(cause.epoch, &[(TypeUrl::Route, text)]), cause);
            heard.update(&news.causes);
        }
        heard.sent(TypeUrl::Route, "1", 10);
        heard.sent(TypeUrl::Route, "2", 20);
        assert_eq!((one.take(), two.take()), ((10, 1), (20, 1)));
    }

    #[test]
    fn a_change_has_arrived_when_all_of_it_was_sent() {
        let (one, two, guests) = (cause(1), cause(2), cause(0));
        let mut news = News::new(manifests(0, &[]), &guests);
        let mut heard = Heard::new(&news, Arc::clone(&guests));
        assert!(!heard.is_under_way());
        news.replace(manifests(1, &[(TypeUrl::Route, "1")]), &one);
        heard.update(&news.causes);
        assert_eq!(heard.arrived(), None, "it was nothing to this client");
        for (cause, text) in [(&one, "1"), (&two, "2")] {
            news.replace(
                manifests(cause.epoch + 2, &[(TypeUrl::Route, text)]),
                &self::cause(cause.epoch + 2),
            );
            heard.update(&news.causes);
        }
        heard.sent(TypeUrl::Route, "4", 1);
        assert_eq!(heard.arrived(), Some(30), "the first of both changes counts");
        assert!(!heard.is_under_way());
    }

    #[test]
    fn who_is_moved_is_sent_things_because_of_what_moved_it() {
        let (old, mover, guests) = (cause(3), cause(9), cause(0));
        let there = News::new(manifests(3, &[]), &old);
        let mut heard = Heard::new(&News::new(manifests(1, &[]), &guests), Arc::clone(&guests));
        heard.moved(&mover, &there.causes);
        heard.sent(TypeUrl::Listener, "9", 7);
        assert_eq!((mover.take(), old.take()), ((7, 1), (0, 0)));
    }
}
