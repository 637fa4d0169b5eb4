//! Answers that go on for as long as the server likes: lines, and events that servers send.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::client::ClientError;

/// One event of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerEvent {
    pub name: String,
    pub data: String,
}

/// A line of this length is none that a registry writes.
const MAX_LINE: usize = 64 << 20;

/// Lines as they come.
pub struct LineStream {
    body: Incoming,
    waiting: BytesMut,
    server: Arc<str>,
}

impl LineStream {
    pub(crate) fn new(body: Incoming, server: Arc<str>) -> Self {
        Self { body, waiting: BytesMut::new(), server }
    }

    /// The next line without its end; an error when the stream is over.
    pub async fn next(&mut self) -> Result<String, ClientError> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.waiting[looked..].iter().position(|byte| *byte == b'\n') {
                let line = self.waiting.split_to(looked + end);
                self.waiting.advance(1);
                return Ok(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned());
            }
            looked = self.waiting.len();
            if looked > MAX_LINE {
                return Err(ClientError::Large { server: Arc::clone(&self.server), most: MAX_LINE });
            }
            let broken = |why: String| ClientError::Reach { server: Arc::clone(&self.server), why };
            match self.body.frame().await {
                None => return Err(broken("the stream is over".to_owned())),
                Some(Err(error)) => return Err(broken(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.waiting.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }

    /// Nothing has come for so long that nothing will.
    pub fn silent(&self, patience: Duration) -> ClientError {
        ClientError::Slow { server: Arc::clone(&self.server), patience }
    }

    /// Something is wrong with what came.
    pub fn wrong(&self, why: impl std::fmt::Display) -> ClientError {
        ClientError::Form { server: Arc::clone(&self.server), why: why.to_string() }
    }
}

/// Server-sent events as they come.
pub struct EventStream {
    lines: LineStream,
    /// What has come of the next one.
    event: ServerEvent,
}

impl EventStream {
    pub(crate) fn new(lines: LineStream) -> Self {
        Self { lines, event: ServerEvent::default() }
    }

    /// The next event; an error when the stream is over. Comments, which keep it alive, are events without a name. Whoever
    /// stops waiting has missed nothing.
    pub async fn next(&mut self) -> Result<ServerEvent, ClientError> {
        loop {
            let line = self.lines.next().await?;
            if line.is_empty() {
                return Ok(std::mem::take(&mut self.event));
            }
            self.event.take(&line);
            if self.event.data.len() > MAX_LINE {
                return Err(ClientError::Large { server: Arc::clone(&self.lines.server), most: MAX_LINE });
            }
        }
    }
}

impl ServerEvent {
    /// Adds a line to an event that is not complete.
    fn take(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServerEvent;

    #[test]
    fn an_event_is_made_of_lines() {
        let mut event = ServerEvent::default();
        for line in [": alive", "event: status", "data: {\"a\":", "data: 1}", "retry: 7", "odd"] {
            event.take(line);
        }
        assert_eq!((event.name.as_str(), event.data.as_str()), ("status", "{\"a\":\n1}"));
    }
}
