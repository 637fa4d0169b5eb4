//! The roles of Istio's own chart, for a server that is put in istiod's place.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// What the chart lets istiod do, everywhere and in its own namespace.
pub(super) struct ChartRules {
    pub(super) everywhere: Value,
    pub(super) at_home: Value,
}

/// Conditions of the chart that hold here: everything else that it asks about is not asked for.
const HOLD: [&str; 4] =
    ["global.resourceScope", "istiodRemote.enabled", "istiod.enableAnalysis", "DEPLOYMENT_CONTROLLER"];

impl ChartRules {
    pub(super) fn read(istio: &Path) -> anyhow::Result<Self> {
        let templates = istio.join("manifests/charts/istio-control/istio-discovery/templates");
        let rules = |name: &str| {
            let file = templates.join(name);
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            rules(&text).with_context(|| file.display().to_string())
        };
        Ok(Self { everywhere: rules("clusterrole.yaml")?, at_home: rules("role.yaml")? })
    }
}

/// The rules of all roles in a template.
fn rules(template: &str) -> anyhow::Result<Value> {
    let mut all = Vec::new();
    let chosen = chosen(template)?;
    for role in chosen.split("\n---\n").filter_map(|role| role.split_once("\nrules:\n")) {
        let text = format!("rules:\n{}", role.1.replace("{{ $mcsAPIGroup }}", "multicluster.x-k8s.io"));
        if text.contains("{{") {
            bail!("the chart says more than a test understands: {text}");
        }
        let read = pilot_config::read_value(&text, "rules").map_err(|issue| anyhow::anyhow!("{issue}"))?;
        all.extend(read["rules"].as_array().context("no rules")?.iter().cloned());
    }
    if all.is_empty() {
        bail!("no rules");
    }
    Ok(all.into())
}

/// The lines that are left once it is decided what holds.
fn chosen(template: &str) -> anyhow::Result<String> {
    let (mut open, mut lines) = (Vec::new(), Vec::new());
    for line in template.lines() {
        let word = line.trim().trim_start_matches("{{").trim_start_matches('-').trim();
        let holds = || HOLD.iter().any(|condition| word.contains(condition));
        match (line.trim().starts_with("{{"), word.split([' ', '}', '-']).next().unwrap_or_default()) {
            (true, "if" | "range") => open.push(holds()),
            (true, "end") => drop(open.pop().context("an end too many")?),
            (true, "else") => bail!("a choice between two that a test does not understand"),
            (true, _) => {}
            (false, _) if open.iter().all(|holds| *holds) => lines.push(line),
            (false, _) => {}
        }
    }
    Ok(lines.join("\n"))
}
