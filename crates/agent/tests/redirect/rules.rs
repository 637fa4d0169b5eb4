//! Rules in a real kernel: made, made again, replaced and taken away.

use super::support::{self, Alone, Space, said};

/// Each way into the kernel.
const BACK_ENDS: [&str; 3] =
    ["--force-iptables-binary=legacy", "--force-iptables-binary=nft", "--native-nftables"];
const ALL: &str = "-b * -d 15020 -i * -x 10.9.0.0/16 -c eth9 --redirect-dns --capture-all-dns --drop-invalid";

fn machine() -> Space {
    let space = Space::new("rules");
    space.must("ip addr add 10.1.2.3/32 dev lo");
    space.must("ip -6 addr add fd00::7/128 dev lo");
    space
}

/// Is anything of ours in the rules? Empty chains of the kernel's own may stay: programs make them by looking.
fn is_clean(rules: &str) -> bool {
    let rule = |line: &&str| line.starts_with("-A") || line.contains("counter");
    !rules.to_lowercase().contains("istio") && !rules.lines().any(|line| rule(&line))
}

#[test]
fn a_second_run_changes_nothing_and_cleaning_leaves_nothing() {
    let Some(()) = support::tools() else { return };
    for back_end in BACK_ENDS {
        for mode in ["REDIRECT", "TPROXY"] {
            let space = machine();
            let (routes, flags) = (space.routes(), format!("{back_end} {ALL} -m {mode} --dual-stack"));
            space.must_redirect(&flags);
            let (rules, new_routes) = (space.rules(), space.routes());
            assert!(rules.to_lowercase().contains("istio"), "{flags}: {rules}");
            assert_eq!(new_routes.contains("lookup 133"), mode == "TPROXY", "{flags}: {new_routes}");
            assert!(new_routes.contains("::6/128"), "{flags}: {new_routes}");
            space.must_redirect(&flags);
            assert_eq!(strip_handles(&space.rules()), strip_handles(&rules), "{flags}");
            assert_eq!(space.routes(), new_routes, "{flags}");
            space.must_redirect(&format!("{flags} --cleanup-only"));
            assert!(is_clean(&space.rules()), "{flags}: {}", space.rules());
            assert_eq!(space.routes(), routes, "{flags}");
        }
    }
}

