//! Near endpoints first.

use std::collections::BTreeSet;

use pilot_envoy_api::envoy::config::endpoint::v3::LocalityLbEndpoints;
use pilot_model::{Locality, LocalityLb, OutlierDetection};

/// What a setting does to groups of endpoints.
pub(super) enum Treatment<'a> {
    /// Shares of traffic, by where it comes from.
    Distribute(&'a LocalityLb),
    /// The next-best place when the best one fails.
    Failover(&'a LocalityLb),
}

impl<'a> Treatment<'a> {
    /// Failover needs somebody who finds out that a place is down.
    pub(super) fn new(setting: &'a LocalityLb, ejection: Option<&OutlierDetection>) -> Option<Self> {
        if !setting.distribute.is_empty() {
            Some(Self::Distribute(setting))
        } else if ejection.is_some() {
            Some(Self::Failover(setting))
        } else {
            None
        }
    }

    pub(super) fn apply(&self, groups: &mut [LocalityLbEndpoints], place: &Locality) {
        match self {
            Self::Distribute(setting) => distribute(groups, place, setting),
            Self::Failover(setting) => failover(groups, place, setting),
        }
    }
}

fn place_of(group: &LocalityLbEndpoints) -> Locality {
    let place = group.locality.as_ref();
    place.map_or_else(Locality::default, |p| Locality {
        region: p.region.as_str().into(),
        zone: p.zone.as_str().into(),
        subzone: p.sub_zone.as_str().into(),
    })
}

fn distribute(groups: &mut [LocalityLbEndpoints], place: &Locality, setting: &LocalityLb) {
    let Some(rule) = setting.distribute.iter().find(|rule| place.within(&rule.from)) else { return };
    let mut left: BTreeSet<usize> = (0..groups.len()).collect();
    for (target, share) in &rule.to {
        let target = Locality::parse(target);
        let named: Vec<usize> =
            left.iter().copied().filter(|i| place_of(&groups[*i]).within(&target)).collect();
        let total: u64 = named.iter().map(|i| u64::from(groups[*i].load_balancing_weight.unwrap_or(1))).sum();
        for i in named {
            left.remove(&i);
            // What several places share is divided by how much each had.
            let own = u64::from(groups[i].load_balancing_weight.unwrap_or(1));
            let weight = (own * u64::from(*share)).div_ceil(total.max(1));
            if weight > 0 {
                groups[i].load_balancing_weight = Some(u32::try_from(weight).unwrap_or(u32::MAX));
            }
        }
    }
    for i in left {
        groups[i].lb_endpoints.clear();
    }
}

fn failover(groups: &mut [LocalityLbEndpoints], place: &Locality, setting: &LocalityLb) {
    let next = setting.failover.iter().find(|rule| rule.from == place.region);
    for group in groups.iter_mut() {
        let other = place_of(group);
        let mut priority = place.distance(&other);
        if priority == 3 && next.is_some_and(|rule| other.region != rule.to) {
            priority = 4;
        }
        group.priority = priority;
    }
    // Envoy wants priorities without gaps.
    let used: BTreeSet<u32> = groups.iter().map(|group| group.priority).collect();
    for group in groups {
        let rank = used.iter().position(|priority| *priority == group.priority).unwrap_or(0);
        group.priority = u32::try_from(rank).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::Treatment;
    use pilot_envoy_api::envoy::config::core::v3 as core;
    use pilot_envoy_api::envoy::config::endpoint::v3::{LbEndpoint, LocalityLbEndpoints};
    use pilot_model::{Locality, LocalityDistribute, LocalityFailover, LocalityLb, OutlierDetection};

    fn group(place: &str) -> LocalityLbEndpoints {
        let place = Locality::parse(place);
        LocalityLbEndpoints {
            locality: Some(core::Locality {
                region: place.region.to_string(),
                zone: place.zone.to_string(),
                sub_zone: place.subzone.to_string(),
            }),
            lb_endpoints: vec![LbEndpoint::default()],
            load_balancing_weight: Some(1),
            ..LocalityLbEndpoints::default()
        }
    }

    fn priorities(setting: &LocalityLb, places: &[&str]) -> Vec<u32> {
        let mut groups: Vec<_> = places.iter().map(|place| group(place)).collect();
        Treatment::new(setting, Some(&OutlierDetection::default()))
            .unwrap()
            .apply(&mut groups, &Locality::parse("r1/z1"));
        groups.iter().map(|g| g.priority).collect()
    }

    #[test]
    fn nearer_places_come_first_without_gaps() {
        let setting = LocalityLb::default();
        assert_eq!(priorities(&setting, &["r1/z1", "r1/z2", "r2/z1"]), [0, 1, 2]);
        assert_eq!(priorities(&setting, &["r2/z1", "r3/z1"]), [0, 0]);
        let to_r3 = LocalityFailover { from: "r1".into(), to: "r3".into() };
        let setting = LocalityLb { failover: vec![to_r3], ..LocalityLb::default() };
        assert_eq!(priorities(&setting, &["r2/z1", "r3/z1"]), [1, 0]);
        assert!(Treatment::new(&LocalityLb::default(), None).is_none(), "nobody would notice a failure");
    }

    #[test]
    fn shares_are_given_and_the_rest_gets_nothing() {
        let rule = LocalityDistribute {
            from: Locality::parse("r1/*"),
            to: [("r1/z1".into(), 80), ("r2".into(), 20)].into(),
        };
        let setting = LocalityLb { distribute: vec![rule], ..LocalityLb::default() };
        let mut groups = vec![group("r1/z1"), group("r2/z1"), group("r2/z2"), group("r3")];
        Treatment::new(&setting, None).unwrap().apply(&mut groups, &Locality::parse("r1/z1"));
        let weights: Vec<_> = groups.iter().map(|g| g.load_balancing_weight.unwrap()).collect();
        assert_eq!(weights[..3], [80, 10, 10]);
        assert!(groups[3].lb_endpoints.is_empty());
    }
}
