use std::net::SocketAddr;
use std::path::PathBuf;
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

use crate::api::{Api, tell};
use crate::keep;
use crate::state::State;

/// What is kept in memory, and who may write it.
pub struct MemoryOptions {
    pub registry: RegistryOptions,
    pub read: ReadOptions,
    /// What writers have to send as `Authorization: Bearer`; anybody may write without one.
    pub token: Option<String>,
    /// Where it is kept, so that it is there after a restart; without a file all of it is forgotten.
    pub file: Option<PathBuf>,
}

/// Services and rules that come over HTTP.
pub struct MemorySource {
    options: MemoryOptions,
    listener: std::net::TcpListener,
    state: State,
}

impl MemorySource {
    /// Listens at an address; it answers when the source runs. Fails as well if there is a file that cannot be read: what
    /// stands in it would be lost.
    pub fn listen(address: SocketAddr, options: MemoryOptions) -> std::io::Result<Self> {
        let kept = options.file.as_deref().map(keep::read).transpose()?;
        let state = kept.map(State::of).unwrap_or_default();
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { options, listener, state })
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
        let Self { options, listener, state } = *self;
        let MemoryOptions { registry, read, token, file } = options;
        let (changed, mut following) = watch::channel(state.version());
        let state = Arc::new(Mutex::new(state));
        let told_by = changed.clone();
        let api = Api { state: Arc::clone(&state), changed, token: token.map(Arc::from), read: read.clone() };
        let store = StoreOptions::new(&registry.name, read);
        let mut told = Told { documents: Documents::new(store), shelf: Shelf::new(registry) };
        Box::pin(async move {
            let mut working = JoinSet::new();
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    let serving = axum::serve(listener, api.router()).into_future();
                    working.spawn(async move {
                        // It goes on for as long as somebody listens.
                        let _never = serving.await;
                    });
                }
                Err(error) => _ = sink.send(told.shelf.lose(&error)).await,
            }
            let (trouble, mut troubles) = watch::channel(None);
            if let Some(file) = file {
                working.spawn(keep::keep(file, Arc::clone(&state), following.clone(), trouble));
            }
            let mut batch = told.everything(&mut state.lock());
            loop {
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                let expiry = state.lock().next_expiry();
                tokio::select! {
                    changed = following.changed() => if changed.is_err() { return },
                    Ok(()) = troubles.changed() => told.shelf.warn(troubles.borrow_and_update().clone()),
                    () = until_due(expiry) => {}
                    () = sink.closed() => return,
                }
                let version;
                (batch, version) = told.news(&mut state.lock());
                // Who waits for a change learns of those whose time is over, too.
                tell(&told_by, version);
            }
        })
    }
}

struct Told {
    shelf: Shelf,
    documents: Documents,
}

impl Told {
    /// All that there is at the start: what was kept, or nothing, and that is everything.
    fn everything(&mut self, state: &mut State) -> Batch {
        state.changed_services.clear();
        let names: Vec<String> = state.services().cloned().collect();
        let mut batch = self.shelf.replace(names.iter().filter_map(|name| state.registration(name)));
        batch.extend(self.news(state).0);
        batch
    }

    /// What changed since the last time, and the version that it is.
    fn news(&mut self, state: &mut State) -> (Batch, u64) {
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
        batch.extend(self.shelf.found());
        (batch, state.version())
    }
}
