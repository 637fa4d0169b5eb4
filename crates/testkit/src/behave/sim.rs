//! The pipeline in this process, and the evaluator in the place of Envoy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use pilot_base::{Labels, Name};
use pilot_config::ReadOptions;
use pilot_incr::{Shard, Txn};
use pilot_model::{
    ConfigId, Features, Interception, KeySet, KeySource, Kind, Locality, MeshOptions, ObjectKey, Proxy,
    ProxyId, ProxyType,
};
use pilot_pipeline::Pipeline;
use pilot_sim::evaluate::{self, Answer, Branch, HttpCall, Snapshot, TlsCall, Upstream};

use crate::behave::{compare_issues, mesh_config};
use crate::expect::{Precision, Seen, compare};
use crate::objects::Objects;
use crate::scenario::{Backend, Call, ClientKind, Failing, Scenario, Target};

const SHARD: Shard = Shard(1);
const PROXY: ProxyId = ProxyId(1);

pub fn run(scenario: &Scenario) -> anyhow::Result<Vec<String>> {
    let mut world = World::new(scenario)?;
    let mut backends = Backends::new(scenario);
    let mut wrong = Vec::new();
    for (number, step) in (1..).zip(&scenario.steps) {
        world.objects.apply(&step.apply);
        for what in &step.remove {
            world.objects.remove(what)?;
        }
        if step.restart {
            world.restart(scenario)?;
        }
        world.commit();
        let mut snapshot = world.snapshot()?;
        for (call_number, call) in (1..).zip(&step.calls) {
            let (seen, reached) = outcome(&mut snapshot, call, &mut backends)?;
            let mut found = compare(&call.expect, &seen, Precision::Exact);
            for (name, times) in &call.expect.reached {
                let saw = reached.get(name).copied().unwrap_or(0.0);
                if (saw - f64::from(*times)).abs() > 0.5 {
                    found.push(format!("reached: expected {name} {times} times, saw {saw}"));
                }
            }
            wrong.extend(found.into_iter().map(|f| format!("step {number}, call {call_number}: {f}")));
        }
    }
    wrong.extend(compare_issues(&scenario.issues, &world.issues()));
    Ok(wrong)
}

/// What files say, as a folder that is followed would tell it.
struct World {
    pipeline: Pipeline,
    objects: Objects,
    /// What each file said when it could last be read, and what was wrong with it.
    told: BTreeMap<String, (String, Vec<(Kind, ConfigId, ObjectKey)>, Vec<String>)>,
    /// What can be fetched, by address.
    pages: BTreeMap<String, String>,
}

impl World {
    fn new(scenario: &Scenario) -> anyhow::Result<Self> {
        let mut pipeline = Pipeline::new();
        let inputs = pipeline.inputs();
        let (mesh, _) = pilot_config::read_mesh_config(&mesh_config(scenario), "mesh")
            .map_err(|issues| anyhow!("{}", issues[0]))?;
        let features = features(&scenario.env)?;
        let mut txn = Txn::new();
        txn.upsert(&inputs.options, SHARD, (), MeshOptions { features, ..MeshOptions::default() });
        txn.upsert(&inputs.mesh, SHARD, (), mesh);
        txn.upsert(&inputs.proxies, SHARD, PROXY, Arc::new(proxy(scenario)));
        pipeline.commit(txn);
        let mut objects = Objects::default();
        objects.apply(&scenario.world);
        Ok(Self { pipeline, objects, told: BTreeMap::new(), pages: pages(scenario) })
    }

    /// Another server knows only what the files say.
    fn restart(&mut self, scenario: &Scenario) -> anyhow::Result<()> {
        let objects = std::mem::take(&mut self.objects);
        *self = Self { objects, ..Self::new(scenario)? };
        Ok(())
    }

