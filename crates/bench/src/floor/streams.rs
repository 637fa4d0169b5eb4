use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::replay::{Push, Replay, message};
use crate::grpc::WINDOW;
use crate::resource::Kind;
use crate::shape::Protocol;
use crate::wire::{Arriving, Reader};

/// Serves one connection. Whatever goes wrong ends it, and nothing else.
pub(super) async fn serve(tcp: TcpStream, replay: Arc<Mutex<Replay>>, pushes: broadcast::Sender<Arc<Push>>) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(tcp).await else { return };
    let mut streams = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        // The subscription begins before anything is answered, so that no push is missed.
        streams.spawn(talk(request, respond, Arc::clone(&replay), pushes.subscribe()));
    }
}

async fn talk(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    replay: Arc<Mutex<Replay>>,
    mut pushes: broadcast::Receiver<Arc<Push>>,
) -> Option<()> {
    let is_delta = request.uri().path().ends_with("/DeltaAggregatedResources");
    let protocol = if is_delta { Protocol::Delta } else { Protocol::Sotw };
    let response = Response::builder().header("content-type", "application/grpc").body(()).ok()?;
    let mut out = respond.send_response(response, false).ok()?;
    let mut body = request.into_body();
    let (mut arriving, mut client) = (Arriving::default(), Client::new(protocol));
    loop {
        tokio::select! {
            chunk = body.data() => {
                let chunk = chunk?.ok()?;
                body.flow_control().release_capacity(chunk.len()).ok()?;
                arriving.feed(&chunk, &mut client).ok()?;
                for asked in std::mem::take(&mut client.asked) {
                    answer(&replay, &mut client, &asked, &mut out)?;
                }
            }
            push = pushes.recv() => {
                let push = push.ok()?;
                // Who has not asked for a type yet will be sent the newest when it does.
                if client.had[push.kind.index()].is_some() {
                    let bytes = if protocol == Protocol::Delta { &push.delta } else { &push.sotw };
                    out.send_data(bytes.clone(), false).ok()?;
                }
            }
        }
    }
}

fn answer(
    replay: &Mutex<Replay>,
    client: &mut Client,
    asked: &Asked,
    out: &mut SendStream<Bytes>,
) -> Option<()> {
    let kind = asked.kind?;
    let before = client.had[kind.index()].replace(asked.count);
    let bytes = match before {
        None if asked.returns => message(kind, client.protocol, [].into_iter(), &[]),
        None => replay.lock().whole(kind, client.protocol),
        Some(_) if client.protocol == Protocol::Delta && asked.count == 0 => return Some(()),
        Some(_) if client.protocol == Protocol::Delta => {
            replay.lock().some(kind, client.protocol, &asked.names)
        }
        Some(before) if asked.count > before => {
            let replay = replay.lock();
            replay.some(kind, client.protocol, replay.guests())
        }
        Some(_) => return Some(()),
    };
    out.send_data(bytes, false).ok()
}

/// More names than services ever come at once.
const FEW: usize = 16;

/// One request.
#[derive(Default)]
struct Asked {
    kind: Option<Kind>,
    count: usize,
    /// The first few: whoever asks for many is sent everything.
    names: Vec<Vec<u8>>,
    /// Does it say what it has?
    returns: bool,
}

/// What a client has asked for.
struct Client {
    protocol: Protocol,
    /// How many names of each type, if it was asked for at all.
    had: [Option<usize>; 4],
    now: Asked,
    asked: Vec<Asked>,
}

impl Client {
    fn new(protocol: Protocol) -> Self {
        Self { protocol, had: [None; 4], now: Asked::default(), asked: Vec::new() }
    }
}

impl Reader for Client {
    fn field(&mut self, number: u32, bytes: &[u8]) {
        match (self.protocol, number) {
            (Protocol::Delta, 2) | (Protocol::Sotw, 4) => self.now.kind = Kind::of_type_url(bytes),
            (_, 3) => {
                self.now.count += 1;
                if self.now.count <= FEW {
                    self.now.names.push(bytes.to_vec());
                }
            }
            (Protocol::Delta, 5) => self.now.returns = true,
            _ => {}
        }
    }

    fn end(&mut self) {
        self.asked.push(std::mem::take(&mut self.now));
    }
}
