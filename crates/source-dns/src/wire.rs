//! DNS messages: questions that we ask, and answers as far as we understand them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is asked for, with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    Address(IpAddr),
    /// It is another name for this one.
    Alias(String),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: String,
    },
}

/// A record, whose it is, and how long it lives in seconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) ttl: u32,
    pub(crate) record: Record,
}

pub(crate) struct Answer {
    pub(crate) id: u16,
    pub(crate) is_truncated: bool,
    pub(crate) code: u8,
    /// What was asked for.
    pub(crate) entries: Vec<Entry>,
    /// What was told beside it, which may be about anybody: name servers have addresses too.
    pub(crate) beside: Vec<Entry>,
}

const CLASS_IN: u16 = 1;
const OPT: u16 = 41;
/// The length of what we add to a question.
const EXTENSION: usize = 11;
/// So large may answers be over UDP; larger ones come over TCP.
const UDP_SIZE: u16 = 4096;
/// A name has at most so many parts, pointers included; one that has more goes round in circles.
const MOST_PARTS: usize = 128;

/// Nothing if the name is none.
pub(crate) fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(name.len() + 32);
    for number in [id, 0x0100, 1, 0, 0, 1] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    for part in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(part.len()).ok().filter(|length| (1..=63).contains(length))?;
        out.push(length);
        out.extend_from_slice(part.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&(kind as u16).to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    // What we understand beyond the first standard: larger answers.
    out.push(0);
    for number in [OPT, UDP_SIZE, 0, 0, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    (name.len() <= 253).then_some(out)
}

/// The same question without what old servers do not understand.
pub(crate) fn plain(question: &[u8]) -> Vec<u8> {
    let mut out = question[..question.len().saturating_sub(EXTENSION)].to_vec();
    if let Some(more) = out.get_mut(10..12) {
        more.fill(0);
    }
    out
}

/// Nothing if it is no answer.
pub(crate) fn answer(bytes: &[u8]) -> Option<Answer> {
    let mut reader = Reader { bytes, at: 0 };
    let (id, flags) = (reader.short()?, reader.short()?);
    let [questions, answers, authorities, more] =
        [reader.short()?, reader.short()?, reader.short()?, reader.short()?];
    if flags & 0x8000 == 0 {
        return None;
    }
    for _ in 0..questions {
        reader.name()?;
        reader.skip(4)?;
    }
    let mut section = |count: u16| -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.extend(reader.entry()?);
        }
        Some(entries)
    };
    let (entries, _authorities, beside) = (section(answers)?, section(authorities)?, section(more)?);
    Some(Answer { id, is_truncated: flags & 0x0200 != 0, code: (flags & 0xf) as u8, entries, beside })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(N)?)?;
        self.at += N;
        taken.try_into().ok()
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn short(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn long(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// A name, the rest of which may stand elsewhere in the message.
    fn name(&mut self) -> Option<String> {
        let (mut parts, mut at, mut behind) = (Vec::new(), self.at, None);
        for _ in 0..MOST_PARTS {
            let length = usize::from(*self.bytes.get(at)?);
            match length {
                0 => {
                    self.at = behind.unwrap_or(at + 1);
                    return Some(parts.join("."));
                }
                1..=63 => {
                    let part = self.bytes.get(at + 1..at + 1 + length)?;
                    parts.push(String::from_utf8_lossy(part).to_ascii_lowercase());
                    at += 1 + length;
                }
                192.. => {
                    let low = usize::from(*self.bytes.get(at + 1)?);
                    behind = behind.or(Some(at + 2));
                    at = (length & 0x3f) << 8 | low;
                }
                _ => return None,
            }
        }
        None
    }

    /// The next record, if it is one that we ask for.
    fn entry(&mut self) -> Option<Option<Entry>> {
        let name = self.name()?;
        let (kind, class, ttl) = (self.short()?, self.short()?, self.long()?);
        let length = usize::from(self.short()?);
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let record = match (kind, class, length) {
            (1, CLASS_IN, 4) => Some(Record::Address(Ipv4Addr::from(self.take::<4>()?).into())),
            (5, CLASS_IN, _) => Some(Record::Alias(self.name()?)),
            (28, CLASS_IN, 16) => Some(Record::Address(Ipv6Addr::from(self.take::<16>()?).into())),
            (33, CLASS_IN, 7..) => {
                let (priority, weight, port) = (self.short()?, self.short()?, self.short()?);
                Some(Record::Srv { priority, weight, port, target: self.name()? })
            }
            _ => None,
        };
        self.at = end;
        Some(record.map(|record| Entry { name, ttl, record }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Record, answer, plain, question};

    #[test]
    fn an_answer_with_pointers_is_read_and_no_bytes_make_it_panic() {
        let message = question(7, "_http._tcp.shop.example", Kind::Srv).unwrap();
        // One answer in place of what we added, which points back to the name that was asked for.
        let mut message = plain(&message);
        message[2] = 0x80;
        message[7] = 1;
        message.extend_from_slice(&[
            0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 5, 0, 11, 0, 1, 0, 2, 0x1f, 0x90, 2, b'h', b'1', 0xc0, 23,
        ]);
        let read = answer(&message).unwrap();
        assert_eq!((read.id, read.code, read.is_truncated), (7, 0, false));
        let target = "h1.shop.example".to_owned();
        assert_eq!(read.entries[0].record, Record::Srv { priority: 1, weight: 2, port: 8080, target });
        for cut in 0..message.len() {
            let _read = answer(&message[..cut]);
        }
        // A name that points to itself ends.
        message[12] = 0xc0;
        message[13] = 12;
        assert!(answer(&message).is_none());
        assert!(question(1, "a..b", Kind::A).is_none() && question(1, &"a".repeat(64), Kind::A).is_none());
    }
}
