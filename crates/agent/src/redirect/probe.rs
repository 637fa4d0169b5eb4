//! Tries whether connections are redirected: a server where the proxy would be, and a client that calls another port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

/// Between two tries.
const PERIOD: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The proxy's ports are taken.
    #[error("cannot listen where the proxy will: {0}")]
    Listen(String),
    /// No connection was redirected.
    #[error("no connection to port {port} was redirected within {timeout:?}")]
    Timeout { port: u16, timeout: Duration },
}

/// What happens while it is waited.
enum Event {
    /// A connection that was for this port.
    Connection(u16),
    Timeout,
}

pub(super) struct Probe {
    /// Of the proxy.
    pub(super) ports: [u16; 2],
    /// The one that is called.
    pub(super) port: u16,
    pub(super) timeout: Duration,
    pub(super) version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    V4,
    V6,
}

impl Probe {
    /// Must run as the proxy's user: what others send to the loopback is left alone.
    pub(super) fn run(&self) -> Result<(), ProbeError> {
        let (tell, told) = mpsc::channel();
        let mut errors = Vec::new();
        for port in self.ports {
            let address = SocketAddr::new(self.own(), port);
            match listen(address) {
                Ok(listener) => serve(listener, self.version, tell.clone()),
                Err(error) => errors.push(format!("{address}: {error}")),
            }
        }
        if errors.len() == self.ports.len() {
            return Err(ProbeError::Listen(errors.join(", ")));
        }
        self.call();
        let timeout = self.timeout;
        std::thread::spawn(move || {
            std::thread::sleep(timeout);
            // Nobody listens any more if all went well.
            let _gone = tell.send(Event::Timeout);
        });
        for event in told {
            match event {
                Event::Connection(port) if port == self.port => return Ok(()),
                Event::Connection(port) => tracing::info!(port, "somebody else's connection"),
                Event::Timeout => break,
            }
        }
        Err(ProbeError::Timeout { port: self.port, timeout })
    }

    /// The loopback. Rules turn the other one's packets to it.
    fn own(&self) -> IpAddr {
        match self.version {
            Version::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Version::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }

    fn other(&self) -> IpAddr {
        match self.version {
            Version::V4 => IpAddr::from([127, 0, 0, 6]),
            Version::V6 => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 6]),
        }
    }

    /// Calls again and again. The process ends soon after, and this with it.
    fn call(&self) {
        let (from, to) = (SocketAddr::new(self.own(), 0), SocketAddr::new(self.other(), self.port));
        std::thread::spawn(move || {
            loop {
                if let Err(error) = connect(from, to) {
                    tracing::info!(%to, %error, "not redirected yet");
                }
                std::thread::sleep(PERIOD);
            }
        });
    }
}

fn connect(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&from.into())?;
    socket.connect_timeout(&to.into(), PERIOD)
}

/// Beside a proxy that listens there already.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Tells of each connection which port it was for.
fn serve(listener: TcpListener, version: Version, tell: Sender<Event>) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let socket = SockRef::from(&stream);
            let before = match version {
                Version::V4 => socket.original_dst_v4(),
                Version::V6 => socket.original_dst_v6(),
            };
            let port = before.ok().and_then(|address| address.as_socket()).map(|address| address.port());
            if tell.send(Event::Connection(port.unwrap_or_default())).is_err() {
                return;
            }
        }
    });
}
