//! Clients of gRPC's C library call a socket by its path, percent-encoded, which is not how an authority may look and is
//! refused by who reads HTTP/2 by the book. Nobody needs to know it here, so it is made to look like one: a `%` becomes a `-`,
//! in place, before anybody reads it.
//!
//! Only what that library writes is touched: `:authority` as a name written out, with a value that is not compressed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

const PREFACE: usize = 24;
const FRAME: usize = 9;
const HEADERS: u8 = 1;
/// The length of the name, and the name.
const NAME: &[u8] = b"\x0a:authority";
/// A longer value has more than one byte for its length, and a compressed one has the highest bit set.
const LONGEST: u8 = 126;

/// A connection whose authority can be read.
pub(crate) struct ReadableAuthority {
    stream: UnixStream,
    filter: Filter,
}

impl ReadableAuthority {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, filter: Filter::default() }
    }
}

/// Where in the bytes of a client we are.
#[derive(Default)]
struct Filter {
    /// How much of the preface has passed.
    preface: usize,
    /// The beginning of a frame.
    head: Vec<u8>,
    /// How much of the frame is still to come.
    rest: usize,
    /// How much of the name was seen last.
    matched: usize,
    value: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Value {
    #[default]
    Elsewhere,
    /// Its length comes next.
    Length,
    /// So many bytes of it are still to come.
    Within(u8),
}

impl Filter {
    fn pass(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.preface < PREFACE {
                self.preface += 1;
            } else if self.rest == 0 {
                self.begin(*byte);
            } else {
                self.rest -= 1;
                if self.head[3] == HEADERS {
                    self.header(byte);
                }
                if self.rest == 0 {
                    self.head.clear();
                }
            }
        }
    }

    fn begin(&mut self, byte: u8) {
        self.head.push(byte);
        if self.head.len() < FRAME {
            return;
        }
        self.rest = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        (self.matched, self.value) = (0, Value::Elsewhere);
        if self.rest == 0 {
            self.head.clear();
        }
    }

    fn header(&mut self, byte: &mut u8) {
        self.value = match self.value {
            Value::Elsewhere => {
                let continues = NAME[self.matched] == *byte;
                self.matched = if continues { self.matched + 1 } else { usize::from(*byte == NAME[0]) };
                if self.matched < NAME.len() {
                    return;
                }
                self.matched = 0;
                Value::Length
            }
            Value::Length if (1..=LONGEST).contains(byte) => Value::Within(*byte),
            Value::Length => Value::Elsewhere,
            Value::Within(left) => {
                if *byte == b'%' {
                    *byte = b'-';
                }
                if left == 1 { Value::Elsewhere } else { Value::Within(left - 1) }
            }
        };
    }
}

impl AsyncRead for ReadableAuthority {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.filter.pass(&mut into.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadableAuthority {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{Filter, HEADERS, PREFACE};

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn only_the_authority_is_touched_however_the_bytes_come() {
        let (name, value) = (b"@\x0a:authority", b"\x0dtmp%2Fa%2FXDS");
        let headers =
            |value: &[u8]| [&b"@\x05:path\x04/%2F"[..], name, value, b"\x83@\x02te\x03%%%"].concat();
        let data = headers(value);
        let all = |value: &[u8]| {
            let frames = [frame(4, b""), frame(HEADERS, &headers(value)), frame(0, &data)];
            [vec![b'%'; PREFACE], frames.concat(), frame(HEADERS, &headers(value))].concat()
        };
        for size in [1, 2, 7, 1000] {
            let mut filter = Filter::default();
            let mut bytes = all(value);
            bytes.chunks_mut(size).for_each(|part| filter.pass(part));
            assert_eq!(bytes, all(b"\x0dtmp-2Fa-2FXDS"));
        }
    }

    #[test]
    fn nonsense_passes_as_it_is() {
        let nonsense: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        let mut bytes = nonsense.clone();
        Filter::default().pass(&mut bytes);
        assert_eq!(bytes, nonsense);
    }
}
