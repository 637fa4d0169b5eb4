//! What proxies at the edge of the mesh are sent: their listeners, and the routes behind them.
//!
//! ```text
//!   MergedGateway ─listener─► filter chains: HTTP by the name of routes, TLS and TCP by the rules themselves
//!   server hosts ∩ VirtualService hosts ─virtual_host─► entries of the tables of routes
//! ```

mod auto;
mod l4;
mod listener;
mod virtual_host;

pub use auto::{AutoChain, AutoPassthrough, auto_chains};
pub use listener::{
    GatewayListener, GatewayPlace, GatewayRules, LeftOutChain, gateway_listener, gateway_places,
};
pub use virtual_host::{
    GatewayRoutes, GatewayVirtualHost, RoutedHost, gateway_routes, gateway_table, gateway_virtual_hosts,
};
