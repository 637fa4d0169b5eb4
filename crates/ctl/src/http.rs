use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail};

const PATIENCE: Duration = Duration::from_secs(30);

/// One page of a server: too little to need a client library.
pub(crate) fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| {
        format!("no server answers at {address}; is pilot-discovery running? --address names another")
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the answer cannot be read")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("{address}{path} answered with status {status}");
    }
    Ok(body.to_owned())
}
