//! One question to a name server: over UDP, and over TCP if the answer is too large for that.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use crate::wire::{self, Answer, Kind};

/// Why a name is not known.
#[derive(thiserror::Error, Debug)]
pub enum DnsError {
    /// The server cannot be reached.
    #[error("{server} cannot be asked for {name}: {why}")]
    Reach { server: SocketAddr, name: String, why: String },
    /// It takes longer than it may.
    #[error("{server} has not answered for {name} within {patience:?}")]
    Slow { server: SocketAddr, name: String, patience: Duration },
    /// It refuses, or cannot find out.
    #[error("{server} answers for {name} with error {code}")]
    Refused { server: SocketAddr, name: String, code: u8 },
    /// It answers something that is no answer.
    #[error("the answer of {server} for {name} cannot be read")]
    Form { server: SocketAddr, name: String },
    /// It is no name.
    #[error("{name:?} is not a name")]
    Name { name: String },
}

#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) server: SocketAddr,
    pub(crate) patience: Duration,
}

/// The code of an answer that there is no such name, and that of one that does not understand the question.
const NO_NAME: u8 = 3;
const NO_QUESTION: u8 = 1;

impl Asker {
    /// What there is of a kind under a name, and beside it. What does not exist has nothing.
    pub(crate) async fn ask(&self, name: &str, kind: Kind) -> Result<Answer, DnsError> {
        let (server, patience, name) = (self.server, self.patience, name.to_owned());
        let answer = tokio::time::timeout(patience, self.exchange(&name, kind)).await;
        let answer = answer.map_err(|_| DnsError::Slow { server, name: name.clone(), patience })??;
        match answer.code {
            0 => Ok(answer),
            NO_NAME => Ok(Answer { entries: Vec::new(), beside: Vec::new(), ..answer }),
            code => Err(DnsError::Refused { server, name, code }),
        }
    }

    async fn exchange(&self, name: &str, kind: Kind) -> Result<Answer, DnsError> {
        // Nobody who cannot see the question should be able to answer it.
        let id = u16::try_from(RandomState::new().hash_one(name) & 0xffff).unwrap_or_default();
        let question =
            wire::question(id, name, kind).ok_or_else(|| DnsError::Name { name: name.to_owned() })?;
        let answer = self.put(&question, (id, name)).await?;
        if answer.code == NO_QUESTION {
            // It may be older than what we added.
            return self.put(&wire::plain(&question), (id, name)).await;
        }
        Ok(answer)
    }

    async fn put(&self, question: &[u8], (id, name): (u16, &str)) -> Result<Answer, DnsError> {
        let server = self.server;
        let reach =
            |error: std::io::Error| DnsError::Reach { server, name: name.to_owned(), why: error.to_string() };
        let bytes = self.over_udp(question, id).await.map_err(reach)?;
        let form = || DnsError::Form { server, name: name.to_owned() };
        let answer = wire::answer(&bytes).ok_or_else(form)?;
        if !answer.is_truncated {
            return Ok(answer);
        }
        let bytes = self.over_tcp(question).await.map_err(reach)?;
        wire::answer(&bytes).filter(|answer| answer.id == id).ok_or_else(form)
    }

    async fn over_udp(&self, question: &[u8], id: u16) -> std::io::Result<Vec<u8>> {
        let own = if self.server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(own).await?;
        socket.connect(self.server).await?;
        socket.send(question).await?;
        let mut bytes = vec![0; 4096];
        loop {
            let read = socket.recv(&mut bytes).await?;
            // What is not the answer to this question was meant for somebody else.
            if bytes[..read].starts_with(&id.to_be_bytes()) {
                bytes.truncate(read);
                return Ok(bytes);
            }
        }
    }

    async fn over_tcp(&self, question: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.server).await?;
        let length = u16::try_from(question.len()).map_err(std::io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
        let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut bytes).await?;
        Ok(bytes)
    }
}