    fn commit(&mut self) {
        let inputs = self.pipeline.inputs();
        let mut txn = Txn::new();
        let files = self.objects.files();
        let gone: Vec<String> = self.told.keys().filter(|file| !files.contains_key(*file)).cloned().collect();
        for file in gone {
            for (_, _, key) in self.told.remove(&file).map(|(_, keys, _)| keys).unwrap_or_default() {
                inputs.remove(&mut txn, SHARD, key);
            }
        }
        for (file, text) in files {
            if self.told.get(file).is_some_and(|(told, ..)| told == text) {
                continue;
            }
            let before = self.told.remove(file).map(|(_, keys, _)| keys).unwrap_or_default();
            let (keys, issues) = match pilot_config::read(text, file, &ReadOptions::default()) {
                Err(issue) => (before, vec![issue.to_string()]),
                Ok(reading) => {
                    let broken =
                        |kind: &Kind, id: &ConfigId| reading.broken.iter().any(|(k, i)| k == kind && i == id);
                    let mut keys: Vec<_> =
                        before.iter().filter(|(kind, id, _)| broken(kind, id)).cloned().collect();
                    keys.extend(
                        reading.objects.iter().map(|(kind, id, object)| (*kind, id.clone(), object.key())),
                    );
                    let kept: BTreeSet<&ObjectKey> = keys.iter().map(|(_, _, key)| key).collect();
                    for (_, _, key) in before.iter().filter(|(_, _, key)| !kept.contains(key)) {
                        inputs.remove(&mut txn, SHARD, key.clone());
                    }
                    for (_, _, object) in reading.objects {
                        inputs.upsert(&mut txn, SHARD, object);
                    }
                    (keys, reading.issues.iter().map(ToString::to_string).collect())
                }
            };
            self.told.insert(file.clone(), (text.clone(), keys, issues));
        }
        let wanted = self.pipeline.commit(txn).wanted_keys;
        let mut txn = Txn::new();
        for (source, wait) in wanted {
            match wait {
                Some(_) => txn.upsert(&inputs.key_sets, SHARD, source.clone(), self.fetch(&source)),
                None => txn.remove(&inputs.key_sets, SHARD, source),
            }
        }
        self.pipeline.commit(txn);
    }

    /// What the server would find.
    fn fetch(&self, source: &KeySource) -> KeySet {
        let page = |uri: &str| self.pages.get(uri).ok_or_else(|| format!("nobody serves {uri}"));
        let uri = match source {
            KeySource::Uri(uri) => Ok(uri.to_string()),
            KeySource::Issuer(issuer) => page(&pilot_config::discovery_uri(issuer))
                .and_then(|page| pilot_config::told_jwks_uri(page).ok_or("it tells no jwks_uri".to_owned())),
        };
        let keys = uri.and_then(|uri| page(&uri)).and_then(|text| {
            pilot_config::usable_keys(text)?;
            Ok(Name::from(text))
        });
        match keys {
            Ok(keys) => KeySet { keys: Some(keys), failure: None },
            Err(reason) => KeySet { keys: None, failure: Some(reason.into()) },
        }
    }

    fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let manifests = self.pipeline.manifests_of(PROXY).context("the proxy is sent nothing")?;
        Snapshot::of(&manifests).map_err(anyhow::Error::msg)
    }

    fn issues(&self) -> Vec<String> {
        let mut all: Vec<String> = self.told.values().flat_map(|(_, _, issues)| issues.clone()).collect();
        let mut said: BTreeMap<&ObjectKey, usize> = BTreeMap::new();
        for (_, _, key) in self.told.values().flat_map(|(_, keys, _)| keys) {
            *said.entry(key).or_default() += 1;
        }
        let twice = said.iter().filter(|(_, times)| **times > 1);
        all.extend(twice.map(|((kind, id), _)| format!("{}: metadata.name: said twice", id.object(*kind))));
        all.extend(self.pipeline.issues().map(ToString::to_string));
        all
    }
}

/// The switches that simulated scenarios use.
fn features(env: &BTreeMap<String, String>) -> anyhow::Result<Features> {
    let mut features = Features { alpn_filter: false, metadata_exchange: false, ..Features::default() };
    for (name, value) in env {
        let is_on = value == "true";
        match name.as_str() {
            "ENABLE_TLS_ON_SIDECAR_INGRESS" => features.ingress_tls = is_on,
            "PILOT_ENABLE_PERSISTENT_SESSION_FILTER" => features.persistent_sessions = is_on,
            "PILOT_ENABLE_ON_DEMAND_CLUSTERS" => features.on_demand_clusters = is_on,
            other => bail!("env: {other} is not known to the simulator: say `real: true`"),
        }
    }
    Ok(features)
}

fn pages(scenario: &Scenario) -> BTreeMap<String, String> {
    let backends = scenario.backends.values();
    let of = |backend: &Backend| {
        let at = backend.at;
        let page = move |(path, text): (&String, &String)| (format!("http://{at}{path}"), text.clone());
        backend.serves.iter().map(page).collect::<Vec<_>>()
    };
    backends.flat_map(of).collect()
}

