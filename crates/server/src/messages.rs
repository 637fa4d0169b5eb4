use std::marker::PhantomData;

use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use pilot_envoy_api::envoy::config::core::v3::Node;
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

/// What a client says first.
pub(crate) enum Begun<M> {
    Whole(M),
    /// It is long, so that it has to wait for its turn; but who says it is known.
    Long(Box<Node>),
}

/// How much of a message is there.
enum Taken {
    Message(Bytes),
    /// Its beginning, and it is long: the rest waits for its turn.
    Long,
    Part,
}

const HEADER: usize = 5;

/// So much of what a client says first is read before it is its turn: it says who it is before anything else.
const INTRODUCTION: usize = 16 << 10;

/// Of a message that says it is no longer than this all is believed at once. Memory that is not written to is none.
const BELIEVED: usize = 1 << 20;

impl<M: Incoming> Messages<M> {
    pub(crate) fn new(body: Body, max: usize, readers: Readers) -> Self {
        let (piece, begun, turn) = Default::default();
        Self { body, piece, begun, max, readers, turn, read_as: PhantomData }
    }

    /// The next message; none when the client has said all. It may be given up and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<M>, Status> {
        loop {
            match self.take()? {
                Taken::Message(message) => return M::read(message).map(Some),
                Taken::Long => self.turn.come(&self.readers).await,
                Taken::Part if self.hear().await? => {}
                Taken::Part => return Ok(None),
            }
        }
    }

    /// The next message, or who says it if it is long. The message comes [next](Self::next) then, when it is its turn: what
    /// has to be done before it can be answered takes no turn from others, and no memory.
    pub(crate) async fn begin(&mut self) -> Result<Option<Begun<M>>, Status> {
        loop {
            match self.take()? {
                Taken::Message(message) => {
                    return M::read(message).map(|message| Some(Begun::Whole(message)));
                }
                Taken::Long => {
                    let is_all = self.fill(HEADER + INTRODUCTION);
                    if let Some(node) = M::node_in(&self.begun[HEADER..])? {
                        return Ok(Some(Begun::Long(Box::new(node))));
                    }
                    if is_all {
                        self.turn.come(&self.readers).await;
                        continue;
                    }
                }
                Taken::Part => {}
            }
            if !self.hear().await? {
                return Ok(None);
            }
        }
    }

    /// Waits for the next piece. There is none when the client has said all.
    async fn hear(&mut self) -> Result<bool, Status> {
        match self.body.frame().await {
            Some(frame) => {
                self.piece = frame?.into_data().unwrap_or_default();
                Ok(true)
            }
            None if self.begun.is_empty() => Ok(false),
            None => Err(Status::internal("the stream ended within a message")),
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
        // Whoever is handed it may not be run again for long, and has no more to read.
        self.turn = Turn::Nothing;
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
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use pilot_envoy_api::envoy::config::core::v3::Node;
    use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
    use prost::Message as _;
    use tonic::{Code, Status};

    use super::{Begun, Messages};
    use crate::clock::Held;
    use crate::incoming::{Incoming as _, SotwRequest};
    use crate::readers::{LONG, Readers};

    /// One may read at a time.
    fn readers() -> Readers {
        Readers::with_places(1, Arc::new(Held::default()))
    }

    fn pieces(bytes: &[u8], size: usize) -> Vec<Result<Frame<Bytes>, Status>> {
        bytes.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect()
    }

    fn messages(bytes: &[u8], size: usize, readers: &Readers) -> Messages<SotwRequest> {
        let body = tonic::body::Body::new(StreamBody::new(tokio_stream::iter(pieces(bytes, size))));
        Messages::new(body, 4 * LONG, readers.clone())
    }

    /// A request of three times what is long, from a node with so long an id.
    fn long(id: usize) -> Vec<u8> {
        let node = Node { id: "n".repeat(id), ..Node::default() };
        let type_url = "x".repeat(2 * LONG);
        framed(0, &DiscoveryRequest { node: Some(node), type_url, ..Default::default() }.encode_to_vec())
    }

    /// What comes of it without anybody else's doing.
    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        let (mut future, cx) = (pin!(future), &mut Context::from_waker(Waker::noop()));
        // A stream of pieces lets others run now and then.
        (0..10_000).find_map(|_| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        })
    }

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
        let body = tonic::body::Body::new(StreamBody::new(tokio_stream::iter(pieces(bytes, size))));
        let mut messages = Messages::<SotwRequest>::new(body, max, readers());
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

    #[test]
    fn who_was_handed_a_long_message_does_not_keep_others_from_reading_theirs() {
        let readers = readers();
        let mut answered_slowly = messages(&long(1), 1000, &readers);
        assert!(at_once(answered_slowly.next()).expect("it is its turn").unwrap().is_some());
        // It is not asked for more, as its client does not read the answer.
        let mut next = messages(&long(1), 1000, &readers);
        assert!(at_once(next.next()).expect("it need not wait").unwrap().is_some());
    }

    #[test]
    fn who_says_something_long_is_known_before_it_is_its_turn() {
        for size in [1, 100, LONG] {
            let readers = readers();
            let mut reads = messages(&long(1)[..LONG], 100, &readers);
            assert!(
                at_once(reads.next()).is_none_or(|read| read.is_err()),
                "it has the turn and is not done"
            );
            let mut waits = messages(&long(1000), size, &readers);
            let begun = at_once(waits.begin()).expect("it need not wait").unwrap();
            assert!(matches!(begun, Some(Begun::Long(node)) if node.id.len() == 1000), "in pieces of {size}");
            assert!(at_once(waits.next()).is_none(), "it is another's turn");
            drop(reads);
            let message = at_once(waits.next()).expect("it is its turn").unwrap();
            assert_eq!(message.expect("the same").node().unwrap().expect("who it was").id.len(), 1000);
        }
    }

    #[test]
    fn who_is_known_only_after_much_else_waits_for_its_turn() {
        let readers = readers();
        let mut messages = messages(&long(LONG), 1000, &readers);
        let begun = at_once(messages.begin()).expect("it is its turn").unwrap();
        assert!(matches!(begun, Some(Begun::Whole(message)) if message.node().unwrap().is_some()));
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
