//! What clients say, read without a copy of the thousands of names in it.
//!
//! Names stay where they arrived until it is known what they name: then the copy that everybody shares takes their place.

use std::sync::Arc;

use bytes::Bytes;
use pilot_base::{Hash64, Name};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::google::rpc::Status as RpcStatus;
use pilot_xds::{Ask, Initial, Protocol, Request, Session, TypeUrl};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::Status;

/// More of an error text nobody reads.
const MAX_ERROR: usize = 4 << 10;

/// The two requests, as far as they say the same.
pub(crate) trait Incoming: Sized + Send + Sync + 'static {
    const PROTOCOL: Protocol;
    /// Where the node stands in a message.
    const NODE: u32;
    fn read(message: Bytes) -> Result<Self, Status>;
    fn envelope(&self) -> &Envelope;
    /// The names that it asks for.
    fn names(&self) -> Result<Vec<&str>, Status>;
    fn into_request(self, type_url: TypeUrl, session: &mut Session) -> Result<Request, Status>;

    fn node(&self) -> Result<Option<Node>, Status> {
        self.envelope().node.as_deref().map(decode_node).transpose()
    }

    /// The node, if it stands wholly in the beginning of a message.
    fn node_in(beginning: &[u8]) -> Result<Option<Node>, Status> {
        let mut whole = Fields(beginning).map_while(Result::ok);
        whole.find(|(number, _)| *number == Self::NODE).map(|(_, node)| decode_node(node)).transpose()
    }

    fn type_url(&self) -> &str {
        &self.envelope().type_url
    }

    /// Which response it answers; empty if none.
    fn nonce(&self) -> &str {
        &self.envelope().nonce
    }

    /// How long the message was.
    fn size(&self) -> usize {
        self.envelope().size
    }

    /// Why the client refuses a response.
    fn error(&self) -> Option<&str> {
        self.envelope().error.as_deref()
    }

    /// With what code the client refuses a response; zero if it does not.
    fn refusal(&self) -> i32 {
        self.envelope().code
    }
}

/// What stands around the names.
#[derive(Default)]
pub(crate) struct Envelope {
    node: Option<Bytes>,
    type_url: String,
    nonce: String,
    error: Option<String>,
    code: i32,
    size: usize,
}

/// Where that stands in a message.
struct Numbers {
    node: u32,
    type_url: u32,
    nonce: u32,
    error: u32,
}

