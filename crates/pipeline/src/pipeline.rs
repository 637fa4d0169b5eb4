use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Issue, Keyed, Name, ObjectRef, SharedMap};
use pilot_incr::{Commit, Engine, NodeStats, Stopwatch, Txn};
use pilot_model::{Config, KeySource, Kind, ProxyId, ServiceEntry, Span};
use pilot_xds::Manifests;

use crate::graph::{self, Audience, Census, CensusTaker, Inputs, Outputs};

/// All state of the control plane. One owner, one writer; what it hands out is immutable.
pub struct Pipeline {
    pub(crate) engine: Engine,
    pub(crate) inputs: Inputs,
    pub(crate) outputs: Outputs,
    /// What is wrong with rules, and what panicked because of them.
    issues: BTreeMap<ObjectRef, Vec<Issue>>,
    faults: BTreeMap<ObjectRef, Vec<Issue>>,
    census: CensusTaker,
}

/// What a commit changed for the outside.
pub struct Changes {
    pub commit: Commit,
    /// The objects whose change all of this is.
    pub objects: Vec<ObjectRef>,
    /// Audiences whose manifests differ; nothing for those that are gone.
    pub manifests: Vec<(Keyed<Audience>, Option<Arc<Manifests>>)>,
    /// Proxies that belong to another audience than before; nothing for those that are gone.
    pub proxies: Vec<(ProxyId, Option<Keyed<Audience>>)>,
    /// Objects whose issues differ, with all that is wrong with them now.
    pub issues: Vec<(ObjectRef, Vec<Issue>)>,
    /// Keys that are asked for, with how long to wait for them; nothing for those that nobody asks for any more.
    pub wanted_keys: Vec<(KeySource, Option<Span>)>,
    /// Names that are to be looked up, and those that nobody asks for any more.
    pub wanted_names: Vec<(Name, bool)>,
}

impl Default for Pipeline {
    fn default() -> Self {
        let (engine, inputs, outputs) = graph::build();
        Self {
            engine,
            inputs,
            outputs,
            issues: BTreeMap::new(),
            faults: BTreeMap::new(),
            census: CensusTaker::default(),
        }
    }
}

impl Pipeline {
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on commits tell how long they took.
    pub fn measure(&mut self, stopwatch: Stopwatch) {
        self.engine.measure(stopwatch);
    }

    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    pub fn commit(&mut self, txn: Txn) -> Changes {
        let commit = self.engine.commit(txn);
        self.census.update(&self.engine, &self.outputs.census);
        let objects = self.engine.changed_objects();
        let version = commit.epoch;
        let manifests = self.engine.changes(&self.outputs.manifests);
        let manifests = manifests.into_iter().map(|(audience, _, sent)| {
            let sent = sent.map(|sent| Arc::new(Manifests { version, by_type: sent.by_type.clone() }));
            (audience.clone(), sent)
        });
        let proxies = self.engine.changes(&self.outputs.audiences);
        let proxies =
            proxies.into_iter().map(|(proxy, _, audience)| (*proxy, audience.map(|a| (**a).clone())));
        let wanted = self.engine.changes(&self.outputs.wanted_keys).into_iter();
        let longest = |rules: &SharedMap<_, Span>| rules.iter().map(|(_, wait)| *wait).max();
        let wanted =
            wanted.map(|(source, _, rules)| (source.clone(), rules.and_then(|rules| longest(rules))));
        let names = self.engine.changes(&self.outputs.wanted_names).into_iter();
        let wanted_names = names.map(|(name, _, asked)| (name.clone(), asked.is_some())).collect();
        let (manifests, proxies, wanted_keys) = (manifests.collect(), proxies.collect(), wanted.collect());
        let issues = self.update_issues(&commit);
        self.engine.settle();
        Changes { commit, objects, manifests, proxies, issues, wanted_keys, wanted_names }
    }

