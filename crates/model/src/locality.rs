use std::fmt;

use pilot_base::Name;

/// Where something runs: region, zone, sub-zone, each possibly unknown.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Locality {
    pub region: Name,
    pub zone: Name,
    pub subzone: Name,
}

impl Locality {
    /// Reads `region/zone/subzone`; parts may be missing.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.splitn(3, '/').map(Name::new);
        let mut next = || parts.next().unwrap_or_default();
        Self { region: next(), zone: next(), subzone: next() }
    }

    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// 0 for the same place, up to 3 for another region.
    pub fn distance(&self, other: &Self) -> u32 {
        if self.region != other.region {
            3
        } else if self.zone != other.zone {
            2
        } else if self.subzone != other.subzone {
            1
        } else {
            0
        }
    }

    /// Does this place lie within the one a rule names? `*` and missing parts match everything.
    pub fn within(&self, rule: &Self) -> bool {
        let part = |own: &Name, rule: &Name| rule == "*" || own == rule;
        part(&self.region, &rule.region)
            && (rule.zone.is_empty() || part(&self.zone, &rule.zone))
            && (rule.subzone.is_empty() || part(&self.subzone, &rule.subzone))
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.region)?;
        if !self.zone.is_empty() {
            write!(f, "/{}", self.zone)?;
            if !self.subzone.is_empty() {
                write!(f, "/{}", self.subzone)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Locality;

    #[test]
    fn places_are_compared_from_the_large_to_the_small() {
        let here = Locality::parse("r1/z1/s1");
        for (other, distance) in [("r1/z1/s1", 0), ("r1/z1/s2", 1), ("r1/z2/s1", 2), ("r2/z1/s1", 3), ("", 3)]
        {
            assert_eq!(here.distance(&Locality::parse(other)), distance, "{other}");
        }
        assert!(here.within(&Locality::parse("r1/*")));
        assert!(here.within(&Locality::parse("*")));
        assert!(here.within(&Locality::parse("r1")));
        assert!(!here.within(&Locality::parse("r1/z2")));
        assert_eq!(here.to_string(), "r1/z1/s1");
    }
}
