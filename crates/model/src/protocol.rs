use std::fmt;

/// What is spoken on a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Protocol {
    Grpc,
    GrpcWeb,
    Http,
    HttpProxy,
    Http2,
    Https,
    Tls,
    Tcp,
    Udp,
    Mongo,
    Redis,
    MySql,
    /// Not declared: found out from the first bytes.
    #[default]
    Auto,
}

/// What kind of listener a protocol needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListenerProtocol {
    Http,
    Tcp,
    Auto,
    /// No listener at all.
    None,
}

impl Protocol {
    /// The name as users write it in a ServiceEntry, a Sidecar or an `appProtocol`; unknown names mean [`Auto`](Self::Auto).
    pub fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "grpc" => Self::Grpc,
            "grpc-web" => Self::GrpcWeb,
            "http" => Self::Http,
            "http_proxy" => Self::HttpProxy,
            "http2" => Self::Http2,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "mongo" => Self::Mongo,
            "redis" => Self::Redis,
            "mysql" => Self::MySql,
            _ => Self::Auto,
        }
    }

    /// What a Kubernetes Service port speaks: UDP is UDP, then `appProtocol`, else the name; of either what stands before
    /// the first dash. Then ports whose servers speak first and must not be inspected.
    pub fn of_kube_port(transport: &str, app_protocol: Option<&str>, name: &str, number: u16) -> Self {
        const GRPC_WEB: &str = "grpc-web";
        if transport.eq_ignore_ascii_case("UDP") {
            return Self::Udp;
        }
        match app_protocol {
            Some("kubernetes.io/h2c") => return Self::Http2,
            Some("kubernetes.io/ws") => return Self::Http,
            Some("kubernetes.io/wss") => return Self::Https,
            Some(_) | None => (),
        }
        let name = app_protocol.unwrap_or(name);
        if name.get(..GRPC_WEB.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC_WEB)) {
            return Self::GrpcWeb;
        }
        match Self::parse(name.split_once('-').map_or(name, |(first, _)| first)) {
            Self::Auto if matches!(number, 25 | 53 | 3306 | 27017) => Self::Tcp,
            protocol => protocol,
        }
    }

    pub fn listener(self) -> ListenerProtocol {
        match self {
            Self::Http | Self::Http2 | Self::HttpProxy | Self::Grpc | Self::GrpcWeb => ListenerProtocol::Http,
            Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::MySql => {
                ListenerProtocol::Tcp
            }
            Self::Auto => ListenerProtocol::Auto,
            Self::Udp => ListenerProtocol::None,
        }
    }

    pub fn is_http(self) -> bool {
        self.listener() == ListenerProtocol::Http
    }

    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    pub fn is_tcp(self) -> bool {
        self.listener() == ListenerProtocol::Tcp
    }

    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    pub fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcWeb)
    }

    pub fn is_http_or_auto(self) -> bool {
        self.is_http() || self == Self::Auto
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "GRPC",
            Self::GrpcWeb => "GRPC-Web",
            Self::Http => "HTTP",
            Self::HttpProxy => "HTTP_PROXY",
            Self::Http2 => "HTTP2",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Mongo => "Mongo",
            Self::Redis => "Redis",
            Self::MySql => "MySQL",
            Self::Auto => "UnsupportedProtocol",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Protocol;

    #[test]
    fn kube_ports_tell_their_protocol() {
        let of = |app, name, number| Protocol::of_kube_port("TCP", app, name, number);
        assert_eq!(of(None, "http", 80), Protocol::Http);
        assert_eq!(of(None, "http-web", 80), Protocol::Http);
        assert_eq!(of(None, "grpc-web-ui", 80), Protocol::GrpcWeb);
        assert_eq!(of(Some("kubernetes.io/h2c"), "tcp", 80), Protocol::Http2);
        assert_eq!(of(Some("redis"), "http", 80), Protocol::Redis);
        assert_eq!(of(Some("http-alt"), "tcp", 80), Protocol::Http);
        assert_eq!(of(Some("GRPC-Web-v2"), "tcp", 80), Protocol::GrpcWeb);
        assert_eq!(of(Some("kubernetes.io/ws"), "tcp", 80), Protocol::Http);
        assert_eq!(of(Some("kubernetes.io/wss"), "tcp", 80), Protocol::Https);
        assert_eq!(of(Some("example.com/own"), "http", 80), Protocol::Auto);
        assert_eq!(of(Some(""), "http", 80), Protocol::Auto);
        assert_eq!(of(None, "GRPC-web", 80), Protocol::GrpcWeb);
        assert_eq!(of(None, "ünïcodé", 80), Protocol::Auto);
        assert_eq!(of(None, "web", 8080), Protocol::Auto);
        assert_eq!(of(None, "db", 3306), Protocol::Tcp);
        assert_eq!(Protocol::of_kube_port("UDP", None, "http", 80), Protocol::Udp);
    }
}
