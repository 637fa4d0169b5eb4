use std::sync::Arc;

use pilot_base::{Host, Name, SharedMap};
use pilot_envoy::{
    HttpPart, HttpTraits, L4Part, ListenerTraits, OutboundListener, Part, PartKey, PartKind, Place,
    Surroundings, merge_parts, outbound_listener, outbound_parts, virtual_outbound,
};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{HostPlan, Layer};
use pilot_model::{Address, Endpoint, Service, ServicePort};
use pilot_xds::Encoded;

use super::audience::{Audiences, RedirectAsker};
use super::inputs::Inputs;
use super::layered::{Family, Layered, Overlay, merged};
use super::plans::Plans;

/// Whose listeners.
type Asker = (Layer, Arc<ListenerTraits>);
type At = (Asker, Place);
type Encodings = Table<(Asker, Place), Option<Arc<Encoded>>>;

#[derive(Clone, Copy)]
pub(super) struct Listeners {
    /// Those that do not serve HTTP: the same for workloads that differ only in what they say about themselves.
    pub(super) l4: Table<Asker, pilot_xds::Layer>,
    pub(super) http: Table<(Asker, Arc<HttpTraits>), pilot_xds::Layer>,
    /// The same one by one: for everyone, and where a namespace differs.
    pub(super) l4_bytes: [Encodings; 2],
    pub(super) http_places: Table<At, SharedMap<(), ()>>,
    pub(super) http_bytes: Table<(Asker, Place, Arc<HttpTraits>), Arc<Encoded>>,
    /// The one to which traffic is redirected.
    pub(super) virtual_outbound: Table<RedirectAsker, pilot_xds::Layer>,
}

/// What hosts contribute, by place.
#[derive(Clone, Copy)]
struct Parts {
    http: Table<At, SharedMap<PartKey, Option<HttpPart>>>,
    l4: Table<At, SharedMap<PartKey, Option<Arc<L4Part>>>>,
}

/// A listener over what a lower layer has at its place.
#[derive(PartialEq)]
enum Own {
    Listener(OutboundListener),
    Nothing,
}

impl Listeners {
    pub(super) fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let parts = Parts::declare(graph, plans, audiences);
        let (shared, own) = Self::declare_merged(graph, parts);
        let (l4_bytes, l4) = Self::declare_l4(graph, inputs, shared, own);
        let (http_places, http_bytes) = Self::declare_http(graph, inputs, (shared, own), audiences);
        let http = graph.group("http listeners by layer", |feeds| {
            feeds.from(&http_bytes, |(asker, _, http), listener: &Arc<Encoded>, out| {
                let name: Name = listener.name().clone();
                out.emit((asker.clone(), Arc::clone(http)), name, Some(Arc::clone(listener)));
            });
        });
        let virtual_outbound =
            graph.map("virtual outbound", &audiences.listener_traits, move |(traits, http), reader| {
                let listener = virtual_outbound(traits, http.as_deref(), inputs.settings(reader)?)?;
                Some([(listener.name().clone(), Some(listener))].into_iter().collect())
            });
        Self { l4, http, l4_bytes, http_places, http_bytes, virtual_outbound }
    }

    /// The listener at each place: for everyone, and where a namespace differs.
    fn declare_merged(graph: &mut Graph, parts: Parts) -> (Table<At, OutboundListener>, Table<At, Own>) {
        let places = |name: &'static str, graph: &mut Graph, wanted: fn(&Layer) -> bool| {
            graph.tally(name, |feeds| {
                let emit = move |at: &At| wanted(&at.0.0).then(|| at.clone());
                feeds.from(&parts.http, move |at: &At, _, out| {
                    emit(at).into_iter().for_each(|at| out.emit(at, (), ()));
                });
                feeds.from(&parts.l4, move |at: &At, _, out| {
                    emit(at).into_iter().for_each(|at| out.emit(at, (), ()));
                });
            })
        };
        let for_all = places("listener places", graph, |layer| !matches!(layer, Layer::Namespace(_)));
        let for_some = places("own listener places", graph, |layer| matches!(layer, Layer::Namespace(_)));
        let shared = graph.map("listeners", &for_all, move |at, reader| {
            let ((_, traits), place) = at;
            let http = merged(reader.get(&parts.http, at), None).next();
            let l4 = merged(reader.get(&parts.l4, at), None).map(|(key, part)| (key, &**part));
            merge_parts(place, traits, http, l4)
        });
        let own = graph.map("own listeners", &for_some, move |at, reader| {
            let ((_, traits), place) = at;
            let below = ((Layer::Base, Arc::clone(traits)), place.clone());
            let http = merged(reader.get(&parts.http, &below), reader.get(&parts.http, at)).next();
            let l4 = merged(reader.get(&parts.l4, &below), reader.get(&parts.l4, at));
            let base = reader.get(&shared, &below);
            match merge_parts(place, traits, http, l4.map(|(key, part)| (key, &**part))) {
                None => base.is_some().then_some(Own::Nothing),
                Some(listener) => (base != Some(&listener)).then_some(Own::Listener(listener)),
            }
        });
        (shared, own)
    }

    fn declare_l4(
        graph: &mut Graph,
        inputs: Inputs,
        shared: Table<At, OutboundListener>,
        own: Table<At, Own>,
    ) -> ([Encodings; 2], Table<Asker, pilot_xds::Layer>) {
        let for_all: Encodings = graph.map("l4 listener bytes", &shared, move |at, reader| {
            let listener = reader.get(&shared, at).filter(|listener| !listener.serves_http())?;
            Some(Some(outbound_listener(listener, &at.0.1, None, inputs.settings(reader)?)))
        });
        let for_some: Encodings =
            graph.map("own l4 listener bytes", &own, move |at, reader| match reader.get(&own, at)? {
                Own::Nothing => Some(None),
                Own::Listener(listener) if listener.serves_http() => None,
                Own::Listener(listener) => {
                    Some(Some(outbound_listener(listener, &at.0.1, None, inputs.settings(reader)?)))
                }
            });
        let by_layer = graph.group("l4 listeners by layer", |feeds| {
            for table in [&for_all, &for_some] {
                feeds.from(table, |(asker, place): &At, listener: &Option<Arc<Encoded>>, out| {
                    out.emit(asker.clone(), place.listener_name(), listener.clone());
                });
            }
        });
        ([for_all, for_some], by_layer)
    }

    fn declare_http(
        graph: &mut Graph,
        inputs: Inputs,
        (shared, own): (Table<At, OutboundListener>, Table<At, Own>),
        audiences: Audiences,
    ) -> (Table<At, SharedMap<(), ()>>, Table<(Asker, Place, Arc<HttpTraits>), Arc<Encoded>>) {
        let http_places = graph.tally("http listeners", |feeds| {
            feeds.from(&shared, |at: &At, listener: &OutboundListener, out| {
                if listener.serves_http() {
                    out.emit(at.clone(), (), ());
                }
            });
            feeds.from(&own, |at: &At, listener: &Own, out| {
                if matches!(listener, Own::Listener(listener) if listener.serves_http()) {
                    out.emit(at.clone(), (), ());
                }
            });
        });
        let keys = graph.product("http listener keys", &http_places, &audiences.http);
        let bytes = graph.map("http listener bytes", &keys, move |(asker, place, http), reader| {
            let at = (asker.clone(), place.clone());
            let listener = match asker.0 {
                Layer::Base | Layer::Sidecar(_) => reader.get(&shared, &at)?,
                Layer::Namespace(_) => match reader.get(&own, &at)? {
                    Own::Listener(listener) => listener,
                    Own::Nothing => return None,
                },
            };
            Some(outbound_listener(listener, &asker.1, Some(http), inputs.settings(reader)?))
        });
        (http_places, bytes)
    }
}

