//! For tests: scenarios, the engines that run them, and what they need.
//!
//! ```text
//!   tests/behaviour/**.yaml ──scenario──► behave::sim   the pipeline in this process, the evaluator of `sim`
//!                                     └─► behave::real  pilot-discovery (or istiod) + pilot-agent + Envoy + backends,
//!                                                        fed by files, or by an API server (behave::kube)
//!                                                        └──► seen ──expect──► what is not as it should be
//! ```

pub mod agent;
pub mod backend;
pub mod behave;
pub mod certificates;
pub mod cut;
pub mod expect;
pub mod gatekeeper;
pub mod http_call;
pub mod identity;
pub mod kube;
pub mod namespace;
pub mod objects;
pub mod plane;
pub mod process;
pub mod scenario;
pub mod secrets;
pub mod server;
pub mod shop;
pub mod tools;
pub mod xds_client;
