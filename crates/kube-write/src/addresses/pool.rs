//! Addresses that may be given out, and who has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pilot_base::Cidr;
use pilot_model::ConfigId;

/// One range. The first address of it names the range itself and is not given out.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    range: Cidr,
    /// Where to look for a free one. It moves on, so that an address that was given back is not somebody else's at once.
    next: u128,
    owners: BTreeMap<IpAddr, BTreeSet<ConfigId>>,
}

impl Pool {
    pub(crate) fn new(range: Cidr) -> Self {
        let range = range.masked();
        Self { next: number(range.base()).saturating_add(1), range, owners: BTreeMap::new() }
    }

    pub(crate) fn claim(&mut self, ip: IpAddr, who: &ConfigId) {
        if self.range.contains(ip) {
            self.owners.entry(ip).or_default().insert(who.clone());
        }
    }

    pub(crate) fn release(&mut self, ip: IpAddr, who: &ConfigId) {
        if let Some(owners) = self.owners.get_mut(&ip) {
            owners.remove(who);
            if owners.is_empty() {
                self.owners.remove(&ip);
            }
        }
    }

    /// Everybody who says that an address is his.
    pub(crate) fn owners(&self, ip: IpAddr) -> impl Iterator<Item = &ConfigId> {
        self.owners.get(&ip).into_iter().flatten()
    }

    /// A free address, which is `who`'s from now on. Nothing if all of them are taken.
    pub(crate) fn take(&mut self, who: &ConfigId) -> Option<IpAddr> {
        let first = number(self.range.base()).saturating_add(1);
        let base = self.range.base();
        let mut candidate = if self.range.contains(address(self.next, base)) { self.next } else { first };
        // One of so many that follow each other is free, or there is none.
        for _ in 0..=self.owners.len() {
            let ip = address(candidate, base);
            candidate = candidate.saturating_add(1);
            if !self.range.contains(ip) {
                candidate = first;
                continue;
            }
            if !self.owners.contains_key(&ip) {
                self.next = candidate;
                self.claim(ip, who);
                return Some(ip);
            }
        }
        let free = |ip: &IpAddr| self.range.contains(*ip) && !self.owners.contains_key(ip);
        let ip = Some(address(candidate, base)).filter(free)?;
        self.claim(ip, who);
        Some(ip)
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// A number that is too large for the family is an address outside of any range in it.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match u32::try_from(number) {
        Ok(bits) if like.is_ipv4() => Ipv4Addr::from_bits(bits).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use pilot_base::Cidr;
    use pilot_model::ConfigId;

    use super::Pool;

    fn pool(range: &str) -> Pool {
        Pool::new(Cidr::parse(range).unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_given_out_in_order_and_not_twice() {
        let (mut pool, who) = (pool("240.240.0.0/16"), ConfigId::new("a", "b"));
        pool.claim(ip("240.240.0.2"), &who);
        let taken: Vec<IpAddr> = (0..3).filter_map(|_| pool.take(&who)).collect();
        assert_eq!(taken, [ip("240.240.0.1"), ip("240.240.0.3"), ip("240.240.0.4")]);
        pool.release(ip("240.240.0.3"), &who);
        assert_eq!(pool.take(&who), Some(ip("240.240.0.5")), "what was given back rests");
    }

    #[test]
    fn a_range_has_an_end_and_is_begun_anew() {
        let (mut pool, who) = (pool("240.240.0.0/30"), ConfigId::new("a", "b"));
        let taken: Vec<IpAddr> = std::iter::from_fn(|| pool.take(&who)).take(9).collect();
        assert_eq!(taken, [ip("240.240.0.1"), ip("240.240.0.2"), ip("240.240.0.3")]);
        pool.release(ip("240.240.0.2"), &who);
        assert_eq!(pool.take(&who), Some(ip("240.240.0.2")));
        assert_eq!(pool.take(&who), None);
    }

    #[test]
    fn the_end_of_all_addresses_is_no_trouble() {
        let who = ConfigId::new("a", "b");
        let mut last = pool("255.255.255.252/30");
        assert_eq!(std::iter::from_fn(|| last.take(&who)).take(9).count(), 3);
        let mut six = pool("2001:2::/48");
        assert_eq!(six.take(&who), Some(ip("2001:2::1")));
    }
}