fn proxy(scenario: &Scenario) -> Proxy {
    let client = &scenario.client;
    let name = format!("client.{}", client.namespace);
    let kind = match client.kind {
        ClientKind::Sidecar => ProxyType::Sidecar,
        ClientKind::Router => ProxyType::Router,
    };
    Proxy {
        dns_domain: format!("{}.svc.cluster.local", client.namespace).into(),
        labels: Labels::new(client.labels.iter().map(|(k, v)| (k.as_str(), v.as_str()))),
        locality: Locality::parse(&client.locality),
        cluster: Name::new("Kubernetes"),
        interception: Interception::None,
        takes_changes: true,
        ..Proxy::new(kind, &name, &client.namespace, vec![[127, 0, 0, 1].into()])
    }
}

/// The servers of a scenario, and how often each will still fail.
struct Backends<'a> {
    scenario: &'a Scenario,
    by_address: BTreeMap<SocketAddr, &'a str>,
    failed: BTreeMap<&'a str, u32>,
    /// Errors in a row, and who was left out because of them, by cluster.
    errors: BTreeMap<(String, SocketAddr), u32>,
    ejected: BTreeSet<(String, SocketAddr)>,
}

impl<'a> Backends<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let by_address =
            scenario.backends.iter().map(|(name, backend)| (backend.at, name.as_str())).collect();
        let (failed, errors, ejected) = Default::default();
        Self { scenario, by_address, failed, errors, ejected }
    }

    fn at(&self, address: SocketAddr) -> Option<&'a str> {
        self.by_address.get(&address).copied()
    }

    /// Do they agree on whether to speak TLS?
    fn understands(&self, name: &str, upstream: &Upstream) -> bool {
        self.scenario.backends[name].tls == upstream.tls.is_some()
    }

    fn delay(&self, name: &str) -> Duration {
        self.scenario.backends[name].delay
    }

    /// The status of the next answer.
    fn answer(&mut self, name: &'a str) -> u16 {
        match self.scenario.backends[name].fail {
            None => 200,
            Some(Failing { status, times: None }) => status,
            Some(Failing { status, times: Some(times) }) => {
                let failed = self.failed.entry(name).or_default();
                if *failed < times {
                    *failed += 1;
                    status
                } else {
                    200
                }
            }
        }
    }

    /// Does what comes of the next call depend on what came of this one?
    fn remembers(&self, upstream: &Upstream) -> bool {
        let servers = upstream.endpoints.iter().filter_map(|(address, _)| self.at(*address));
        let mut failing = servers.filter_map(|name| self.scenario.backends[name].fail);
        failing.any(|fail| fail.times.is_some() || upstream.ejects_after.is_some())
    }

    fn note(&mut self, upstream: &Upstream, address: SocketAddr, status: u16) {
        let key = (upstream.cluster.clone(), address);
        let errors = self.errors.entry(key.clone()).or_default();
        *errors = if status >= 500 { *errors + 1 } else { 0 };
        if upstream.ejects_after.is_some_and(|most| *errors >= most) {
            self.ejected.insert(key);
        }
    }
}

/// All that may come of a call, and how often others were asked too.
fn outcome(
    snapshot: &mut Snapshot,
    call: &Call,
    backends: &mut Backends<'_>,
) -> anyhow::Result<(Vec<Seen>, BTreeMap<String, f64>)> {
    let Target { to, tls, http } = call.target()?;
    let headers = || call.headers.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let http = http.map(|http| HttpCall {
        method: http.method.to_owned(),
        authority: http.authority,
        path: http.path,
        headers: headers(),
    });
    let tls = tls.map(|server_name| TlsCall { server_name, shows_certificate: call.certificate });
    let wanted = evaluate::Call { to, tls, http };
    let mut seen = Vec::new();
    let mut reached: BTreeMap<String, f64> = BTreeMap::new();
    let mut round = 0;
    while round < call.times {
        snapshot.ejected.clone_from(&backends.ejected);
        let branches = evaluate::evaluate(snapshot, &wanted).map_err(anyhow::Error::msg)?;
        // With servers that change their mind each call is followed by itself; else all of them are alike.
        let stateful =
            branches.iter().any(|b| matches!(&b.answer, Answer::Forward(up) if backends.remembers(up)));
        let calls = if stateful { 1 } else { call.times - round };
        for branch in &branches {
            if let Answer::Forward(upstream) = &branch.answer {
                for (address, chance) in &upstream.mirrors {
                    let name = backends.at(*address).unwrap_or("nobody").to_owned();
                    *reached.entry(name).or_default() += chance * branch.chance * f64::from(calls);
                }
            }
            let found = of_branch(branch, backends, stateful.then_some(round));
            seen.extend(found.into_iter().map(|s| Seen { weight: s.weight * f64::from(calls), ..s }));
        }
        round += calls;
    }
    Ok((seen, reached))
}

