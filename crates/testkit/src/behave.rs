//! Running scenarios.

pub mod kube;
pub mod real;
pub mod sim;

use anyhow::bail;

use crate::scenario::Scenario;
use crate::tools::Tools;

/// What decides the outcome of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    Sim,
    Envoy,
    /// A real Envoy too, with everything in an API server.
    Kube,
    Istiod,
}

impl Engine {
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        match name {
            "sim" => Ok(Self::Sim),
            "envoy" => Ok(Self::Envoy),
            "kube" => Ok(Self::Kube),
            "istiod" => Ok(Self::Istiod),
            other => bail!("there is no engine {other:?}: use sim, envoy, kube or istiod"),
        }
    }
}

/// Runs a scenario. An empty answer is a good one.
pub fn run(engine: Engine, scenario: &Scenario, tools: &Tools) -> anyhow::Result<Vec<String>> {
    let server = match engine {
        Engine::Sim if scenario.real => return Ok(Vec::new()),
        Engine::Sim => return sim::run(scenario),
        Engine::Envoy => real::Server::Pilot,
        Engine::Kube => bail!("scenarios share an API server: kube::run does it"),
        Engine::Istiod => real::Server::Istiod,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(real::run(scenario, server, tools))
}

/// Settings with which a stock Envoy can be configured: without what only Istio's own build has.
pub(crate) fn mesh_config(scenario: &Scenario) -> String {
    let mut mesh = serde_json::Map::new();
    mesh.insert("enableAutoMtls".to_owned(), false.into());
    mesh.insert("rootNamespace".to_owned(), "istio-system".into());
    mesh.extend(scenario.mesh.clone());
    serde_json::Value::Object(mesh).to_string()
}

/// Each issue must be expected, and each expectation must come true.
pub(crate) fn compare_issues(expected: &[String], issues: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    for text in expected {
        if !issues.iter().any(|issue| issue.contains(text.as_str())) {
            wrong.push(format!("no issue contains {text:?}; there are {issues:?}"));
        }
    }
    for issue in issues {
        if !expected.iter().any(|text| issue.contains(text.as_str())) {
            wrong.push(format!("an issue that was not expected: {issue}"));
        }
    }
    wrong
}
