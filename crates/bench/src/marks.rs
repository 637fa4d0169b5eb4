//! Changes that are waited for, and who has seen which.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pilot_base::FastMap;

use crate::names::Id;
use crate::resource::{Kind, addresses, routes_of};
use crate::stamp;

/// By what a change is recognised.
pub enum What {
    /// The endpoints of one of these clusters have a newer mark. Each cluster has its turn.
    Endpoints(FastMap<Id, usize>),
    /// A route of a service in a virtual host of a table has a newer mark.
    Route { table: Id, virtual_host: Bytes, service: String },
    /// A cluster has endpoints that had none.
    Present(Id),
    /// A cluster is gone.
    Absent(Id),
}

/// A row of changes. A newer one counts for the older ones at the same place.
pub struct Marks {
    what: What,
    /// The mark of the first change; the others follow it.
    first: u32,
    /// When each was made.
    made_at: Vec<AtomicU64>,
    /// How many proxies have seen how many of them.
    arrived: AtomicU64,
}

impl Marks {
    pub fn new(what: What, first: u32, count: usize) -> Arc<Self> {
        let made_at = (0..count).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { what, first, made_at, arrived: AtomicU64::new(0) })
    }

    pub fn stamp(&self, change: usize) -> u32 {
        self.first + u32::try_from(change).unwrap_or(0)
    }

    pub fn made(&self, change: usize, now: u64) {
        self.made_at[change].store(now, Ordering::Relaxed);
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// At how many places changes are made in turn.
    fn places(&self) -> usize {
        match &self.what {
            What::Endpoints(clusters) => clusters.len().max(1),
            What::Route { .. } | What::Present(_) | What::Absent(_) => 1,
        }
    }

    /// How many changes are made at one place.
    fn changes_at(&self, place: usize) -> usize {
        self.made_at.len().saturating_sub(place).div_ceil(self.places())
    }
}

/// What one proxy has seen of it.
pub(crate) struct Progress {
    marks: Arc<Marks>,
    /// At each place, the next change that it has not seen.
    next: Vec<usize>,
    /// How many it must see.
    expected: usize,
    /// Microseconds from a change to its arrival.
    pub(crate) delays: Vec<u32>,
}

impl Progress {
    pub(crate) fn new(marks: &Arc<Marks>, holds: impl Fn(Kind, Id) -> bool) -> Self {
        let expected = match &marks.what {
            What::Endpoints(clusters) => {
                let seen = clusters.iter().filter(|(id, _)| holds(Kind::Endpoint, **id));
                seen.map(|(_, place)| marks.changes_at(*place)).sum()
            }
            What::Route { table, .. } => usize::from(holds(Kind::Route, *table)) * marks.changes_at(0),
            What::Present(_) => 1,
            What::Absent(cluster) => usize::from(holds(Kind::Cluster, *cluster)),
        };
        let next = (0..marks.places()).collect();
        Self { marks: Arc::clone(marks), next, expected, delays: Vec::new() }
    }

    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// A resource came.
    pub(crate) fn came(&mut self, kind: Kind, id: Id, resource: &[u8], now: u64) {
        let seen = match (&self.marks.what, kind) {
            (What::Endpoints(clusters), Kind::Endpoint) => {
                clusters.get(&id).copied().zip(addresses(resource).filter_map(stamp::of_address).max())
            }
            (What::Route { table, virtual_host, service }, Kind::Route) if *table == id => {
                let mut names = routes_of(resource, virtual_host);
                names.find_map(|name| stamp::of_route_name(name, service)).map(|stamp| (0, stamp))
            }
            (What::Present(cluster), Kind::Endpoint) if *cluster == id => Some((0, self.marks.first)),
            _ => None,
        };
        if let Some((place, stamp)) = seen {
            self.see(place, stamp, now);
        }
    }

    /// A resource went.
    pub(crate) fn went(&mut self, kind: Kind, id: Id, now: u64) {
        if kind == Kind::Cluster && matches!(self.marks.what, What::Absent(cluster) if cluster == id) {
            self.see(0, self.marks.first, now);
        }
    }

    fn see(&mut self, place: usize, stamp: u32, now: u64) {
        let Some(change) = stamp.checked_sub(self.marks.first).map(|change| change as usize) else { return };
        let last = change.min(self.marks.made_at.len().saturating_sub(1));
        let before = self.delays.len();
        while self.next[place] <= last {
            let made = self.marks.made_at[self.next[place]].load(Ordering::Relaxed);
            self.delays.push(u32::try_from(now.saturating_sub(made) / 1_000).unwrap_or(u32::MAX));
            self.next[place] += self.marks.places();
        }
        self.marks.arrived.fetch_add((self.delays.len() - before) as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Marks, Progress, What};
    use crate::names::Names;
    use crate::resource::Kind;
    use crate::stamp;
    use crate::wire::put_bytes;

    fn assignment(stamp: u32) -> Vec<u8> {
        let mut inner = stamp::address(stamp).to_string().into_bytes();
        // From the address outwards: socket, address, endpoint, endpoint with its health, locality, assignment.
        for number in [2, 1, 1, 1, 2, 2] {
            let mut outer = Vec::new();
            put_bytes(&mut outer, number, &inner);
            inner = outer;
        }
        inner
    }

    #[test]
    fn a_newer_change_counts_for_older_ones_at_the_same_place() {
        let names = Names::default();
        let [a, b] = ["a", "b"].map(|text| names.id(text.as_bytes()));
        let clusters = [(a, 0), (b, 1)].into_iter().collect();
        let marks = Marks::new(What::Endpoints(clusters), 100, 5);
        let mut progress = Progress::new(&marks, |_, _| true);
        assert_eq!(progress.expected(), 5);
        (0..5).for_each(|change| marks.made(change, 1_000_000));
        progress.came(Kind::Endpoint, a, &assignment(99), 2_000_000);
        assert_eq!(marks.arrived(), 0);
        progress.came(Kind::Endpoint, a, &assignment(102), 2_000_000);
        progress.came(Kind::Endpoint, a, &assignment(102), 9_000_000);
        assert_eq!((marks.arrived(), progress.delays.as_slice()), (2, [1_000, 1_000].as_slice()));
        progress.came(Kind::Endpoint, a, &assignment(104), 3_000_000);
        progress.came(Kind::Endpoint, b, &assignment(103), 3_000_000);
        assert_eq!(marks.arrived(), 5);
    }

    #[test]
    fn who_does_not_see_a_cluster_is_not_waited_for() {
        let id = Names::default().id(b"a");
        let marks = Marks::new(What::Absent(id), 0, 1);
        assert_eq!(Progress::new(&marks, |_, _| false).expected(), 0);
        let mut progress = Progress::new(&marks, |_, _| true);
        progress.went(Kind::Cluster, id, 0);
        assert_eq!((progress.expected(), marks.arrived()), (1, 1));
    }
}