fn of_branch(branch: &Branch, backends: &mut Backends<'_>, round: Option<u32>) -> Vec<Seen> {
    match &branch.answer {
        Answer::Refused => vec![Seen { weight: branch.chance, ..Seen::default() }],
        Answer::Direct { status, headers, body } => vec![Seen {
            weight: branch.chance,
            status: *status,
            response: headers.iter().cloned().collect(),
            body: body.clone(),
            after: branch.delay,
            ..Seen::default()
        }],
        Answer::Forward(upstream) if upstream.endpoints.is_empty() => {
            vec![Seen { weight: branch.chance, status: 503, after: branch.delay, ..Seen::default() }]
        }
        Answer::Forward(upstream) => {
            let all = upstream.endpoints.len();
            let starts: Vec<(usize, f64)> = match round {
                Some(round) => vec![(round as usize % all, 1.0)],
                None => upstream.endpoints.iter().map(|(_, chance)| *chance).enumerate().collect(),
            };
            starts
                .into_iter()
                .map(|(at, chance)| {
                    let mut seen = attempts(upstream, at, backends);
                    seen.weight = branch.chance * chance;
                    seen.after += branch.delay;
                    seen
                })
                .collect()
        }
    }
}

/// The headers of one attempt, as they arrive.
fn sent(upstream: &Upstream, request: &HttpCall, attempt: u32) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = request.headers.iter().cloned().collect();
    if upstream.counts_attempts {
        headers.insert("x-envoy-attempt-count".to_owned(), (attempt + 1).to_string());
    }
    headers
}

/// One request and what follows when it fails.
fn attempts(upstream: &Upstream, first: usize, backends: &mut Backends<'_>) -> Seen {
    let Some(request) = &upstream.request else {
        let from =
            backends.at(upstream.endpoints[first].0).filter(|name| backends.understands(name, upstream));
        return Seen { from: from.map(str::to_owned), ..Seen::default() };
    };
    let retry = &upstream.retry;
    let mut spent = Duration::ZERO;
    let mut last = Seen::default();
    for attempt in 0..=retry.attempts {
        let step = if retry.elsewhere { attempt as usize } else { 0 };
        let (address, _) = upstream.endpoints[(first + step) % upstream.endpoints.len()];
        let Some(name) = backends.at(address).filter(|name| backends.understands(name, upstream)) else {
            last = Seen { status: 503, ..Seen::default() };
            if retry.is_for_lost_connections() {
                continue;
            }
            return last;
        };
        let delay = backends.delay(name);
        let status = backends.answer(name);
        backends.note(upstream, address, status);
        let allowed = [upstream.timeout.map(|t| t.saturating_sub(spent)), retry.per_try_timeout];
        if let Some(limit) = allowed.into_iter().flatten().min().filter(|limit| delay > *limit) {
            spent += limit;
            last = Seen { status: 504, after: spent, ..Seen::default() };
            let all_spent = upstream.timeout.is_some_and(|timeout| spent >= timeout);
            if all_spent || !retry.is_for_timeouts() {
                return last;
            }
            continue;
        }
        spent += delay;
        let mut response = Vec::new();
        upstream.response.apply(&mut response);
        last = Seen {
            weight: 0.0,
            status,
            from: Some(name.to_owned()),
            path: request.path.clone(),
            host: request.authority.clone(),
            method: request.method.clone(),
            sni: upstream.tls.clone().unwrap_or_default(),
            request: sent(upstream, request, attempt),
            response: response.into_iter().collect(),
            body: String::new(),
            after: spent,
        };
        if !retry.is_for(status) {
            return last;
        }
    }
    last
}
