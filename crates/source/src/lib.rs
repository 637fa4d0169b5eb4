//! What a source of services and rules is.
//!
//! ```text
//!   backend ──adapter──► Batch { events, issues } ──bounded channel──► engine thread: one batch, one transaction
//! ```
//!
//! A source begins with everything it has: `Init`, `InitApply`…, `InitDone`. From then on it tells what changes. It may
//! begin again at any time, when it cannot know what it missed; what it does not name between `Init` and `InitDone` is
//! gone. A source that lost its backend says so in an issue and says nothing else: what it told before stays.

mod clusters;
mod contact;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod doubts;
mod follow;
mod patience;
mod readings;
mod registration;
mod shelf;

pub use contact::Contact;
pub use doubts::{Doubt, Doubts, Held};
pub use follow::{Ended, Keeps, Session, Teller, follow, until_due};
pub use patience::Patience;
pub use readings::Readings;
pub use registration::{Entries, Instance, InstancePort, Made, Registration, RegistryOptions};
pub use shelf::{Shelf, Suspicion};

use std::future::Future;
use std::pin::Pin;

pub use clusters::{ClusterState, ClusterStates, Sync};
use pilot_base::{Issue, Name};
use pilot_model::{MeshConfig, MeshNetworks, Object, ObjectKey};
use tokio::sync::mpsc;

#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Everything there is follows.
    Init,
    InitApply(Object),
    /// What was not named since `Init` is gone.
    InitDone,
    Apply(Object),
    Delete(ObjectKey),
    /// The settings of the whole mesh.
    Mesh(Box<MeshConfig>),
    /// Its networks.
    Networks(Box<MeshNetworks>),
}

/// What becomes visible together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    pub events: Vec<Event>,
    /// All that is wrong at a place now, such as a file; an empty list says that all is well again.
    pub issues: Vec<(Name, Vec<Issue>)>,
}

impl Batch {
    /// What becomes visible together with it.
    pub fn extend(&mut self, other: Self) {
        self.events.extend(other.events);
        self.issues.extend(other.issues);
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.issues.is_empty()
    }
}

/// Batches wait here for the engine; a source that is faster than the engine waits too.
pub const CHANNEL_CAPACITY: usize = 64;

pub type Sink = mpsc::Sender<Batch>;

/// Runs until the sink closes.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Somewhere that services and rules come from.
pub trait Source: Send {
    /// How people call it: in logs, issues and on status pages.
    fn name(&self) -> Name;
    /// Where it notes that it heard of its backend, if it does.
    fn contact(&self) -> Option<Contact> {
        None
    }
    fn run(self: Box<Self>, sink: Sink) -> Running;

    /// Is it better to serve nobody than to serve without it? Then nobody is served before it has told everything it has,
    /// however long that takes: proxies keep what they have while nobody answers, and lose it to who knows nothing.
    fn is_vital(&self) -> bool {
        false
    }
}
