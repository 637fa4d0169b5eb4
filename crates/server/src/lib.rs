//! The shell around the pipeline: everything with a thread, a socket or a clock.
//!
//! ```text
//!   sources ──Batch──► engine thread ──commit──► one channel per audience ──► streams ──► proxies
//!                        ▲ ▲                                                    │
//!   keys of token issuers ┘ │                                                    │
//!                          └────────── a proxy comes, goes, refuses ◄───────────┘
//! ```
//!
//! Streams never touch the pipeline. They are handed immutable manifests, and what they send is put together from bytes
//! that all of them share.

mod admission;
mod ads;
mod authenticate;
mod bill;
mod body;
mod cause;
mod certificate_service;
mod claims;
mod clock;
mod debounce;
mod debug;
mod debug_stream;
mod door;
mod engine;
mod gateway_names;
mod gather;
mod grpc;
mod heard;
mod http_server;
mod identity;
mod incoming;
mod intake;
mod issues;
mod key_sets;
mod lanes;
mod messages;
mod metrics;
mod node;
mod pages;
mod places;
mod prompt;
mod propagation;
mod publish;
mod readers;
mod refusal;
mod registration;
mod secret_access;
mod shared_bodies;
mod sources;
mod standing;
mod stream;
mod suspects;
mod tls;
mod webhooks;

pub use authenticate::{AuthOptions, Authenticator, Caller, Gate, Identified, JwtRule, JwtRuleError};
pub use clock::{SystemClock, unix_nanos, unix_seconds};
pub use debounce::Debounce;
pub use debug::{DebugDoor, DebugOptions};
pub use debug_stream::DebugStreams;
pub use door::open_all_files;
pub use engine::{Engine, EngineHandle, EngineOptions, TrustDomains};
pub use gateway_names::GatewayNames;
pub use grpc::{Callers, GrpcOptions, GrpcServer, Port};
pub use http_server::{HttpServer, Protocols, serve_http, serve_https};
pub use identity::{Identity, IdentityError, IdentityOptions, Issuance, SelfSigned, TlsFiles};
pub use key_sets::{KeyFetcher, KeyOptions};
pub use metrics::{Heap, Metrics, Registrations, Webhooks};
pub use pages::{BuildInfo, Pages};
pub use registration::{JoinError, Joining, Membership, Registrar, WorkloadHealth};
pub use secret_access::{Reviewed, SecretReview, Verdict};
pub use tonic::service::Routes;
pub use tonic::transport::Error as TransportError;
pub use webhooks::webhooks;
