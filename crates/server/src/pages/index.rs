//! Which pages there are for debugging.

use std::fmt::Write as _;

use axum::response::{Html, IntoResponse as _, Json, Response};

/// Their names below `/debug/`, and what they show.
pub(super) const PAGES: [(&str, &str); 13] = [
    ("bill", "what each object has cost"),
    ("clusterz", "the clusters that are followed, and how far they are known"),
    ("config_dump", "what a proxy has, as Envoy tells it: ?proxyID=web-1.shop, &types=cds,eds, &include_eds"),
    ("ecdsz", "the filters that a proxy has: ?proxyID="),
    ("edsz", "the endpoints that a proxy has: ?proxyID="),
    ("held", "what is gone all at once and is not believed yet"),
    ("issues", "everything that is wrong"),
    ("ndsz", "the names that a proxy has: ?proxyID="),
    ("propagation", "who has accepted an object: ?kind=VirtualService&namespace=shop&name=cart"),
    ("registry/endpoints", "endpoints of registries"),
    ("registry/services", "services of registries"),
    ("registry/sources", "where services and rules come from"),
    ("syncz", "what each proxy was sent and has accepted"),
];

/// For people.
pub(super) async fn page() -> Response {
    let mut out = "<!DOCTYPE html><title>Pilot</title><ul>".to_owned();
    for (name, what) in PAGES {
        // Writing to memory does not fail.
        let _written = write!(out, "<li><a href=\"/debug/{name}\">{name}</a>: {what}");
    }
    out.push_str("</ul>\n");
    Html(out).into_response()
}

/// For programs.
pub(super) async fn list() -> Response {
    Json(PAGES.map(|(name, _)| name)).into_response()
}
