//! How requests and answers are written: numbers with the highest byte first, texts with their length before them.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::ZkError;

/// What is asked for, with ZooKeeper's numbers.
#[derive(Clone, Copy)]
pub(super) enum Op {
    Create = 1,
    Delete = 2,
    GetData = 4,
    SetData = 5,
    SetAcl = 7,
    GetChildren = 8,
    Ping = 11,
    Auth = 100,
    Sasl = 102,
    AddWatch = 106,
}

/// Numbers of requests that are none of ours.
const EVENT: i32 = -1;
const PING: i32 = -2;
const AUTH: i32 = -4;
/// Answers come in the order of requests, so theirs need not differ.
const ANY: i32 = 1;

#[derive(Default)]
pub(super) struct Writer(BytesMut);

impl Writer {
    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.put_i32(value);
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.put_i64(value);
        self
    }

    /// A flag that is not set.
    pub(super) fn no(mut self) -> Self {
        self.0.put_u8(0);
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        // Nothing that we write comes near to this limit.
        self.0.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// The whole request, with its length before it.
    pub(super) fn frame(self, op: Op) -> Bytes {
        let number = match op {
            Op::Ping => PING,
            Op::Auth => AUTH,
            _ => ANY,
        };
        let head = Self::default().int(number).int(op as i32);
        Self::default().bytes(&[head.0, self.0].concat()).0.freeze()
    }
}

/// The first words of a session. A server that knows less than what was `seen` sends us away.
pub(super) fn connect_frame(timeout: i32, seen: i64) -> Bytes {
    let body = Writer::default().int(0).long(seen).int(timeout).long(0).bytes(&[0; 16]).no();
    Writer::default().bytes(&body.0).0.freeze()
}

pub(super) fn ping_frame() -> Bytes {
    Writer::default().frame(Op::Ping)
}

/// What the server answers to the first words.
pub(super) fn agreed_timeout(frame: Bytes) -> Option<Duration> {
    let mut reader = Reader::new(frame);
    let (_version, timeout, _session) = (reader.int()?, reader.int()?, reader.long()?);
    Some(Duration::from_millis(u64::try_from(timeout).ok()?))
}

pub(super) enum Reply {
    Ping,
    /// Something happened to this node.
    Event(String),
    Answer(Result<Bytes, ZkError>),
}

/// A reply, and the number of the last change that the server knew, where it says one.
pub(super) fn reply(frame: Bytes) -> Option<(Reply, i64)> {
    let mut reader = Reader::new(frame);
    let (number, change, error) = (reader.int()?, reader.long()?, reader.int()?);
    let reply = match number {
        PING => Reply::Ping,
        EVENT => {
            let (_kind, _state) = (reader.int()?, reader.int()?);
            Reply::Event(reader.text()?)
        }
        _ => Reply::Answer(match error {
            0 => Ok(reader.0),
            -6 => Err(ZkError::Unknown),
            -101 => Err(ZkError::NoNode),
            -102 | -115 => Err(ZkError::NoAuth),
            -110 => Err(ZkError::NodeExists),
            other => Err(ZkError::Other(other)),
        }),
    };
    Some((reply, change))
}

/// Reads from the front; nothing where something else stands there.
pub(super) struct Reader(Bytes);

impl Reader {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    fn int(&mut self) -> Option<i32> {
        (self.0.len() >= 4).then(|| self.0.get_i32())
    }

    fn long(&mut self) -> Option<i64> {
        (self.0.len() >= 8).then(|| self.0.get_i64())
    }

    /// A length of -1 stands for nothing.
    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        (self.0.len() >= length).then(|| self.0.split_to(length))
    }

    fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(super) fn texts(&mut self) -> Option<Vec<String>> {
        let count = usize::try_from(self.int()?.max(0)).ok()?;
        // Each has at least its length, so more than that cannot be meant.
        (count <= self.0.len() / 4).then_some(())?;
        (0..count).map(|_| self.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Op, Reader, Reply, Writer, agreed_timeout, connect_frame, reply};

    #[test]
    fn what_is_written_can_be_read() {
        let frame = Writer::default().text("/a").no().frame(Op::GetData);
        assert_eq!(&frame[..], [0, 0, 0, 15, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0]);
        assert_eq!(connect_frame(1000, 7).len(), 4 + 45);
        let texts = Writer::default().int(2).text("x").text("yz").0.freeze();
        assert_eq!(Reader::new(texts).texts().unwrap(), ["x", "yz"]);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for length in 0..40 {
            for byte in [0, 1, 0x7f, 0xff] {
                let bytes = bytes::Bytes::from(vec![byte; length]);
                let _read = (reply(bytes.clone()), agreed_timeout(bytes.clone()), Reader::new(bytes).texts());
            }
        }
        let event = Writer::default().int(-1).long(0).int(0).int(1).int(3).text("/services/shop").0.freeze();
        assert!(matches!(reply(event), Some((Reply::Event(path), 0)) if path == "/services/shop"));
    }
}
