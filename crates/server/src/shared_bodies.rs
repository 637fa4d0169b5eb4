use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pilot_base::{FastMap, Hash64, Hasher64};
use pilot_xds::{Protocol, Response};
use tokio::sync::Notify;

use crate::body::SMALL;

/// The bytes of resources that many streams are sent at about the same time, put together once.
///
/// What is shared is the list of resources: streams that ask for different things share when their lists are the same.
#[derive(Default)]
pub(crate) struct SharedBodies {
    entries: Mutex<FastMap<Hash64, Entry>>,
    filled: Notify,
}

struct Entry {
    body: Arc<OnceLock<Bytes>>,
    /// Was it asked for since the last sweep?
    used: bool,
}

/// How long a body is kept after nobody asks for it any more: longer than a push to everybody takes.
const KEEP: Duration = Duration::from_secs(1);

impl SharedBodies {
    /// The resources of a response, as they stand in the encoded message.
    pub(crate) fn of(&self, response: &Response, protocol: Protocol, len: usize) -> Bytes {
        if len <= SMALL {
            return assemble(response, protocol, len);
        }
        let key = key(response, protocol);
        let body = {
            let mut entries = self.entries.lock();
            if entries.is_empty() {
                self.filled.notify_one();
            }
            let entry = entries.entry(key).or_insert_with(|| Entry { body: Arc::default(), used: true });
            entry.used = true;
            Arc::clone(&entry.body)
        };
        // Others who want the same wait here instead of doing the same.
        body.get_or_init(|| assemble(response, protocol, len)).clone()
    }

    /// Forgets what is not asked for any more. Sleeps while there is nothing to forget.
    pub(crate) async fn sweep(&self) {
        loop {
            self.filled.notified().await;
            while !self.entries.lock().is_empty() {
                tokio::time::sleep(KEEP).await;
                self.entries.lock().retain(|_, entry| std::mem::take(&mut entry.used));
            }
        }
    }
}

fn key(response: &Response, protocol: Protocol) -> Hash64 {
    let mut hasher = Hasher64::default();
    hasher.write_u64(response.type_url.index() as u64).write_u64(u64::from(protocol == Protocol::Delta));
    for resource in &response.resources {
        hasher.write(resource.name().as_bytes()).write_u64(resource.version().0);
    }
    hasher.finish()
}

fn assemble(response: &Response, protocol: Protocol, len: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(len);
    response.shared_pieces(protocol).for_each(|piece| body.extend_from_slice(piece));
    body.freeze()
}
