//! Marks of a change that survive translation: the address of an endpoint, the name of a route. All have the same
//! length, so that the floor can put one in the place of another.

use std::net::Ipv4Addr;

/// Each part of an address is one of so many numbers of three digits.
const STEPS: u32 = 150;

/// How many changes can be told apart.
pub(crate) const COUNT: u32 = STEPS * STEPS * STEPS;

/// The only addresses that begin like this are marks.
const FIRST: u8 = 11;

/// The address that marks a change.
pub(crate) fn address(stamp: u32) -> Ipv4Addr {
    let part = |n: u32| u8::try_from(100 + n % STEPS).unwrap_or(u8::MAX);
    Ipv4Addr::new(FIRST, part(stamp / STEPS / STEPS), part(stamp / STEPS), part(stamp))
}

/// Which change an address marks, if it does.
pub(crate) fn of_address(text: &[u8]) -> Option<u32> {
    let rest = text.strip_prefix(b"11.")?;
    let [a @ .., b'.', b0, b1, b2, b'.', c0, c1, c2] = rest else { return None };
    let part = |digits: &[u8]| {
        let number: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        number.checked_sub(100).filter(|n| *n < STEPS)
    };
    Some((part(a)? * STEPS + part(&[*b0, *b1, *b2])?) * STEPS + part(&[*c0, *c1, *c2])?)
}

/// The name that marks a change of a route.
pub(crate) fn route_name(service: &str, stamp: u32) -> String {
    format!("{service}{ROUTE}{stamp:08}")
}

/// What stands between the name of a service and the number of a change.
pub(crate) const ROUTE: &str = "-r";

/// Which change the name of a route marks, if it does.
pub(crate) fn of_route_name(name: &[u8], service: &str) -> Option<u32> {
    let digits = name.strip_prefix(service.as_bytes())?.strip_prefix(ROUTE.as_bytes())?;
    if digits.len() != 8 {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{COUNT, address, of_address, of_route_name, route_name};

    #[test]
    fn a_stamp_is_read_back_and_always_as_long() {
        for stamp in [0, 1, 149, 150, 22_499, 22_500, 1_000_000, COUNT - 1] {
            let text = address(stamp).to_string();
            assert_eq!((of_address(text.as_bytes()), text.len()), (Some(stamp), 14));
            let name = route_name("svc-00001", stamp);
            assert_eq!((of_route_name(name.as_bytes(), "svc-00001"), name.len()), (Some(stamp), 19));
        }
    }

    #[test]
    fn what_is_no_stamp_is_none() {
        for text in
            ["", "11.", "10.100.100.100", "11.1.1.1", "11.100.100.260", "11.aaa.bbb.ccc", "11.100.100"]
        {
            assert_eq!(of_address(text.as_bytes()), None, "{text}");
        }
        for name in ["", "svc-00001-r1", "svc-00002-r00000001", "svc-00001-rxxxxxxxx"] {
            assert_eq!(of_route_name(name.as_bytes(), "svc-00001"), None, "{name}");
        }
    }
}
