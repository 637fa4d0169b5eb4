//! Sessions that stay with the endpoint that began them, for services with a label that asks for it.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::TypedExtensionConfig;
use pilot_envoy_api::envoy::extensions::filters::http::stateful_session::v3 as api;
use pilot_envoy_api::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use pilot_envoy_api::envoy::extensions::http::stateful_session::header::v3::HeaderBasedSessionState;
use pilot_envoy_api::envoy::r#type::http::v3::Cookie;
use pilot_envoy_api::to_any;
use pilot_model::Service;
use prost_types::Any;

use crate::settings::Settings;

pub(crate) const STATEFUL_SESSION: &str = "envoy.filters.http.stateful_session";

/// Where a session says to which endpoint it belongs: a cookie, with the path it is for behind a colon, or a header.
pub(crate) fn of_service(service: &Service, settings: Settings<'_>) -> Option<api::StatefulSession> {
    let features = &settings.options.features;
    if !features.persistent_sessions {
        return None;
    }
    let label =
        |key: &Name| service.labels.get(key).map(|value| value.as_str()).filter(|value| !value.is_empty());
    let state = if let Some(cookie) = label(&features.persistent_session_label) {
        let (name, path) = cookie.split_once(':').unwrap_or((cookie, "/"));
        let cookie = Cookie { name: name.to_owned(), path: path.to_owned(), ..Cookie::default() };
        let state = CookieBasedSessionState { cookie: Some(cookie) };
        extension("envoy.http.stateful_session.cookie", to_any(&state))
    } else {
        let name = label(&features.persistent_session_header_label)?.to_owned();
        extension("envoy.http.stateful_session.header", to_any(&HeaderBasedSessionState { name }))
    };
    Some(api::StatefulSession { session_state: Some(state), ..api::StatefulSession::default() })
}

/// The same for one route, or all of a virtual host.
pub(crate) fn per_route(session: api::StatefulSession) -> Any {
    use api::stateful_session_per_route::Override;
    to_any(&api::StatefulSessionPerRoute { r#override: Some(Override::StatefulSession(session)) })
}

/// Where several services share a route, at most one may have sessions: the last, unless one before it has them too.
pub(crate) fn of_services<'a>(
    services: impl Iterator<Item = Option<&'a Service>>,
    settings: Settings<'_>,
) -> Option<api::StatefulSession> {
    let mut found = None;
    for service in services {
        let session = service.and_then(|service| of_service(service, settings));
        if session.is_some() && found.is_some() {
            break;
        }
        found = session;
    }
    found
}

/// For all routes of a virtual host.
pub(crate) fn of_host(service: Option<&Service>, settings: Settings<'_>) -> BTreeMap<String, Any> {
    let session = service.and_then(|service| of_service(service, settings));
    session.map(|session| (STATEFUL_SESSION.to_owned(), per_route(session))).into_iter().collect()
}

fn extension(name: &str, config: Any) -> TypedExtensionConfig {
    TypedExtensionConfig { name: name.to_owned(), typed_config: Some(config) }
}

#[cfg(test)]
mod tests {
    use super::{of_service, of_services};
    use crate::settings::Settings;
    use pilot_base::Labels;
    use pilot_mesh::stand_in;
    use pilot_model::{ConfigId, MeshConfig, MeshOptions, Service};

    fn service(labels: &[(&str, &str)]) -> Service {
        let labels = Labels::new(labels.iter().copied());
        Service { labels, ..(*stand_in(&ConfigId::new("shop", "cart"))).clone() }
    }

    #[test]
    fn a_cookie_comes_before_a_header_and_nothing_without_the_switch() {
        let mesh = MeshConfig::default();
        let mut options = MeshOptions::default();
        let cookie =
            service(&[("istio.io/persistent-session", "a:/b"), ("istio.io/persistent-session-header", "x")]);
        let header = service(&[("istio.io/persistent-session-header", "x")]);
        assert!(of_service(&cookie, Settings::new(&mesh, &options)).is_none());
        options.features.persistent_sessions = true;
        let settings = Settings::new(&mesh, &options);
        let name = |service: &Service| Some(of_service(service, settings)?.session_state?.name);
        assert_eq!(name(&cookie).as_deref(), Some("envoy.http.stateful_session.cookie"));
        assert_eq!(name(&header).as_deref(), Some("envoy.http.stateful_session.header"));
        assert_eq!(name(&service(&[])), None);
        let shared = |services: [Option<&Service>; 2]| {
            Some(of_services(services.into_iter(), settings)?.session_state?.name)
        };
        assert_eq!(shared([Some(&cookie), Some(&header)]), name(&cookie));
        assert_eq!(shared([None, Some(&header)]), name(&header));
        assert_eq!(shared([Some(&cookie), None]), None);
    }
}
