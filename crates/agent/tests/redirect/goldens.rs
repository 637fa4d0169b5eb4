//! Istio's own examples of rules, byte for byte. They come with Istio's module at test time; `PILOT_ISTIO_MODULE` says
//! where it lies.

use std::path::PathBuf;

use super::support::{self, Alone};

/// What an example was made with, beside the defaults.
struct Case {
    name: &'static str,
    flags: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// The machine's only address.
    address: &'static str,
    /// What its resolver is told.
    resolver: &'static str,
}

const V4: &str = "10.1.2.3/32";
const V6: &str = "fd00::7/128";
const LOCAL_SERVER: &str = "nameserver 127.0.0.53\n";

const fn case(name: &'static str, flags: &'static str) -> Case {
    Case { name, flags, variables: &[], address: V4, resolver: "" }
}

const fn v6(name: &'static str, flags: &'static str) -> Case {
    Case { address: V6, ..case(name, flags) }
}

const CASES: [Case; 27] = [
    v6("ipv6-empty-inbound-ports", ""),
    Case {
        resolver: LOCAL_SERVER,
        ..case("ip-range", "-x 1.1.0.0/16 -i 9.9.0.0/16 --redirect-dns -g 1,2 -u 3,4")
    },
    Case {
        resolver: LOCAL_SERVER,
        ..v6("tproxy", "-m TPROXY -b * -x 1.1.0.0/16 -i 9.9.0.0/16 --redirect-dns -c not-istio-nic")
    },
    v6("ipv6-inbound-ports", "-b 4000,5000"),
    v6("ipv6-virt-interfaces", "-b 4000,5000 -k eth0,eth1"),
    v6("ipv6-ipnets", "-b 4000,5000 -d 6000,7000, -k eth0,eth1 -x 2001:db8::/32 -i 2001:db8::/32"),
    v6(
        "ipv6-uid-gid",
        "-b 4000,5000 -d 6000,7000 -k eth0,eth1 -g 1,2 -u 3,4 -x 2001:db8::/32 -i 2001:db8::/32",
    ),
    v6("ipv6-outbound-ports", "-q 32000,31000"),
    case("empty", ""),
    case("kube-virt-interfaces", "-k eth1,eth2 -i *"),
    case("ipnets", "-i 10.0.0.0/8"),
    case("ipnets-with-kube-virt-interfaces", "-k eth1,eth2 -i 10.0.0.0/8"),
    case("inbound-ports-include", "-b 32000,31000"),
    case("inbound-ports-wildcard", "-b *"),
    case("inbound-ports-tproxy", "-b 32000,31000 -m TPROXY"),
    case("inbound-ports-wildcard-tproxy", "-b * -m TPROXY"),
    Case {
        resolver: "nameserver 127.0.0.53\nnameserver ::127.0.0.53\n",
        ..v6("dns-uid-gid", "--redirect-dns -g 1,2 -u 3,4")
    },
    v6("ipv6-dns-uid-gid", "--redirect-dns -g 1,2 -u 3,4"),
    Case { variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS", "java,202")], ..case("outbound-owner-groups", "") },
    Case {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "888,ftp")],
        ..case("outbound-owner-groups-exclude", "")
    },
    Case {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS", "java,202"), ("ISTIO_META_DNS_CAPTURE", "true")],
        ..v6("ipv6-dns-outbound-owner-groups", "")
    },
    Case {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "888,ftp"), ("REDIRECT_DNS", "true")],
        ..v6("ipv6-dns-outbound-owner-groups-exclude", "")
    },
    case("outbound-ports-include", "-q 32000,31000"),
    Case {
        resolver: LOCAL_SERVER,
        ..case("loopback-outbound-iprange", "-i 127.1.2.3/32 --redirect-dns -g 1,2 -u 3,4")
    },
    case("basic-exclude-nic", "-c not-istio-nic"),
    Case { variables: &[("INVALID_DROP", "true")], ..case("drop-invalid", "") },
    Case {
        variables: &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.1/8")],
        ..case("host-ipv4-loopback-cidr", "")
    },
];

/// nftables have one more.
const ONLY_NFT: Case = case("inbound-ports-empty-tproxy", "-m TPROXY");

fn same<'a>(folder: &str, flag: &str, cases: impl Iterator<Item = &'a Case>, least: usize) {
    let (Some(module), Some(_)) = (support::module(), support::root()) else { return };
    let folder: PathBuf = module.join(folder);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for case in cases {
        let alone = Alone { address: case.address, resolver: case.resolver };
        let written = alone.dry_run(&format!("{flag} {}", case.flags), case.variables);
        let golden = std::fs::read_to_string(folder.join(format!("{}.golden", case.name))).unwrap();
        if written.trim_end() != golden.trim_end() {
            wrong.push(format!("{}:\n{}", case.name, support::difference(&golden, &written)));
        }
        seen += 1;
    }
    let there = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!((seen, there), (least, least), "examples came or went");
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_rules_for_iptables_are_istios() {
    same("tools/istio-iptables/pkg/capture/testdata", "", CASES.iter(), CASES.len());
}

#[test]
fn the_rules_for_nftables_are_istios() {
    let cases = CASES.iter().chain([&ONLY_NFT]);
    same("tools/istio-nftables/pkg/capture/testdata", "--native-nftables", cases, CASES.len() + 1);
}
