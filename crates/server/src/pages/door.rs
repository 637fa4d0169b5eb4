//! Who is let in to the pages for debugging.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::Pages;
use crate::authenticate::Caller;
use crate::debug::{Viewer, is_local};

const WHO: &str = "say who you are with a token (authorization: Bearer …), or ask from the server's own machine, as kubectl port-forward does\n";
const NOT_YOURS: &str =
    "this is for identities of the root namespace, or of DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES\n";

pub(super) async fn let_in(State(pages): State<Pages>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    let viewer = if is_local(peer) {
        Viewer::Everything
    } else {
        let caller = Caller::of(request.extensions(), request.headers());
        let Some(viewer) = pages.door.viewer(&caller).await else {
            return (StatusCode::UNAUTHORIZED, WHO).into_response();
        };
        viewer
    };
    let page = request.uri().path().trim_start_matches("/debug/");
    if !viewer.may_open(page) {
        return (StatusCode::FORBIDDEN, NOT_YOURS).into_response();
    }
    request.extensions_mut().insert(viewer);
    next.run(request).await
}
