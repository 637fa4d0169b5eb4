//! The part of Copilot's interface that is for Pilot. Texts are bytes here: one that is not UTF-8 would otherwise take
//! the whole answer along.

/// The service.
pub const SERVICE: &str = "api.IstioCopilot";
/// Asks for what the world calls, as a path of HTTP/2.
pub const ROUTES: &str = "/api.IstioCopilot/Routes";
/// Asks for what applications call each other by.
pub const INTERNAL_ROUTES: &str = "/api.IstioCopilot/InternalRoutes";

/// What is asked: everything.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Nothing {}

/// All routes. Number 1 was a form without paths, and is no longer used.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Routes {
    #[prost(message, repeated, tag = "2")]
    pub routes: Vec<Route>,
}

/// A host, maybe with a path, that leads to an application.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Route {
    #[prost(bytes = "vec", tag = "1")]
    pub hostname: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub backends: Option<BackendSet>,
    /// Which application, of those that share the route.
    #[prost(bytes = "vec", tag = "4")]
    pub capi_process_guid: Vec<u8>,
    /// Its share of the requests in percent; zero from a Copilot that knows no weights.
    #[prost(int32, tag = "5")]
    pub route_weight: i32,
}

/// All routes from application to application.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InternalRoutes {
    #[prost(message, repeated, tag = "1")]
    pub internal_routes: Vec<InternalRoute>,
}

/// A host within the platform. Applications look it up and find the virtual address.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InternalRoute {
    #[prost(bytes = "vec", tag = "1")]
    pub hostname: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub vip: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub backends: Option<BackendSet>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackendSet {
    #[prost(message, repeated, tag = "1")]
    pub backends: Vec<Backend>,
}

/// Where a running instance of an application is reached.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Backend {
    #[prost(bytes = "vec", tag = "1")]
    pub address: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub port: u32,
}
