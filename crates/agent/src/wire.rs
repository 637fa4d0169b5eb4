//! The few fields of discovery messages that the agent looks at. Everything else passes through as it came.

use bytes::{Buf as _, Bytes};
use prost::Message as _;

use crate::grpc::Rope;

pub(crate) const LISTENERS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub(crate) const CLUSTERS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub(crate) const SECRETS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
pub(crate) const NAMES: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
pub(crate) const PROXY_CONFIG: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";
pub(crate) const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";
const WORKLOADS: &str = "type.googleapis.com/istio.workload.Workload";
const ENVOY: &str = "type.googleapis.com/envoy.";
/// What Envoy calls itself.
pub(crate) const ENVOY_AGENT: &str = "envoy";

/// Which of the two protocols a stream speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Delta,
    StateOfTheWorld,
}

impl Protocol {
    const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    const STREAM: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

    pub(crate) fn of_path(path: &str) -> Option<Self> {
        [Self::Delta, Self::StateOfTheWorld].into_iter().find(|protocol| protocol.path() == path)
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Delta => Self::DELTA,
            Self::StateOfTheWorld => Self::STREAM,
        }
    }
}

/// Would Envoy know what to do with it?
pub(crate) fn is_for_envoy(type_url: &str) -> bool {
    type_url.starts_with(ENVOY) || type_url == WORKLOADS
}

/// Something is not a message of the protocol.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("it is not protobuf")]
pub(crate) struct NotProtobuf;

/// What is of interest in a request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Request {
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    /// The client could not use what it was sent.
    pub(crate) refused: bool,
    /// The name of the program that asks, which stands in the first request.
    pub(crate) user_agent: Option<String>,
    /// Resources that are asked for by name, from now on.
    pub(crate) names: Vec<String>,
    /// What a client of delta already has.
    pub(crate) has: Vec<Bytes>,
    /// A client of the old protocol has something already.
    pub(crate) has_version: bool,
}

/// What is of interest in a response.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Response {
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    pub(crate) version: String,
}

/// The program that a node says it is.
const USER_AGENT: u32 = 6;

pub(crate) fn request(message: &Rope, protocol: Protocol) -> Result<Request, NotProtobuf> {
    // The old protocol tells a version of everything, the other one of each resource.
    let (node, type_url, nonce, error, names, version) = match protocol {
        Protocol::Delta => (1, 2, 6, 7, 3, 5),
        Protocol::StateOfTheWorld => (2, 4, 5, 6, 3, 1),
    };
    let mut found = Request::default();
    for (number, value) in fields(message.clone(), &[node, type_url, nonce, error, names, version])? {
        match number {
            n if n == type_url => found.type_url = text(&value)?,
            n if n == nonce => found.nonce = text(&value)?,
            n if n == error => found.refused = true,
            n if n == names => found.names.push(text(&value)?),
            n if n == node => {
                let agent = fields(value.into(), &[USER_AGENT])?.pop();
                found.user_agent = Some(agent.map(|(_, name)| text(&name)).transpose()?.unwrap_or_default());
            }
            _ if protocol == Protocol::Delta => found.has.push(value),
            _ => found.has_version = !value.is_empty(),
        }
    }
    Ok(found)
}

/// The same fields in both protocols.
pub(crate) fn response(message: &Rope) -> Result<Response, NotProtobuf> {
    let mut found = Response::default();
    for (number, value) in fields(message.clone(), &[1, 4, 5])? {
        match number {
            1 => found.version = text(&value)?,
            4 => found.type_url = text(&value)?,
            _ => found.nonce = text(&value)?,
        }
    }
    Ok(found)
}

/// The resources of a response as they came: `Any` in the one protocol, `Resource` in the other.
pub(crate) fn resources(message: &Rope) -> Result<Vec<Bytes>, NotProtobuf> {
    Ok(fields(message.clone(), &[2])?.into_iter().map(|(_, value)| value).collect())
}

/// Names that a delta response takes back.
pub(crate) fn removed(message: &Rope) -> Result<Vec<String>, NotProtobuf> {
    fields(message.clone(), &[6])?.iter().map(|(_, value)| text(value)).collect()
}

/// What an `Any` holds, be it in a `Resource` or not.
pub(crate) fn content(resource: &Bytes, protocol: Protocol) -> Result<Bytes, NotProtobuf> {
    let any = match protocol {
        Protocol::StateOfTheWorld => resource.clone(),
        Protocol::Delta => last(resource, 2)?,
    };
    last(&any, 2)
}

/// The name of a resource: of a `Resource` its own, of an `Any` that of the message inside, where it is the first field of all
/// types that Envoy asks for.
pub(crate) fn name(resource: &Bytes, protocol: Protocol) -> Result<String, NotProtobuf> {
    match protocol {
        Protocol::Delta => text(&last(resource, 3)?),
        Protocol::StateOfTheWorld => text(&last(&content(resource, protocol)?, 1)?),
    }
}

