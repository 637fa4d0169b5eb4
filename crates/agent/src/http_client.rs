use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

#[derive(Debug, thiserror::Error)]
/// Each says its cause itself, because most are shown where nobody asks further.
pub(crate) enum HttpError {
    /// Nobody listens there, or not any more.
    #[error("cannot connect to {authority}: {cause}")]
    Connect { authority: String, cause: io::Error },
    /// The other side does not speak HTTP, or went away.
    #[error("request to {authority} failed: {cause}")]
    Exchange { authority: String, cause: hyper::Error },
    /// The address cannot be asked.
    #[error("{url} is not an http:// address")]
    Address { url: String },
    #[error("no answer from {authority} within {}ms", after.as_millis())]
    Timeout { authority: String, after: Duration },
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

/// One question on one connection: whoever asks does so rarely.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) body: String,
    pub(crate) timeout: Duration,
}

impl Question {
    pub(crate) fn get(url: String, timeout: Duration) -> Self {
        Self { method: Method::GET, url, body: String::new(), timeout }
    }

    pub(crate) async fn ask(self) -> Result<Answer, HttpError> {
        let address = || HttpError::Address { url: self.url.clone() };
        let uri: Uri = self.url.parse().map_err(|_| address())?;
        let authority = uri.authority().ok_or_else(address)?.to_string();
        if uri.scheme_str() != Some("http") {
            return Err(address());
        }
        let after = self.timeout;
        match timeout(after, self.exchange(&uri, &authority)).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Timeout { authority, after }),
        }
    }

    async fn exchange(self, uri: &Uri, authority: &str) -> Result<Answer, HttpError> {
        let failed = |cause| HttpError::Exchange { authority: authority.to_owned(), cause };
        let refused = |cause| HttpError::Connect { authority: authority.to_owned(), cause };
        let host = uri.host().unwrap_or_default();
        let stream = connect(host, uri.port_u16().unwrap_or(80)).await.map_err(refused)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(failed)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::builder()
            .method(self.method)
            .uri(path)
            .header(HOST, authority)
            .body(Full::new(Bytes::from(self.body)))
            .expect("method, path and authority were read as such");
        let answer = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
        };
        tokio::pin!(answer, connection);
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.map_err(failed),
                // It may end before all that came over it was read.
                _ = &mut connection, if open => open = false,
            }
        }
    }
}

/// `localhost` needs no resolver, which a container may not have.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    if host == "localhost" {
        let both =
            [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
        return TcpStream::connect(&both[..]).await;
    }
    TcpStream::connect((host.trim_matches(['[', ']']), port)).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Question;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_cannot_be_asked_is_told() {
        let error = |url: &str| {
            let question = Question::get(url.to_owned(), LONG);
            async { question.ask().await.err().map(|e| e.to_string()) }
        };
        assert_eq!(
            error("https://localhost/").await.as_deref(),
            Some("https://localhost/ is not an http:// address")
        );
        assert_eq!(error("nonsense").await.as_deref(), Some("nonsense is not an http:// address"));
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let told = error(&format!("http://localhost:{}/", closed.port())).await.unwrap();
        assert!(told.starts_with("cannot connect to localhost:"), "{told}");
    }

    #[tokio::test]
    async fn silence_has_an_end() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let error = Question::get(url, Duration::from_millis(10)).ask().await.err().unwrap();
        assert!(error.to_string().contains("within 10ms"), "{error}");
    }
}
