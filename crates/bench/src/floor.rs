//! The floor: a server that computes nothing. It sends what was recorded of one proxy to everybody, and on a change puts
//! a newer mark into those bytes. Nothing that does real work can cost less.
//!
//! It flatters itself: proxies of all namespaces get the same, and when a service comes or goes the table of routes is
//! left out.

mod replay;
mod streams;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use notify::Watcher as _;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

use crate::recording::Recording;
use replay::{Push, Replay};

/// Pushes that a stream may be behind before it is cut off.
const MOST_BEHIND: usize = 1 << 16;

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, recording: &Path, follow: &Path) -> anyhow::Result<()> {
    let replay = Arc::new(Mutex::new(Replay::new(&Recording::load(recording)?)));
    let (pushes, _) = broadcast::channel(MOST_BEHIND);
    let (touched, changes) = mpsc::unbounded_channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // That somebody, such as this program, has read a file is no change.
        let changed = event.into_iter().filter(|event| !event.kind.is_access());
        for path in changed.flat_map(|event| event.paths) {
            // Whoever listened is gone only when the program ends.
            let _ending = touched.send(path);
        }
    })?;
    let watched = watcher.watch(follow, notify::RecursiveMode::NonRecursive);
    watched.with_context(|| format!("{} cannot be followed", follow.display()))?;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("nobody can listen at {address}; is another server there?"))?;
    tokio::select! {
        () = tell(&replay, changes, &pushes) => Ok(()),
        ended = accept(&replay, listener, &pushes) => ended,
    }
}

/// Makes a push of each file that changed.
async fn tell(
    replay: &Mutex<Replay>,
    mut changes: mpsc::UnboundedReceiver<PathBuf>,
    pushes: &broadcast::Sender<Arc<Push>>,
) {
    while let Some(path) = changes.recv().await {
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        // A file that cannot be read is one that has gone.
        let text = std::fs::read_to_string(&path).ok();
        if let Some(push) = replay.lock().change(name, text.as_deref()) {
            // Without proxies there is nobody to tell.
            let _nobody = pushes.send(Arc::new(push));
        }
    }
}

async fn accept(
    replay: &Arc<Mutex<Replay>>,
    listener: TcpListener,
    pushes: &broadcast::Sender<Arc<Push>>,
) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_ended) = connections.join_next() => {}
            accepted = listener.accept() => {
                let (tcp, _) = accepted.context("no more connections; raise `ulimit -n`")?;
                tcp.set_nodelay(true)?;
                connections.spawn(streams::serve(tcp, Arc::clone(replay), pushes.clone()));
            }
        }
    }
}