impl Parts {
    fn declare(graph: &mut Graph, plans: Plans, audiences: Audiences) -> Self {
        let inputs = plans.inputs;
        let family = Family {
            names: ["listener part keys", "listener parts", "own listener part keys", "own listener parts"],
            shared: &plans.shared,
            own: &plans.own_parts,
        };
        let parts = family.declare(graph, &audiences.listener, move |(layer, host, traits), reader| {
            let plan = plans.get(layer, host, reader).filter(|plan| !plan.views.is_empty())?;
            let around = Around { plans, layer, reader };
            let listeners = plans.listeners(layer, reader);
            Some(outbound_parts(plan, listeners, traits, &around, inputs.settings(reader)?))
        });
        let http = gather(graph, "http parts by place", &parts, |part| match part {
            PartKind::Http(part) => Some(part.clone()),
            PartKind::L4(_) => None,
        });
        let l4 = gather(graph, "l4 parts by place", &parts, |part| match part {
            PartKind::L4(part) => Some(Arc::clone(part)),
            PartKind::Http(_) => None,
        });
        Self { http, l4 }
    }
}

/// The other hosts of a layer.
struct Around<'r, 'a> {
    plans: Plans,
    layer: &'r Layer,
    reader: &'r Reader<'a>,
}

impl Surroundings for Around<'_, '_> {
    fn plan(&self, host: &Host) -> Option<&HostPlan> {
        self.plans.get(self.layer, host, self.reader)
    }

    fn client(&self) -> Option<&Name> {
        self.layer.client()
    }

    fn instances(&self, service: &Service, port: &ServicePort) -> Vec<Vec<Name>> {
        let key = (service.namespace.clone(), service.host.clone());
        let endpoints = self.plans.registry.endpoints(self.reader, &key).into_iter();
        let here = endpoints.filter(|endpoint| endpoint.port_name == port.name);
        // What has no address cannot be listened for.
        let ip = |address: &Address| match address {
            Address::Ip(ip) => Some(Name::from(ip.to_string())),
            Address::Host(_) | Address::Pipe(_) => None,
        };
        let all = |endpoint: &Endpoint| {
            std::iter::once(&endpoint.address).chain(&endpoint.more_addresses).map(ip).collect()
        };
        here.filter_map(all).collect()
    }
}

/// The parts of one kind. An overlay also hides a part that was of this kind below and is of another one now.
fn gather<V: Clone + PartialEq + Send + Sync + 'static>(
    graph: &mut Graph,
    name: &'static str,
    parts: &Layered<Arc<ListenerTraits>, Part>,
    pick: fn(&PartKind) -> Option<V>,
) -> Table<At, SharedMap<PartKey, Option<V>>> {
    graph.group(name, |feeds| {
        feeds.from(&parts.shared, move |(layer, _, traits): &(Layer, Host, _), parts: &Vec<Part>, out| {
            for part in parts {
                if let Some(value) = pick(&part.kind) {
                    let at = ((layer.clone(), Arc::clone(traits)), part.place.clone());
                    out.emit(at, part.key.clone(), Some(value));
                }
            }
        });
        feeds.from(&parts.own, move |(layer, _, traits): &(Layer, Host, _), parts: &Overlay<Part>, out| {
            for ((place, key), part) in parts {
                let at = ((layer.clone(), Arc::clone(traits)), place.clone());
                out.emit(at, key.clone(), part.as_ref().and_then(|part| pick(&part.kind)));
            }
        });
    })
}
