//! DNS messages, as far as a proxy must understand them: the question, how long an answer may be, and when it grows old.
//! All else is passed on as it came. Names are kept as on the wire, in lower case: labels behind their lengths.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) const HEADER: usize = 12;
pub(super) const TYPE_A: u16 = 1;
pub(super) const TYPE_AAAA: u16 = 28;
const TYPE_CNAME: u16 = 5;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
const LONGEST_NAME: usize = 255;
const LONGEST_LABEL: usize = 63;
/// What everybody can receive over UDP.
const SMALLEST_UDP: usize = 512;
const TTL: u32 = 30;
const RESPONSE: u8 = 0x80;
const AUTHORITATIVE: u8 = 0x04;
const TRUNCATED: u8 = 0x02;
/// What an answer keeps of a question's flags: the kind of query, and whether recursion was asked for.
const KEPT: u8 = 0x79;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
/// The question's name, of which there is one, right behind the header.
const QUESTION_NAME: u16 = 0xc000 | HEADER as u16;

/// A question that can be answered or passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query<'a> {
    pub(super) packet: &'a [u8],
    pub(super) name: Vec<u8>,
    pub(super) kind: u16,
    /// Where the first question ends.
    end: usize,
    udp_size: usize,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Unreadable {
    /// Not even an answer can be written, or it is one itself.
    Nonsense,
    /// Somebody asks, and it cannot be made out what.
    NoQuestion,
}

impl<'a> Query<'a> {
    pub(super) fn read(packet: &'a [u8]) -> Result<Self, Unreadable> {
        if packet.len() < HEADER || packet[2] & RESPONSE != 0 {
            return Err(Unreadable::Nonsense);
        }
        if number(packet, 4) != Some(1) {
            return Err(Unreadable::NoQuestion);
        }
        let (name, at) = plain_name(packet, HEADER).ok_or(Unreadable::NoQuestion)?;
        let kind = number(packet, at).ok_or(Unreadable::NoQuestion)?;
        number(packet, at + 2).ok_or(Unreadable::NoQuestion)?;
        let end = at + 4;
        let mut udp_size = SMALLEST_UDP;
        for record in Records::from(packet, end) {
            if record.kind == TYPE_OPT {
                udp_size = usize::from(record.class).max(SMALLEST_UDP);
            }
        }
        Ok(Self { packet, name, kind, end, udp_size })
    }

    /// The largest answer over UDP.
    pub(super) fn udp_size(&self) -> usize {
        self.udp_size
    }

    pub(super) fn question(&self) -> &'a [u8] {
        &self.packet[HEADER..self.end]
    }
}

/// What is known of a name.
pub(super) struct Known<'a> {
    /// The name that has the addresses, where it is another one.
    pub(super) alias_of: Option<&'a [u8]>,
    pub(super) addresses: Addresses<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Addresses<'a> {
    V4(&'a [Ipv4Addr]),
    V6(&'a [Ipv6Addr]),
}

/// Writes an answer that is at most so long. `turn` is how far the addresses are turned, so that all have their turn.
pub(super) fn answer(query: &Query<'_>, known: &Known<'_>, largest: usize, turn: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(SMALLEST_UDP);
    begin(query, &mut out);
    out[2] |= AUTHORITATIVE;
    let count = match known.addresses {
        Addresses::V4(all) => all.len(),
        Addresses::V6(all) => all.len(),
    };
    let mut written: u16 = 0;
    let mut owner = QUESTION_NAME;
    if let Some(target) = known.alias_of.filter(|_| count > 0) {
        record(&mut out, owner, TYPE_CNAME, target);
        // Answers to one question begin far below where pointers end.
        owner = 0xc000 | u16::try_from(out.len() - target.len()).unwrap_or(0);
        written += 1;
    }
    for at in 0..count {
        let chosen = (at + turn % count) % count;
        let before = out.len();
        match known.addresses {
            Addresses::V4(all) => record(&mut out, owner, TYPE_A, &all[chosen].octets()),
            Addresses::V6(all) => record(&mut out, owner, TYPE_AAAA, &all[chosen].octets()),
        }
        if out.len() > largest {
            out.truncate(before);
            out[2] |= TRUNCATED;
            break;
        }
        written = written.saturating_add(1);
    }
    out[6..8].copy_from_slice(&written.to_be_bytes());
    out
}

/// The server cannot say.
pub(super) fn failure(packet: &[u8]) -> Option<Vec<u8>> {
    if let Ok(query) = Query::read(packet) {
        let mut out = Vec::with_capacity(query.end);
        begin(&query, &mut out);
        out[3] = SERVFAIL;
        return Some(out);
    }
    let id = packet.get(..2).filter(|_| packet.len() >= HEADER && packet[2] & RESPONSE == 0)?;
    let mut out = vec![0; HEADER];
    out[..2].copy_from_slice(id);
    out[2] = packet[2] & KEPT | RESPONSE;
    out[3] = SERVFAIL;
    Some(out)
}

fn begin(query: &Query<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&query.packet[..2]);
    out.push(query.packet[2] & KEPT | RESPONSE);
    out.push(0);
    out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(query.question());
}

