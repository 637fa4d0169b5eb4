//! What a server writes into the cluster it belongs to, and what it asks the API server about callers.
//!
//! ```text
//!   caller's token ──TokenReview──► who he is
//!   a gateway's account ──SubjectAccessReview──► may it read the Secrets of its namespace?
//!   Secret istio-ca-secret ◄──► Material of our own authority
//!   a workload's stream begins, ends ──Registration──► WorkloadEntry
//!   root certificate ──while we lead (Election)──► ConfigMap istio-ca-root-cert in every namespace (RootMaps)
//!                    └──► caBundle of the webhooks that call us, which then may refuse (WebhookConfigs)
//!   hosts without addresses ──while we lead──► status of their ServiceEntries (Addresses)
//!   where the gateway is ──while we lead──► status of Ingresses (IngressStatus)
//!   what is wrong with rules ──while we lead──► their status (Verdicts)
//! ```
//!
//! In other clusters that say that we are their control plane, trust is looked after in the same way (RemoteWriters).
//! Nothing is written that stands there already, and nothing that others wrote is taken away.

mod addresses;
mod attempts;
mod ca_secret;
mod default_revision;
mod election;
mod ingress_status;
mod leading;
mod object;
mod registration;
mod remote_writers;
mod root_maps;
mod secret_review;
#[cfg(test)]
mod testing;
mod token_review;
mod verdicts;
mod webhook_configs;

pub use addresses::Addresses;
pub use ca_secret::{CaSecret, SecretError};
pub use default_revision::DefaultRevision;
pub use election::{Election, Leadership, Seat, now_text};
pub use ingress_status::IngressStatus;
pub use registration::{Keeper, Registration, RegistrationOptions};
pub use remote_writers::{RemoteWriters, Terms};
pub use root_maps::RootMaps;
pub use secret_review::SecretReviews;
pub use token_review::TokenReview;
pub use verdicts::{Readers, Verdicts};
pub use webhook_configs::{HookScope, WebhookConfigs};
