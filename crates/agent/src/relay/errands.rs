//! What the agent itself asks the control plane on a stream of Envoy's, and what it does with the answers.

use bytes::Bytes;
use prost::Message as _;

use super::Receivers;
use crate::grpc::Rope;
use crate::health::HealthEvent;
use crate::name_table::NameTable;
use crate::wire::{self, DynamicProxyConfig, ErrorDetail, NotProtobuf, Protocol, Request, Response};

/// Clients that are libraries, not proxies. Nobody asks them about the machine that they run on.
const LIBRARIES: &str = "gRPC";

/// Who wants what, for all streams.
#[derive(Clone, Default)]
pub(crate) struct Errands {
    receivers: Receivers,
}

/// The same for one stream.
pub(crate) struct StreamErrands {
    protocol: Protocol,
    receivers: Receivers,
    is_library: bool,
    /// Nothing is asked before Envoy has asked for its listeners.
    begun: bool,
}

/// What becomes of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is the client's.
    Forward,
    /// It was the agent's, which answers so.
    Taken(Option<Bytes>),
    /// It is nobody's.
    Drop,
}

impl Errands {
    pub(super) fn new(receivers: Receivers) -> Self {
        Self { receivers }
    }

    pub(super) fn on_stream(&self, protocol: Protocol) -> StreamErrands {
        StreamErrands { protocol, receivers: self.receivers.clone(), is_library: false, begun: false }
    }
}

impl Errands {
    /// Names of before, for want of newer ones.
    pub(super) fn recall(&self, table: &Bytes) {
        if let Some(names) = &self.receivers.names {
            names.send_if_modified(|known| {
                let is_news = known.is_none();
                known.get_or_insert_with(|| table.clone());
                is_news
            });
        }
    }
}

impl StreamErrands {
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What goes to the control plane behind a request of the client.
    pub(super) fn on_request(&mut self, request: &Request, health: Option<&HealthEvent>) -> Vec<Bytes> {
        if let Some(agent) = &request.user_agent {
            self.is_library = agent.starts_with(LIBRARIES);
        }
        if self.begun || self.is_library || request.type_url != wire::LISTENERS {
            return Vec::new();
        }
        self.begun = true;
        let own = |type_url: &str| wire::own_request(self.protocol, type_url, None, None);
        let names = self.receivers.names.is_some().then(|| own(wire::NAMES));
        let roots = self.receivers.roots.is_some().then(|| own(wire::PROXY_CONFIG));
        let health = health.and_then(|event| self.on_health(event));
        names.into_iter().chain(roots).chain(health).collect()
    }

    /// What the control plane is told about the workload, unless it is too early.
    pub(super) fn on_health(&self, event: &HealthEvent) -> Option<Bytes> {
        let error = match event {
            HealthEvent::Healthy => None,
            HealthEvent::Unhealthy { message } => Some(ErrorDetail::internal(message.as_str())),
        };
        self.begun.then(|| wire::own_request(self.protocol, wire::HEALTH, None, error))
    }
}

impl Errands {
    pub(super) fn on_response(&self, protocol: Protocol, response: &Response, message: &Rope) -> Fate {
        let taken = match response.type_url.as_str() {
            wire::NAMES => self.receivers.names.as_ref().map(|names| {
                take(message, protocol, |content| {
                    NameTable::decode(content.clone()).map_err(|_| NotProtobuf)?;
                    names.send_replace(Some(content));
                    Ok(())
                })
            }),
            wire::PROXY_CONFIG => self.receivers.roots.as_ref().map(|roots| {
                take(message, protocol, |content| {
                    let config = DynamicProxyConfig::decode(content).map_err(|_| NotProtobuf)?;
                    roots.send_if_modified(|known| {
                        let changed = *known != config.ca_certificates_pem;
                        known.clone_from(&config.ca_certificates_pem);
                        changed
                    });
                    Ok(())
                })
            }),
            _ => None,
        };
        match taken {
            // An answer without a resource says nothing, and is not answered either.
            Some(Ok(Taken::Nothing)) => Fate::Taken(None),
            Some(taken) => {
                let error = taken.err().map(|error| ErrorDetail::internal(error.to_string()));
                if let Some(error) = &error {
                    tracing::warn!(
                        type_url = response.type_url,
                        reason = error.message,
                        "response is refused"
                    );
                }
                Fate::Taken(Some(wire::own_request(protocol, &response.type_url, Some(response), error)))
            }
            None if wire::is_for_envoy(&response.type_url) => Fate::Forward,
            None => {
                tracing::error!(
                    type_url = response.type_url,
                    "response is not for Envoy and is not passed on"
                );
                Fate::Drop
            }
        }
    }
}

enum Taken {
    Nothing,
    Something,
}

/// There is one resource of each of these types.
fn take(
    message: &Rope,
    protocol: Protocol,
    act: impl FnOnce(Bytes) -> Result<(), NotProtobuf>,
) -> Result<Taken, NotProtobuf> {
    let Some(resource) = wire::resources(message)?.into_iter().next() else { return Ok(Taken::Nothing) };
    act(wire::content(&resource, protocol)?)?;
    Ok(Taken::Something)
}
