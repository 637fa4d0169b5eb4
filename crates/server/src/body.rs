use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::Frame;
use tokio::sync::mpsc;
use tonic::Status;

/// What runs a stream: it queues messages and ends with a status.
pub(crate) type Running = Pin<Box<dyn Future<Output = Status> + Send>>;

/// The answering half of a gRPC stream.
///
/// The stream itself runs inside: whoever asks for the next piece drives it. So there is no task to lose, a client that
/// does not read is not worked for, and a connection that ends takes everything with it.
pub(crate) struct StreamBody {
    /// None once it has ended.
    running: Option<Running>,
    pieces: mpsc::UnboundedReceiver<Bytes>,
    status: Option<Status>,
}

/// Where a stream puts what it sends. It never holds more than the protocol lets be under way.
#[derive(Clone)]
pub(crate) struct Outgoing(mpsc::UnboundedSender<Bytes>);

const MESSAGE_HEADER: usize = 5;

/// Smaller messages are put together; larger ones share their bytes.
pub(crate) const SMALL: usize = 8 << 10;

impl StreamBody {
    pub(crate) fn new(run: impl FnOnce(Outgoing) -> Running) -> Self {
        let (sender, pieces) = mpsc::unbounded_channel();
        Self { running: Some(run(Outgoing(sender))), pieces, status: None }
    }
}

impl Outgoing {
    /// Queues a message that consists of `own` and, behind it, what is shared.
    pub(crate) fn send(&self, own: &[u8], shared: Vec<Bytes>) {
        let len = own.len() + shared.iter().map(Bytes::len).sum::<usize>();
        let is_small = len <= SMALL;
        let mut head = BytesMut::with_capacity(MESSAGE_HEADER + if is_small { len } else { own.len() });
        head.put_u8(0);
        // Longer messages do not exist: all bytes of a mesh are far fewer.
        head.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
        head.put_slice(own);
        if is_small {
            shared.iter().for_each(|block| head.put_slice(block));
        }
        // The receiver drives the sender, so it is there.
        let _gone = self.0.send(head.freeze());
        if !is_small {
            shared.into_iter().for_each(|block| drop(self.0.send(block)));
        }
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(Some(piece)) = self.pieces.poll_recv(cx) {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(running) = &mut self.running {
            if let Poll::Ready(status) = running.as_mut().poll(cx) {
                self.running = None;
                self.status = Some(status);
            }
            match self.pieces.poll_recv(cx) {
                Poll::Ready(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
            }
        }
        let Some(status) = self.status.take() else { return Poll::Ready(None) };
        let mut trailers = http::HeaderMap::new();
        // A message that cannot be a header is left out; the code is what counts.
        let _unusual = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}
