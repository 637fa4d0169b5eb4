use super::{Config, Dns, Families, Groups, InboundPorts, Mode, Ranges};
use crate::Env;
use crate::redirect::args::RedirectArgs;
use crate::redirect::machine::Machine;

fn machine() -> Machine {
    Machine::with(&["10.0.0.1"], "nameserver 10.9.9.9\n", "root:x:0:0::/:\nenvoy:x:77:78::/:\n")
}

fn config<const N: usize>(variables: [(&str, &str); N], args: &RedirectArgs) -> Result<Config, String> {
    Config::new(args, &Env::from(variables), &machine()).map_err(|error| error.to_string())
}

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

#[test]
fn without_a_word_nothing_is_redirected() {
    let config = config([], &RedirectArgs::default()).unwrap();
    assert_eq!((config.outbound_port, config.inbound_port, config.tunnel_port), (15001, 15006, 15008));
    assert_eq!((config.mark, config.route_table, config.mode), (1337, 133, Mode::Redirect));
    assert_eq!((&config.uids[..], &config.gids[..]), (&["1337".to_owned()][..], &["1337".to_owned()][..]));
    assert_eq!((config.inbound, config.outbound), (InboundPorts::Only(vec![]), Ranges::Only(vec![])));
    assert_eq!((config.groups, config.dns, config.families), (Groups::AllBut(vec![]), None, Families::V4));
}

#[test]
fn flags_win_over_variables_and_one_port_has_none() {
    let variables = [("ENVOY_PORT", "1"), ("INBOUND_CAPTURE_PORT", "2"), ("INBOUND_TUNNEL_PORT", "3")];
    let args = RedirectArgs { inbound_tunnel_port: text("4"), ..RedirectArgs::default() };
    let config = config(variables, &args).unwrap();
    assert_eq!((config.outbound_port, config.inbound_port, config.tunnel_port), (15001, 2, 4));
}

#[test]
fn the_proxys_user_is_looked_up_and_its_group_follows() {
    let config = config([("ENVOY_USER", "envoy")], &RedirectArgs::default()).unwrap();
    assert_eq!((config.uids, config.gids), (vec!["77".to_owned()], vec!["77".to_owned()]));
}

#[test]
fn names_are_asked_of_the_servers_in_the_file_or_of_any() {
    let dns = |resolver: &str, all: bool| {
        let args =
            RedirectArgs { redirect_dns: Some(true), capture_all_dns: Some(all), ..RedirectArgs::default() };
        Config::new(&args, &Env::default(), &Machine::with(&["10.0.0.1"], resolver, "")).unwrap().dns
    };
    let file = "# comment\nsearch a b\nnameserver 10.0.0.53\nnameserver fe80::1%eth0\nnameserver nonsense\n";
    let servers = Dns::Servers { v4: vec!["10.0.0.53".to_owned()], v6: vec!["fe80::1".to_owned()] };
    assert_eq!(dns(file, false), Some(servers));
    assert_eq!(dns(file, true), Some(Dns::All));
    assert_eq!(dns("", false), None);
    let other =
        config([("REDIRECT_DNS", "true"), ("ISTIO_META_DNS_CAPTURE", "false")], &RedirectArgs::default());
    assert_eq!(other.unwrap().dns, None);
}

#[test]
fn families_follow_the_machine() {
    let families = |addresses: &[&str], dual: bool| {
        let args = RedirectArgs { dual_stack: Some(dual), ..RedirectArgs::default() };
        Config::new(&args, &Env::default(), &Machine::with(addresses, "", "")).map(|config| config.families)
    };
    assert_eq!(families(&["10.0.0.1", "fd00::1"], false).unwrap(), Families::V4);
    assert_eq!(families(&["10.0.0.1", "fd00::1"], true).unwrap(), Families::Both);
    assert_eq!(families(&["fd00::1"], false).unwrap(), Families::Both);
    assert!(families(&[], false).is_err());
}

#[test]
fn groups_may_be_few_or_none() {
    let groups = |text: &str| {
        config([("ISTIO_OUTBOUND_OWNER_GROUPS", text)], &RedirectArgs::default()).map(|config| config.groups)
    };
    assert_eq!(groups("*"), Ok(Groups::AllBut(vec![])));
    assert_eq!(groups(""), Ok(Groups::Only(vec![])));
    let many: Vec<String> = (0..65).map(|group| group.to_string()).collect();
    assert!(groups(&many[..64].join(",")).is_ok());
    assert!(groups(&many.join(",")).unwrap_err().contains("65 groups are more than the 64"));
}

#[test]
fn nothing_that_ends_a_word_gets_into_a_rule() {
    for bad in ["1\n-A OUTPUT", "1 2", "-1", "a;b", "a\"b", "é"] {
        let uid = RedirectArgs { proxy_uid: text(bad), ..RedirectArgs::default() };
        let interface = RedirectArgs { istio_exclude_interfaces: text(bad), ..RedirectArgs::default() };
        assert!(config([], &uid).is_err() && config([], &interface).is_err(), "{bad:?}");
    }
    let many = ["1"; 5000].join(",");
    let args = RedirectArgs { istio_outbound_ports: Some(many), ..RedirectArgs::default() };
    assert!(config([], &args).unwrap_err().contains("at most 4096"));
}
