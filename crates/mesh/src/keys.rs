//! Where the keys come from that tokens are checked with.

use pilot_base::{Host, Name};
use pilot_model::{JwksFetch, JwtRule, KeySource};

/// The keys of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKeys<'a> {
    /// They stand in the rule.
    Written(&'a Name),
    /// The server fetches them.
    Fetched(KeySource),
    /// Every proxy fetches them itself, from a host of the mesh.
    ByProxy { host: Host, port: u16 },
}

/// Who gets the keys, and where.
pub fn token_keys(rule: &JwtRule, fetch: JwksFetch, is_known: impl Fn(&Host) -> bool) -> TokenKeys<'_> {
    let uri = &rule.jwks_uri;
    match fetch {
        JwksFetch::Hybrid | JwksFetch::Envoy if !uri.is_empty() => {
            let (host, port) = host_and_port(uri);
            if fetch == JwksFetch::Envoy || is_known(&host) {
                TokenKeys::ByProxy { host, port }
            } else {
                TokenKeys::Fetched(KeySource::Uri(uri.clone()))
            }
        }
        _ if !rule.jwks.is_empty() => TokenKeys::Written(&rule.jwks),
        _ if uri.is_empty() => TokenKeys::Fetched(KeySource::Issuer(rule.issuer.clone())),
        _ => TokenKeys::Fetched(KeySource::Uri(uri.clone())),
    }
}

/// The host that has the keys of a rule, if the rule names it.
pub fn key_host(rule: &JwtRule) -> Option<Host> {
    (!rule.jwks_uri.is_empty()).then(|| host_and_port(&rule.jwks_uri).0)
}

/// Of an address that was checked when it was read.
fn host_and_port(uri: &str) -> (Host, u16) {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let default = if scheme == "https" { 443 } else { 80 };
    let (host, port) = match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').unwrap_or_default()),
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    (Host::new(host), port.parse().unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::{TokenKeys, host_and_port, token_keys};
    use pilot_base::Name;
    use pilot_model::{JwksFetch, JwtRule, KeySource};

    #[test]
    fn addresses_are_taken_apart() {
        let parts = |uri: &str| {
            let (host, port) = host_and_port(uri);
            (host.to_string(), port)
        };
        assert_eq!(parts("https://a.example.com/keys"), ("a.example.com".to_owned(), 443));
        assert_eq!(parts("http://a:8080?x=y:z"), ("a".to_owned(), 8080));
        assert_eq!(parts("http://[::1]:81/"), ("::1".to_owned(), 81));
    }

    #[test]
    fn the_mode_decides_who_fetches() {
        let rule = |uri: &str, jwks: &str| JwtRule {
            issuer: Name::new("https://issuer"),
            jwks_uri: Name::new(uri),
            jwks: Name::new(jwks),
            ..JwtRule::default()
        };
        let by = |rule: &JwtRule, fetch, known: bool| match token_keys(rule, fetch, |_| known) {
            TokenKeys::Written(_) => "written",
            TokenKeys::Fetched(KeySource::Uri(_)) => "server",
            TokenKeys::Fetched(KeySource::Issuer(_)) => "discovery",
            TokenKeys::ByProxy { .. } => "proxy",
        };
        let there = rule("http://keys.example.com/", "");
        assert_eq!(by(&there, JwksFetch::Istiod, true), "server");
        assert_eq!(by(&there, JwksFetch::Hybrid, false), "server");
        assert_eq!(by(&there, JwksFetch::Hybrid, true), "proxy");
        assert_eq!(by(&there, JwksFetch::Envoy, false), "proxy");
        for fetch in [JwksFetch::Istiod, JwksFetch::Hybrid, JwksFetch::Envoy] {
            assert_eq!(by(&rule("", ""), fetch, true), "discovery");
            assert_eq!(by(&rule("", "{}"), fetch, true), "written");
        }
        assert_eq!(by(&rule("http://keys.example.com/", "{}"), JwksFetch::Istiod, true), "written");
    }
}
