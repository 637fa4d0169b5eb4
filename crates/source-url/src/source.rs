use std::time::Duration;

use http::HeaderValue;
use http::header::ETAG;
use http::uri::PathAndQuery;
use pilot_source_http::{AddressError, Client, ClientOptions, ServerAddress, TlsError};
use pilot_source_store::{Monitor, Snapshots, StoreOptions};

/// How a page is followed.
pub struct UrlOptions {
    pub store: StoreOptions,
    /// Without servers: the URL says which one is asked.
    pub client: ClientOptions,
    /// Such as `https://user:password@host/folder/rules.yaml?version=7`.
    pub url: String,
    /// How often it is asked for.
    pub every: Duration,
}

/// Why a page cannot be followed. What stands in its URL is told to nobody.
#[derive(thiserror::Error, Debug)]
pub enum UrlError {
    /// The server cannot be asked.
    #[error("{0}")]
    Address(#[from] AddressError),
    /// Nothing can be asked for there.
    #[error("has no path that could be asked for")]
    Path,
    /// TLS cannot be spoken.
    #[error("{0}")]
    Tls(#[from] TlsError),
}

/// A page, and the tag that its server last gave it.
pub struct Page {
    client: Client,
    path: String,
    /// By which people know it: without what proves who asks.
    key: String,
    tag: Option<HeaderValue>,
}

/// A source that follows a page.
pub fn open(options: UrlOptions) -> Result<Monitor<Page>, UrlError> {
    let UrlOptions { store, client, url, every } = options;
    let begin = url.find("://").map_or(0, |at| at + 3);
    let (server, path) = url.split_at(url[begin..].find('/').map_or(url.len(), |at| begin + at));
    let server = ServerAddress::parse(server)?;
    let path = if path.is_empty() { "/" } else { path };
    let only_path = path.parse::<PathAndQuery>().map_err(|_| UrlError::Path)?.path().to_owned();
    let key = format!("{server}{only_path}");
    let client = Client::new(ClientOptions { servers: vec![server], ..client })?;
    let page = Page { client, path: path.to_owned(), key, tag: None };
    Ok(Monitor::new(store, page, every))
}

impl Snapshots for Page {
    async fn take(&mut self) -> Result<Option<Vec<(String, Vec<u8>)>>, String> {
        let answer = self.client.page_unless(&self.path, self.tag.as_ref()).await;
        let Some(answer) = answer.map_err(|error| error.to_string())? else { return Ok(None) };
        self.tag = answer.headers.get(ETAG).cloned();
        Ok(Some(vec![(self.key.clone(), answer.body.to_vec())]))
    }
}
