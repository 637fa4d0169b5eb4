//! Who is connected, and what they refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pilot_base::{Millis, Name, ObjectRef};
use pilot_model::{Proxy, Version};
use pilot_xds::TypeUrl;
use prometheus::{IntCounter, IntGauge, IntGaugeVec, Result};

use super::register::{PerType, Register};
use crate::standing::Standings;

/// So many proxies that refuse something are told apart; all are counted in the total.
const MOST_NODES: usize = 1000;

pub(crate) struct Clients {
    clients: IntGaugeVec,
    /// Proxies by version.
    connected: Mutex<BTreeMap<Version, i64>>,
    rejects: PerType<IntCounter>,
    stale: PerType<IntCounter>,
    /// By proxy and code, for the types that Istio has it for.
    rejects_by_node: PerType<Option<IntGaugeVec>>,
    /// What a proxy has refused, so that it can be forgotten with the proxy.
    refused: Mutex<BTreeMap<Name, BTreeSet<(TypeUrl, String)>>>,
    largest: AtomicUsize,
    recv_max: IntGauge,
    standings: IntGaugeVec,
    behind: IntGauge,
    refused_objects: IntGaugeVec,
}

impl Clients {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let by_node = |t: TypeUrl| {
            let name = match t {
                TypeUrl::Cluster => "pilot_xds_cds_reject",
                TypeUrl::Endpoint => "pilot_xds_eds_reject",
                TypeUrl::Listener => "pilot_xds_lds_reject",
                TypeUrl::Route => "pilot_xds_rds_reject",
                TypeUrl::Secret | TypeUrl::ExtensionConfig | TypeUrl::NameTable => return Ok(None),
            };
            let help = "Responses that proxies which are connected have refused.";
            register.gauges(name, help, &["node", "err"]).map(Some)
        };
        let [cds, eds, lds, rds, sds, ecds, nds] = TypeUrl::ALL.map(by_node);
        Ok(Self {
            clients: register.gauges("pilot_xds", "Proxies connected over xDS.", &["version"])?,
            connected: Mutex::default(),
            rejects: register
                .counter_per_type("pilot_total_xds_rejects", "Responses that proxies refused.")?,
            stale: register
                .counter_per_type("pilot_xds_expired_nonce", "Requests that answered an old response.")?,
            rejects_by_node: [cds?, eds?, lds?, rds?, sds?, ecds?, nds?],
            refused: Mutex::default(),
            largest: AtomicUsize::new(0),
            recv_max: register.gauge("pilot_xds_recv_max", "Bytes of the largest request so far.")?,
            standings: register.gauges(
                "pilot_xds_proxies",
                "Proxies that have accepted all they are to have, are behind, or refuse something.",
                &["state"],
            )?,
            refused_objects: register.gauges(
                "pilot_refused_objects",
                "Proxies that refuse something which an object leads to.",
                &["kind", "namespace", "name"],
            )?,
            behind: register.gauge(
                "pilot_xds_behind_seconds_max",
                "For how long the proxy has been behind that has been so for longest.",
            )?,
        })
    }

    pub(crate) fn connected(&self, version: Version) {
        let mut counts = self.connected.lock();
        let count = counts.entry(version).or_default();
        *count += 1;
        self.clients.with_label_values(&[label(version).as_str()]).set(*count);
    }

    /// What was told about a proxy goes with it, and a version that nobody has any more is not counted any more.
    pub(crate) fn disconnected(&self, proxy: &Proxy) {
        self.forget(&proxy.name);
        let version = proxy.version;
        let mut counts = self.connected.lock();
        let Some(count) = counts.get_mut(&version) else { return };
        *count -= 1;
        if *count > 0 {
            self.clients.with_label_values(&[label(version).as_str()]).set(*count);
            return;
        }
        counts.remove(&version);
        // It was counted, so it is there.
        let _there = self.clients.remove_label_values(&[label(version).as_str()]);
    }

    pub(crate) fn refused(&self, type_url: TypeUrl, node: &Name, code: tonic::Code) {
        self.rejects[type_url.index()].inc();
        let Some(by_node) = &self.rejects_by_node[type_url.index()] else { return };
        let mut refused = self.refused.lock();
        if refused.len() >= MOST_NODES && !refused.contains_key(node) {
            return;
        }
        let code = format!("{code:?}");
        by_node.with_label_values(&[node.as_str(), code.as_str()]).inc();
        refused.entry(node.clone()).or_default().insert((type_url, code));
    }

    pub(crate) fn stale(&self, type_url: TypeUrl) {
        self.stale[type_url.index()].inc();
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Which objects lead to something that proxies refuse, and how many proxies.
    pub(crate) fn note_refused(&self, counts: &BTreeMap<ObjectRef, usize>) {
        self.refused_objects.reset();
        for (object, count) in counts.iter().take(MOST_NODES) {
            let labels = [object.kind.as_str(), object.namespace.as_str(), object.name.as_str()];
            self.refused_objects.with_label_values(&labels).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Counts how far proxies have come.
    pub(crate) fn note_standings(&self, standings: &Standings, now: Millis) {
        let (mut current, mut behind, mut refusing, mut longest) = (0, 0, 0, 0);
        for (_, standing) in standings.all() {
            let (since, refuses) = standing.state();
            match since {
                _ if refuses => refusing += 1,
                Some(since) => {
                    behind += 1;
                    longest = now.saturating_sub(since).max(longest);
                }
                None => current += 1,
            }
        }
        for (state, count) in [("current", current), ("behind", behind), ("refusing", refusing)] {
            self.standings.with_label_values(&[state]).set(count);
        }
        self.behind.set(i64::try_from(longest / 1000).unwrap_or(i64::MAX));
    }

    /// Brings up to date what is only looked at when somebody asks.
    pub(super) fn refresh(&self) {
        let largest = self.largest.load(Ordering::Relaxed);
        self.recv_max.set(i64::try_from(largest).unwrap_or(i64::MAX));
    }

    fn forget(&self, node: &Name) {
        for (type_url, code) in self.refused.lock().remove(node).unwrap_or_default() {
            if let Some(by_node) = &self.rejects_by_node[type_url.index()] {
                let _there = by_node.remove_label_values(&[node.as_str(), code.as_str()]);
            }
        }
    }
}

/// Only what was understood of a version: what a proxy writes there may be anything.
fn label(version: Version) -> String {
    match version {
        Version::NEWEST => "unknown".to_owned(),
        Version { major, minor, patch: u32::MAX } => format!("{major}.{minor}"),
        Version { major, minor, patch } => format!("{major}.{minor}.{patch}"),
    }
}
