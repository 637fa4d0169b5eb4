use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_model::ProxyHeaders;
use prost_types::Value;

use super::Direction;
use crate::metadata::{fields_of, list, structure, yes};
use crate::network_filter::typed_struct;

const TYPE: &str = "type.googleapis.com/io.istio.http.peer_metadata.Config";

/// Sidecars tell each other in headers who they are. They can be kept from servers outside.
pub(super) fn filter(direction: Direction, headers: &ProxyHeaders) -> HttpFilter {
    let empty = || structure([]);
    let discovery =
        || list(vec![structure([("istio_headers", empty())]), structure([("workload_discovery", empty())])]);
    let sent: Value = if headers.no_metadata_headers && direction != Direction::Inbound {
        structure([("skip_external_clusters", yes())])
    } else {
        empty()
    };
    let propagation = list(vec![structure([("istio_headers", sent)])]);
    let config = match direction {
        Direction::Inbound => {
            fields_of([("downstream_discovery", discovery()), ("downstream_propagation", propagation)])
        }
        Direction::Outbound | Direction::Gateway => {
            fields_of([("upstream_discovery", discovery()), ("upstream_propagation", propagation)])
        }
    };
    super::http_filter("istio.metadata_exchange", typed_struct(TYPE, config))
}
