use crate::Span;

/// Limits for connections of clients, mostly for proxies at the edge of the mesh.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConnectionSettings {
    pub edge: bool,
    pub listener_buffer_limit: Option<u32>,
    pub cluster_buffer_limit: Option<u32>,
    pub idle_timeout: Option<Span>,
    pub max_connection_duration: Option<Span>,
    pub drain_timeout: Option<Span>,
    pub request_timeout: Option<Span>,
    pub request_headers_timeout: Option<Span>,
    pub stream_idle_timeout: Option<Span>,
    pub max_stream_duration: Option<Span>,
    pub max_concurrent_streams: Option<u32>,
    pub stream_window: Option<u32>,
    pub connection_window: Option<u32>,
    pub underscores: Option<Underscores>,
    pub merge_slashes: Option<bool>,
    pub escaped_slashes: Option<EscapedSlashes>,
}

/// What becomes of a request with underscores in the names of its headers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Underscores {
    Allow,
    RejectRequest,
    DropHeader,
}

/// What becomes of a path with encoded slashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EscapedSlashes {
    KeepUnchanged,
    RejectRequest,
    UnescapeAndRedirect,
    UnescapeAndForward,
}

impl ConnectionSettings {
    /// For a gateway with the profile of the edge, what is not said is what Envoy recommends there.
    #[must_use]
    pub fn at_the_edge(self) -> Self {
        if !self.edge {
            return self;
        }
        Self {
            listener_buffer_limit: self.listener_buffer_limit.or(Some(32 * 1024)),
            idle_timeout: self.idle_timeout.or(Some(Span::from_secs(3600))),
            stream_idle_timeout: self.stream_idle_timeout.or(Some(Span::from_secs(300))),
            request_timeout: self.request_timeout.or(Some(Span::from_secs(300))),
            request_headers_timeout: self.request_headers_timeout.or(Some(Span::from_secs(60))),
            max_concurrent_streams: self.max_concurrent_streams.or(Some(100)),
            stream_window: self.stream_window.or(Some(64 * 1024)),
            connection_window: self.connection_window.or(Some(1024 * 1024)),
            underscores: self.underscores.or(Some(Underscores::RejectRequest)),
            merge_slashes: self.merge_slashes.or(Some(true)),
            escaped_slashes: self.escaped_slashes.or(Some(EscapedSlashes::UnescapeAndRedirect)),
            ..self
        }
    }
}
