use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};

/// Where connections come in, for as long as there is room for them.
///
/// Each takes a descriptor, and so does each file that is read: who lets in as many as can be cannot follow a change any
/// more that those are to be told.
pub(crate) struct Door {
    listener: TcpListener,
    /// Descriptors have numbers, and a new one has the lowest that is free.
    most: u64,
    is_shut: bool,
}

/// Without files or memory for a connection, trying again at once would only burn what is left.
const PAUSE: Duration = Duration::from_millis(100);

/// A sixteenth is kept for files and for what we call ourselves, but not fewer than these, and not more.
const KEPT: (u64, u64) = (16, 256);

/// Lets this process open as many files and connections as the system allows, and tells how many that is. What a shell or a
/// container starts with is mostly a thousand.
pub fn open_all_files() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

impl Door {
    /// For those who stay.
    pub(crate) fn of_streams(listener: TcpListener) -> Self {
        Self::keeping(listener, kept())
    }

    /// For those who ask how it goes, also when there is no room for anybody to stay.
    pub(crate) fn of_pages(listener: TcpListener) -> Self {
        Self::keeping(listener, kept() / 2)
    }

    fn keeping(listener: TcpListener, kept: u64) -> Self {
        Self { listener, most: most().saturating_sub(kept), is_shut: false }
    }

    /// The next connection for which there is room. It may be given up and called again.
    pub(crate) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let why = match self.listener.accept().await {
                Ok((stream, address)) if self.has_room_for(&stream) => {
                    self.is_shut = false;
                    return (stream, address);
                }
                Ok(_) => format!("{} of {} files are open already", self.most, most()),
                // Who called has gone.
                Err(error) if is_theirs(&error) => continue,
                Err(error) => error.to_string(),
            };
            if !std::mem::replace(&mut self.is_shut, true) {
                tracing::warn!("cannot take more connections: {why}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn has_room_for(&self, stream: &TcpStream) -> bool {
        u64::try_from(stream.as_raw_fd()).is_ok_and(|number| number < self.most)
    }
}

fn most() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn kept() -> u64 {
    (most() / 16).clamp(KEPT.0, KEPT.1)
}

fn is_theirs(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}
