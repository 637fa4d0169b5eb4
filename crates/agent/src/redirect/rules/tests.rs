use super::rules;
use crate::Env;
use crate::redirect::args::RedirectArgs;
use crate::redirect::config::Config;
use crate::redirect::machine::Machine;
use crate::redirect::rule::{Family, Rule};
use crate::redirect::{iptables, nft};

fn of(args: &RedirectArgs, addresses: &[&str]) -> Vec<Rule> {
    let machine = Machine::with(addresses, "", "");
    rules(&Config::new(args, &Env::default(), &machine).unwrap())
}

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

#[test]
fn a_machine_of_version_4_has_no_rule_of_version_6() {
    let rules = of(&RedirectArgs::default(), &["10.0.0.1"]);
    assert_eq!(iptables::restore(&rules, Family::V4).matches("127.0.0.6/32").count(), 1);
    assert!(!iptables::restore(&rules, Family::V4).contains("::"));
    assert!(!nft::transaction(&rules).contains("ip6"));
}

#[test]
fn ranges_of_ports_and_wildcards_of_interfaces_are_written_in_each_ones_way() {
    let args = RedirectArgs {
        istio_inbound_ports: text("8000-8080"),
        istio_exclude_interfaces: text("eth+"),
        ..RedirectArgs::default()
    };
    let rules = of(&args, &["10.0.0.1"]);
    let iptables = iptables::restore(&rules, Family::V4);
    assert!(iptables.contains("--dport 8000:8080 ") && iptables.contains("-i eth+ "), "{iptables}");
    let nft = nft::transaction(&rules);
    assert!(nft.contains("dport 8000-8080 ") && nft.contains("iifname \"eth*\" "), "{nft}");
}

#[test]
fn all_names_are_redirected_without_a_server() {
    let args =
        RedirectArgs { redirect_dns: Some(true), capture_all_dns: Some(true), ..RedirectArgs::default() };
    let rules = of(&args, &["fd00::1"]);
    for family in [Family::V4, Family::V6] {
        let text = iptables::restore(&rules, family);
        for line in [
            "-A ISTIO_OUTPUT_DNS -p udp --dport 53 -j REDIRECT --to-port 15053\n",
            "-A ISTIO_OUTPUT_DNS -p tcp --dport 53 -j REDIRECT --to-ports 15053\n",
            "-A ISTIO_OUTPUT_DNS -p udp --dport 53 -j CT --zone 2\n",
            "-A ISTIO_INBOUND -p udp --sport 53 -j CT --zone 1\n",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line}");
        }
    }
}

#[test]
fn every_rule_is_taken_away_by_its_own_words_or_with_its_chain() {
    let args = RedirectArgs {
        istio_inbound_ports: text("*"),
        istio_inbound_interception_mode: text("TPROXY"),
        istio_service_cidr: text("*"),
        kube_virt_interfaces: text("eth1"),
        ..RedirectArgs::default()
    };
    let rules = of(&args, &["fd00::1"]);
    let undo = iptables::undo(&rules, Family::V6);
    let undone = |call: String| undo.iter().any(|words| words.join(" ") == call);
    for words in iptables::checks(&rules, Family::V6) {
        let (table, chain) = (&words[1], &words[3]);
        let own = words.join(" ").replacen("-C", "-D", 1);
        assert!(undone(own) || undone(format!("-t {table} -X {chain}")), "{words:?}");
    }
}
