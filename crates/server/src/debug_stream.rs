//! The pages for debugging over xDS, as istioctl asks for them: with a token of the cluster, through the port of proxies.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::Request;
use pilot_base::{Clock, Millis};
use pilot_ca::SpiffeId;
use pilot_envoy_api::envoy::admin::v3::UpdateFailureState;
use pilot_envoy_api::envoy::config::core::v3::{ControlPlane, Node};
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryResponse;
use pilot_envoy_api::envoy::service::status::v3 as status;
use pilot_envoy_api::to_any;
use pilot_xds::{Protocol, TypeUrl};
use prost::Message as _;
use prost_types::{Any, Struct, Timestamp, Value, value::Kind};
use serde_json::json;
use tonic::Status;
use tower::ServiceExt as _;

use crate::body::Outgoing;
use crate::clock::unix_seconds;
use crate::debug::{DebugDoor, Viewer};
use crate::incoming::Incoming;
use crate::messages::Messages;
use crate::pages::{BuildInfo, dump};
use crate::standing::{Standing, Standings};

/// Any page, named with its query as the only resource; the answer is its bytes.
const PAGE: &str = "istio.io/debug";
/// What each proxy was sent and has accepted.
const SYNCZ: &str = "istio.io/debug/syncz";
/// What the proxy has that is named as the only resource.
const CONFIG_DUMP: &str = "istio.io/debug/config_dump";

/// More than any page has.
const MAX_PAGE: usize = 1 << 30;

/// What is looked into.
pub struct DebugStreams {
    pub(crate) door: Arc<DebugDoor>,
    /// The pages without a door.
    pub(crate) pages: Router,
    pub(crate) build: BuildInfo,
    /// Which of several servers this is: the name of its pod.
    pub(crate) id: String,
    pub(crate) clock: Arc<dyn Clock>,
}

pub(crate) fn is_asked_for(type_url: &str) -> bool {
    [PAGE, SYNCZ, CONFIG_DUMP].contains(&type_url)
}