    /// What is wrong, object by object, as far as it can only be known by looking at several.
    pub fn issues(&self) -> impl Iterator<Item = &Issue> {
        self.issues.values().chain(self.faults.values()).flatten()
    }

    /// What each table holds and has cost.
    pub fn stats(&self) -> Vec<NodeStats> {
        self.engine.stats()
    }

    /// How many rows each table has.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.engine.counts()
    }

    pub fn census(&self) -> Census {
        self.census.census()
    }

    /// All ServiceEntries, those that stand for services of registries too.
    pub fn service_entries(&self) -> Vec<Arc<Config<ServiceEntry>>> {
        self.engine
            .dump(&self.inputs.service_entries)
            .into_iter()
            .map(|(_, entry)| Arc::clone(entry))
            .collect()
    }

    /// How many VirtualServices there are.
    pub fn virtual_services(&self) -> usize {
        self.engine.count(&self.inputs.virtual_services)
    }

    /// How many proxies are known.
    pub fn proxies(&self) -> usize {
        self.engine.count(&self.inputs.proxies)
    }

    /// How many classes of proxies are sent something different.
    pub fn audiences(&self) -> usize {
        self.engine.count(&self.outputs.manifests)
    }

    pub fn audience_of(&self, proxy: ProxyId) -> Option<Keyed<Audience>> {
        self.engine.get(&self.outputs.audiences, &proxy).map(|audience| (**audience).clone())
    }

    pub fn manifests_of(&self, proxy: ProxyId) -> Option<Manifests> {
        let audience = self.engine.get(&self.outputs.audiences, &proxy)?;
        let sent = self.engine.get(&self.outputs.manifests, audience)?;
        Some(Manifests { version: self.engine.epoch(), by_type: sent.by_type.clone() })
    }

    fn update_issues(&mut self, commit: &Commit) -> Vec<(ObjectRef, Vec<Issue>)> {
        let tables = self.outputs.issues;
        let mut touched: BTreeSet<ObjectRef> = BTreeSet::new();
        for (kind, table) in [
            (Kind::VirtualService, tables.virtual_services),
            (Kind::DestinationRule, tables.destination_rules),
            (Kind::ServiceEntry, tables.service_entries),
            (Kind::Gateway, tables.gateways),
            (Kind::EnvoyFilter, tables.envoy_filters),
            (Kind::RequestAuthentication, tables.request_authentications),
        ] {
            for (id, _, issues) in self.engine.changes(&table) {
                let object = id.object(kind);
                touched.insert(object.clone());
                match issues {
                    Some(issues) => self.issues.insert(object, issues.to_vec()),
                    None => self.issues.remove(&object),
                };
            }
        }
        for (object, _, issues) in self.engine.changes(&tables.network_gateways) {
            touched.insert(object.clone());
            match issues {
                Some(issues) => self.issues.insert(object.clone(), issues.to_vec()),
                None => self.issues.remove(object),
            };
        }
        if commit.faults_changed {
            touched.extend(self.faults.keys().cloned());
            self.faults = self.find_faults();
            touched.extend(self.faults.keys().cloned());
        }
        let of = |object: &ObjectRef| {
            [&self.issues, &self.faults]
                .into_iter()
                .filter_map(|map| map.get(object))
                .flatten()
                .cloned()
                .collect()
        };
        touched.iter().map(|object| (object.clone(), of(object))).collect()
    }

    /// A row that panicked keeps its last good value; the objects whose change led there are told.
    fn find_faults(&self) -> BTreeMap<ObjectRef, Vec<Issue>> {
        let mut out: BTreeMap<ObjectRef, Vec<Issue>> = BTreeMap::new();
        for fault in self.engine.faults() {
            for object in &fault.changed {
                let message = format!(
                    "the last good state is kept because translating it failed: {} {}: {} (a bug in Pilot, please report it)",
                    fault.table, fault.key, fault.message
                );
                out.entry(object.clone()).or_default().push(Issue::error(object.clone(), "", message));
            }
        }
        out
    }
}
