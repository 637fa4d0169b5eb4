use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::args::RequestArgs;

/// As long as istiod's own command waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// One request to a server on this machine: too little to need a client library.
pub(crate) fn run(args: &RequestArgs) -> anyhow::Result<()> {
    let path = args.path.trim_start_matches('/');
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, args.port))
        .with_context(|| format!("no server answers on port {}; is pilot-discovery running?", args.port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{} /{path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
        args.method.to_uppercase(),
        args.body.len(),
        args.body
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the answer cannot be read")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status: u16 =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("the answer is not HTTP")?;
    println!("{body}");
    if status > 399 && status != 404 {
        bail!("the server answered with status {status}");
    }
    Ok(())
}
