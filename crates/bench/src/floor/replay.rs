use std::collections::BTreeMap;

use bytes::Bytes;
use pilot_base::FastMap;

use crate::recording::Recording;
use crate::resource::Kind;
use crate::shape::Protocol;
use crate::stamp;
use crate::wire::{framed, put_bytes};

/// One message for everybody, in both protocols.
pub(super) struct Push {
    pub(super) kind: Kind,
    pub(super) delta: Bytes,
    pub(super) sotw: Bytes,
}

/// The recorded bytes, and where marks stand in them.
pub(super) struct Replay {
    resources: [BTreeMap<Vec<u8>, Vec<u8>>; 4],
    /// All of a type as one message, as long as nothing of it has changed.
    whole: FastMap<(usize, bool), Bytes>,
    /// By the name of a service: the tables with a mark of its routes, and where in them.
    routes: FastMap<String, Vec<(Vec<u8>, usize)>>,
    /// Services that came later.
    guests: Vec<Vec<u8>>,
}

/// The length of a service's name, such as svc-00001.
const NAME: usize = 9;
/// The length of a mark that is an address.
const ADDRESS: usize = 14;

impl Replay {
    pub(super) fn new(recording: &Recording) -> Self {
        let resources = Kind::ALL.map(|kind| recording.of(kind).clone());
        let mut routes: FastMap<String, Vec<(Vec<u8>, usize)>> = FastMap::default();
        for (name, table) in &resources[Kind::Route.index()] {
            for (at, service) in route_marks(table) {
                routes.entry(service).or_default().push((name.clone(), at));
            }
        }
        Self { resources, whole: FastMap::default(), routes, guests: Vec::new() }
    }

    /// All of a type.
    pub(super) fn whole(&mut self, kind: Kind, protocol: Protocol) -> Bytes {
        let resources = &self.resources[kind.index()];
        let make =
            || message(kind, protocol, resources.iter().map(|(n, v)| (n.as_slice(), v.as_slice())), &[]);
        self.whole.entry((kind.index(), protocol == Protocol::Delta)).or_insert_with(make).clone()
    }

    /// Some of a type.
    pub(super) fn some(&self, kind: Kind, protocol: Protocol, names: &[Vec<u8>]) -> Bytes {
        let resources = &self.resources[kind.index()];
        let found = names.iter().filter_map(|name| resources.get_key_value(name));
        message(kind, protocol, found.map(|(n, v)| (n.as_slice(), v.as_slice())), &[])
    }

    /// Clusters of services that came later.
    pub(super) fn guests(&self) -> &[Vec<u8>] {
        &self.guests
    }

    /// What a file, by its name without ending, has to say now; no text if it is gone.
    pub(super) fn change(&mut self, file: &str, text: Option<&str>) -> Option<Push> {
        let (service, rest) = file.split_at_checked(NAME)?;
        match (service.get(..4)?, rest, text) {
            ("svc-", "", Some(text)) => self.change_address(service, text),
            ("svc-", "-rules", Some(text)) => self.change_route(service, text),
            ("new-", "", Some(_)) => self.come(service),
            ("new-", "", None) => self.go(service),
            _ => None,
        }
    }

    fn change_address(&mut self, service: &str, text: &str) -> Option<Push> {
        let new = text.as_bytes().windows(ADDRESS).find(|bytes| stamp::of_address(bytes).is_some())?;
        let host = format!("|{service}.mesh.example");
        let mut changed = Vec::new();
        for (name, value) in &mut self.resources[Kind::Endpoint.index()] {
            if !name.ends_with(host.as_bytes()) {
                continue;
            }
            let is_mark = |bytes: &[u8]| stamp::of_address(bytes).is_some();
            let at = value.windows(ADDRESS).position(is_mark);
            if let Some(at) = at.filter(|at| !value[*at..].starts_with(new)) {
                value[at..at + ADDRESS].copy_from_slice(new);
                changed.push(name.clone());
            }
        }
        self.push(Kind::Endpoint, &changed)
    }

