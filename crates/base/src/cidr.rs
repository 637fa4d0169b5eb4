use std::net::IpAddr;

/// All addresses that begin with the same bits: `10.0.0.0/8`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cidr {
    /// First, so that wide ranges stand before narrow ones.
    bits: u8,
    base: IpAddr,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Self> {
        let (base, bits) = text.split_once('/')?;
        let (base, bits) = (base.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?);
        let most = if base.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { bits, base })
    }

    /// A range, or an address, which is a range of one.
    pub fn parse_or_address(text: &str) -> Option<Self> {
        let alone = || {
            let base: IpAddr = text.parse().ok()?;
            Some(Self { bits: if base.is_ipv4() { 32 } else { 128 }, base })
        };
        Self::parse(text).or_else(alone)
    }

    /// The address as it was written: bits behind those that count may be set.
    pub fn base(&self) -> IpAddr {
        self.base
    }

    /// How many bits count.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The same range with nothing set behind the bits that count.
    #[must_use]
    pub fn masked(self) -> Self {
        let bits = u32::from(self.bits);
        let base = match self.base {
            IpAddr::V4(v4) => {
                IpAddr::from((v4.to_bits() & !u32::MAX.checked_shr(bits).unwrap_or(0)).to_be_bytes())
            }
            IpAddr::V6(v6) => {
                IpAddr::from((v6.to_bits() & !u128::MAX.checked_shr(bits).unwrap_or(0)).to_be_bytes())
            }
        };
        Self { base, ..self }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let rest = width.saturating_sub(u32::from(self.bits));
            (a ^ b).checked_shr(rest).unwrap_or(0) == 0
        };
        match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                same(u128::from(base.to_bits()), u128::from(ip.to_bits()), 32)
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => same(base.to_bits(), ip.to_bits(), 128),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cidr;

    #[test]
    fn a_range_has_the_addresses_that_begin_like_it() {
        let has = |range: &str, ip: &str| Cidr::parse(range).unwrap().contains(ip.parse().unwrap());
        assert!(has("10.0.0.0/8", "10.9.9.9") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "8.8.8.8"));
        assert!(has("127.0.0.1/32", "127.0.0.1") && !has("127.0.0.1/32", "127.0.0.2"));
        assert!(has("2001:db8::/32", "2001:db8::1") && !has("fd00::/8", "2001::1"));
        assert!(!has("::/0", "10.0.0.1"));
        let masked = |range: &str| Cidr::parse(range).map(Cidr::masked);
        assert_eq!(masked("10.1.2.3/8"), Cidr::parse("10.0.0.0/8"));
        assert_eq!(masked("10.1.2.3/0"), Cidr::parse("0.0.0.0/0"));
        assert_eq!(masked("10.1.2.3/32"), Cidr::parse("10.1.2.3/32"));
        assert_eq!(masked("2001:db8::1/32"), Cidr::parse("2001:db8::/32"));
    }

    #[test]
    fn only_ranges_are_read() {
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "a/8", "10.0.0.0/", ""] {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
        assert_eq!(Cidr::parse_or_address("10.0.0.1"), Cidr::parse("10.0.0.1/32"));
        assert_eq!(Cidr::parse_or_address("::1"), Cidr::parse("::1/128"));
        assert_eq!(Cidr::parse_or_address("10.0.0.1/33"), None);
    }
}
