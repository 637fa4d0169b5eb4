//! What a server writes into the cluster it belongs to, and what it asks the API server about callers.
//!
//! ```text
//!   caller's token ──TokenReview──► who he is
//!   Secret istio-ca-secret ◄──► Material of our own authority
//!   root certificate ──while we lead (Election)──► ConfigMap istio-ca-root-cert in every namespace (RootMaps)
//!                    └──► caBundle of the webhooks that call us, which then may refuse (WebhookConfigs)
//! ```
//!
//! Nothing is written that stands there already, and nothing that others wrote is taken away.

mod ca_secret;
mod election;
mod root_maps;
mod token_review;
mod webhook_configs;

pub use ca_secret::{CaSecret, SecretError};
pub use election::{Election, Leadership, Seat};
pub use root_maps::RootMaps;
pub use token_review::TokenReview;
pub use webhook_configs::WebhookConfigs;
