//! Near places first.

use std::collections::BTreeSet;

use pilot_model::{Locality, LocalityFailover, LocalityLb};

use super::Group;
use super::priority::without_gaps;

fn place_of(group: &Group<'_>) -> Locality {
    let place = group.message.locality.as_ref();
    place.map_or_else(Locality::default, |p| Locality {
        region: p.region.as_str().into(),
        zone: p.zone.as_str().into(),
        subzone: p.sub_zone.as_str().into(),
    })
}

/// Shares of traffic, by where it comes from.
pub(super) fn distribute<'e>(
    mut groups: Vec<Group<'e>>,
    place: &Locality,
    setting: &LocalityLb,
) -> Vec<Group<'e>> {
    let Some(rule) = setting.distribute.iter().find(|rule| place.within(&rule.from)) else { return groups };
    let weight_of = |group: &Group<'_>| u64::from(group.message.load_balancing_weight.unwrap_or(1));
    let mut left: BTreeSet<usize> = (0..groups.len()).collect();
    for (target, share) in &rule.to {
        let target = Locality::parse(target);
        let named: Vec<usize> =
            left.iter().copied().filter(|i| place_of(&groups[*i]).within(&target)).collect();
        let total: u64 = named.iter().map(|i| weight_of(&groups[*i])).sum();
        for i in named {
            left.remove(&i);
            // What several places share is divided by how much each had.
            let weight = (weight_of(&groups[i]) * u64::from(*share)).div_ceil(total.max(1));
            if weight > 0 {
                groups[i].message.load_balancing_weight = Some(u32::try_from(weight).unwrap_or(u32::MAX));
            }
        }
    }
    for i in left {
        groups[i].message.lb_endpoints.clear();
        groups[i].members.clear();
    }
    groups
}

/// The next-best place when the best one fails; within a priority that labels have given already.
pub(super) fn failover<'e>(
    mut groups: Vec<Group<'e>>,
    place: &Locality,
    rules: &[LocalityFailover],
) -> Vec<Group<'e>> {
    let next = rules.iter().find(|rule| rule.from == place.region);
    for group in &mut groups {
        let other = place_of(group);
        let mut priority = place.distance(&other);
        if priority == 3 && next.is_some_and(|rule| other.region != rule.to) {
            priority = 4;
        }
        group.message.priority = group.message.priority * 5 + priority;
    }
    without_gaps(&mut groups);
    groups
}

/// The same for regions only: within one, Envoy chooses itself.
pub(super) fn regional_failover<'e>(
    mut groups: Vec<Group<'e>>,
    place: &Locality,
    rules: &[LocalityFailover],
) -> Vec<Group<'e>> {
    let next = rules.iter().find(|rule| rule.from == place.region);
    for group in &mut groups {
        let other = place_of(group).region;
        let priority = if other == place.region {
            0
        } else if next.is_some_and(|rule| rule.to == other) {
            1
        } else {
            2
        };
        group.message.priority = group.message.priority * 3 + priority;
    }
    without_gaps(&mut groups);
    groups
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::{distribute, failover};
    use pilot_envoy_api::envoy::config::endpoint::v3::LbEndpoint;
    use pilot_model::{Locality, LocalityDistribute, LocalityFailover, LocalityLb};

    fn group(place: &str) -> Group<'static> {
        let mut group = Group::at(&Locality::parse(place));
        group.message.lb_endpoints.push(LbEndpoint::default());
        group.message.load_balancing_weight = Some(1);
        group
    }

    fn priorities(rules: &[LocalityFailover], places: &[&str]) -> Vec<u32> {
        let groups = places.iter().map(|place| group(place)).collect();
        let groups = failover(groups, &Locality::parse("r1/z1"), rules);
        groups.iter().map(|g| g.message.priority).collect()
    }

    #[test]
    fn nearer_places_come_first_without_gaps() {
        assert_eq!(priorities(&[], &["r1/z1", "r1/z2", "r2/z1"]), [0, 1, 2]);
        assert_eq!(priorities(&[], &["r2/z1", "r3/z1"]), [0, 0]);
        let to_r3 = LocalityFailover { from: "r1".into(), to: "r3".into() };
        assert_eq!(priorities(&[to_r3], &["r2/z1", "r3/z1"]), [1, 0]);
    }

    #[test]
    fn shares_are_given_and_the_rest_gets_nothing() {
        let rule = LocalityDistribute {
            from: Locality::parse("r1/*"),
            to: [("r1/z1".into(), 80), ("r2".into(), 20)].into(),
        };
        let setting = LocalityLb { distribute: vec![rule], ..LocalityLb::default() };
        let groups = vec![group("r1/z1"), group("r2/z1"), group("r2/z2"), group("r3")];
        let groups = distribute(groups, &Locality::parse("r1/z1"), &setting);
        let weights: Vec<_> = groups.iter().map(|g| g.message.load_balancing_weight.unwrap()).collect();
        assert_eq!(weights[..3], [80, 10, 10]);
        assert!(groups[3].message.lb_endpoints.is_empty());
    }
}
