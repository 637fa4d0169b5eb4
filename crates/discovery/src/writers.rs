//! What this server writes into the cluster that it belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Cidr, Clock, Name};
use pilot_ca::Authority;
use pilot_cli::Env;
use pilot_kube_write::{
    Addresses, CaSecret, DefaultRevision, Election, HookScope, IngressStatus, Leadership, Readers,
    Registration, RegistrationOptions, RemoteWriters, RootMaps, Seat, SecretReviews, Terms, TokenReview,
    Verdicts, WebhookConfigs, now_text,
};
use pilot_server::{
    Authenticator, EngineHandle, Identity, Metrics, Registrar, SecretReview, unix_nanos, unix_seconds,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{DiscoveryArgs, cluster_id_of, namespace_of};
use crate::sources::Home;

/// The locks of who writes what, as istiod calls them.
const NAMESPACES: &str = "istio-namespace-controller-election";
const ADDRESSES: &str = "istio-ip-autoallocate";
const ANALYSIS: &str = "istio-analyze-leader";
const INGRESSES: &str = "istio-leader";
const AUDIENCE: &str = "istio-ca";
const V4: &str = "240.240.0.0/16";
const V6: &str = "2001:2::/48";
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Writers {
    home: Home,
    cluster: Name,
    namespace: String,
    revision: String,
    /// Who we are among the servers of the cluster.
    pod: String,
    aliases: BTreeMap<Name, Name>,
    root_map: String,
    audiences: Vec<String>,
    in_cacerts: bool,
    elects: bool,
    /// Which configurations of webhooks are looked after, if any.
    hooks: Option<HookScope>,
    /// Nothing if nobody wants addresses.
    ranges: Option<(Cidr, Cidr)>,
    judges: bool,
    /// After how long a proxy connects anew.
    max_age: Option<Duration>,
    /// `EXTERNAL_ISTIOD`: other clusters may have no control plane but this one.
    controls_others: bool,
}

/// What is written depends on this.
pub(crate) struct Around<'a> {
    engine: &'a EngineHandle,
    authority: Option<watch::Receiver<Arc<Authority>>>,
    ca_bundle: Option<watch::Receiver<Arc<str>>>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

impl<'a> Around<'a> {
    pub(crate) fn new(
        engine: &'a EngineHandle,
        identity: Option<&Identity>,
        (clock, metrics): (Arc<dyn Clock>, Arc<Metrics>),
    ) -> Self {
        let (authority, ca_bundle) =
            (identity.and_then(Identity::authority), identity.map(Identity::ca_bundle));
        Self { engine, authority, ca_bundle, clock, metrics }
    }
}

impl Writers {
    pub(crate) fn new(home: Home, args: &DiscoveryArgs, env: &Env) -> Self {
        let text = |name: &str, default: &str| env.get(name).unwrap_or(default).to_owned();
        let flag = |name: &str, default: bool| env.flag(name).unwrap_or(default);
        let allocates = flag("PILOT_ENABLE_IP_AUTOALLOCATE", true);
        Self {
            home,
            cluster: cluster_id_of(args.cluster_id.clone(), env),
            namespace: namespace_of(args.namespace.as_deref(), env).to_string(),
            revision: text("REVISION", "default"),
            pod: env.get("POD_NAME").map_or_else(own_name, str::to_owned),
            aliases: args.cluster_aliases.0.clone(),
            root_map: text("PILOT_CA_CERT_CONFIGMAP", "istio-ca-root-cert"),
            audiences: text("TOKEN_AUDIENCES", AUDIENCE)
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
            in_cacerts: flag("USE_CACERTS_FOR_SELF_SIGNED_CA", false),
            elects: flag("ENABLE_LEADER_ELECTION", true),
            hooks: hooks(args, env),
            ranges: allocates
                .then(|| {
                    let v4 = range(env, "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX", V4)?;
                    Some((v4, range(env, "PILOT_IP_AUTOALLOCATE_IPV6_PREFIX", V6)?))
                })
                .flatten(),
            judges: flag("PILOT_ENABLE_ANALYSIS", false),
            max_age: args.max_connection_age.filter(|age| !age.is_zero()),
            controls_others: flag("EXTERNAL_ISTIOD", false),
        }
    }

    /// Where an authority of our own is kept.
    pub(crate) fn ca_secret(&self) -> CaSecret {
        CaSecret {
            client: self.home.client.clone(),
            namespace: self.namespace.clone(),
            in_cacerts: self.in_cacerts,
        }
    }

    /// Who knows the tokens of the cluster's service accounts, and what these may do.
    pub(crate) fn reviews(&self, engine: &EngineHandle) -> (Arc<dyn Authenticator>, Arc<dyn SecretReview>) {
        let tokens = Arc::new(TokenReview {
            client: self.home.client.clone(),
            cluster: self.cluster.clone(),
            others: self.home.remotes.clone(),
            aliases: self.aliases.clone(),
            audiences: self.audiences.clone(),
            trust: engine.trust_domains(),
        });
        let secrets = SecretReviews::new(Arc::clone(&tokens), Arc::clone(engine.clock()));
        (tokens, Arc::new(secrets))
    }

    /// Who registers workloads outside of the cluster, until `stop`.
    pub(crate) fn registrar(
        &self,
        env: &Env,
        metrics: &Arc<Metrics>,
        stop: impl Future<Output = ()> + Send + 'static,
        tasks: &mut JoinSet<()>,
    ) -> Arc<dyn Registrar> {
        let flag = |name: &str| env.flag(name).unwrap_or(true);
        let options = RegistrationOptions {
            instance: self.pod.clone(),
            registers: flag("PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION"),
            checks_health: flag("PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS"),
            grace: env.span("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD").unwrap_or(GRACE),
            validates: flag("ISTIO_WORKLOAD_ENTRY_VALIDATE_IDENTITY"),
            max_age: self.max_age,
            now: unix_nanos,
        };
        let (client, places) = (self.home.client.clone(), self.home.places.clone());
        let (registration, keeper) = Registration::new(client, places, options, Arc::clone(metrics));
        tasks.spawn(keeper.run(stop));
        Arc::new(registration)
    }

    /// Everything that is written goes on until `stopped`. Before all is known nothing of this may begin: rules would be
    /// judged that nobody has read, by settings that are not those of the mesh.
    pub(crate) fn start<F>(self, around: &Around<'_>, stopped: impl Fn() -> F, tasks: &mut JoinSet<()>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let client = || self.home.client.clone();
        let places = || self.home.places.clone();
        let default = DefaultRevision::new(&self.home.client);
        let tag = default.watch();
        if self.elects {
            tasks.spawn(default.run());
        }
        let mut leads = |name| {
            let times = (Arc::clone(&around.clock), tag.clone());
            self.leadership(name, times, stopped(), tasks)
        };
        let addresses = self.ranges.map(|(v4, v6)| Addresses {
            client: client(),
            places: places(),
            v4,
            v6,
            leads: leads(ADDRESSES),
            selection: self.home.selection.clone(),
        });
        let verdicts = self.judges.then(|| Verdicts {
            client: client(),
            places: places(),
            issues: around.engine.issues_as_they_change(),
            leads: leads(ANALYSIS),
            readers: Readers { revision: self.home.revision.clone(), selection: self.home.selection.clone() },
            now: || now_text(unix_seconds()),
        });
        let ingresses = self.home.ingress_namespace.as_ref().map(|namespace| IngressStatus {
            client: client(),
            namespace: namespace.clone(),
            only_namespace: self.home.only_namespace.clone(),
            mesh: around.engine.mesh_config(),
            leads: leads(INGRESSES),
        });
        let maps = around.authority.clone().map(|authority| RootMaps {
            client: client(),
            name: self.root_map.clone(),
            authority,
            mesh: around.engine.mesh_config(),
            only_namespace: self.home.only_namespace.clone(),
            leads: leads(NAMESPACES),
        });
        if let Some((ca_bundle, scope)) = around.ca_bundle.clone().zip(self.hooks) {
            let configs = WebhookConfigs {
                client: client(),
                namespace: self.namespace.clone(),
                revision: self.revision.clone(),
                ca_bundle,
                scope,
                metrics: Arc::clone(&around.metrics),
            };
            tasks.spawn(configs.run());
        }
        if self.controls_others {
            let writers = self.remote_writers(around);
            tasks.spawn(writers.run(stopped()));
        }
        addresses.map(|addresses| tasks.spawn(addresses.run()));
        verdicts.map(|verdicts| tasks.spawn(verdicts.run()));
        ingresses.map(|ingresses| tasks.spawn(ingresses.run()));
        maps.map(|maps| tasks.spawn(maps.run()));
    }

    /// Who writes into other clusters.
    fn remote_writers(&self, around: &Around<'_>) -> RemoteWriters {
        let terms = Terms {
            home: self.cluster.clone(),
            namespace: self.namespace.clone(),
            revision: self.revision.clone(),
            identity: self.pod.clone(),
            lock: NAMESPACES,
            elects: self.elects,
            root_map: self.root_map.clone(),
            authority: around.authority.clone(),
            ca_bundle: around.ca_bundle.clone().filter(|_| self.hooks.is_some_and(HookScope::injects)),
            mesh: around.engine.mesh_config(),
            only_namespace: self.home.only_namespace.clone(),
            clock: Arc::clone(&around.clock),
            today: unix_seconds,
            metrics: Arc::clone(&around.metrics),
        };
        RemoteWriters { clients: self.home.remotes.clone(), terms: Arc::new(terms) }
    }

    /// Who leads in something. Without an election everybody does.
    fn leadership(
        &self,
        name: &'static str,
        (clock, default): (Arc<dyn Clock>, watch::Receiver<String>),
        stop: impl Future<Output = ()> + Send + 'static,
        tasks: &mut JoinSet<()>,
    ) -> Leadership {
        if !self.elects {
            let (alone, leads) = watch::channel(true);
            tasks.spawn(async move {
                stop.await;
                drop(alone);
            });
            return leads;
        }
        let seat = Seat {
            namespace: self.namespace.clone(),
            name,
            identity: self.pod.clone(),
            revision: self.revision.clone(),
            remote: false,
        };
        let election = Election::new(self.home.client.clone(), seat, default, (clock, unix_seconds));
        let leads = election.leadership();
        tasks.spawn(election.run(stop));
        leads
    }
}

/// Whoever empties the name of a configuration looks after it himself, as where the control plane is outside of the cluster.
fn hooks(args: &DiscoveryArgs, env: &Env) -> Option<HookScope> {
    let is_kept = |name: &str| !env.is_emptied(name);
    let scope = match (is_kept("VALIDATION_WEBHOOK_CONFIG_NAME"), is_kept("INJECTION_WEBHOOK_CONFIG_NAME")) {
        (true, true) => Some(HookScope::All),
        (true, false) => Some(HookScope::Validation),
        (false, true) => Some(HookScope::Injection),
        (false, false) => None,
    };
    // Nobody is called who does not listen.
    scope.filter(|_| !args.https_addr.is_empty())
}

/// For who is no pod. Two of them are not to take each other for themselves.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

fn range(env: &Env, name: &str, default: &str) -> Option<Cidr> {
    let text = env.get(name).unwrap_or(default);
    let range = Cidr::parse(text).filter(|range| range.base().is_ipv4() == default.contains('.'));
    if range.is_none() {
        tracing::warn!(
            "{name}: {text} is not a block such as {default}; ServiceEntries are given no addresses"
        );
    }
    range
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use pilot_cli::Env;
    use pilot_kube_write::HookScope;

    use super::{hooks, own_name};
    use crate::args::{Cli, Cmd};

    #[test]
    fn a_webhook_whose_name_is_emptied_is_left_alone() {
        let scope = |words: &[&str], env: Env| {
            let words = [&["pilot-discovery", "discovery"], words].concat();
            let Cmd::Discovery(args) = Cli::try_parse_from(words).unwrap().command else { unreachable!() };
            hooks(&args, &env)
        };
        let (validation, injection) = ("VALIDATION_WEBHOOK_CONFIG_NAME", "INJECTION_WEBHOOK_CONFIG_NAME");
        assert_eq!(scope(&[], Env::default()), Some(HookScope::All));
        assert_eq!(scope(&[], Env::from([(validation, "mine")])), Some(HookScope::All));
        assert_eq!(scope(&[], Env::from([(validation, "")])), Some(HookScope::Injection));
        assert_eq!(scope(&[], Env::from([(injection, "")])), Some(HookScope::Validation));
        assert_eq!(scope(&[], Env::from([(validation, ""), (injection, "")])), None);
        assert_eq!(scope(&["--httpsAddr="], Env::default()), None);
    }

    #[test]
    fn who_is_no_pod_has_a_name_of_his_own() {
        assert!(own_name().ends_with(&std::process::id().to_string()));
    }
}
