use bytes::Bytes;
use prost::Message as _;
use tokio::sync::watch;

use super::Receivers;
use super::errands::{Errands, Fate};
use crate::grpc::Rope;
use crate::health::HealthEvent;
use crate::name_table::{NameInfo, NameTable};
use crate::wire::{self, AnyMessage, DeltaResource, OwnResponse, Protocol, Request};

const BOTH: [Protocol; 2] = [Protocol::Delta, Protocol::StateOfTheWorld];

fn asks(type_url: &str, agent: Option<&str>) -> Request {
    Request { type_url: type_url.to_owned(), user_agent: agent.map(str::to_owned), ..Request::default() }
}

fn types(messages: &[Bytes], protocol: Protocol) -> Vec<String> {
    let read = |message: &Bytes| wire::request(&message.clone().into(), protocol).unwrap().type_url;
    messages.iter().map(read).collect()
}

fn response(protocol: Protocol, type_url: &str, values: &[Vec<u8>]) -> Rope {
    let resource = |value: &Vec<u8>| {
        let any = AnyMessage { type_url: type_url.to_owned(), value: value.clone().into() }.encode_to_vec();
        match protocol {
            Protocol::StateOfTheWorld => Bytes::from(any),
            Protocol::Delta => {
                let resource =
                    DeltaResource { version: "1".to_owned(), any: any.into(), name: "it".to_owned() };
                Bytes::from(resource.encode_to_vec())
            }
        }
    };
    let message = OwnResponse {
        version: "v".to_owned(),
        resources: values.iter().map(resource).collect(),
        type_url: type_url.to_owned(),
        nonce: "n".to_owned(),
        removed: Vec::new(),
    };
    Bytes::from(message.encode_to_vec()).into()
}

#[test]
fn the_agent_asks_after_the_first_request_for_listeners() {
    let receivers =
        Receivers { names: Some(watch::channel(None).0), roots: Some(watch::channel(Vec::new()).0) };
    let sick = HealthEvent::Unhealthy { message: "no".to_owned() };
    for protocol in BOTH {
        let mut stream = Errands::new(receivers.clone()).on_stream(protocol);
        assert!(stream.on_request(&asks(wire::CLUSTERS, Some("envoy")), Some(&sick)).is_empty());
        assert_eq!(stream.on_health(&sick), None, "too early");
        let own = stream.on_request(&asks(wire::LISTENERS, None), Some(&sick));
        assert_eq!(types(&own, protocol), [wire::NAMES, wire::PROXY_CONFIG, wire::HEALTH]);
        assert!(wire::request(&own[2].clone().into(), protocol).unwrap().refused);
        assert!(stream.on_request(&asks(wire::LISTENERS, None), Some(&sick)).is_empty(), "only once");
        let well = stream.on_health(&HealthEvent::Healthy).unwrap();
        assert!(!wire::request(&well.into(), protocol).unwrap().refused);
        let mut library = Errands::new(receivers.clone()).on_stream(protocol);
        assert!(library.on_request(&asks(wire::LISTENERS, Some("gRPC Go")), Some(&sick)).is_empty());
    }
}

#[test]
fn own_answers_are_taken_and_confirmed() {
    let (sender, names) = watch::channel(None);
    let errands = Errands::new(Receivers { names: Some(sender), roots: None });
    let info = NameInfo { ips: vec!["10.0.0.1".to_owned()], ..NameInfo::default() };
    let table = NameTable { table: [("a.b".to_owned(), info)].into() }.encode_to_vec();
    for protocol in BOTH {
        let fate = |message: &Rope| errands.on_response(protocol, &wire::response(message).unwrap(), message);
        let Fate::Taken(Some(reply)) = fate(&response(protocol, wire::NAMES, std::slice::from_ref(&table)))
        else {
            panic!("it is the agent's")
        };
        let reply = wire::request(&reply.into(), protocol).unwrap();
        assert_eq!((reply.nonce.as_str(), reply.refused), ("n", false));
        assert_eq!(names.borrow().as_deref(), Some(table.as_slice()));
        let Fate::Taken(Some(reply)) = fate(&response(protocol, wire::NAMES, &[vec![0xff]])) else {
            panic!("it is the agent's")
        };
        assert!(wire::request(&reply.into(), protocol).unwrap().refused);
        assert_eq!(names.borrow().as_deref(), Some(table.as_slice()), "the last good one stays");
        assert_eq!(fate(&response(protocol, wire::NAMES, &[])), Fate::Taken(None));
        assert_eq!(fate(&response(protocol, wire::CLUSTERS, &[vec![]])), Fate::Forward);
        assert_eq!(
            fate(&response(protocol, "type.googleapis.com/istio.workload.Workload", &[])),
            Fate::Forward
        );
        assert_eq!(fate(&response(protocol, wire::PROXY_CONFIG, &[vec![]])), Fate::Drop, "nobody wants it");
    }
}
