//! Messages in the bytes of a stream, and back. What is long stays in the pieces that it came in.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::sync::mpsc;

use super::Status;

/// Whether it is compressed, and how long it is.
const HEADER: usize = 5;

/// Bytes in pieces.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rope {
    pieces: VecDeque<Bytes>,
    length: usize,
}

impl Rope {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.length += piece.len();
            self.pieces.push_back(piece);
        }
    }

    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        self.pieces.into_iter()
    }

    /// Takes so many from the front. There must be as many.
    fn split_to(&mut self, mut count: usize) -> Self {
        let mut front = Self::default();
        while count > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            self.length -= piece.len();
            if piece.len() > count {
                let rest = piece.split_off(count);
                self.length += rest.len();
                self.pieces.push_front(rest);
            }
            count -= piece.len();
            front.push(piece);
        }
        front
    }
}

impl From<Bytes> for Rope {
    fn from(bytes: Bytes) -> Self {
        let mut rope = Self::default();
        rope.push(bytes);
        rope
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map(AsRef::as_ref).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        let _passed = self.split_to(count);
    }

    /// Without a copy, if it is in one piece.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let mut front = self.split_to(count);
        if front.pieces.len() <= 1 {
            return front.pieces.pop_front().unwrap_or_default();
        }
        let mut whole = BytesMut::with_capacity(front.length);
        front.pieces.iter().for_each(|piece| whole.put_slice(piece));
        whole.freeze()
    }
}

/// A message that cannot be taken.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameError {
    #[error("a message of {length} bytes is larger than {limit} bytes")]
    TooLong { length: usize, limit: usize },
    #[error("a message is compressed, which nobody asked for")]
    Compressed,
    #[error("the stream ended in the middle of a message")]
    Cut,
}

/// Finds messages in what arrives.
#[derive(Debug)]
pub(crate) struct Deframer {
    arrived: Rope,
    limit: usize,
    /// Of the message that is arriving.
    length: Option<usize>,
}

impl Deframer {
    pub(crate) fn new(limit: usize) -> Self {
        Self { arrived: Rope::default(), limit, length: None }
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        self.arrived.push(piece);
    }

    /// The next message that is whole, without its header.
    pub(crate) fn next(&mut self) -> Result<Option<Rope>, FrameError> {
        let length = match self.length {
            Some(length) => length,
            None if self.arrived.remaining() < HEADER => return Ok(None),
            None => {
                let compressed = self.arrived.get_u8() != 0;
                let length = usize::try_from(self.arrived.get_u32()).unwrap_or(usize::MAX);
                if compressed {
                    return Err(FrameError::Compressed);
                }
                if length > self.limit {
                    return Err(FrameError::TooLong { length, limit: self.limit });
                }
                *self.length.insert(length)
            }
        };
        if self.arrived.remaining() < length {
            return Ok(None);
        }
        self.length = None;
        Ok(Some(self.arrived.split_to(length)))
    }

    /// Nothing more comes: was that all?
    pub(crate) fn end(&self) -> Result<(), FrameError> {
        if self.arrived.remaining() == 0 && self.length.is_none() { Ok(()) } else { Err(FrameError::Cut) }
    }
}

/// A message with its header, in the pieces that it has.
pub(crate) fn framed(message: Rope) -> impl Iterator<Item = Bytes> {
    let mut header = BytesMut::with_capacity(HEADER);
    header.put_u8(0);
    // Limits are far below.
    header.put_u32(u32::try_from(message.length).unwrap_or(u32::MAX));
    std::iter::once(header.freeze()).chain(message.into_pieces())
}

/// What is sent on a stream, as it is put into the other end of a channel.
pub(crate) struct Outgoing {
    pieces: Pieces,
    /// A client only ends its stream, a server tells how it went.
    status: Option<Status>,
}

enum Pieces {
    /// Who sends waits for who reads.
    Bounded(mpsc::Receiver<Result<Bytes, Status>>),
    /// Nobody waits; how much there is, is counted.
    Counted(mpsc::UnboundedReceiver<Bytes>, Arc<AtomicUsize>),
    Ended,
}

impl Outgoing {
    /// An error is the status that the stream ends with.
    pub(crate) fn bounded(pieces: mpsc::Receiver<Result<Bytes, Status>>) -> Self {
        Self { pieces: Pieces::Bounded(pieces), status: None }
    }

    pub(crate) fn counted(pieces: mpsc::UnboundedReceiver<Bytes>, waiting: Arc<AtomicUsize>) -> Self {
        Self { pieces: Pieces::Counted(pieces, waiting), status: None }
    }

    /// Nothing but a status.
    pub(crate) fn ended(status: Status) -> Self {
        Self { pieces: Pieces::Ended, status: Some(status) }
    }

    /// Only this message.
    pub(crate) fn once(message: Bytes) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        for piece in framed(Rope::from(message)) {
            waiting.fetch_add(piece.len(), Ordering::Relaxed);
            // The receiver is just below.
            let _held = sender.send(piece);
        }
        Self::counted(receiver, waiting)
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(status) = self.status.take() {
            self.pieces = Pieces::Ended;
            return Poll::Ready(Some(Ok(Frame::trailers(status.trailers()))));
        }
        match &mut self.pieces {
            Pieces::Ended => Poll::Ready(None),
            Pieces::Counted(pieces, waiting) => {
                let piece = std::task::ready!(pieces.poll_recv(cx));
                if let Some(piece) = &piece {
                    waiting.fetch_sub(piece.len(), Ordering::Relaxed);
                }
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Pieces::Bounded(pieces) => match std::task::ready!(pieces.poll_recv(cx)) {
                Some(Ok(piece)) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                Some(Err(status)) => {
                    self.pieces = Pieces::Ended;
                    Poll::Ready(Some(Ok(Frame::trailers(status.trailers()))))
                }
                None => Poll::Ready(None),
            },
        }
    }
}
