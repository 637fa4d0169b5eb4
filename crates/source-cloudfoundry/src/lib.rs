//! Services and rules from Cloud Foundry.
//!
//! ```text
//!   Copilot ──Routes, InternalRoutes, at an interval──► routes of one host ──► Registration ──► Shelf ─────┐
//!                                                                         └──► rules, if any ──► Documents ─┴► Batch
//! ```
//!
//! Copilot tells nobody that something changed, so it is asked, and only what differs is told. A host may have several
//! routes, by path and by weight: those become a VirtualService and a DestinationRule beside its ServiceEntry.

mod config;
mod message;
mod routes;
mod source;

pub use config::{CfConfig, CfConfigError};
pub use message::{
    Backend, BackendSet, INTERNAL_ROUTES, InternalRoute, InternalRoutes, Nothing, ROUTES, Route, Routes,
    SERVICE,
};
pub use source::{CloudFoundryOptions, CloudFoundrySource};
