use pilot_model::{Object, Protocol, Resolution, ServiceEntry};

use crate::registration::{Entries, Instance, InstancePort, Registration, RegistryOptions};

fn instance(id: &str, address: &str, port: u32, metadata: &[(&str, &str)]) -> Instance {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let ports = vec![InstancePort { number: port, ..InstancePort::default() }];
    Instance { id: id.into(), address: address.into(), ports, metadata, ..Instance::default() }
}

fn read_all(name: &str, instances: Vec<Instance>) -> (Vec<ServiceEntry>, Vec<String>) {
    let registration = Registration { name: name.into(), instances, ..Registration::default() };
    let Entries { made, issues, .. } =
        RegistryOptions::new("consul", "service.consul").entries(&registration);
    let entries = made.into_iter().filter_map(|made| match made.object {
        Some(Object::ServiceEntry(config)) => Some(config.spec),
        _ => None,
    });
    (entries.collect(), issues.iter().map(ToString::to_string).collect())
}

fn read(name: &str, instances: Vec<Instance>) -> (Option<ServiceEntry>, Vec<String>) {
    let (mut entries, issues) = read_all(name, instances);
    assert!(entries.len() < 2, "{entries:?}");
    (entries.pop(), issues)
}

fn addresses(entry: &ServiceEntry) -> Vec<&str> {
    entry.endpoints.iter().map(|endpoint| endpoint.address.as_str()).collect()
}

#[test]
fn metadata_become_labels_and_settings() {
    let settings = [
        ("version", "v1"),
        ("protocol", "http"),
        ("istio-service-port", "80"),
        ("istio-service-account", "reviews"),
        ("istio-locality", "r1/z1"),
        ("istio-network", "n1"),
        ("istio-weight", "7"),
    ];
    let (entry, issues) = read("reviews", vec![instance("a", "10.0.0.1", 21_000, &settings)]);
    let entry = entry.unwrap();
    assert_eq!((issues.len(), entry.hosts[0].as_str()), (0, "reviews.service.consul"));
    assert_eq!((entry.ports[0].number, entry.ports[0].protocol), (80, Protocol::Http));
    let endpoint = &entry.endpoints[0];
    assert_eq!(endpoint.ports["port-80"], 21_000);
    assert_eq!(endpoint.labels.get("version").unwrap(), "v1");
    let said = (&*endpoint.service_account, &*endpoint.locality, &*endpoint.network, endpoint.weight);
    assert_eq!(said, ("reviews", "r1/z1", "n1", 7));
}

#[test]
fn every_instance_serves_every_port_with_its_own() {
    let (entry, _) =
        read("reviews", vec![instance("a", "10.0.0.1", 9080, &[]), instance("b", "10.0.0.2", 9081, &[])]);
    let entry = entry.unwrap();
    assert_eq!(entry.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [9080, 9081]);
    for (endpoint, port) in entry.endpoints.iter().zip([9080, 9081]) {
        assert!(["port-9080", "port-9081"].iter().all(|name| endpoint.ports[*name] == port));
    }
}

#[test]
fn what_is_said_of_all_services_is_said_of_the_first_port_of_each_instance() {
    let port = |name: &str, number| InstancePort { name: name.into(), number, ..InstancePort::default() };
    let mut two = instance("a", "10.0.0.1", 0, &[]);
    two.ports = vec![port("", 8080), port("secure", 8443)];
    let set = instance("c", "10.0.0.3", 9082, &[("istio-service-port", "81")]);
    let instances = vec![two, instance("b", "10.0.0.2", 9081, &[]), set];
    let registration = Registration { name: "reviews".into(), instances, ..Registration::default() };
    let options =
        RegistryOptions { service_port: Some(80), ..RegistryOptions::new("eureka", "service.eureka") };
    let made = options.entries(&registration).made.remove(0).object;
    let Some(Object::ServiceEntry(config)) = made else { panic!("{made:?}") };
    assert_eq!(config.spec.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [80, 81, 8443]);
    let behind: Vec<u16> = config.spec.endpoints.iter().map(|endpoint| endpoint.ports["port-80"]).collect();
    assert_eq!(behind, [8080, 9081, 9082]);
}

#[test]
fn ports_without_names_are_told_apart_by_where_they_are_called() {
    let port = |number, service_port| InstancePort { number, service_port, ..InstancePort::default() };
    let mut made_up = instance("a", "10.0.0.1", 0, &[]);
    made_up.ports = vec![port(31_001, Some(10_001)), port(31_002, Some(10_002))];
    let mut plain = instance("b", "10.0.0.2", 0, &[]);
    plain.ports = vec![port(10_001, None), port(10_002, None)];
    let (entry, issues) = read("shop", vec![made_up, plain]);
    let entry = entry.unwrap();
    assert_eq!(issues, Vec::<String>::new());
    let listens = |at: usize| ["port-10001", "port-10002"].map(|name| entry.endpoints[at].ports[name]);
    assert_eq!((listens(0), listens(1)), ([31_001, 31_002], [10_001, 10_002]));
}

