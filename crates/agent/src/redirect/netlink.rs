//! A few questions to the kernel about addresses and routes, in its own protocol: images of proxies have no `ip`.

use std::io::{self, Read as _};
use std::net::IpAddr;

use socket2::{Domain, Protocol, Socket, Type};

/// In every network namespace.
const LOOPBACK_INDEX: u32 = 1;
const HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const RULE_HEADER: usize = 12;
/// The kernel's answers come in pieces of at most this much.
const PIECE: usize = 32 * 1024;

const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;

/// Should a thing be there or not?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    There,
    Gone,
}

/// What to be there or not.
pub(super) enum Thing {
    /// An address of the loopback interface.
    LoopbackAddress(IpAddr),
    /// Packets with this mark look into this routing table.
    MarkRule { mark: u32, table: u32, family: u8 },
    /// In this routing table, everything is for this machine.
    EverythingLocal { table: u32, family: u8 },
}

pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)).map(Self)
    }

    /// All addresses of all interfaces.
    pub(super) fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        let all = self.list(libc::RTM_GETADDR, &[0; ADDRESS_HEADER])?;
        Ok(all.iter().filter_map(|body| address(body)).collect())
    }

    /// What the kernel knows of one kind.
    fn list(&mut self, kind: u16, header: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.send(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, header)?;
        let mut found = Vec::new();
        loop {
            for (kind, body) in messages(&self.receive()?) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(found),
                    libc::NLMSG_ERROR => acknowledged(&body)?,
                    _ => found.push(body),
                }
            }
        }
    }

    /// What is so already is no error.
    pub(super) fn make(&mut self, wanted: Wanted, thing: &Thing) -> io::Result<()> {
        // The kernel would take a second rule like the first.
        if let (Wanted::There, Thing::MarkRule { mark, table, family }) = (wanted, thing) {
            let mut header = [0; RULE_HEADER];
            header[0] = *family;
            let wanted = [(FRA_FWMARK, mark), (FRA_TABLE, table)];
            let has = |body: &Vec<u8>| {
                let told = attributes(body, RULE_HEADER);
                wanted.iter().all(|(kind, value)| told.contains(&(*kind, &value.to_ne_bytes())))
            };
            if self.list(libc::RTM_GETRULE, &header)?.iter().any(has) {
                return Ok(());
            }
        }
        let (add, remove, body) = thing.message();
        let (kind, flags) = match wanted {
            Wanted::There => (add, libc::NLM_F_CREATE | libc::NLM_F_EXCL),
            Wanted::Gone => (remove, 0),
        };
        self.send(kind, libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags, &body)?;
        let answer = self.receive()?;
        let (_, body) = messages(&answer).into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let so_already = match wanted {
            Wanted::There => &[libc::EEXIST][..],
            // A kernel without version 6 has nothing of it.
            Wanted::Gone => {
                &[libc::ENOENT, libc::ESRCH, libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT, libc::EOPNOTSUPP]
            }
        };
        match acknowledged(&body) {
            Err(error) if error.raw_os_error().is_some_and(|code| so_already.contains(&code)) => Ok(()),
            other => other,
        }
    }

    fn send(&mut self, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let flags = u16::try_from(flags).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        // One question at a time needs neither a number nor a sender.
        message.extend([0; 8]);
        message.extend(body);
        self.0.send(&message).map(|_| ())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; PIECE];
        let length = self.0.read(&mut piece)?;
        piece.truncate(length);
        Ok(piece)
    }
}

impl Thing {
    /// How to add it, how to remove it, and what it is.
    fn message(&self) -> (u16, u16, Vec<u8>) {
        match self {
            Self::LoopbackAddress(address) => {
                let (family, bytes) = match address {
                    IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
                    IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
                };
                let bits = u8::try_from(bytes.len() * 8).unwrap_or(u8::MAX);
                let mut body = vec![family_byte(family), bits, 0, 0];
                body.extend(LOOPBACK_INDEX.to_ne_bytes());
                attribute(&mut body, libc::IFA_LOCAL, &bytes);
                attribute(&mut body, libc::IFA_ADDRESS, &bytes);
                (libc::RTM_NEWADDR, libc::RTM_DELADDR, body)
            }
            Self::MarkRule { mark, table, family } => {
                let mut body = vec![*family, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
                attribute(&mut body, FRA_FWMARK, &mark.to_ne_bytes());
                attribute(&mut body, FRA_TABLE, &table.to_ne_bytes());
                (libc::RTM_NEWRULE, libc::RTM_DELRULE, body)
            }
            Self::EverythingLocal { table, family } => {
                let (by, scope, kind) = (libc::RTPROT_BOOT, libc::RT_SCOPE_HOST, libc::RTN_LOCAL);
                let mut body = vec![*family, 0, 0, 0, 0, by, scope, kind, 0, 0, 0, 0];
                attribute(&mut body, RTA_TABLE, &table.to_ne_bytes());
                attribute(&mut body, RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes());
                (libc::RTM_NEWROUTE, libc::RTM_DELROUTE, body)
            }
        }
    }
}

pub(super) fn family_byte(family: i32) -> u8 {
    u8::try_from(family).unwrap_or_default()
}

/// Attributes begin at multiples of four.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Kinds and bodies of the messages in a piece.
fn messages(piece: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = piece;
    while let Some(length) = number(rest, 0).filter(|length| (HEADER..=rest.len()).contains(length)) {
        found.push((kind(rest, 4), rest[HEADER..length].to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// What the kernel says to an order: nothing, or what is wrong with it.
fn acknowledged(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}

/// The address that a message about one tells. Where two are told, the local one is the machine's own.
fn address(body: &[u8]) -> Option<IpAddr> {
    let told = attributes(body, ADDRESS_HEADER);
    let find = |kind| told.iter().find(|(own, _)| *own == kind).and_then(|(_, value)| ip(value));
    find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))
}

/// Kinds and values of what follows the header of a body.
fn attributes(body: &[u8], header: usize) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    let mut rest = body.get(header..).unwrap_or_default();
    while let Some(value) = rest.get(4..usize::from(kind(rest, 0))) {
        found.push((kind(rest, 2), value));
        rest = rest.get((4 + value.len()).next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

fn kind(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::{Netlink, address, messages};

    #[test]
    fn the_loopback_is_among_the_addresses() {
        let all = Netlink::open().unwrap().addresses().unwrap();
        assert!(all.contains(&"127.0.0.1".parse().unwrap()), "{all:?}");
    }

    #[test]
    fn answers_that_break_off_are_not_read_past_their_end() {
        let whole = [24_u32.to_ne_bytes().as_slice(), &20_u16.to_ne_bytes(), &[0; 18]].concat();
        assert_eq!(messages(&whole).len(), 1);
        for end in 0..whole.len() {
            assert_eq!(messages(&whole[..end]).len(), 0, "{end}");
        }
        for broken in [&[][..], &[0; 7], &[0; 9], &[255; 12], &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 2, 0, 1]] {
            assert_eq!(address(broken), None, "{broken:?}");
        }
    }
}
