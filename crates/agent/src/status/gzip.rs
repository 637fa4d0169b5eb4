use std::io::Write;

use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};

/// Less is not worth it: it fits a packet.
const SMALLEST: usize = 1 << 10;

/// Compressed where the scraper can read it.
pub(super) fn answer(asked: &HeaderMap, content_type: &'static str, body: Vec<u8>) -> Response {
    if body.len() >= SMALLEST && accepts(asked) {
        let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
        if let Ok(compressed) = encoder.write_all(&body).and_then(|()| encoder.finish()) {
            let headers =
                [(CONTENT_TYPE, content_type), (CONTENT_ENCODING, "gzip"), (VARY, "accept-encoding")];
            return (headers, compressed).into_response();
        }
    }
    ([(CONTENT_TYPE, content_type), (VARY, "accept-encoding")], body).into_response()
}

fn accepts(asked: &HeaderMap) -> bool {
    let lists = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|choice| {
        let mut parts = choice.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|parameter| matches!(parameter, "q=0" | "q=0.0"))
    })
}
