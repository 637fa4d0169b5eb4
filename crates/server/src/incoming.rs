//! What clients say, read without a copy of the thousands of names in it.
//!
//! The messages are Envoy's, field by field as far as they are read here; but names stay where they arrived, and become
//! the copy that everybody shares if there is something with that name.

use bytes::Bytes;
use pilot_base::{Hash64, Name};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::google::rpc::Status as RpcStatus;
use pilot_xds::{Ask, Protocol, Request, Session, TypeUrl};
use tonic::Status;

/// More of an error text nobody reads.
const MAX_ERROR: usize = 4 << 10;

/// The two requests, as far as they say the same.
pub(crate) trait Incoming: prost::Message + Default + 'static {
    const PROTOCOL: Protocol;
    fn node(&self) -> Option<&Node>;
    fn type_url(&self) -> &str;
    fn into_request(self, type_url: TypeUrl, session: &Session) -> Result<Request, Status>;
}

/// `envoy.service.discovery.v3.DiscoveryRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SotwRequest {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, optional, tag = "2")]
    node: Option<Node>,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    resource_names: Vec<Bytes>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<RpcStatus>,
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeltaRequest {
    #[prost(message, optional, tag = "1")]
    node: Option<Node>,
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    resource_names_subscribe: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    resource_names_unsubscribe: Vec<Bytes>,
    #[prost(message, repeated, tag = "5")]
    initial_resource_versions: Vec<InitialVersion>,
    #[prost(string, tag = "6")]
    response_nonce: String,
    #[prost(message, optional, tag = "7")]
    error_detail: Option<RpcStatus>,
}

/// An entry of the map of versions.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InitialVersion {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    version: Bytes,
}

impl Incoming for SotwRequest {
    const PROTOCOL: Protocol = Protocol::StateOfTheWorld;

    fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn into_request(self, type_url: TypeUrl, session: &Session) -> Result<Request, Status> {
        let returning = !self.version_info.is_empty();
        let names = session.names(type_url, &texts(&self.resource_names)?);
        let error = self.error_detail.map(|status| cut(status.message, MAX_ERROR));
        Ok(Request { type_url, nonce: self.response_nonce, error, ask: Ask::Names { names, returning } })
    }
}

impl Incoming for DeltaRequest {
    const PROTOCOL: Protocol = Protocol::Delta;

    fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn into_request(self, type_url: TypeUrl, session: &Session) -> Result<Request, Status> {
        let held = self.initial_resource_versions.iter();
        let held = held.map(|entry| Ok((text(&entry.name)?, Hash64::from_text(&entry.version))));
        let held: Vec<(&str, Option<Hash64>)> = held.collect::<Result<_, Status>>()?;
        let unsubscribe = texts(&self.resource_names_unsubscribe)?;
        let ask = Ask::Changes {
            subscribe: session.names(type_url, &texts(&self.resource_names_subscribe)?),
            unsubscribe: unsubscribe.into_iter().map(Name::new).collect(),
            initial: session.initial(type_url, &held),
        };
        let error = self.error_detail.map(|status| cut(status.message, MAX_ERROR));
        Ok(Request { type_url, nonce: self.response_nonce, error, ask })
    }
}

fn texts(names: &[Bytes]) -> Result<Vec<&str>, Status> {
    names.iter().map(text).collect()
}

fn text(bytes: &Bytes) -> Result<&str, Status> {
    std::str::from_utf8(bytes)
        .map_err(|_| Status::invalid_argument("a name of a resource is not valid UTF-8"))
}

/// The beginning of a text, up to a number of bytes.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilot_base::Name;
    use pilot_envoy_api::envoy::service::discovery::v3 as api;
    use pilot_xds::{Ask, Encoded, Initial, Manifest, Manifests, Pacing, Protocol, Session, TypeUrl};
    use prost::Message as _;

    use super::{DeltaRequest, Incoming as _, SotwRequest};

    fn session(known: &Arc<Encoded>) -> Session {
        let mut manifests = Manifests::default();
        let layer = [(known.name().clone(), Some(Arc::clone(known)))].into_iter().collect();
        manifests.by_type[TypeUrl::Cluster.index()] = Manifest::new([layer]);
        Session::new(Protocol::Delta, Arc::new(manifests), Pacing::default(), Arc::default())
    }

    #[test]
    fn envoys_messages_are_read_and_names_are_shared() {
        let known = Arc::new(Encoded::new(TypeUrl::Cluster, "known".into(), b"x"));
        let message = api::DeltaDiscoveryRequest {
            type_url: "t".to_owned(),
            resource_names_subscribe: vec!["known".to_owned(), "other".to_owned()],
            resource_names_unsubscribe: vec!["gone".to_owned()],
            initial_resource_versions: [("known".to_owned(), known.version().to_string())].into(),
            response_nonce: "7".to_owned(),
            error_detail: Some(pilot_envoy_api::google::rpc::Status {
                message: "no".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let read = DeltaRequest::decode(&*message.encode_to_vec()).unwrap();
        assert_eq!(read.type_url(), "t");
        let request = read.into_request(TypeUrl::Cluster, &session(&known)).unwrap();
        assert_eq!((request.nonce.as_str(), request.error.as_deref()), ("7", Some("no")));
        let Ask::Changes { subscribe, unsubscribe, initial } = request.ask else { panic!("it was delta") };
        let subscribe: Vec<&Name> = subscribe.iter().collect();
        assert_eq!((&**subscribe[0], &**subscribe[1], &*unsubscribe[0]), ("known", "other", "gone"));
        assert!(std::ptr::eq(subscribe[0].as_str(), known.name().as_str()));
        assert!(matches!(initial, Initial::Everything), "it holds all that there is");
    }

    #[test]
    fn a_state_of_the_world_is_read() {
        let known = Arc::new(Encoded::new(TypeUrl::Cluster, "known".into(), b"x"));
        let message = api::DiscoveryRequest {
            version_info: "3".to_owned(),
            resource_names: vec!["known".to_owned()],
            type_url: "t".to_owned(),
            response_nonce: "8".to_owned(),
            ..Default::default()
        };
        let read = SotwRequest::decode(&*message.encode_to_vec()).unwrap();
        assert_eq!(read.type_url(), "t");
        let request = read.into_request(TypeUrl::Cluster, &session(&known)).unwrap();
        let Ask::Names { names, returning } = request.ask else { panic!("it was not delta") };
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        assert_eq!((&names[..], returning, request.nonce.as_str()), (&["known"][..], true, "8"));
    }

    #[test]
    fn names_are_text() {
        let known = Arc::new(Encoded::new(TypeUrl::Cluster, "known".into(), b"x"));
        let read = SotwRequest { resource_names: vec![(&b"\xff"[..]).into()], ..SotwRequest::default() };
        assert!(read.into_request(TypeUrl::Cluster, &session(&known)).is_err());
    }
}
