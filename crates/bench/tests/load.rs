//! The whole tool on a small mesh: our server and the floor, both protocols, every phase.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::time::Duration;

use pilot_bench::{
    Candidate, Churn, Fleet, Folder, Lines, Load, Measure, Mesh, Phase, Plan, Programs, Protocol, Server,
    Shape, Who,
};

/// Our server: in `PILOT_BIN`, or beside the tool.
fn pilot() -> Vec<String> {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_pilot-bench"));
    let folder = std::env::var_os("PILOT_BIN").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let program = folder.unwrap_or_else(|| beside.parent().unwrap().to_owned()).join("pilot-discovery");
    assert!(program.exists(), "{} is not built: run `cargo build --workspace --bins`", program.display());
    vec![program.display().to_string()]
}

fn candidate() -> Candidate {
    Candidate::Program { name: "pilot".to_owned(), command: pilot() }
}

fn small(protocol: Protocol) -> Shape {
    Shape {
        services: 30,
        endpoints: 3,
        namespaces: Some(6),
        proxies: 6,
        protocol,
        repeats: 2,
        churn: vec![Churn { rate: 50, seconds: 1 }],
        ..Shape::default()
    }
}

async fn measured(shape: &Shape) -> Vec<Measure> {
    let bench = PathBuf::from(env!("CARGO_BIN_EXE_pilot-bench"));
    let programs = Programs { pilot: pilot(), istiod: None, bench };
    let who = [Who::Pilot, Who::Floor];
    pilot_bench::compare("small", shape, &programs, &who, &Lines::default()).await.unwrap()
}

fn of<'a>(measures: &'a [Measure], server: &str, phase: Phase) -> Vec<&'a Measure> {
    measures.iter().filter(|measure| measure.server == server && measure.phase == phase).collect()
}

fn everything_arrived(measures: &[Measure]) {
    for server in ["pilot", "floor"] {
        for phase in Phase::ALL {
            assert!(!of(measures, server, phase).is_empty(), "{server} has no {phase:?}");
        }
    }
    for measure in measures {
        assert_eq!(measure.missing, 0, "{measure:?}");
        assert_eq!((measure.refused, measure.lost), (0, 0), "{measure:?}");
        if measure.phase != Phase::Start {
            assert!(measure.last_ms.is_some() && measure.p99_ms.is_some(), "{measure:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_delta_everything_arrives_and_who_comes_back_is_sent_nothing() {
    let measures = measured(&small(Protocol::Delta)).await;
    everything_arrived(&measures);
    for server in ["pilot", "floor"] {
        assert!(of(&measures, server, Phase::Cold)[0].resources > 0);
        assert_eq!(of(&measures, server, Phase::Reconnect)[0].resources, 0, "{server}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_state_of_the_world_everything_arrives() {
    everything_arrived(&measured(&small(Protocol::Sotw)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_scopes_proxies_hold_less_and_changes_still_reach_all() {
    let whole = small(Protocol::Delta);
    let scoped = Shape { scope: Some(6), ..whole.clone() };
    let phases = vec![Phase::Cold, Phase::Endpoint, Phase::Service];
    let held = async |shape: &Shape| {
        let scratch = tempfile::tempdir().unwrap();
        let shape = Shape { phases: phases.clone(), ..shape.clone() };
        let outcome = pilot_bench::run_phases("a", &shape, &candidate(), scratch.path()).await.unwrap();
        assert!(outcome.measures.iter().all(|measure| measure.missing == 0), "{:?}", outcome.measures);
        outcome.measures[0].resources
    };
    assert!(held(&scoped).await * 2 < held(&whole).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocols_end_with_the_same_contents() {
    let (shape, scratch) = (small(Protocol::Delta), tempfile::tempdir().unwrap());
    let mesh = Mesh::new(&shape);
    let folder = Folder::create(scratch.path(), &mesh.files()).unwrap();
    let server = Server::start(&candidate(), folder.path(), &scratch.path().join("home")).await.unwrap();
    let [delta, sotw] =
        [Protocol::Delta, Protocol::Sotw].map(|protocol| Fleet::launch(&mesh, server.grpc, 6, |_| protocol));
    for fleet in [&delta, &sotw] {
        assert!(fleet.until(Duration::from_secs(60), |fleet| fleet.synced() == 6).await);
    }
    assert_eq!(pilot_bench::differences(&delta, &sotw), Vec::<String>::new());
    assert!(delta.contents().all(|contents| contents.iter().all(|of_type| !of_type.is_empty())));
    delta.leave().await;
    sotw.leave().await;
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_somebody_else_started_can_be_loaded_and_recorded() {
    let (shape, scratch) = (small(Protocol::Delta), tempfile::tempdir().unwrap());
    let folder = Folder::create(scratch.path(), &Mesh::new(&shape).files()).unwrap();
    let server = Server::start(&candidate(), folder.path(), &scratch.path().join("home")).await.unwrap();
    let recording = scratch.path().join("recording");
    let load = Load { address: server.grpc, shape, record: Some(recording.clone()) };
    let measures = pilot_bench::load(&load, &Lines::default()).await.unwrap();
    assert_eq!(
        measures.iter().map(|measure| measure.phase).collect::<Vec<_>>(),
        [Phase::Cold, Phase::Reconnect]
    );
    assert!(measures.iter().all(|measure| measure.missing == 0 && measure.cpu_ms.is_some()), "{measures:?}");
    assert!(std::fs::metadata(&recording).unwrap().len() > 0);
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_short_soak_proxies_have_what_a_fresh_server_sends() {
    let shape = Shape { services: 60, endpoints: 4, proxies: 20, ..Shape::default() };
    let plan = Plan { shape, duration: Duration::from_secs(4), rate: 100, turns: 10 };
    let scratch = tempfile::tempdir().unwrap();
    let verdict = pilot_bench::soak(&plan, &candidate(), scratch.path()).await.unwrap();
    assert_eq!(verdict.differences, Vec::<String>::new());
    assert!(verdict.changes > 0 && verdict.returns > 0, "{verdict:?}");
}
