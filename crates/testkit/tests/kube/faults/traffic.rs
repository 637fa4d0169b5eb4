//! Calls that go on through Envoy, whatever happens around it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pilot_testkit::backend::Backends;
use pilot_testkit::http_call;
use pilot_testkit::scenario::{Backend, Call};
use serde_json::json;
use tokio::task::JoinSet;

pub(super) struct Traffic {
    tasks: JoinSet<()>,
    tally: Arc<Tally>,
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) good: AtomicU32,
    /// What was wrong with those that were not answered well.
    pub(super) bad: Mutex<Vec<String>>,
    /// Of all calls, in milliseconds.
    pub(super) slowest: AtomicU64,
}

/// So many call at a time, each with a pause after each call.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);

impl Traffic {
    pub(super) fn begin() -> Self {
        let (mut tasks, tally) = (JoinSet::new(), Arc::new(Tally::default()));
        for _ in 0..CALLERS {
            let tally = Arc::clone(&tally);
            tasks.spawn(async move {
                let call: Call = serde_json::from_value(json!({"get": "http://web.shop:80/"})).unwrap();
                loop {
                    match http_call::make(&call, None).await {
                        Ok(seen) if seen.status == 200 => {
                            tally.good.fetch_add(1, Ordering::Relaxed);
                            let took = u64::try_from(seen.after.as_millis()).unwrap();
                            tally.slowest.fetch_max(took, Ordering::Relaxed);
                        }
                        other => tally.bad.lock().unwrap().push(format!("{other:?}")),
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Self { tasks, tally }
    }

    pub(super) async fn end(mut self) -> Arc<Tally> {
        self.tasks.shutdown().await;
        self.tally
    }
}

/// Everybody who is called at any address of this network.
pub(super) async fn backends() -> Backends {
    let everywhere = Backend {
        at: "0.0.0.0:8080".parse().unwrap(),
        delay: Duration::ZERO,
        fail: None,
        tcp: false,
        tls: false,
        serves: BTreeMap::new(),
    };
    Backends::start(&BTreeMap::from([("web".to_owned(), everywhere)]), None).await.unwrap()
}
