use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::{Code, Deframer, FrameError, Rope, Status};

/// What the other end sends, message by message.
pub(crate) struct Arriving {
    body: Incoming,
    deframer: Deframer,
}

impl Arriving {
    pub(crate) fn new(body: Incoming, limit: usize) -> Self {
        Self { body, deframer: Deframer::new(limit) }
    }

    /// Nothing when the other end said that this was all; with how it went, if it told.
    pub(crate) async fn next(&mut self) -> Result<Option<Rope>, Option<Status>> {
        loop {
            if let Some(message) = self.deframer.next().map_err(refused)? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                self.deframer.end().map_err(refused)?;
                return Ok(None);
            };
            let frame = frame.map_err(|error| Some(Status::new(Code::Unavailable, describe(&error))))?;
            match frame.into_data() {
                Ok(piece) => self.deframer.push(piece),
                Err(frame) => {
                    if let Some(status) = frame.trailers_ref().and_then(Status::read) {
                        return Err(Some(status));
                    }
                }
            }
        }
    }
}

fn refused(error: FrameError) -> Option<Status> {
    let code = match error {
        FrameError::TooLong { .. } => Code::ResourceExhausted,
        FrameError::Compressed => Code::Unimplemented,
        FrameError::Cut => Code::Internal,
    };
    Some(Status::new(code, error.to_string()))
}

/// The reason behind the reason is the one that helps.
fn describe(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
