use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use rustix::net::sockopt::set_tcp_cork;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::Connected;

/// A connection that sends few and full packets.
///
/// HTTP/2 is written frame by frame, 16 KiB each, and flushed behind every one of them, so that a large response would be
/// dozens of packets. Whoever has nothing more to write flushes once more. So a flush behind something written is put off:
/// another one will come, and that it does come is seen to by waking whoever writes. Until then small frames are put
/// together here. Large ones go to the kernel as they are, without a copy of what all streams share; it is told to wait for
/// full packets.
pub(crate) struct Gather<S> {
    stream: S,
    gathered: BytesMut,
    /// Was something written since the last flush?
    fresh: bool,
    /// Does whoever writes flush once more? Handshakes do not.
    puts_off: bool,
    packets: Packets,
}

/// So much is put together of what is small.
const FULL: usize = 16 << 10;
/// What is longer is worth a call of its own.
const LARGE: usize = 4 << 10;

/// What the kernel sends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Packets {
    /// Whatever there is.
    #[default]
    Any,
    /// Only those that are full; it waits for more until then.
    Full,
}

/// What can send only full packets for a while.
pub(crate) trait Cork {
    fn send_only(&self, packets: Packets);
}

impl Cork for TcpStream {
    fn send_only(&self, packets: Packets) {
        // A connection that is gone shows it when something is written.
        let _gone = set_tcp_cork(self, packets == Packets::Full);
    }
}

impl<S> Gather<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, gathered: BytesMut::new(), fresh: false, puts_off: true, packets: Packets::Any }
    }

    /// Nothing is put off before [`start`](Self::start) is called.
    pub(crate) fn waiting(stream: S) -> Self {
        Self { puts_off: false, ..Self::new(stream) }
    }

    pub(crate) fn start(&mut self) {
        self.puts_off = true;
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncWrite + Cork + Unpin> Gather<S> {
    fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.gathered))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(written);
        }
        // Of thousands of connections hardly one is being written to.
        self.gathered = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    fn send_only(&mut self, packets: Packets) {
        if std::mem::replace(&mut self.packets, packets) != packets {
            self.stream.send_only(packets);
        }
    }
}

