//! How far each connected proxy has come: what it was sent, accepted and refused. Streams write it down for themselves,
//! and whoever waits for proxies is woken; nothing is counted or compared until somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::Millis;
use pilot_model::{Proxy, ProxyId};
use pilot_xds::{Encoded, TypeUrl};
use tokio::sync::{Notify, oneshot};

use crate::refusal::Refusal;

/// All connected proxies.
#[derive(Default)]
pub(crate) struct Standings {
    by_id: Mutex<BTreeMap<ProxyId, Arc<Standing>>>,
    moved: Notify,
}

/// One of them.
pub(crate) struct Standing {
    pub(crate) proxy: Arc<Proxy>,
    progress: Mutex<Progress>,
    /// Who wants to know what the proxy has. Only its stream can tell.
    questions: Mutex<Vec<oneshot::Sender<Holding>>>,
    asked: Notify,
}

/// What a proxy has accepted, by type.
pub(crate) type Holding = [Vec<Arc<Encoded>>; TypeUrl::ALL.len()];

/// What a proxy has of everything it asked for.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    pub(crate) types: [Step; TypeUrl::ALL.len()],
    pub(crate) refusals: Vec<Refusal>,
    /// Since when something was to be sent or is not answered.
    pub(crate) behind_since: Option<Millis>,
}

/// The same for one type.
#[derive(Clone, Default)]
pub(crate) struct Step {
    /// Has it ever asked for the type?
    pub(crate) asked: bool,
    /// Nonces of the last response, and of the last that was accepted; empty if there was none.
    pub(crate) sent: String,
    pub(crate) acked: String,
    pub(crate) sent_at: Millis,
    /// The epoch up to which all of it was accepted.
    pub(crate) through: u64,
    /// Why the last response was refused, if it was.
    pub(crate) error: Option<String>,
}

impl Standings {
    pub(crate) fn come(&self, id: ProxyId, proxy: Arc<Proxy>, now: Millis) -> Arc<Standing> {
        let progress = Progress { behind_since: Some(now), ..Progress::default() };
        let (questions, asked) = Default::default();
        let standing = Arc::new(Standing { proxy, progress: Mutex::new(progress), questions, asked });
        self.by_id.lock().insert(id, Arc::clone(&standing));
        standing
    }

    pub(crate) fn leave(&self, id: ProxyId) {
        self.by_id.lock().remove(&id);
        self.moved();
    }

    /// Some proxy has accepted or refused something, or is gone. Costs next to nothing while nobody waits.
    pub(crate) fn moved(&self) {
        self.moved.notify_waiters();
    }

    /// Resolves at the next move after it was first polled or enabled.
    pub(crate) fn next_move(&self) -> tokio::sync::futures::Notified<'_> {
        self.moved.notified()
    }

    pub(crate) fn get(&self, id: ProxyId) -> Option<Arc<Standing>> {
        self.by_id.lock().get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<(ProxyId, Arc<Standing>)> {
        self.by_id.lock().iter().map(|(id, standing)| (*id, Arc::clone(standing))).collect()
    }
}

impl Standing {
    pub(crate) fn progress(&self) -> Progress {
        self.progress.lock().clone()
    }

    /// What the proxy has. Nothing comes of it if its stream ends, or its client does not read.
    pub(crate) fn ask(&self) -> oneshot::Receiver<Holding> {
        let (question, answer) = oneshot::channel();
        self.questions.lock().push(question);
        self.asked.notify_one();
        answer
    }

    /// Resolves when somebody asks.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    pub(crate) fn answer(&self, held: impl Fn(TypeUrl) -> Vec<Arc<Encoded>>) {
        for question in std::mem::take(&mut *self.questions.lock()) {
            // Who does not wait any more need not be told.
            let _gone = question.send(TypeUrl::ALL.map(&held));
        }
    }

    pub(crate) fn asked_for(&self, type_url: TypeUrl) {
        self.progress.lock().types[type_url.index()].asked = true;
    }

    pub(crate) fn sent(&self, type_url: TypeUrl, nonce: &str, now: Millis) {
        let mut progress = self.progress.lock();
        let step = &mut progress.types[type_url.index()];
        nonce.clone_into(&mut step.sent);
        step.sent_at = now;
    }

    /// The answer to the last response: why it was refused, if it was.
    pub(crate) fn answered(&self, type_url: TypeUrl, error: Option<&str>) {
        let mut progress = self.progress.lock();
        let step = &mut progress.types[type_url.index()];
        if error.is_none() {
            step.acked.clone_from(&step.sent);
        }
        step.error = error.map(str::to_owned);
    }

    pub(crate) fn refuses(&self, refusals: &[Refusal]) {
        self.progress.lock().refusals = refusals.to_vec();
    }

    /// How far it is with each type, and since when it is behind, unless it has been so before. Tells whether anything is new.
    pub(crate) fn come_to(&self, through: [Option<u64>; TypeUrl::ALL.len()], behind: Option<Millis>) -> bool {
        let mut progress = self.progress.lock();
        let mut is_new = false;
        for (step, through) in progress.types.iter_mut().zip(through) {
            let through = through.unwrap_or(0);
            if step.through < through {
                step.through = through;
                is_new = true;
            }
        }
        let since = behind.map(|now| progress.behind_since.unwrap_or(now));
        is_new |= since.is_some() != progress.behind_since.is_some();
        progress.behind_since = since;
        is_new
    }

    /// Since when it is behind, if it is, and whether it refuses something.
    pub(crate) fn state(&self) -> (Option<Millis>, bool) {
        let progress = self.progress.lock();
        (progress.behind_since, !progress.refusals.is_empty())
    }

    /// Has it accepted everything up to an epoch?
    pub(crate) fn has(&self, epoch: u64) -> bool {
        self.progress.lock().types.iter().all(|step| step.through >= epoch)
    }

    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.progress.lock().refusals.clone()
    }
}
