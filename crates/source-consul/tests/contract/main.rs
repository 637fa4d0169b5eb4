//! The contracts of registries and of stores on a real Consul.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent;
mod changes;
mod far;
mod keys;
mod standin;
mod tokens;

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use pilot_source::Source;
use pilot_source::contract::{
    Condition, Registered, RegistryRig, check_bad, check_load, check_registry, garbled,
};
use serde_json::json;

use agent::{Consul, TOKEN, at};

impl RegistryRig for Consul {
    fn about(&self) -> &'static str {
        if self.has_checks { "Consul 1.22.3" } else { "Consul 1.22.3, no checks" }
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.follow_at(at(server, TOKEN), "dc1")
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let check = json!({"CheckID": format!("check:{}", instance.id), "TTL": "1h", "Status": "passing"});
        let mut body = json!({"ID": instance.id, "Name": instance.service, "Address": instance.address,
            "Port": instance.port, "Meta": instance.metadata});
        if self.has_checks {
            body["Check"] = check;
        }
        let path = "/v1/agent/service/register?replace-existing-checks=true";
        let body = garbled(&body.to_string()).into();
        let answer = self.client.ask(Method::PUT, path, body, Duration::ZERO).await;
        answer.unwrap().status.is_success()
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.ask(&format!("/v1/agent/service/deregister/{}", instance.id), "").await;
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        if !self.has_checks {
            return false;
        }
        let status = if condition == Condition::Well { "pass" } else { "fail" };
        self.ask(&format!("/v1/agent/check/{status}/check:{}", instance.id), "").await;
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.until_ready().await;
        Some(false)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |head: &str, body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\n{head}content-length: {}\r\n\r\n", body.len());
            format!("{head}{body}").into_bytes()
        };
        let index = "x-consul-index: 5\r\n";
        vec![
            answer("", "{}"),
            answer(index, "7"),
            answer(index, "{"),
            // What could be read, and cannot be meant.
            answer(index, "{}"),
            answer(index, "[{}]"),
            vec![0xff; 64],
        ]
    }

    fn with_wrong_token(&self) -> Option<(Box<dyn Source>, &'static str)> {
        const WRONG: &str = "99999999-2222-3333-4444-555555555555";
        Some((self.follow_at(at(self.address, WRONG), "dc1"), WRONG))
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            let name = format!("svc-{service}");
            // Sixty-four operations are the most that one transaction may have.
            let operation = |i: usize| {
                let instance = json!({"ID": format!("{name}-{i}"), "Service": name, "Address": "10.1.2.3", "Port": 8080,
                    "Meta": {"version": "v1"}});
                json!({"Service": {"Verb": "set", "Node": "elsewhere", "Service": instance}})
            };
            if service == 0 {
                let node = json!({"Node": "elsewhere", "Address": "10.1.2.3"});
                self.ask("/v1/catalog/register", node.to_string()).await;
            }
            let operations: Vec<_> = (0..instances).map(operation).collect();
            self.ask("/v1/txn", serde_json::to_string(&operations).unwrap()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_keeps_the_contract() {
    let Some(mut consul) = Consul::start().await else { return };
    check_registry(&mut consul).await;
    check_bad(&mut consul).await;
    check_load(&mut consul).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_without_checks_keeps_the_contract() {
    let Some(mut consul) = Consul::start().await else { return };
    consul.has_checks = false;
    check_registry(&mut consul).await;
}