/// What a `Resource` holds: its version, and an `Any`.
pub(crate) fn version_and_any(resource: &Bytes) -> Result<(String, Bytes), NotProtobuf> {
    Ok((text(&last(resource, 1)?)?, last(resource, 2)?))
}

fn last(message: &Bytes, field: u32) -> Result<Bytes, NotProtobuf> {
    Ok(fields(message.clone().into(), &[field])?.pop().map(|(_, value)| value).unwrap_or_default())
}

fn text(value: &Bytes) -> Result<String, NotProtobuf> {
    std::str::from_utf8(value).map(str::to_owned).map_err(|_| NotProtobuf)
}

/// Those fields of a message that have a length and are wanted, in their order. The rest is passed over.
fn fields(mut message: Rope, wanted: &[u32]) -> Result<Vec<(u32, Bytes)>, NotProtobuf> {
    let mut found = Vec::new();
    while message.has_remaining() {
        let key = varint(&mut message)?;
        let number = u32::try_from(key >> 3).map_err(|_| NotProtobuf)?;
        let length = match key & 7 {
            0 => {
                varint(&mut message)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).map_err(|_| NotProtobuf)?,
            5 => 4,
            _ => return Err(NotProtobuf),
        };
        if number == 0 || length > message.remaining() {
            return Err(NotProtobuf);
        }
        if key & 7 == 2 && wanted.contains(&number) {
            found.push((number, message.copy_to_bytes(length)));
        } else {
            message.advance(length);
        }
    }
    Ok(found)
}

fn varint(message: &mut Rope) -> Result<u64, NotProtobuf> {
    prost::encoding::decode_varint(message).map_err(|_| NotProtobuf)
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ErrorDetail {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

impl ErrorDetail {
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        const INTERNAL: i32 = 13;
        Self { code: INTERNAL, message: message.into() }
    }
}

/// What the agent itself asks for. `answered` is a response that it confirms, or refuses.
pub(crate) fn own_request(
    protocol: Protocol,
    type_url: &str,
    answered: Option<&Response>,
    error: Option<ErrorDetail>,
) -> Bytes {
    let type_url = type_url.to_owned();
    let (nonce, version) =
        answered.map(|answered| (answered.nonce.clone(), answered.version.clone())).unwrap_or_default();
    let bytes = match protocol {
        Protocol::Delta => DeltaRequest { type_url, nonce, error }.encode_to_vec(),
        Protocol::StateOfTheWorld => StreamRequest { version, type_url, nonce, error }.encode_to_vec(),
    };
    bytes.into()
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeltaRequest {
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(string, tag = "6")]
    nonce: String,
    #[prost(message, optional, tag = "7")]
    error: Option<ErrorDetail>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StreamRequest {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(message, optional, tag = "6")]
    error: Option<ErrorDetail>,
}

/// What the agent answers by itself, over either protocol; resources are as they are sent.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OwnResponse {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    /// Only in delta.
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed: Vec<String>,
}

/// `envoy.service.discovery.v3.Resource`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeltaResource {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) any: Bytes,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AnyMessage {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// What Istio's dynamic proxy configuration says: more roots of the mesh.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DynamicProxyConfig {
    #[prost(string, repeated, tag = "34")]
    pub(crate) ca_certificates_pem: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::{ErrorDetail, NotProtobuf, Protocol, Response, own_request, request, response};
    use crate::grpc::Rope;
    use bytes::Bytes;
    use proptest::prelude::*;

    #[test]
    fn own_requests_are_read_as_they_were_written() {
        let answered = Response { nonce: "n".to_owned(), version: "v".to_owned(), ..Response::default() };
        for protocol in [Protocol::Delta, Protocol::StateOfTheWorld] {
            let bytes = own_request(protocol, "t", Some(&answered), Some(ErrorDetail::internal("no")));
            let read = request(&bytes.into(), protocol).unwrap();
            assert_eq!((read.type_url.as_str(), read.nonce.as_str(), read.refused), ("t", "n", true));
        }
    }

    #[test]
    fn what_ends_early_is_not_protobuf() {
        assert_eq!(response(&Bytes::from_static(&[0x22, 5, b'a']).into()), Err(NotProtobuf));
        assert_eq!(response(&Bytes::from_static(&[0x0b]).into()), Err(NotProtobuf));
        assert_eq!(response(&Rope::default()), Ok(Response::default()));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let rope = Rope::from(Bytes::from(bytes));
            for protocol in [Protocol::Delta, Protocol::StateOfTheWorld] {
                let _either = request(&rope, protocol);
            }
            let _either = response(&rope);
        }
    }
}