impl<S: AsyncWrite + Cork + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = from.iter().map(|slice| slice.len()).sum();
        if self.puts_off && len > LARGE {
            self.send_only(Packets::Full);
            ready!(self.write_out(cx))?;
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, from))?;
            self.fresh = true;
            return Poll::Ready(Ok(written));
        }
        if self.gathered.len() >= FULL {
            ready!(self.write_out(cx))?;
        }
        from.iter().for_each(|slice| self.gathered.extend_from_slice(slice));
        self.fresh = true;
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh && self.puts_off && self.gathered.len() < FULL {
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.write_out(cx))?;
        self.send_only(Packets::Any);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_out(cx))?;
        self.send_only(Packets::Any);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: Connected> Connected for Gather<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use tokio::io::AsyncWrite;

    use super::{Cork, FULL, Gather, LARGE, Packets};

    /// Remembers how much was written with each call, and takes no more than there is room for. Sends when it is told to wait
    /// no longer.
    #[derive(Default)]
    struct Kernel {
        calls: Vec<usize>,
        bytes: Vec<u8>,
        room: usize,
        closed: bool,
        packets: Cell<Packets>,
        /// How much there was when it was sent, each time.
        sent: RefCell<Vec<usize>>,
    }

    impl Cork for Kernel {
        fn send_only(&self, packets: Packets) {
            self.packets.set(packets);
            if packets == Packets::Any {
                self.sent.borrow_mut().push(self.bytes.len());
            }
        }
    }

    impl AsyncWrite for Kernel {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
            let taken = from.len().min(self.room);
            if taken == 0 {
                return Poll::Pending;
            }
            self.room -= taken;
            self.calls.push(taken);
            self.bytes.extend_from_slice(&from[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Frames of a size, each flushed as HTTP/2 does it. How many of them were taken.
    fn write(gather: &mut Gather<Kernel>, frames: usize, size: usize, cx: &mut Context<'_>) -> usize {
        for frame in 0..frames {
            let content = vec![u8::try_from(frame).unwrap(); size];
            match Pin::new(&mut *gather).poll_write(cx, &content) {
                Poll::Ready(Ok(written)) if written == size => {}
                Poll::Ready(written) => {
                    written.unwrap();
                    return frame;
                }
                Poll::Pending => return frame,
            }
            if Pin::new(&mut *gather).poll_flush(cx).is_pending() {
                return frame + 1;
            }
        }
        frames
    }

    fn gather(room: usize) -> Gather<Kernel> {
        Gather::new(Kernel { room, ..Kernel::default() })
    }

    #[test]
    fn many_small_frames_are_one_call() {
        let mut gather = gather(usize::MAX);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        assert_eq!(write(&mut gather, 3, 1_000, cx), 3);
        assert!(gather.stream().calls.is_empty());
        assert!(woken.0.load(Ordering::Relaxed) > 0, "whoever writes comes back, and flushes");
        assert!(Pin::new(&mut gather).poll_flush(cx).is_ready());
        assert_eq!(gather.stream().calls, [3_000]);
        assert_eq!(write(&mut gather, 40, 1_000, cx), 40);
        assert!(Pin::new(&mut gather).poll_flush(cx).is_ready());
        let calls = &gather.stream().calls;
        assert_eq!(calls.iter().sum::<usize>(), 43_000);
        assert!(calls.len() <= 5, "{calls:?}");
    }

    #[test]
    fn large_frames_are_written_as_they_are_and_sent_together() {
        let mut gather = gather(usize::MAX);
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(write(&mut gather, 1, 100, cx), 1);
        assert_eq!(write(&mut gather, 5, 10_000, cx), 5);
        assert_eq!(write(&mut gather, 1, 100, cx), 1);
        assert_eq!(gather.stream().calls, [100, 10_000, 10_000, 10_000, 10_000, 10_000], "nothing is copied");
        assert_eq!(gather.stream().packets.get(), Packets::Full);
        assert!(gather.gathered.capacity() < LARGE);
        assert!(Pin::new(&mut gather).poll_flush(cx).is_ready());
        assert_eq!(gather.stream().packets.get(), Packets::Any);
        assert_eq!(*gather.stream().sent.borrow(), [50_200]);
        write(&mut gather, 1, 100, cx);
        assert!(Pin::new(&mut gather).poll_flush(cx).is_ready());
        assert_eq!(gather.stream().sent.borrow().len(), 1, "what is small alone needs no word");
    }

    #[test]
    fn nothing_is_lost_or_piles_up_when_the_other_side_does_not_read() {
        for size in [1_000, 10_000] {
            let mut gather = gather(2 * FULL);
            let cx = &mut Context::from_waker(Waker::noop());
            let taken = write(&mut gather, 100, size, cx);
            assert!(taken * size <= 4 * FULL, "{taken} frames wait");
            gather.stream.room = usize::MAX;
            assert!(Pin::new(&mut gather).poll_flush(cx).is_ready());
            let whole: Vec<u8> =
                (0..taken).flat_map(|frame| vec![u8::try_from(frame).unwrap(); size]).collect();
            let bytes = &gather.stream().bytes;
            // Of a frame that was taken in part the rest is written by whoever wrote it.
            assert!(bytes.starts_with(&whole) && bytes.len() < whole.len() + size);
        }
    }

    #[test]
    fn an_end_and_a_handshake_put_nothing_off() {
        let mut ending = gather(usize::MAX);
        let cx = &mut Context::from_waker(Waker::noop());
        write(&mut ending, 1, 100, cx);
        assert!(Pin::new(&mut ending).poll_shutdown(cx).is_ready());
        assert!(ending.stream().closed && ending.stream().calls == [100]);

        let mut shaking = Gather::waiting(Kernel { room: usize::MAX, ..Kernel::default() });
        write(&mut shaking, 2, 100, cx);
        assert_eq!(shaking.stream().calls, [100, 100]);
        shaking.start();
        write(&mut shaking, 2, 100, cx);
        assert_eq!(shaking.stream().calls, [100, 100]);
    }
}