/// nftables number their rules anew when they are replaced.
fn strip_handles(rules: &str) -> String {
    rules.lines().map(|line| line.split(" # handle").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

#[test]
fn rules_of_other_settings_are_replaced_only_when_asked() {
    let Some(()) = support::tools() else { return };
    for back_end in &BACK_ENDS[..2] {
        let space = machine();
        space.must("iptables-nft -t nat -A OUTPUT -p tcp --dport 123 -j ACCEPT");
        space.must_redirect(&format!("{back_end} -b 80 -i *"));
        let before = space.rules();
        let output = space.redirect(&format!("{back_end} -b 80,443 -i *"));
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("--reconcile"), "{}", said(&output));
        assert_eq!(space.rules(), before);
        let output = space.redirect(&format!("{back_end} -b 80 -i * --force-apply"));
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert_eq!(space.rules(), before);
        space.must_redirect(&format!("{back_end} -b 80,443 -i * --reconcile"));
        let after = space.rules();
        assert!(after.contains("443") && after.contains("123"), "{after}");
        assert!(!after.contains("DROP"), "the barrier is open again: {after}");
        space.must_redirect(&format!("{back_end} -b 80,443 -i *"));
        assert_eq!(space.rules(), after);
    }
}

#[test]
fn whoever_cleans_up_need_not_know_the_settings() {
    let Some(()) = support::tools() else { return };
    for back_end in BACK_ENDS {
        let space = machine();
        space.must_redirect(&format!(
            "{back_end} -b 80 -i * -u 5 --dual-stack --redirect-dns --capture-all-dns"
        ));
        let output = space.clean(back_end);
        assert!(output.status.success(), "{}", said(&output));
        assert!(is_clean(&space.rules()), "{back_end}: {}", space.rules());
    }
}

#[test]
fn a_probe_tells_whether_connections_are_redirected() {
    let Some(()) = support::tools() else { return };
    let space = machine();
    let flags = "--skip-rule-apply --run-validation --probe-timeout";
    let output = space.redirect_as_proxy(&format!("{flags} 100ms"));
    assert_eq!(output.status.code(), Some(126), "{}", said(&output));
    assert!(said(&output).contains("no connection to port 15002 was redirected"), "{}", said(&output));
    space.must_redirect("-b * -i *");
    let output = space.redirect_as_proxy(&format!("{flags} 60s"));
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn tables_that_are_not_needed_any_more_go() {
    let Some(()) = support::tools() else { return };
    let space = machine();
    space.must_redirect("--native-nftables -b * -i * --redirect-dns --capture-all-dns");
    assert!(space.rules().contains("istio-proxy-raw"));
    space.must_redirect("--native-nftables -b * -i *");
    assert!(!space.rules().contains("istio-proxy-raw"), "{}", space.rules());
}

#[test]
fn what_the_kernel_refuses_is_refused_as_a_whole() {
    let Some(()) = support::tools() else { return };
    for back_end in BACK_ENDS {
        let space = machine();
        let output = space.redirect(&format!("{back_end} {ALL} -m TPROXY --dual-stack -u no_such_user"));
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("no_such_user"), "{back_end}: {}", said(&output));
        assert!(is_clean(&space.rules()), "{back_end}: {}", space.rules());
    }
}

#[test]
fn legacy_rules_of_others_choose_legacy() {
    let Some(()) = support::tools() else { return };
    let space = machine();
    space.must("iptables-legacy -t filter -A INPUT -p tcp --dport 7 -j DROP");
    space.must_redirect("-b * -i *");
    assert!(space.must("iptables-legacy-save").contains("ISTIO_REDIRECT"));
    assert!(!space.must("nft list ruleset").contains("ISTIO"));
}

#[test]
fn another_namespace_can_be_named() {
    let Some(()) = support::tools() else { return };
    let (here, there) = (machine(), machine());
    let path = format!("/run/netns/{}", there.must("ip netns identify").trim());
    here.must_redirect(&format!("-b * -i * --cni-mode --network-namespace {path}"));
    assert!(is_clean(&here.rules()), "{}", here.rules());
    assert!(there.rules().contains("ISTIO_REDIRECT"), "{}", there.rules());
    let output = here.redirect("--network-namespace /no/such/file");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot enter the network namespace /no/such/file"), "{}", said(&output));
}

#[test]
fn mistakes_are_told_with_their_place_and_change_nothing() {
    let Some(()) = support::root() else { return };
    let alone = Alone { address: "10.1.2.3/32", resolver: "" };
    for (flags, variables, words) in [
        ("-p 0", &[][..], "--envoy-port: \"0\" is not a port"),
        ("-b 80,http", &[], "--istio-inbound-ports: \"http\" is not a port"),
        ("", &[("ISTIO_INBOUND_PORTS", "80:79")], "ISTIO_INBOUND_PORTS: \"80:79\" is not a port"),
        ("-i 10.0.0.0", &[], "--istio-service-cidr: \"10.0.0.0\" is not a range of addresses"),
        ("-i 10.0.0.0/33", &[], "\"10.0.0.0/33\" is not a range of addresses"),
        ("-x *", &[], "--istio-service-exclude-cidr: * leaves nothing to redirect"),
        ("-m NONE", &[], "\"NONE\" is not REDIRECT or TPROXY"),
        ("-u 13$(37)", &[], "is not a number or a name of a user or group"),
        ("-c a/b", &[], "is not a name of a network interface"),
        ("-t x -m TPROXY", &[], "--istio-inbound-tproxy-mark: \"x\" is not a number"),
        ("--force-iptables-binary both", &[], "\"both\" is not legacy or nft"),
        ("", &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "10.0.0.1/8")], "is not a range of the loopback"),
        ("--dry-run", &[("DRY_RUN_FILE_PATH", "/no/such/folder/plan")], "cannot write /no/such/folder/plan"),
    ] {
        let output = alone.run(flags, variables);
        assert_eq!(output.status.code(), Some(1), "{flags}: {}", said(&output));
        assert!(said(&output).contains(words), "{flags}: {}", said(&output));
    }
    let output = Alone { address: "", resolver: "" }.run("-n", &[]);
    assert!(said(&output).contains("bring its network up first"), "{}", said(&output));
}

#[test]
fn a_machine_without_the_programs_is_told_what_to_install() {
    let Some(()) = support::root() else { return };
    let alone = Alone { address: "10.1.2.3/32", resolver: "" };
    for flags in ["-b *", "-b * --native-nftables", "-b * --force-iptables-binary=legacy"] {
        let output = alone.run_without_programs(flags);
        assert_eq!(output.status.code(), Some(1), "{flags}: {}", said(&output));
        assert!(
            said(&output).contains("install it (packages iptables, nftables)"),
            "{flags}: {}",
            said(&output)
        );
    }
}
