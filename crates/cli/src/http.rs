//! One request to a status page: too little to need a client library.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// As long as istiod's own command waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("no server answers at {address}: {source}; is pilot-discovery running?")]
    Connect { address: String, source: io::Error },
    #[error("the answer of {address} cannot be read: {source}")]
    Read { address: String, source: io::Error },
    #[error("the answer of {address} is not HTTP")]
    Form { address: String },
}

/// Sends a request and answers with status and body.
pub fn request(address: &str, method: &str, path: &str, body: &str) -> Result<(u16, String), HttpError> {
    let address_of = || address.to_owned();
    let mut stream =
        TcpStream::connect(address).map_err(|source| HttpError::Connect { address: address_of(), source })?;
    let exchange = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        let (path, length) = (path.trim_start_matches('/'), body.len());
        write!(
            stream,
            "{method} /{path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange(&mut stream).map_err(|source| HttpError::Read { address: address_of(), source })?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| HttpError::Form { address: address_of() })?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.ok_or_else(|| HttpError::Form { address: address_of() })?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::request;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    #[test]
    fn a_page_is_read_and_garbage_is_told() {
        for (answer, expected) in
            [("HTTP/1.1 404 Not Found\r\nx: y\r\n\r\nno", Some((404, "no"))), ("what?", None)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = String::new();
                // Whoever hangs up before everything was read cuts off the answer.
                while !asked.ends_with("\r\n\r\n") {
                    let mut some = [0; 1024];
                    let read = stream.read(&mut some).unwrap();
                    asked.push_str(&String::from_utf8_lossy(&some[..read]));
                }
                stream.write_all(answer.as_bytes()).unwrap();
                asked
            });
            let got = request(&address, "GET", "debug/issues", "").ok();
            assert_eq!(got.as_ref().map(|(status, body)| (*status, body.as_str())), expected);
            assert!(server.join().unwrap().starts_with("GET /debug/issues HTTP/1.0\r\n"));
        }
        assert!(
            request("127.0.0.1:1", "GET", "x", "")
                .unwrap_err()
                .to_string()
                .contains("is pilot-discovery running?")
        );
    }
}
