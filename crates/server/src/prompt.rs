use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

/// A connection that ends unless its client says something soon.
///
/// HTTP/2 asks a client whether it is still there only once it has said that it speaks HTTP/2. One that is gone before, or
/// looks whether a port is open, would be kept for ever.
pub(crate) struct Prompt<S> {
    stream: S,
    /// Until when it may say nothing; nothing once it has said enough.
    silence: Option<Pin<Box<Sleep>>>,
    /// So many bytes are still to come.
    due: usize,
}

/// Longer than any client takes that is there.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// How long the words are with which HTTP/2 begins.
pub(crate) const PREFACE: usize = 24;

impl<S> Prompt<S> {
    /// So many bytes have to come in time.
    pub(crate) fn new(stream: S, due: usize) -> Self {
        Self { stream, silence: Some(Box::pin(tokio::time::sleep(SILENCE))), due }
    }

    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let Some(silence) = &mut self.silence else { return read };
        if read.is_pending() {
            ready!(silence.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.due = self.due.saturating_sub(into.filled().len() - before);
        if self.due == 0 {
            self.silence = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
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

impl<S: Connected> Connected for Prompt<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::{Prompt, SILENCE};

    #[tokio::test(start_paused = true)]
    async fn who_says_too_little_is_not_listened_to_for_ever() {
        let (mut client, server) = duplex(64);
        let mut server = Prompt::new(server, 4);
        client.write_all(b"abc").await.unwrap();
        let mut said = [0; 8];
        assert_eq!(server.read(&mut said).await.unwrap(), 3);
        let began = tokio::time::Instant::now();
        let error = server.read(&mut said).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (std::io::ErrorKind::TimedOut, SILENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_said_enough_may_be_silent() {
        let (mut client, server) = duplex(64);
        let mut server = Prompt::new(server, 4);
        client.write_all(b"abcd").await.unwrap();
        let mut said = [0; 8];
        assert_eq!(server.read(&mut said).await.unwrap(), 4);
        let silent = tokio::time::timeout(10 * SILENCE, server.read(&mut said)).await;
        assert!(silent.is_err(), "nothing came, and nothing ended");
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.write_all(b"e").await.unwrap();
        assert_eq!(server.read(&mut said).await.unwrap(), 1);
    }
}
