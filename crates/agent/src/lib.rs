//! The agent beside a workload.
//!
//! ```text
//!   flags, environment, pod files, mesh file
//!        │ args, surroundings
//!        ▼
//!   proxy_config ──► node ──► bootstrap ──► envoy-rev.json ─┐
//!        │                                                  ▼
//!        └──────► envoy_args ────────────────► run ──► Envoy's process
//!                                              │ ▲
//!                        supervise (no I/O) ◄──┘ └── status: /healthz/ready, /metrics, /app-health, /drain
//!
//!   Envoy ──► relay ──► control plane          Envoy ──► sds ──► identity ──► certificate service, or files
//! ```
//!
//! `redirect` is a program of its own: it has the kernel hand a workload's traffic to the proxy, and ends.
//!
//! Everything left of `run` is functions from values to values: the environment and the machine are read once, in `args`
//! and `surroundings`, and travel as data. `supervise` decides, `run` does.

mod backoff;
mod bootstrap;
mod clock;
mod connections;
mod control_plane;
mod dns;
mod downward;
mod duration;
mod envoy_args;
mod exchange;
mod grpc;
mod grpc_bootstrap;
mod health;
mod hot_restart;
mod http_client;
mod identity;
mod life;
mod metrics;
mod name_table;
mod node;
mod process;
mod proxy;
mod proxy_config;
mod ready;
mod redirect;
mod relay;
mod request;
mod run;
mod sds;
mod setup;
mod status;
mod supervise;
mod surroundings;
mod taken_ports;
mod version;
mod wait;
mod wire;

pub mod args;

pub(crate) use pilot_cli::Env;
pub use proxy::main;
