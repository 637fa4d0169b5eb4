//! The form of a shape: how large a mesh, how many proxies, and what is done to them. `bench/` has the ones we measure.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::stamp;

/// The two ways to speak ADS.
#[derive(Serialize, Deserialize, ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Differences, as Istio's agent asks for
    Delta,
    /// State of the world: all of a type in each answer
    Sotw,
}

/// What is done, in the order in which it is done.
#[derive(Serialize, Deserialize, ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The server starts with the mesh in place
    Start,
    /// All proxies connect at once
    Cold,
    /// One endpoint gets another address
    Endpoint,
    /// One route of a VirtualService gets another name
    Route,
    /// One endpoint gets another address while a route is pushed to everybody
    Overtake,
    /// A service comes, then goes
    Service,
    /// Endpoints change at a rate
    Churn,
    /// All proxies come back with what they have
    Reconnect,
}

impl Phase {
    pub const ALL: [Self; 8] = [
        Self::Start,
        Self::Cold,
        Self::Endpoint,
        Self::Route,
        Self::Overtake,
        Self::Service,
        Self::Churn,
        Self::Reconnect,
    ];
}

/// Endpoint changes at a rate.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// Changes a second.
    pub rate: u32,
    pub seconds: u32,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    pub about: String,
    pub services: usize,
    /// Of each service.
    pub endpoints: usize,
    /// A twentieth of the services if nobody says.
    pub namespaces: Option<usize>,
    pub proxies: usize,
    /// With a VirtualService, and a DestinationRule that has subsets.
    pub rules_percent: u64,
    pub tcp_percent: u64,
    /// Each namespace has a Sidecar with this many hosts.
    pub scope: Option<usize>,
    pub protocol: Protocol,
    pub phases: Vec<Phase>,
    pub churn: Vec<Churn>,
    /// How often single changes are made.
    pub repeats: usize,
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            about: String::new(),
            services: 100,
            endpoints: 10,
            namespaces: None,
            proxies: 10,
            rules_percent: 30,
            tcp_percent: 10,
            scope: None,
            protocol: Protocol::Delta,
            phases: Phase::ALL.to_vec(),
            churn: vec![Churn { rate: 10, seconds: 5 }],
            repeats: 3,
            seed: 1,
        }
    }
}

/// As many digits as names of services have.
const MOST_SERVICES: usize = 99_999;
/// One less than an address of its own for each endpoint would take.
const MOST_ENDPOINTS: usize = 150;
/// More proxies than ports there are for connections from one address cannot be.
const MOST_PROXIES: usize = 28_000;

impl Shape {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{file} cannot be read; bench/ has shapes to begin with"))?;
        Self::parse(&text, &file)
    }

    pub fn parse(text: &str, file: &str) -> anyhow::Result<Self> {
        let value = pilot_config::read_value(text, file).map_err(|issue| anyhow::anyhow!("{issue}"))?;
        let shape: Self = serde_json::from_value(value).with_context(|| file.to_owned())?;
        shape.check().with_context(|| file.to_owned())?;
        Ok(shape)
    }

    pub fn check(&self) -> anyhow::Result<()> {
        within("services", self.services, 1, MOST_SERVICES)?;
        within("endpoints", self.endpoints, 2, MOST_ENDPOINTS)?;
        within("proxies", self.proxies, 1, MOST_PROXIES)?;
        within("namespaces", self.namespaces(), 1, self.services)?;
        within("repeats", self.repeats, 1, 1_000)?;
        if let Some(scope) = self.scope {
            within("scope", scope, 4, self.services)?;
        }
        for share in [self.rules_percent, self.tcp_percent] {
            ensure!(share <= 100, "{share} percent are more than there are");
        }
        let changes: usize = self.churn.iter().map(|churn| (churn.rate * churn.seconds) as usize).sum();
        if changes + self.services >= stamp::COUNT as usize / 2 {
            bail!("churn: {changes} changes are more than can be told apart; ask for fewer or for less time");
        }
        Ok(())
    }

    pub fn namespaces(&self) -> usize {
        self.namespaces.unwrap_or_else(|| self.services.div_ceil(20))
    }

    pub fn has(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }
}

fn within(what: &str, number: usize, least: usize, most: usize) -> anyhow::Result<()> {
    ensure!((least..=most).contains(&number), "{what}: {number} is not between {least} and {most}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Phase, Protocol, Shape};

    #[test]
    fn a_shape_is_what_its_file_says_and_defaults_elsewhere() {
        let shape = Shape::parse("services: 400\nprotocol: sotw\nphases: [cold]\n", "a.yaml").unwrap();
        assert_eq!((shape.services, shape.protocol, shape.namespaces()), (400, Protocol::Sotw, 20));
        assert!(shape.has(Phase::Cold) && !shape.has(Phase::Churn));
    }

    #[test]
    fn a_mistake_is_told_with_its_file_and_what_would_be_right() {
        for (text, told) in [
            ("services: 0", "services: 0 is not between 1 and 99999"),
            ("proxies: 1000000", "proxies: 1000000 is not between 1 and 28000"),
            ("endpionts: 4", "unknown field `endpionts`"),
            ("services: 10\nscope: 20", "scope: 20 is not between 4 and 10"),
            ("churn: [{rate: 100000, seconds: 1000}]", "churn: 100000000 changes"),
            ("services: [", "a.yaml"),
        ] {
            let error = format!("{:#}", Shape::parse(text, "a.yaml").unwrap_err());
            assert!(error.contains(told) && error.contains("a.yaml"), "{text}: {error}");
        }
    }
}
