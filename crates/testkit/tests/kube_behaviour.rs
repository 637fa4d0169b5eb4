//! Scenarios that are about services, told to an API server instead of a folder: what a real Envoy does must be the same.
//! `make behave ENGINE=kube` runs all scenarios that an API server can be told.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use pilot_testkit::behave::kube;
use pilot_testkit::namespace;
use pilot_testkit::scenario::load_changed;
use pilot_testkit::tools::Tools;

/// Folders of scenarios whose worlds are made of services more than of rules.
const ABOUT_SERVICES: [&str; 2] = ["services/", "dynamic/"];

#[test]
fn services_of_an_api_server_are_like_services_of_files() {
    let tools = Tools::of_environment();
    let why = namespace::why_not().filter(|_| !tools.requires_all());
    if let Some(why) = why.or_else(|| tools.why_skip_kube()).or_else(|| tools.why_skip_envoy()) {
        eprintln!("skipped: {why}");
        return;
    }
    if !namespace::entered_by_test("services_of_an_api_server_are_like_services_of_files").unwrap() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/behaviour");
    let mut scenarios = load_changed(&folder, kube::moved).unwrap();
    scenarios.retain(|(name, scenario)| {
        ABOUT_SERVICES.iter().any(|folder| name.starts_with(folder)) && kube::why_not(scenario).is_none()
    });
    assert!(scenarios.len() > 15, "only {} scenarios are left", scenarios.len());
    let mut wrong = Vec::new();
    let tell = |name: &str, _: &_, found: anyhow::Result<Vec<String>>| {
        let found = found.unwrap_or_else(|error| vec![format!("{error:#}")]);
        wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
    };
    kube::run(&scenarios, &tools, tell).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
