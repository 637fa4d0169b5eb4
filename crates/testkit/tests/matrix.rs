//! Our agent and Istio's under our server and under Istio's: a request flows, news arrive, and who ends drains first.
//!
//! Ours under ours runs wherever there is an Envoy. The rest needs Istio's programs: `PILOT_ISTIO_AGENT` and
//! `PILOT_ISTIO_BOOTSTRAP` (its template for bootstraps), `PILOT_ISTIOD` and `PILOT_XDSDIFF` (what istiod takes for Kubernetes).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use pilot_testkit::agent::{Make, PilotAgent, Place};
use pilot_testkit::behave::real::{ControlPlane, Server};
use pilot_testkit::plane::Plane;
use pilot_testkit::shop::{Shop, Wire, until};
use pilot_testkit::tools::Tools;
use serde_json::json;

/// Filters that only Istio's own Envoy has are left out.
const STOCK: [(&str, &str); 2] =
    [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
/// Long enough for a call to be under way when its sidecar is told to end, and shorter than draining.
const SLOW: Duration = Duration::from_millis(1_500);

fn tools(make: Make, server: Server) -> Option<Tools> {
    let tools = Tools::of_environment();
    let missing = match (make, server) {
        (Make::Ours, Server::Pilot | Server::PilotOnKube) => None,
        (Make::Istios, Server::Pilot | Server::PilotOnKube) => {
            tools.istio_agent().and(tools.istio_bootstrap()).err()
        }
        (Make::Ours, Server::Istiod) => tools.istiod().and(tools.stub()).err(),
        (Make::Istios, Server::Istiod) => {
            tools.istio_agent().and(tools.istio_bootstrap()).and(tools.istiod()).and(tools.stub()).err()
        }
    };
    if let Some(why) = missing.map(|error| error.to_string()).or_else(|| tools.why_skip_envoy()) {
        println!("skipped: {why}");
        return None;
    }
    Some(tools)
}

/// Two sidecars of one make.
async fn walk(shop: &Shop, place: impl Fn(&'static str) -> Place, tools: &Tools) {
    let draining = |name| {
        let mut place = place(name);
        place.config["terminationDrainDuration"] = json!("4s");
        place
    };
    let mut cart = PilotAgent::start(&draining("cart"), tools).unwrap();
    let mut web = PilotAgent::start(&draining("web"), tools).unwrap();
    cart.ready().await.unwrap();
    web.ready().await.unwrap();
    until("a request flows", || async { shop.ask("/").await.is_some() }).await.unwrap();

    shop.move_to("/new").unwrap();
    let moved = || async { shop.ask("/").await.is_none() && shop.ask("/new").await.is_some() };
    until("news arrive", moved).await.unwrap();

    // Under way while both are told to end.
    let (seen, ended) = tokio::join!(shop.ask("/new"), async {
        tokio::time::sleep(SLOW / 3).await;
        tokio::join!(web.process.terminate(), cart.process.terminate())
    });
    assert!(seen.is_some(), "a call that had begun came to its end");
    for status in [ended.0.unwrap(), ended.1.unwrap()] {
        assert!(status.success(), "{status}");
    }
}

async fn under_ours(make: Make) {
    let Some(tools) = tools(make, Server::Pilot) else { return };
    let plane = Plane::start(&STOCK).await.unwrap();
    let shop = Shop::open(&plane.server.config, Wire::Mutual, SLOW).await.unwrap();
    let (root, secure) = (plane.root().unwrap(), plane.secure);
    let place = |name| {
        let token = plane.token(name).unwrap();
        Place { make, ..Place::new(name, secure).trusting(root.clone(), token) }
    };
    walk(&shop, place, &tools).await;
}

async fn under_istios(make: Make) {
    let Some(tools) = tools(make, Server::Istiod) else { return };
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config");
    for folder in ["config", "kube"] {
        std::fs::create_dir_all(scratch.path().join(folder)).unwrap();
    }
    std::fs::write(scratch.path().join("mesh.yaml"), "{}\n").unwrap();
    let shop = Shop::open(&config, Wire::Plain, SLOW).await.unwrap();
    let mut plane = ControlPlane::new(Server::Istiod, scratch.path(), &BTreeMap::new()).unwrap();
    plane.start(Some(&config), &tools).await.unwrap();
    let address = plane.grpc();
    // Nobody certifies anybody at the plain port. Istio's agent takes only this port for a plain one.
    let place = |name| Place { make, ..Place::new(name, address).plain().env("CA_ADDR", "127.0.0.1:15010") };
    walk(&shop, place, &tools).await;
}

#[tokio::test]
async fn our_agent_under_our_server() {
    under_ours(Make::Ours).await;
}

#[tokio::test]
async fn istios_agent_under_our_server() {
    under_ours(Make::Istios).await;
}

#[tokio::test]
async fn our_agent_under_istios_server() {
    under_istios(Make::Ours).await;
}

#[tokio::test]
async fn istios_agent_under_istios_server() {
    under_istios(Make::Istios).await;
}
