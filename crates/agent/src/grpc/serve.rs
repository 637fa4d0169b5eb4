//! A gRPC server at a socket of this machine.

use std::convert::Infallible;
use std::fs::{DirBuilder, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::authority::ReadableAuthority;
use super::{Code, Outgoing, Status};

/// The kernel's limit, with the zero at its end.
const LONGEST_PATH: usize = 108;
/// Envoy has a connection for each stream, and a stream for each secret.
const CONNECTIONS: usize = 1024;
const STREAMS: u32 = 1024;
/// Pieces of an answer that wait for who reads them: some frames of HTTP/2.
const PIECES: usize = 16;
/// Who was cut off before it could be accepted says nothing about the next.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no socket.
#[derive(thiserror::Error, Debug)]
pub(crate) enum SocketError {
    #[error(
        "the socket {path} cannot be made: its path has {length} bytes, and the kernel takes {} at most; {advice}",
        LONGEST_PATH - 1
    )]
    TooLong { path: PathBuf, length: usize, advice: &'static str },
    #[error("cannot create {path} for a socket; {advice}")]
    Directory { path: PathBuf, advice: &'static str, source: io::Error },
    #[error("{path} is in the way of a socket and is none itself; remove it")]
    InTheWay { path: PathBuf },
    #[error("cannot listen at {path}; {advice}")]
    Listen { path: PathBuf, advice: &'static str, source: io::Error },
}

/// A socket that was made.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Takes the place of a socket that an agent before this one has left behind. `advice` says how to have another path.
    pub(crate) fn bind(path: &Path, advice: &'static str) -> Result<Self, SocketError> {
        let owned = || path.to_owned();
        let length = path.as_os_str().len();
        if length >= LONGEST_PATH {
            return Err(SocketError::TooLong { path: owned(), length, advice });
        }
        if let Some(directory) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o750)
                .create(directory)
                .map_err(|source| SocketError::Directory { path: directory.to_owned(), advice, source })?;
        }
        let failed = |source| SocketError::Listen { path: owned(), advice, source };
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(failed)?,
            Ok(_) => return Err(SocketError::InTheWay { path: owned() }),
            Err(_) => (),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Applications that speak xDS themselves are other users.
        std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(Self { listener, path: owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Whoever comes next would remove it too.
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// A call that somebody makes.
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) body: Incoming,
    pub(crate) answer: Answer,
}

/// Where its answer goes.
pub(crate) struct Answer(mpsc::Sender<Result<Bytes, Status>>);

impl Answer {
    /// Waits until there is room. Nothing if nobody wants it any more.
    pub(crate) async fn send(&self, pieces: impl Iterator<Item = Bytes>) -> Option<()> {
        for piece in pieces {
            self.0.send(Ok(piece)).await.ok()?;
        }
        Some(())
    }

    pub(crate) async fn end(self, status: Status) {
        // Who has gone does not need it.
        let _gone = self.0.send(Err(status)).await;
    }

    /// Whoever asked has gone.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves until it is dropped; with it end all calls. `work` does what a call asks for.
pub(crate) async fn serve<W, F>(socket: Socket, work: W)
where
    W: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    // Calls outlive neither this nor their connection, but must not wait for who reads their answer.
    let mut calls = JoinSet::new();
    let (begin, mut begun) = mpsc::channel::<Work>(1);
    loop {
        let may_accept = connections.len() < CONNECTIONS;
        tokio::select! {
            Some(work) = begun.recv() => drop(calls.spawn(work)),
            Some(_) = calls.join_next() => (),
            Some(_) = connections.join_next() => (),
            accepted = socket.listener.accept(), if may_accept => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, begin.clone(), work.clone()))),
                Err(error) => {
                    tracing::warn!(%error, path = %socket.path.display(), "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
}

async fn connection<W, F>(stream: UnixStream, begin: mpsc::Sender<Work>, work: W)
where
    W: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (begin, work) = (begin.clone(), work.clone());
        async move {
            let (sender, pieces) = mpsc::channel(PIECES);
            let (parts, body) = request.into_parts();
            let asked = Asked { path: parts.uri.path().to_owned(), body, answer: Answer(sender) };
            let sent = begin.send(Box::pin(work(asked))).await;
            let body = match sent {
                Ok(()) => Outgoing::bounded(pieces),
                Err(_) => Outgoing::ended(Status::new(Code::Unavailable, "the agent is ending")),
            };
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            Ok::<_, Infallible>(response)
        }
    });
    let stream = TokioIo::new(ReadableAuthority::new(stream));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let served = builder.max_concurrent_streams(STREAMS).serve_connection(stream, service).await;
    if let Err(error) = served {
        // Envoy ends its connections in more than one way.
        tracing::debug!(%error, "connection at a socket ended");
    }
}
