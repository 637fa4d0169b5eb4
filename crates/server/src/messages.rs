use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;

use crate::incoming::Incoming;
use crate::readers::{LONG, Readers, Turn};

/// The asking half of a gRPC stream: messages, put together from the pieces in which they arrive.
///
/// What a proxy asks first has thousands of names; nothing of that size is kept between messages, as thousands of proxies
/// would keep it each.
pub(crate) struct Messages<M> {
    body: Body,
    /// What came last and was not looked at yet.
    piece: Bytes,
    /// The beginning of a message, header included, whose end is not there yet.
    begun: Vec<u8>,
    /// The largest message that is read.
    max: usize,
    readers: Readers,
    turn: Turn,
    read_as: PhantomData<fn() -> M>,
}

/// How much of a message is there.
enum Taken {
    Message(Bytes),
    /// Its beginning, and it is long: the rest waits for its turn.
    Long,
    Part,
}

const HEADER: usize = 5;

/// Of a message that says it is no longer than this all is believed at once. Memory that is not written to is none.
const BELIEVED: usize = 1 << 20;

impl<M: Incoming> Messages<M> {
    pub(crate) fn new(body: Body, max: usize, readers: Readers) -> Self {
        let (piece, begun, turn) = Default::default();
        Self { body, piece, begun, max, readers, turn, read_as: PhantomData }
    }

    /// The next message; none when the client has said all. It may be given up and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<M>, Status> {
        // Whoever asks for more is done with what was long.
        if self.begun.is_empty() {
            self.turn = Turn::Nothing;
        }
        loop {
            match self.take()? {
                Taken::Message(message) => return M::read(message).map(Some),
                Taken::Long => {
                    self.turn.come(&self.readers).await;
                    continue;
                }
                Taken::Part => {}
            }
            match self.turn.within(self.body.frame()).await {
                Some(frame) => self.piece = frame?.into_data().unwrap_or_default(),
                None if self.begun.is_empty() => return Ok(None),
                None => return Err(Status::internal("the stream ended within a message")),
            }
        }
    }

    fn take(&mut self) -> Result<Taken, Status> {
        if self.begun.is_empty() && self.piece.len() >= HEADER {
            let len = self.len_after(&self.piece[..HEADER])?;
            if self.piece.len() >= HEADER + len {
                self.piece.advance(HEADER);
                return Ok(Taken::Message(self.piece.split_to(len)));
            }
        }
        if !self.fill(HEADER) {
            return Ok(Taken::Part);
        }
        let len = self.len_after(&self.begun[..HEADER])?;
        if len > LONG && !self.turn.has_come() {
            return Ok(Taken::Long);
        }
        if !self.fill(HEADER + len) {
            return Ok(Taken::Part);
        }
        let mut message = Bytes::from(std::mem::take(&mut self.begun));
        message.advance(HEADER);
        Ok(Taken::Message(message))
    }

    /// Moves so much of the piece that so much of a message is there, if it can be.
    fn fill(&mut self, len: usize) -> bool {
        let missing = len.saturating_sub(self.begun.len()).min(self.piece.len());
        let there = self.begun.len() + missing;
        if there > self.begun.capacity() {
            // What is to come, as far as it costs nothing to believe it; otherwise twice what came, so that it is not moved with
            // each piece.
            let room = if len <= BELIEVED { len } else { (2 * there).min(len).max(there) };
            self.begun.reserve_exact(room - self.begun.len());
        }
        self.begun.extend_from_slice(&self.piece.split_to(missing));
        self.begun.len() >= len
    }

    fn len_after(&self, mut header: &[u8]) -> Result<usize, Status> {
        if header.get_u8() != 0 {
            return Err(Status::unimplemented("a compressed message is not read: send it as it is"));
        }
        let len = header.get_u32() as usize;
        if len > self.max {
            let max = self.max;
            return Err(Status::out_of_range(format!(
                "a message of {len} bytes is too large: at most {max}"
            )));
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
    use prost::Message as _;
    use tonic::{Code, Status};

    use super::Messages;
    use crate::incoming::{Incoming as _, SotwRequest};
    use crate::readers::{LONG, Readers};

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let mut out = vec![flag];
        out.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        out.extend(message);
        out
    }

    /// The types of the requests that are read when bytes arrive in pieces of a size.
    async fn read(bytes: &[u8], size: usize) -> Result<Vec<String>, Status> {
        read_up_to(100, bytes, size).await
    }

    async fn read_up_to(max: usize, bytes: &[u8], size: usize) -> Result<Vec<String>, Status> {
        let piece = |piece: &[u8]| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(piece)));
        let pieces: Vec<_> = bytes.chunks(size).map(piece).collect();
        let body = tonic::body::Body::new(StreamBody::new(tokio_stream::iter(pieces)));
        let mut messages = Messages::<SotwRequest>::new(body, max, Readers::with_places(1));
        let mut types = Vec::new();
        while let Some(message) = messages.next().await? {
            types.push(message.type_url().to_owned());
        }
        Ok(types)
    }

    #[tokio::test]
    async fn messages_are_whole_however_they_arrive() {
        let request = |url: &str| DiscoveryRequest { type_url: url.to_owned(), ..Default::default() };
        let messages = ["one", "", "three"].map(|url| framed(0, &request(url).encode_to_vec()));
        let bytes = messages.concat();
        for size in 1..=bytes.len() {
            assert_eq!(read(&bytes, size).await.unwrap(), ["one", "", "three"], "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn long_messages_have_their_turn_one_after_the_other() {
        let long = DiscoveryRequest { type_url: "x".repeat(2 * LONG), ..Default::default() };
        let bytes = framed(0, &long.encode_to_vec()).repeat(3);
        for size in [1000, LONG, 5 * LONG] {
            let read = read_up_to(3 * LONG, &bytes, size).await.unwrap();
            assert!(read.iter().all(|url| *url == long.type_url) && read.len() == 3, "in pieces of {size}");
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_with_a_word() {
        for size in [1, 1000] {
            let code = |read: Result<Vec<String>, Status>| read.unwrap_err().code();
            assert_eq!(code(read(&framed(1, b""), size).await), Code::Unimplemented);
            assert_eq!(code(read(&framed(0, &[0; 101]), size).await), Code::OutOfRange);
            assert_eq!(code(read(&framed(0, b"\xff"), size).await), Code::InvalidArgument);
            assert_eq!(code(read(b"\0\0\0", size).await), Code::Internal);
        }
    }
}
