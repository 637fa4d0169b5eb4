//! What Marathon's REST interface answers, as far as it is used.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort, Registration, RegistryOptions};
use pilot_source_http::parts;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub(crate) struct Apps {
    /// Each is read by itself.
    pub(crate) apps: Vec<Value>,
}

#[derive(Deserialize)]
pub(crate) struct One {
    pub(crate) app: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct App {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    tasks: Value,
    #[serde(default)]
    health_checks: Vec<Value>,
    #[serde(default)]
    port_definitions: Vec<PortDefinition>,
    #[serde(default)]
    container: Option<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PortDefinition {
    port: u32,
    name: Option<String>,
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    port_mappings: Option<Vec<PortMapping>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PortMapping {
    container_port: u32,
    service_port: u32,
    name: Option<String>,
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    id: String,
    host: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    ports: Vec<u32>,
    #[serde(default)]
    ip_addresses: Vec<IpAddress>,
    #[serde(default)]
    health_check_results: Vec<HealthResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IpAddress {
    ip_address: String,
}

#[derive(Deserialize)]
struct HealthResult {
    #[serde(default)]
    alive: bool,
}

/// What an event is about, wherever it says so.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventData {
    app_id: Option<String>,
    /// What newer events about one instance say in its place.
    run_spec_id: Option<String>,
    app_definition: Option<Defined>,
}

#[derive(Deserialize)]
struct Defined {
    id: String,
}

impl EventData {
    pub(crate) fn app(self) -> Option<String> {
        self.app_id.or(self.run_spec_id).or(self.app_definition.map(|app| app.id))
    }
}

fn parts_of(id: &str) -> impl DoubleEndedIterator<Item = &str> {
    id.split('/').filter(|part| !part.is_empty())
}

/// An id as Marathon writes it: `/shop/cart`.
pub(crate) fn whole(id: &str) -> String {
    parts_of(id).map(|part| format!("/{part}")).collect()
}

/// The name of the service of an app, which no other has: ids have no underscores.
pub(crate) fn name(id: &str) -> String {
    parts_of(id).collect::<Vec<_>>().join("_")
}

/// As Mesos-DNS says it: `/shop/cart` is `cart-shop`, and so is `/cart-shop`.
pub(crate) fn host_name(id: &str) -> String {
    parts_of(id).rev().collect::<Vec<_>>().join("-")
}

/// Which app it is; nothing if it has no form that could be read.
pub(crate) fn app_id(app: &Value) -> Option<&str> {
    app["id"].as_str()
}

/// An app as a service; nothing if it has no form that could be read.
pub(crate) fn registration(app: Value, options: &RegistryOptions) -> Option<Registration> {
    let id = app_id(&app)?;
    let (name, hosts) = (name(id), vec![options.host(&host_name(id))]);
    let mut registration = Registration { name, hosts, ..Registration::default() };
    let app: App = match serde_json::from_value(app) {
        Ok(app) => app,
        Err(why) => {
            registration.unreadable.push(("app".to_owned(), why.to_string()));
            return Some(registration);
        }
    };
    let declared = ports(&app);
    for (i, task) in parts::<Task>(app.tasks).into_iter().enumerate() {
        match task {
            Ok(task) => {
                let is_unhealthy = !is_well(&task, app.health_checks.len());
                registration.instances.push(instance(task, &declared, (&app.labels, is_unhealthy)));
            }
            Err(why) => registration.unreadable.push((i.to_string(), why)),
        }
    }
    Some(registration)
}

/// A port as the app declares it: with that of the container, where the task has an address of its own.
struct Declared {
    container_port: Option<u32>,
    port: InstancePort,
}

fn ports(app: &App) -> Vec<Declared> {
    let port = |name: &Option<String>, service: u32, labels: &BTreeMap<String, String>| InstancePort {
        name: name.clone().unwrap_or_default(),
        number: 0,
        protocol: labels.get("protocol").cloned().unwrap_or_default(),
        service_port: (service != 0).then_some(service),
    };
    let mapped = app.container.as_ref().and_then(|container| container.port_mappings.as_ref());
    match mapped {
        Some(mappings) => {
            let each = mappings.iter().map(|mapping| Declared {
                container_port: (mapping.container_port != 0).then_some(mapping.container_port),
                port: port(&mapping.name, mapping.service_port, &mapping.labels),
            });
            each.collect()
        }
        None => {
            let each = app.port_definitions.iter().map(|definition| Declared {
                container_port: None,
                port: port(&definition.name, definition.port, &definition.labels),
            });
            each.collect()
        }
    }
}

/// It runs, and where its health is looked at it has been found well by all who looked.
fn is_well(task: &Task, checks: usize) -> bool {
    let results = &task.health_check_results;
    let well = results.iter().all(|result| result.alive) && (checks == 0 || !results.is_empty());
    task.state == "TASK_RUNNING" && well
}

fn instance(
    task: Task,
    declared: &[Declared],
    (labels, is_unhealthy): (&BTreeMap<String, String>, bool),
) -> Instance {
    // A task with a host port is reached at its host; one without at its own address.
    let own = task.ip_addresses.into_iter().next().filter(|_| task.ports.is_empty()).map(|ip| ip.ip_address);
    let at_host = task.ports.iter().enumerate().map(|(i, number)| {
        let port = declared.get(i).map(|declared| declared.port.clone()).unwrap_or_default();
        InstancePort { number: *number, ..port }
    });
    let at_own = declared.iter().filter_map(|declared| {
        Some(InstancePort { number: declared.container_port?, ..declared.port.clone() })
    });
    let ports = if own.is_some() { at_own.collect() } else { at_host.collect() };
    let address = own.unwrap_or(task.host);
    Instance { id: task.id, address, ports, metadata: labels.clone(), is_unhealthy, ..Instance::default() }
}

#[cfg(test)]
mod tests {
    use pilot_source::RegistryOptions;

    use super::{EventData, registration};
    use serde_json::json;

    #[test]
    fn events_say_in_several_ways_which_app_they_are_about() {
        let said = |data: serde_json::Value| serde_json::from_value::<EventData>(data).unwrap().app();
        assert_eq!(said(json!({"appId": "/shop", "taskStatus": "TASK_RUNNING"})).as_deref(), Some("/shop"));
        let changed = json!({"instanceId": "shop.instance-1", "condition": "Running", "runSpecId": "/shop"});
        assert_eq!(said(changed).as_deref(), Some("/shop"));
        assert_eq!(said(json!({"appDefinition": {"id": "/shop"}})).as_deref(), Some("/shop"));
        assert_eq!(said(json!({"eventType": "event_stream_attached"})), None);
    }

    #[test]
    fn tasks_are_instances_at_their_host_or_at_their_own_address() {
        let app = |task: serde_json::Value| {
            json!({"id": "/shop/cart", "labels": {"version": "v1"}, "healthChecks": [{}], "tasks": [task, 7],
                "container": {"portMappings": [{"containerPort": 8080, "servicePort": 10001, "labels": {"protocol": "http"}}]}})
        };
        let host = json!({"id": "t1", "host": "10.0.0.1", "state": "TASK_RUNNING", "ports": [31000],
            "healthCheckResults": [{"alive": true}]});
        let options = RegistryOptions::new("marathon", "marathon.mesos");
        let read = registration(app(host), &options).unwrap();
        let instance = &read.instances[0];
        assert_eq!(
            (read.name.as_str(), read.hosts[0].as_str(), read.unreadable.len(), instance.is_unhealthy),
            ("shop_cart", "cart-shop.marathon.mesos", 1, false)
        );
        let port = &instance.ports[0];
        assert_eq!(
            (instance.address.as_str(), port.number, port.service_port),
            ("10.0.0.1", 31000, Some(10001))
        );
        let own = json!({"id": "t2", "host": "10.0.0.1", "state": "TASK_RUNNING", "ipAddresses": [{"ipAddress": "9.0.0.7"}]});
        let read = registration(app(own), &options).unwrap();
        let instance = &read.instances[0];
        assert_eq!(
            (instance.address.as_str(), instance.ports[0].number, instance.is_unhealthy),
            ("9.0.0.7", 8080, true)
        );
    }
}