#[test]
fn what_is_wrong_is_told_and_the_rest_goes_on() {
    let long = "x".repeat(1 << 20);
    let (entry, issues) = read(
        "reviews",
        vec![
            instance("a", "10.0.0.1", 9080, &[("notes", &long)]),
            instance("b", "no host", 9080, &[]),
            instance("c", "10.0.0.3", 99_999, &[]),
            instance("d", "10.0.0.4", 9080, &[]),
            instance("d", "10.0.0.5", 9080, &[]),
            instance("e", &long, 9080, &[]),
        ],
    );
    let addresses: Vec<String> = entry.unwrap().endpoints.iter().map(|e| e.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.5"]);
    let all = issues.join("\n");
    assert!(all.len() < 2000, "{all}");
    for told in [
        "consul: error: ServiceEntry default/reviews.consul: instances[d]: this id is registered twice",
        "\"no host\" is neither an IP nor a host name",
        "99999 is not a port",
        "instances[a]: 1 metadata are no labels",
    ] {
        assert!(all.contains(told), "{told} is not told in:\n{all}");
    }
    let (entry, issues) = read("no host!", vec![instance("a", "10.0.0.1", 9080, &[])]);
    assert!(
        entry.is_none() && issues[0].contains("\"no host!.service.consul\" is not a host name"),
        "{issues:?}"
    );
}

#[test]
fn ill_instances_keep_the_service_and_names_are_looked_up() {
    let mut ill = instance("a", "10.0.0.1", 9080, &[]);
    ill.is_unhealthy = true;
    let (entry, _) = read("reviews", vec![ill]);
    let entry = entry.unwrap();
    assert_eq!((entry.ports.len(), entry.endpoints.len()), (1, 0));
    let (entry, _) = read("reviews", vec![instance("a", "host.example.com", 9080, &[])]);
    assert_eq!(entry.unwrap().resolution, Resolution::Dns);
}

#[test]
fn of_made_up_ports_not_too_many_are_used() {
    let many = (0..40).map(|i| instance(&format!("i{i:02}"), "10.0.0.1", 20_000 + i, &[])).collect();
    let (entry, issues) = read("reviews", many);
    assert_eq!(entry.unwrap().ports.len(), 16);
    assert!(issues[0].contains("istio-service-port"), "{issues:?}");
}

#[test]
fn an_instance_with_a_host_of_its_own_leaves_its_siblings_where_they_are() {
    let own = instance("b", "10.0.0.2", 9080, &[("istio-host", "Other.example.com")]);
    let wrong = instance("c", "10.0.0.3", 9080, &[("istio-host", "no host!")]);
    let (entries, issues) = read_all("reviews", vec![instance("a", "10.0.0.1", 9080, &[]), own, wrong]);
    let told: Vec<_> = entries.iter().map(|entry| (entry.hosts[0].as_str(), addresses(entry))).collect();
    assert_eq!(
        told,
        [("other.example.com", vec!["10.0.0.2"]), ("reviews.service.consul", vec!["10.0.0.1", "10.0.0.3"])]
    );
    assert!(
        issues.len() == 1 && issues[0].contains("instances[c].host: \"no host!\" is not a host name"),
        "{issues:?}"
    );
}

#[test]
fn a_name_among_addresses_does_not_have_all_of_them_looked_up() {
    let by_address = |id: &str| instance(id, "10.0.0.1", 9080, &[]);
    let by_name = |id: &str| instance(id, "host.example.com", 9080, &[]);
    let (entry, issues) = read("reviews", vec![by_address("a"), by_address("b"), by_name("c")]);
    let entry = entry.unwrap();
    assert_eq!((entry.resolution, entry.endpoints.len()), (Resolution::Static, 2));
    assert!(
        issues.len() == 1 && issues[0].contains("instances[c]: \"host.example.com\" is a name"),
        "{issues:?}"
    );
    // One address among names takes nobody away: proxies can look that up too.
    let (entry, issues) = read("reviews", vec![by_address("a"), by_name("b"), by_name("c")]);
    let entry = entry.unwrap();
    assert_eq!((entry.resolution, entry.endpoints.len(), issues.len()), (Resolution::Dns, 3, 0));
}

#[test]
fn weights_have_limits_and_none_means_that_it_is_not_called() {
    let weighed = |id: &str, weight: &str| instance(id, "10.0.0.1", 9080, &[("istio-weight", weight)]);
    let all = vec![weighed("a", "0"), weighed("b", "7"), weighed("c", "99999999999"), weighed("d", "much")];
    let (entry, issues) = read("reviews", all);
    let weights: Vec<u32> = entry.unwrap().endpoints.iter().map(|endpoint| endpoint.weight).collect();
    assert_eq!(weights, [7, 65_535, 0]);
    let all = issues.join("\n");
    assert!(
        all.contains("instances[c]: the weight 4294967295 counts as 65535") && all.contains("\"much\""),
        "{all}"
    );
}
