use std::fmt;

use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderValue};

const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
/// Longer messages say nothing more, and headers have limits of their own.
const LONGEST: usize = 1 << 10;

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// gRPC's numbers: those that are told apart here, and the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    ResourceExhausted,
    Aborted,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
    Other(u32),
}

const KNOWN: [(Code, u32); 11] = [
    (Code::Ok, 0),
    (Code::Cancelled, 1),
    (Code::Unknown, 2),
    (Code::InvalidArgument, 3),
    (Code::DeadlineExceeded, 4),
    (Code::ResourceExhausted, 8),
    (Code::Aborted, 10),
    (Code::Unimplemented, 12),
    (Code::Internal, 13),
    (Code::Unavailable, 14),
    (Code::Unauthenticated, 16),
];

impl Code {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            known => KNOWN.into_iter().find(|(code, _)| *code == known).map_or(2, |(_, number)| number),
        }
    }

    fn of(number: u32) -> Self {
        KNOWN.into_iter().find(|(_, known)| *known == number).map_or(Self::Other(number), |(code, _)| code)
    }
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    /// What stands in the headers or trailers of an answer, if they end a call.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let number = headers.get(STATUS)?.to_str().ok().and_then(|text| text.parse().ok());
        let message = headers.get(MESSAGE).map(|text| unescaped(text.as_bytes())).unwrap_or_default();
        Some(Self::new(number.map_or(Code::Unknown, Code::of), message))
    }

    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert(STATUS, HeaderValue::from(self.code.number()));
        if let Ok(message) = HeaderValue::try_from(escaped(&self.message)) {
            trailers.insert(MESSAGE, message);
        }
        trailers
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

/// What is not plain ASCII is written as hexadecimal numbers after a per cent sign.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes().take(LONGEST) {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&HEXLOWER.encode(&[byte]).to_ascii_uppercase());
        }
    }
    out
}

fn unescaped(text: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let byte = match (first, after) {
            (b'%', [high, low, ..]) => {
                HEXLOWER.decode(&[high.to_ascii_lowercase(), low.to_ascii_lowercase()]).ok()
            }
            _ => None,
        };
        match byte.as_deref() {
            Some([byte]) => {
                out.push(*byte);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out.truncate(LONGEST);
    String::from_utf8_lossy(&out).into_owned()
}