    fn change_route(&mut self, service: &str, text: &str) -> Option<Push> {
        let (_, new) = route_marks(text.as_bytes()).next().map(|(at, _)| text.split_at(at))?;
        let mut changed = Vec::new();
        for (table, at) in self.routes.get(service)? {
            let value = self.resources[Kind::Route.index()].get_mut(table)?;
            let length = NAME + stamp::ROUTE.len() + 8;
            value[*at..at + length].copy_from_slice(&new.as_bytes()[..length]);
            if changed.last() != Some(table) {
                changed.push(table.clone());
            }
        }
        self.push(Kind::Route, &changed)
    }

    /// A new service looks like the one with the same number.
    fn come(&mut self, guest: &str) -> Option<Push> {
        let model = guest.replace("new-", "svc-");
        let cluster = format!("outbound|80||{model}.mesh.example").into_bytes();
        let name = renamed(&cluster, &model, guest);
        for kind in [Kind::Cluster, Kind::Endpoint] {
            let resources = &mut self.resources[kind.index()];
            let value = renamed(resources.get(&cluster)?, &model, guest);
            resources.insert(name.clone(), value);
            self.whole.retain(|(index, _), _| *index != kind.index());
        }
        self.guests = vec![name.clone()];
        let delta = self.some(Kind::Cluster, Protocol::Delta, &[name]);
        Some(Push { kind: Kind::Cluster, delta, sotw: self.whole(Kind::Cluster, Protocol::Sotw) })
    }

    fn go(&mut self, guest: &str) -> Option<Push> {
        let name = format!("outbound|80||{guest}.mesh.example").into_bytes();
        for kind in [Kind::Cluster, Kind::Endpoint] {
            self.resources[kind.index()].remove(&name)?;
            self.whole.retain(|(index, _), _| *index != kind.index());
        }
        self.guests.clear();
        let delta = message(Kind::Cluster, Protocol::Delta, [].into_iter(), &[name]);
        Some(Push { kind: Kind::Cluster, delta, sotw: self.whole(Kind::Cluster, Protocol::Sotw) })
    }

    fn push(&mut self, kind: Kind, changed: &[Vec<u8>]) -> Option<Push> {
        if changed.is_empty() {
            return None;
        }
        self.whole.retain(|(index, _), _| *index != kind.index());
        let [delta, sotw] =
            [Protocol::Delta, Protocol::Sotw].map(|protocol| self.some(kind, protocol, changed));
        Some(Push { kind, delta, sotw })
    }
}

/// Where names of routes are marks, and of which service.
fn route_marks(bytes: &[u8]) -> impl Iterator<Item = (usize, String)> {
    bytes.windows(NAME + stamp::ROUTE.len() + 8).enumerate().filter_map(|(at, bytes)| {
        let service = bytes.starts_with(b"svc-").then(|| std::str::from_utf8(&bytes[..NAME]).ok())??;
        stamp::of_route_name(bytes, service).map(|_| (at, service.to_owned()))
    })
}

/// The same bytes with one name in the place of another that is as long.
fn renamed(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for at in 0..out.len().saturating_sub(from.len() - 1) {
        if out[at..].starts_with(from.as_bytes()) {
            out[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    }
    out
}

/// A response, with the five bytes in front of it. Nobody compares nonces, so all have the same.
pub(super) fn message<'a>(
    kind: Kind,
    protocol: Protocol,
    resources: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    removed: &[Vec<u8>],
) -> Bytes {
    let (mut out, mut any, mut entry) = (Vec::new(), Vec::new(), Vec::new());
    put_bytes(&mut out, 1, b"1");
    for (name, value) in resources {
        any.clear();
        put_bytes(&mut any, 1, kind.type_url().as_bytes());
        put_bytes(&mut any, 2, value);
        match protocol {
            Protocol::Sotw => put_bytes(&mut out, 2, &any),
            Protocol::Delta => {
                entry.clear();
                put_bytes(&mut entry, 1, b"1");
                put_bytes(&mut entry, 2, &any);
                put_bytes(&mut entry, 3, name);
                put_bytes(&mut out, 2, &entry);
            }
        }
    }
    put_bytes(&mut out, 4, kind.type_url().as_bytes());
    put_bytes(&mut out, 5, b"1");
    removed.iter().for_each(|name| put_bytes(&mut out, 6, name));
    framed(&out).into()
}
