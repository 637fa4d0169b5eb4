//! Clusters that a source follows, for who wants to see how they are.

use pilot_base::Name;
use tokio::sync::watch;

/// One cluster, and how far it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterState {
    pub id: Name,
    /// Who says how it is reached; empty for the one that we belong to.
    pub secret: String,
    pub sync: Sync,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Everything in it is known.
    Synced,
    Syncing,
    /// It was not waited for any longer.
    Timeout,
    /// How it is reached is not said any more, or not in a way that can be used.
    Closed,
}

impl Sync {
    /// In istiod's words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Synced => "synced",
            Self::Syncing => "syncing",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
        }
    }
}

/// How all clusters are now.
pub type ClusterStates = watch::Receiver<Vec<ClusterState>>;
