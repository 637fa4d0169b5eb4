use std::net::IpAddr;

use serde_json::json;
use tokio::net::TcpListener;

use super::{HealthEvent, ReadinessProbe, Thresholds};
use crate::Env;

fn read(probe: &serde_json::Value) -> anyhow::Result<Option<ReadinessProbe>> {
    ReadinessProbe::read(json!({ "readinessProbe": probe }).as_object().unwrap())
}

async fn ask(probe: serde_json::Value) -> Result<(), String> {
    let mut probe = read(&probe).unwrap().unwrap();
    probe.timeout_seconds = 60;
    let check = probe.at(IpAddr::from([127, 0, 0, 1]), &Env::default());
    check.check().await.map_err(|error| format!("{error:#}"))
}

#[test]
fn only_changes_that_last_are_told() {
    let mut thresholds = Thresholds::new(2, 3);
    let sick = || Err("sick".to_owned());
    let unhealthy = HealthEvent::Unhealthy { message: "sick".to_owned() };
    assert_eq!((thresholds.count(Ok(())), thresholds.count(sick())), (None, None));
    assert_eq!((thresholds.count(Ok(())), thresholds.count(Ok(()))), (None, Some(HealthEvent::Healthy)));
    assert_eq!((thresholds.count(Ok(())), thresholds.count(sick())), (None, None));
    assert_eq!((thresholds.count(sick()), thresholds.count(sick())), (None, Some(unhealthy)));
    assert_eq!(thresholds.count(sick()), None);
    let mut once = Thresholds::new(0, 0);
    assert_eq!(once.count(Ok(())), Some(HealthEvent::Healthy));
}

#[tokio::test]
async fn workloads_are_asked_in_their_way() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(ask(json!({ "tcpSocket": { "port": port } })).await, Ok(()));
    drop(listener);
    assert!(ask(json!({ "tcpSocket": { "port": port } })).await.unwrap_err().contains("cannot connect"));
    assert!(ask(json!({ "httpGet": { "port": port } })).await.unwrap_err().contains("cannot connect"));
    assert_eq!(ask(json!({ "exec": { "command": ["true"] } })).await, Ok(()));
    assert!(ask(json!({ "exec": { "command": ["false"] } })).await.unwrap_err().contains("exit status: 1"));
    assert!(
        ask(json!({ "exec": { "command": ["/no/such"] } }))
            .await
            .unwrap_err()
            .contains("cannot run /no/such")
    );
}

#[test]
fn a_probe_that_asks_nothing_is_told() {
    assert!(read(&json!(null)).unwrap().is_none());
    let error = |probe: serde_json::Value| read(&probe).unwrap_err().to_string();
    assert!(error(json!({ "periodSeconds": 1 })).contains("one of httpGet, tcpSocket, exec and grpc"));
    assert!(error(json!({ "exec": { "command": [] } })).contains("command is empty"));
}