/// Answers each question once. Who asks is no proxy, so nobody else hears of it.
pub(crate) async fn serve<M: Incoming>(
    debug: &DebugStreams,
    standings: &Standings,
    identities: Option<&[SpiffeId]>,
    first: M,
    (incoming, out): (&mut Messages<M>, &Outgoing),
) -> Status {
    let viewer = match identities {
        Some(identities) => debug.door.of(identities),
        None if debug.door.options.auth => return Status::unauthenticated("authentication required"),
        None => Viewer::Everything,
    };
    if M::PROTOCOL == Protocol::Delta {
        return Status::unimplemented("pages for debugging are served in the state of the world");
    }
    let (mut asked, mut count) = (first, 0_u64);
    loop {
        // What was made up for a first request is no answer to anything.
        if count == 0 || asked.nonce() != count.to_string() {
            count += 1;
            match debug.answer(standings, &viewer, &asked, count).await {
                Ok(response) => out.send(&response.encode_to_vec(), Vec::new()),
                Err(status) => return status,
            }
        }
        match incoming.next().await {
            Ok(Some(message)) => asked = message,
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

impl DebugStreams {
    async fn answer<M: Incoming>(
        &self,
        standings: &Standings,
        viewer: &Viewer,
        asked: &M,
        nonce: u64,
    ) -> Result<DiscoveryResponse, Status> {
        let type_url = asked.type_url().to_owned();
        let names = asked.names()?;
        let only = match &names[..] {
            [only] => Some(*only),
            _ => None,
        };
        let resources = match (type_url.as_str(), only) {
            (SYNCZ, _) => clients(standings, viewer, self.clock.now()),
            (CONFIG_DUMP, Some(proxy)) => {
                let holding = dump::holding(standings, viewer, proxy).await;
                holding.map(|holding| dump::messages(&holding)).unwrap_or_default()
            }
            (CONFIG_DUMP, None) => Vec::new(),
            (PAGE, Some(page)) => vec![self.page(viewer, page).await?],
            (PAGE, None) => return Err(Status::invalid_argument("exactly one debug request is required")),
            _ => return Err(Status::invalid_argument(format!("unknown type URL {type_url:?}"))),
        };
        let control_plane = (type_url == SYNCZ).then(|| ControlPlane { identifier: self.identifier() });
        Ok(DiscoveryResponse {
            version_info: nonce.to_string(),
            resources,
            type_url,
            nonce: nonce.to_string(),
            control_plane,
            ..DiscoveryResponse::default()
        })
    }

    /// A page as its bytes, whatever its status: its text tells.
    async fn page(&self, viewer: &Viewer, page: &str) -> Result<Any, Status> {
        let path = page.split('?').next().unwrap_or_default();
        if !viewer.may_open(path) {
            return Err(Status::permission_denied("the page is not for this identity"));
        }
        let request = Request::builder().uri(format!("/debug/{page}")).extension(viewer.clone());
        let request = request.body(Body::empty());
        let request = request.map_err(|error| Status::invalid_argument(format!("{page:?}: {error}")))?;
        let response = match self.pages.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let bytes = to_bytes(response.into_body(), MAX_PAGE).await;
        let bytes = bytes.map_err(|error| Status::internal(format!("{page:?}: {error}")))?;
        Ok(Any { type_url: PAGE.to_owned(), value: bytes.into() })
    }

    /// Which server answers, as istioctl reads it.
    fn identifier(&self) -> String {
        let BuildInfo { version, revision, status } = self.build;
        let info = json!({
            "version": version, "revision": revision, "golang_version": "", "status": status, "tag": version,
        });
        json!({ "Component": "istiod", "ID": self.id, "Info": info }).to_string()
    }
}

/// Who has no settings of its own asks for something else than to be a proxy.
fn clients(standings: &Standings, viewer: &Viewer, now: Millis) -> Vec<Any> {
    let all = standings.all();
    let seen = all.iter().map(|(_, standing)| standing).filter(|standing| viewer.sees(&standing.proxy));
    let proxies = seen.filter(|standing| standing.proxy.config.is_some());
    proxies.map(|standing| to_any(&client(standing, now))).collect()
}

fn client(standing: &Standing, now: Millis) -> status::ClientConfig {
    let progress = standing.progress();
    let proxy = &standing.proxy;
    let unix = unix_seconds();
    let mut configs: Vec<_> = TypeUrl::ALL
        .into_iter()
        .map(|type_url| (type_url, &progress.types[type_url.index()]))
        .filter(|(_, step)| step.asked)
        .map(|(type_url, step)| {
            let ago = i64::try_from(now.saturating_sub(step.sent_at) / 1000).unwrap_or(i64::MAX);
            let at = Timestamp { seconds: unix.saturating_sub(ago), nanos: 0 };
            let error = step.error.clone();
            let is_sent = !step.sent.is_empty();
            let state = match () {
                () if error.is_some() => status::ConfigStatus::Error,
                () if !is_sent => status::ConfigStatus::NotSent,
                () if step.acked == step.sent => status::ConfigStatus::Synced,
                () => status::ConfigStatus::Stale,
            };
            let refused = |details| UpdateFailureState {
                last_update_attempt: Some(at),
                details,
                ..UpdateFailureState::default()
            };
            status::client_config::GenericXdsConfig {
                type_url: type_url.as_str().to_owned(),
                config_status: state.into(),
                last_updated: is_sent.then_some(at),
                error_state: error.map(refused),
                ..Default::default()
            }
        })
        .collect();
    configs.sort_by(|one, other| one.type_url.cmp(&other.type_url));
    let fields = [
        ("CLUSTER_ID", proxy.cluster.as_str()),
        ("NAMESPACE", proxy.namespace.as_str()),
        ("ISTIO_VERSION", proxy.version_text.as_str()),
    ];
    let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let text = |value: &str| Value { kind: Some(Kind::StringValue(value.to_owned())) };
    let metadata = Struct { fields: said.map(|(key, value)| (key.to_owned(), text(value))).collect() };
    let node = Node { id: proxy.name.to_string(), metadata: Some(metadata), ..Node::default() };
    status::ClientConfig { node: Some(node), generic_xds_configs: configs, ..Default::default() }
}