fn record(out: &mut Vec<u8>, owner: u16, kind: u16, data: &[u8]) {
    out.extend_from_slice(&owner.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    out.extend_from_slice(&TTL.to_be_bytes());
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(data);
}

/// Whether this answers that question, and not what somebody else made up.
pub(super) fn answers(packet: &[u8], query: &Query<'_>, id: [u8; 2]) -> bool {
    let same = |asked: &[u8]| {
        packet.get(HEADER..HEADER + asked.len()).is_some_and(|q| q.eq_ignore_ascii_case(asked))
    };
    packet.len() >= HEADER && packet[..2] == id && packet[2] & RESPONSE != 0 && same(query.question())
}

/// An answer that is too long over UDP: whoever wants it all asks over TCP.
pub(super) fn cut(packet: &mut Vec<u8>, query: &Query<'_>) {
    if packet.len() <= query.udp_size() {
        return;
    }
    packet.truncate(query.end);
    packet[2] |= TRUNCATED;
    packet[6..HEADER].fill(0);
}

/// Where in an answer lifetimes stand, and the shortest of them; none if it is not to be kept.
pub(super) fn lifetimes(packet: &[u8], query: &Query<'_>) -> Option<(Vec<usize>, u32)> {
    let code = packet.get(3)? & 0x0f;
    if packet[2] & TRUNCATED != 0 || !matches!(code, 0 | NXDOMAIN) {
        return None;
    }
    let records: Vec<Record> = Records::from(packet, query.end).filter(|r| r.kind != TYPE_OPT).collect();
    let shortest = records.iter().map(|record| record.ttl).min()?;
    Some((records.iter().map(|record| record.ttl_at).collect(), shortest))
}

struct Record {
    kind: u16,
    class: u16,
    ttl: u32,
    ttl_at: usize,
}

/// The records behind the questions; ends where it cannot go on.
struct Records<'a> {
    packet: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    fn from(packet: &'a [u8], at: usize) -> Self {
        Self { packet, at }
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let at = past_name(self.packet, self.at)?;
        let (kind, class) = (number(self.packet, at)?, number(self.packet, at + 2)?);
        let ttl = u32::from_be_bytes(self.packet.get(at + 4..at + 8)?.try_into().ok()?);
        let length = usize::from(number(self.packet, at + 8)?);
        self.at = at + 10 + length;
        self.packet.get(at + 10..self.at)?;
        Some(Record { kind, class, ttl, ttl_at: at + 4 })
    }
}

fn number(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

/// The name of a question, which has no pointers, and where it ends.
fn plain_name(packet: &[u8], start: usize) -> Option<(Vec<u8>, usize)> {
    let mut at = start;
    loop {
        let length = usize::from(*packet.get(at)?);
        if length > LONGEST_LABEL || at + length + 1 - start > LONGEST_NAME {
            return None;
        }
        at += length + 1;
        if length == 0 {
            return Some((packet.get(start..at)?.to_ascii_lowercase(), at));
        }
    }
}

fn past_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length if length & 0xc0 != 0 => return None,
            length => at += usize::from(*length) + 1,
        }
    }
}

/// A name as on the wire, with or without a dot at its end; none if it cannot be one.
pub(super) fn to_wire(name: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        if label.is_empty() || label.len() > LONGEST_LABEL {
            return None;
        }
        out.push(u8::try_from(label.len()).ok()?);
        out.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    out.push(0);
    (out.len() <= LONGEST_NAME).then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::{Query, answers, cut, failure, lifetimes, to_wire};

    #[test]
    fn names_have_limits() {
        assert_eq!(to_wire("A.b."), Some(b"\x01a\x01b\x00".to_vec()));
        assert_eq!(to_wire("*.b"), Some(b"\x01*\x01b\x00".to_vec()));
        assert_eq!((to_wire(""), to_wire("a..b"), to_wire(&"a".repeat(64))), (None, None, None));
        assert_eq!(to_wire(&"a.".repeat(200)), None);
    }

    proptest! {
        #[test]
        fn no_packet_panics(mut packet in vec(any::<u8>(), 0..80), shaped in any::<bool>()) {
            if shaped && packet.len() >= 12 {
                packet[2] = 1;
                packet[4..12].copy_from_slice(&[0, 1, 0, 1, 0, 1, 0, 1]);
            }
            let _ = failure(&packet);
            if let Ok(query) = Query::read(&packet) {
                let mut long = packet.clone();
                long.resize(2_000, 7);
                let _ = (answers(&long, &query, [0, 0]), lifetimes(&long, &query));
                cut(&mut long, &query);
                assert!(long.len() <= query.udp_size());
            }
        }
    }
}
