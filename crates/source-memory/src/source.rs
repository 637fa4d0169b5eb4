use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::{Batch, RegistryOptions, Running, Shelf, Sink, Source, until_due};
use pilot_source_store::{Documents, StoreOptions};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::Api;
use crate::state::State;

/// What is kept in memory, and who may write it.
pub struct MemoryOptions {
    pub registry: RegistryOptions,
    pub read: ReadOptions,
    /// What writers have to send as `Authorization: Bearer`; anybody may write without one.
    pub token: Option<String>,
}

/// Services and rules that come over HTTP.
pub struct MemorySource {
    options: MemoryOptions,
    listener: std::net::TcpListener,
}

impl MemorySource {
    /// Listens at an address; it answers when the source runs.
    pub fn listen(address: SocketAddr, options: MemoryOptions) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { options, listener })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Source for MemorySource {
    fn name(&self) -> Name {
        self.options.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        let Self { options, listener } = *self;
        let MemoryOptions { registry, read, token } = options;
        let state = Arc::new(Mutex::new(State::default()));
        let (changed, mut following) = watch::channel(0);
        let api = Api { state: Arc::clone(&state), changed, token: token.map(Arc::from), read: read.clone() };
        let store = StoreOptions::new(&registry.name, read);
        let mut told = Told { documents: Documents::new(store), shelf: Shelf::new(registry) };
        Box::pin(async move {
            let mut serving = JoinSet::new();
            match TcpListener::from_std(listener) {
                Ok(listener) => _ = serving.spawn(axum::serve(listener, api.router()).into_future()),
                Err(error) => _ = sink.send(told.shelf.lose(&error)).await,
            }
            // There is nothing yet, and that is everything.
            let mut batch = told.shelf.replace([]);
            loop {
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                let expiry = state.lock().next_expiry();
                tokio::select! {
                    changed = following.changed() => if changed.is_err() { return },
                    () = until_due(expiry) => {}
                    () = sink.closed() => return,
                }
                batch = told.news(&mut state.lock());
            }
        })
    }
}

struct Told {
    shelf: Shelf,
    documents: Documents,
}

impl Told {
    /// What changed since the last time.
    fn news(&mut self, state: &mut State) -> Batch {
        state.expire(Instant::now());
        let mut batch = Batch::default();
        for service in std::mem::take(&mut state.changed_services) {
            let one = match state.registration(&service) {
                Some(registration) => self.shelf.put(registration),
                None => self.shelf.remove(&service),
            };
            batch.extend(one);
        }
        for key in std::mem::take(&mut state.changed_rules) {
            let one = match state.rules.get(&key) {
                Some((_, text)) => self.documents.put(&key, text.as_bytes()),
                None => self.documents.remove(&key),
            };
            batch.extend(one);
        }
        batch
    }
}
