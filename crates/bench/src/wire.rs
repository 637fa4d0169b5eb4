//! Protobuf on the wire, walked field by field: nothing is decoded that is not looked at.

use bytes::{Buf as _, BytesMut};

/// What stands behind a field's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Numbers of a fixed size, which nobody here looks at.
    Fixed,
}

/// The fields of a message, in the order in which they stand. A message that is broken ends where it is.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (field, size) = first_field(self.0)?;
        self.0 = &self.0[size..];
        Some(field)
    }
}

/// The first field of some bytes and how long it is; nothing if not all of it is there.
fn first_field(bytes: &[u8]) -> Option<((u32, Value<'_>), usize)> {
    let (tag, at) = varint(bytes)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let fixed = |size: usize| (bytes.len() >= at + size).then_some(((number, Value::Fixed), at + size));
    match tag & 7 {
        0 => {
            let (value, size) = varint(&bytes[at..])?;
            Some(((number, Value::Number(value)), at + size))
        }
        2 => {
            let (length, size) = varint(&bytes[at..])?;
            let (start, length) = (at + size, usize::try_from(length).ok()?);
            let value = bytes.get(start..start.checked_add(length)?)?;
            Some(((number, Value::Bytes(value)), start + length))
        }
        1 => fixed(8),
        5 => fixed(4),
        _ => None,
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Every value of one field that has bytes.
pub(crate) fn all(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(move |field| match field {
        (n, Value::Bytes(bytes)) if n == number => Some(bytes),
        _ => None,
    })
}

/// The first value of one field that has bytes.
pub(crate) fn first(message: &[u8], number: u32) -> Option<&[u8]> {
    all(message, number).next()
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A text that is left out if it is empty, as proto3 does.
pub(crate) fn put_text(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_bytes(out, number, bytes);
    }
}

/// The five bytes of gRPC in front of a message.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(message.len() + 5);
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
    out
}

/// Messages as they arrive in pieces. Only a field that is not whole yet is kept, so that a thousand proxies need little
/// memory.
#[derive(Default)]
pub(crate) struct Arriving {
    rest: BytesMut,
    /// What of the message is still to come, if one has begun.
    left: Option<usize>,
}

/// Why a stream cannot be read on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Compressed,
    TooLong(usize),
    Malformed,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compressed => f.write_str("a message is compressed, which nobody asked for"),
            Self::TooLong(length) => write!(f, "a message of {length} bytes is longer than {MOST}"),
            Self::Malformed => f.write_str("a message is not protobuf"),
        }
    }
}

impl std::error::Error for Broken {}

/// Whoever is told what arrives.
pub(crate) trait Reader {
    fn field(&mut self, number: u32, bytes: &[u8]);
    fn end(&mut self);
}

/// Ten thousand services with a hundred endpoints stay below this.
const MOST: usize = 1 << 30;
const HEAD: usize = 5;
/// A field's number and length.
const MOST_OF_A_HEAD: usize = 15;

impl Arriving {
    pub(crate) fn feed(&mut self, chunk: &[u8], reader: &mut impl Reader) -> Result<(), Broken> {
        if self.rest.is_empty() {
            let used = self.take(chunk, reader)?;
            self.rest.extend_from_slice(&chunk[used..]);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(chunk);
            let used = self.take(&rest, reader)?;
            rest.advance(used);
            self.rest = rest;
        }
        Ok(())
    }

    /// Reads as much as is whole, and tells how much that was.
    fn take(&mut self, bytes: &[u8], reader: &mut impl Reader) -> Result<usize, Broken> {
        let mut at = 0;
        loop {
            let here = &bytes[at..];
            match self.left {
                None => {
                    let Some(head) = here.get(..HEAD) else { return Ok(at) };
                    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                    match length {
                        _ if head[0] != 0 => return Err(Broken::Compressed),
                        length if length > MOST => return Err(Broken::TooLong(length)),
                        length => self.left = Some(length),
                    }
                    at += HEAD;
                }
                Some(0) => {
                    reader.end();
                    self.left = None;
                }
                Some(left) => {
                    let here = &here[..left.min(here.len())];
                    let Some(((number, value), size)) = first_field(here) else {
                        // More may come, unless all of it is here or no number can be that long.
                        let hopeless =
                            here.len() == left || (varint(here).is_none() && here.len() > MOST_OF_A_HEAD);
                        return if hopeless { Err(Broken::Malformed) } else { Ok(at) };
                    };
                    if let Value::Bytes(value) = value {
                        reader.field(number, value);
                    }
                    at += size;
                    self.left = Some(left - size);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arriving, Broken, Fields, Reader, Value, first, framed, put_bytes, put_varint};

    #[derive(Default, PartialEq, Debug)]
    struct Seen(Vec<(u32, Vec<u8>)>, usize);

    impl Reader for Seen {
        fn field(&mut self, number: u32, bytes: &[u8]) {
            self.0.push((number, bytes.to_vec()));
        }

        fn end(&mut self) {
            self.1 += 1;
        }
    }

    fn message() -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, 1, b"one");
        put_varint(&mut out, 3 << 3);
        put_varint(&mut out, 300);
        put_bytes(&mut out, 2, &[7; 200]);
        out
    }

    #[test]
    fn fields_are_walked_in_order() {
        let bytes = message();
        let fields: Vec<_> = Fields(&bytes).collect();
        assert_eq!(
            fields,
            [(1, Value::Bytes(b"one")), (3, Value::Number(300)), (2, Value::Bytes(&[7; 200]))]
        );
        assert_eq!(first(&bytes, 2), Some([7; 200].as_slice()));
    }

    #[test]
    fn messages_are_the_same_however_they_are_cut() {
        let mut bytes = framed(&message());
        bytes.extend(framed(&[]));
        bytes.extend(framed(&message()));
        let whole = {
            let mut seen = Seen::default();
            Arriving::default().feed(&bytes, &mut seen).unwrap();
            seen
        };
        assert_eq!((whole.0.len(), whole.1), (4, 3));
        for size in [1, 2, 3, 5, 7, 64] {
            let (mut seen, mut arriving) = (Seen::default(), Arriving::default());
            for chunk in bytes.chunks(size) {
                arriving.feed(chunk, &mut seen).unwrap();
            }
            assert_eq!(seen, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_broken_is_told_and_nothing_panics() {
        let feed = |bytes: &[u8]| Arriving::default().feed(bytes, &mut Seen::default());
        assert_eq!(feed(&[1, 0, 0, 0, 0]), Err(Broken::Compressed));
        assert_eq!(feed(&[0, 255, 0, 0, 0]), Err(Broken::TooLong(255 << 24)));
        assert_eq!(feed(&framed(&[0xff; 30])), Err(Broken::Malformed));
        // A field that claims to be longer than its message.
        assert_eq!(feed(&framed(&[0x0a, 9, 1])), Err(Broken::Malformed));
        for length in 0..message().len() {
            assert!(Fields(&message()[..length]).count() <= 3);
        }
    }
}