/// `envoy.service.discovery.v3.DiscoveryRequest`
pub(crate) struct SotwRequest {
    envelope: Envelope,
    message: Bytes,
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`
pub(crate) struct DeltaRequest {
    envelope: Envelope,
    message: Bytes,
}

impl Incoming for SotwRequest {
    const PROTOCOL: Protocol = Protocol::StateOfTheWorld;
    const NODE: u32 = 2;

    fn read(message: Bytes) -> Result<Self, Status> {
        let envelope =
            Envelope::read(&message, &Numbers { node: Self::NODE, type_url: 4, nonce: 5, error: 6 })?;
        Ok(Self { envelope, message })
    }

    fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    fn names(&self) -> Result<Vec<&str>, Status> {
        texts(&self.message, 3)
    }

    /// With each answer a client says all its names again: they are not read again if they are written as they were.
    fn into_request(self, type_url: TypeUrl, session: &mut Session) -> Result<Request, Status> {
        let returning = texts(&self.message, 1)?.iter().any(|version| !version.is_empty());
        let written = stretch(&self.message, 3)?;
        let hash = Hash64::of(written);
        let names = match session.names_last_said(type_url, hash) {
            Some(names) => names,
            None => {
                let names = session.names(type_url, &texts(written, 3)?);
                session.note_names(type_url, hash, Arc::clone(&names));
                names
            }
        };
        Ok(self.envelope.request(type_url, Ask::Names { names, returning }))
    }
}

impl Incoming for DeltaRequest {
    const PROTOCOL: Protocol = Protocol::Delta;
    const NODE: u32 = 1;

    fn read(message: Bytes) -> Result<Self, Status> {
        let envelope =
            Envelope::read(&message, &Numbers { node: Self::NODE, type_url: 2, nonce: 6, error: 7 })?;
        Ok(Self { envelope, message })
    }

    fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    fn names(&self) -> Result<Vec<&str>, Status> {
        texts(&self.message, 3)
    }

    fn into_request(self, type_url: TypeUrl, session: &mut Session) -> Result<Request, Status> {
        let (mut subscribe, mut unsubscribe, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for field in Fields(&self.message) {
            match field? {
                (3, name) => subscribe.push(text(name)?),
                (4, name) => unsubscribe.push(Name::new(text(name)?)),
                (5, entry) => entries.push(entry),
                _ => {}
            }
        }
        // Most who come back hold what there is; then nobody needs to know what they say word by word.
        let initial = if session.holds_everything(type_url, entries.iter().copied()) {
            Initial::Everything
        } else {
            let held: Vec<_> = entries.into_iter().map(held).collect::<Result<_, Status>>()?;
            session.initial(type_url, &held)
        };
        let subscribe = session.names(type_url, &subscribe);
        Ok(self.envelope.request(type_url, Ask::Changes { subscribe, unsubscribe, initial }))
    }
}

impl Envelope {
    fn read(message: &Bytes, numbers: &Numbers) -> Result<Self, Status> {
        let mut envelope = Self { size: message.len(), ..Self::default() };
        for field in Fields(message) {
            let (number, value) = field?;
            match number {
                n if n == numbers.node => envelope.node = Some(message.slice_ref(value)),
                n if n == numbers.type_url => text(value)?.clone_into(&mut envelope.type_url),
                n if n == numbers.nonce => text(value)?.clone_into(&mut envelope.nonce),
                n if n == numbers.error => {
                    let status =
                        RpcStatus::decode(value).map_err(|error| malformed("error_detail", &error))?;
                    envelope.code = status.code;
                    envelope.error = Some(cut(status.message, MAX_ERROR));
                }
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn request(self, type_url: TypeUrl, ask: Ask) -> Request {
        Request { type_url, nonce: self.nonce, error: self.error, ask }
    }
}

/// The fields of a message that have a length: all that are read here. Others are passed over.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, &'a [u8]), Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.read();
        if field.is_err() {
            self.0 = &[];
        }
        field.transpose()
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<Option<(u32, &'a [u8])>, Status> {
        let torn = |error| malformed("request", &error);
        while !self.0.is_empty() {
            let (number, wire_type) = decode_key(&mut self.0).map_err(torn)?;
            if wire_type != WireType::LengthDelimited {
                skip_field(wire_type, number, &mut self.0, DecodeContext::default()).map_err(torn)?;
                continue;
            }
            let len = decode_varint(&mut self.0).map_err(torn)?;
            let split = usize::try_from(len).ok().and_then(|len| self.0.split_at_checked(len));
            let Some((value, rest)) = split else {
                return Err(Status::invalid_argument("malformed request: it ends within a field"));
            };
            self.0 = rest;
            return Ok(Some((number, value)));
        }
        Ok(None)
    }
}

/// An entry of the map of versions.
fn held(entry: &[u8]) -> Result<(&str, Option<Hash64>), Status> {
    let (mut name, mut version) = ("", None);
    for field in Fields(entry) {
        match field? {
            (1, value) => name = text(value)?,
            (2, value) => version = Hash64::from_text(value),
            _ => {}
        }
    }
    Ok((name, version))
}

/// The part of a message in which all fields of a number stand.
fn stretch(message: &[u8], number: u32) -> Result<&[u8], Status> {
    let mut fields = Fields(message);
    let (mut start, mut end) = (message.len(), message.len());
    loop {
        let before = message.len() - fields.0.len();
        match fields.next().transpose()? {
            Some((found, _)) if found == number => {
                start = start.min(before);
                end = message.len() - fields.0.len();
            }
            Some(_) => {}
            None => return Ok(&message[start..end]),
        }
    }
}

fn texts(message: &[u8], number: u32) -> Result<Vec<&str>, Status> {
    let of_number = |field: Result<(u32, _), Status>| match field {
        Ok((found, value)) => (found == number).then(|| text(value)),
        Err(status) => Some(Err(status)),
    };
    Fields(message).filter_map(of_number).collect()
}

fn text(bytes: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(bytes).map_err(|_| Status::invalid_argument("a text in a request is not valid UTF-8"))
}

fn decode_node(node: &[u8]) -> Result<Node, Status> {
    Node::decode(node).map_err(|error| malformed("node", &error))
}

fn malformed(what: &str, error: &prost::DecodeError) -> Status {
    Status::invalid_argument(format!("malformed {what}: {error}"))
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
                code: 13,
                message: "no".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let read = DeltaRequest::read(message.encode_to_vec().into()).unwrap();
        assert_eq!(read.type_url(), "t");
        assert_eq!((read.refusal(), read.size()), (13, message.encoded_len()));
        let request = read.into_request(TypeUrl::Cluster, &mut session(&known)).unwrap();
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
        let read = SotwRequest::read(message.encode_to_vec().into()).unwrap();
        assert_eq!(read.type_url(), "t");
        let request = read.into_request(TypeUrl::Cluster, &mut session(&known)).unwrap();
        let Ask::Names { names, returning } = request.ask else { panic!("it was not delta") };
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        assert_eq!((&names[..], returning, request.nonce.as_str()), (&["known"][..], true, "8"));
    }

    #[test]
    fn names_that_are_said_again_are_the_same_and_others_are_read() {
        let known = Arc::new(Encoded::new(TypeUrl::Cluster, "known".into(), b"x"));
        let mut session = session(&known);
        let mut names = |version: &str, names: &[&str]| {
            let message = api::DiscoveryRequest {
                version_info: version.to_owned(),
                resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
                type_url: "t".to_owned(),
                ..Default::default()
            };
            let read = SotwRequest::read(message.encode_to_vec().into()).unwrap();
            match read.into_request(TypeUrl::Endpoint, &mut session).unwrap().ask {
                Ask::Names { names, .. } => names,
                Ask::Changes { .. } => panic!("it was not delta"),
            }
        };
        let first = names("", &["a", "b"]);
        assert!(Arc::ptr_eq(&first, &names("7", &["a", "b"])));
        assert_eq!(names("7", &["a", "c"]).iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(names("7", &[]).len(), 0);
        assert_eq!(names("8", &["a", "b"]), first);
    }

    #[test]
    fn names_are_text() {
        let known = Arc::new(Encoded::new(TypeUrl::Cluster, "known".into(), b"x"));
        let read = SotwRequest::read((&b"\x1a\x01\xff"[..]).into()).unwrap();
        assert!(read.into_request(TypeUrl::Cluster, &mut session(&known)).is_err());
        for torn in [&b"\x1a\x05x"[..], b"\x1a", b"\x07", b"\xff\xff"] {
            assert!(DeltaRequest::read(torn.into()).is_err(), "{torn:?}");
        }
    }
}
