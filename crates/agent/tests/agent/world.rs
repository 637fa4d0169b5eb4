//! A real Envoy with one listener and one backend.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::path::Path;

use crate::load::backend;
use crate::support::{self, Agent, Settings};

/// An Envoy that sends everything to a backend and says which version of its file it was started with.
pub(crate) struct World {
    pub(crate) agent: Agent,
    pub(crate) port: u16,
    backend: u16,
}

impl World {
    pub(crate) fn start(vary: impl FnOnce(Settings) -> Settings) -> Option<Self> {
        let envoy = support::real_envoy()?;
        let (port, backend) = (support::free_port(), backend());
        let settings = Settings::binary(&envoy).proxy("concurrency: 2\ndrainDuration: 1s");
        let own = settings.file("own.yaml");
        let settings = vary(settings.proxy(&format!("customConfigFile: {}", own.display())));
        write(&own, &bootstrap(settings.admin_port(), &[port], backend, "1"));
        let world = Self { agent: Agent::start(settings), port, backend };
        world.wait_for("1");
        Some(world)
    }

    pub(crate) fn version(&self) -> Option<String> {
        let answer = support::ask(self.port, "GET", "/")?;
        let line = answer.lines().find_map(|line| line.strip_prefix("x-version: "))?;
        Some(line.to_owned())
    }

    pub(crate) fn wait_for(&self, version: &str) {
        support::until(&format!("version {version}"), || (self.version()? == version).then_some(()));
    }

    pub(crate) fn rewrite(&self, ports: &[u16], version: &str) {
        let text = bootstrap(self.agent.settings.admin_port(), ports, self.backend, version);
        write(&self.agent.settings.file("own.yaml"), &text);
    }

    pub(crate) fn count(&self, words: &str) -> usize {
        self.agent.log().matches(words).count()
    }

    pub(crate) fn wait_for_words(&self, words: &str, times: usize) {
        support::until(words, || (self.count(words) >= times).then_some(()));
    }

    /// By the number that Envoy chose.
    pub(crate) fn shared_memory(&self) -> String {
        let id: u64 =
            std::fs::read_to_string(self.agent.settings.file("envoy-base-id")).unwrap().parse().unwrap();
        format!("/dev/shm/envoy_shared_memory_{}", id * 10)
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.agent.pid())).unwrap().count()
    }
}

/// Nobody sees half of it.
pub(crate) fn write(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(&draft, path).unwrap();
}

fn bootstrap(admin: u16, ports: &[u16], backend: u16, version: &str) -> String {
    let types = "type.googleapis.com/envoy.extensions.filters";
    let listener = |port: &u16| {
        format!(
            "  - name: l{port}
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            response_headers_to_add: [{{header: {{key: x-version, value: '{version}'}}}}]
            virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: app}}}}]}}]
          http_filters: [{{name: envoy.filters.http.router, typed_config: {{'@type': {types}.http.router.v3.Router}}}}]
"
        )
    };
    let listeners: String = ports.iter().map(listener).collect();
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
{listeners}  clusters:
  - name: app
    type: STATIC
    load_assignment:
      cluster_name: app
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]}}]
"
    )
}
