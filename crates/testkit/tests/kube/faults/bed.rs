//! The servers that everything comes from, and what is done to them.

use std::path::Path;
use std::time::Duration;

use pilot_testkit::cut::Cut;
use pilot_testkit::gatekeeper::{Asked, Fate, Gatekeeper};
use pilot_testkit::kube::KubeServer;
use serde_json::{Value, json};

use super::super::clusters::secret;
use super::super::{slice, until, world};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    WatchesCut,
    Killed,
    OutOfReach,
    EtcdKilled,
    /// Two at once: what a new API server remembers begins after what we know.
    KilledOutOfReach,
    Silent,
    Busy,
    /// What we know is forgotten: 410.
    Forgotten,
    FarOutOfReach,
    FarBusy,
    FarSilent,
    FarKilled,
}

impl Fault {
    pub(super) const ALL: [Self; 12] = [
        Self::WatchesCut,
        Self::Killed,
        Self::OutOfReach,
        Self::EtcdKilled,
        Self::KilledOutOfReach,
        Self::Silent,
        Self::Busy,
        Self::Forgotten,
        Self::FarOutOfReach,
        Self::FarBusy,
        Self::FarSilent,
        Self::FarKilled,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WatchesCut => "watches cut",
            Self::Killed => "API server killed",
            Self::OutOfReach => "API server out of reach",
            Self::EtcdKilled => "etcd killed",
            Self::KilledOutOfReach => "API server killed while out of reach",
            Self::Silent => "API server silent, connections open",
            Self::Busy => "API server busy (429)",
            Self::Forgotten => "versions forgotten (410)",
            Self::FarOutOfReach => "other cluster out of reach",
            Self::FarBusy => "other cluster busy (429)",
            Self::FarSilent => "other cluster silent, connections open",
            Self::FarKilled => "other cluster's API server killed",
        }
    }
}

/// So long a busy server stays so.
const BUSY: Duration = Duration::from_secs(1);
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices?";

/// Our own cluster and another one, each behind something that can be cut.
pub(super) struct Bed {
    pub(super) near: KubeServer,
    pub(super) near_cut: Cut,
    near_gate: Gatekeeper,
    far: KubeServer,
    pub(super) far_cut: Cut,
    far_gate: Gatekeeper,
}

fn watches(asked: &Asked) -> bool {
    asked.path.contains("watch=true")
}

impl Bed {
    pub(super) async fn make(scratch: &Path) -> Self {
        let near = KubeServer::start(&scratch.join("near"), &[]).await.unwrap();
        let far = KubeServer::start(&scratch.join("far"), &[]).await.unwrap();
        world(&near, &["10.9.0.1", "10.9.0.2"]).await;
        world(&far, &["10.10.0.1", "10.10.0.2"]).await;
        near.define_rules().await.unwrap();
        let near_gate = Gatekeeper::in_place_of(&near).await.unwrap();
        let near_cut = Cut::before(near_gate.address).await.unwrap();
        let far_gate = Gatekeeper::before(&far).await.unwrap();
        let far_cut = Cut::before(far_gate.address).await.unwrap();
        let config = far_gate.kubeconfig("lab-admin-token");
        let config = config.replace(&far_gate.address.to_string(), &far_cut.address.to_string());
        near.apply(&secret("east", &config)).await.unwrap();
        Self { near, near_cut, near_gate, far, far_cut, far_gate }
    }

    /// Silence lasts for so long.
    pub(super) async fn fault(&mut self, fault: Fault, silence: Duration) {
        match fault {
            Fault::WatchesCut => self.near_cut.snap(),
            Fault::Killed => restart(&mut self.near).await,
            Fault::OutOfReach => self.near_cut.close(),
            Fault::EtcdKilled => {
                self.near.kill_etcd().await.unwrap();
                self.near.start_etcd().await.unwrap();
            }
            Fault::KilledOutOfReach => {
                self.near_cut.close();
                restart(&mut self.near).await;
            }
            Fault::Silent => silent(&self.near_cut, silence).await,
            Fault::Busy => busy(&self.near_gate, &self.near_cut).await,
            Fault::Forgotten => self.forget().await,
            Fault::FarOutOfReach => self.far_cut.close(),
            Fault::FarBusy => busy(&self.far_gate, &self.far_cut).await,
            Fault::FarSilent => silent(&self.far_cut, silence).await,
            Fault::FarKilled => restart(&mut self.far).await,
        }
    }

    /// Nobody may watch from the version that he knows, until he has listed everything again.
    async fn forget(&self) {
        drop(self.near_gate.asked());
        self.near_gate.rule(|asked| if watches(asked) { Fate::Refuse(410) } else { Fate::Pass });
        self.near_cut.snap();
        let is_listed = || async {
            let asked = self.near_gate.asked();
            asked.iter().any(|asked| asked.path.starts_with(SLICES) && !watches(asked))
        };
        until("slices are listed again", is_listed).await;
    }

    /// Something else in both clusters, and another rule. Tells who is there now.
    pub(super) async fn change(&self, round: usize) -> [String; 4] {
        let (near, far) = (format!("10.9.1.{}", round % 250), format!("10.10.1.{}", round % 250));
        apply(&self.near, &slice("web-a", &["10.9.0.1", &near])).await;
        apply(&self.far, &slice("web-a", &["10.10.0.1", &far])).await;
        let route = json!([{"destination": {"host": "web"}, "headers": {"response": {"set": {"round": format!("round-{round}.")}}}}]);
        let rule = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"hosts": ["web"], "http": [{"route": route}]},
        });
        apply(&self.near, &rule).await;
        ["10.9.0.1".to_owned(), near, "10.10.0.1".to_owned(), far]
    }

    pub(super) fn mend(&self) {
        self.near_gate.rule(|_| Fate::Pass);
        self.far_gate.rule(|_| Fate::Pass);
        self.near_cut.open();
        self.far_cut.open();
        // What was asked of the one is looked at for its faults only, and of the other never.
        drop((self.near_gate.asked(), self.far_gate.asked()));
    }
}

async fn restart(kube: &mut KubeServer) {
    kube.kill_api().await.unwrap();
    kube.start_api().await.unwrap();
}

async fn silent(cut: &Cut, silence: Duration) {
    cut.freeze();
    tokio::time::sleep(silence).await;
}

/// It refuses everybody, who come anew.
async fn busy(gate: &Gatekeeper, cut: &Cut) {
    gate.rule(|_| Fate::Refuse(429));
    cut.snap();
    tokio::time::sleep(BUSY).await;
}

/// An API server takes a while until it has found etcd again.
async fn apply(kube: &KubeServer, object: &Value) {
    while kube.apply(object).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
