use clap::ArgAction;
use pilot_base::{parse_bool, parse_span};
use std::time::Duration;

/// Have the kernel hand a workload's traffic to its proxy. Each flag is also an environment variable: upper case, with _
/// for -; a flag wins over its variable
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RedirectArgs {
    /// Port of the proxy for traffic that leaves; has no environment variable [default: 15001]
    #[arg(short = 'p', long, value_name = "PORT")]
    pub(super) envoy_port: Option<String>,
    /// Port of the proxy for traffic that arrives [default: 15006]
    #[arg(short = 'z', long, value_name = "PORT")]
    pub(super) inbound_capture_port: Option<String>,
    /// Port of tunnels, which is never redirected [default: 15008]
    #[arg(short = 'e', long, value_name = "PORT")]
    pub(super) inbound_tunnel_port: Option<String>,
    /// Users whose traffic is not redirected: those the proxy runs as [default: that of ENVOY_USER, or 1337]
    #[arg(short = 'u', long, value_name = "UID,…")]
    pub(super) proxy_uid: Option<String>,
    /// Groups whose traffic is not redirected [default: as --proxy-uid]
    #[arg(short = 'g', long, value_name = "GID,…")]
    pub(super) proxy_gid: Option<String>,
    /// How traffic that arrives is redirected: REDIRECT or TPROXY [default: REDIRECT]
    #[arg(short = 'm', long, value_name = "MODE")]
    pub(super) istio_inbound_interception_mode: Option<String>,
    /// Ports whose arriving traffic is redirected: a list, * for all, or nothing
    #[arg(short = 'b', long, value_name = "PORT,…")]
    pub(super) istio_inbound_ports: Option<String>,
    /// Ports left out when all arriving traffic is redirected
    #[arg(short = 'd', long, value_name = "PORT,…")]
    pub(super) istio_local_exclude_ports: Option<String>,
    /// Network interfaces whose traffic is left alone, both ways
    #[arg(short = 'c', long, value_name = "NAME,…")]
    pub(super) istio_exclude_interfaces: Option<String>,
    /// Ranges of addresses to which leaving traffic is redirected: a list, * for all, or nothing
    #[arg(short = 'i', long, value_name = "CIDR,…")]
    pub(super) istio_service_cidr: Option<String>,
    /// Ranges of addresses left out of those
    #[arg(short = 'x', long, value_name = "CIDR,…")]
    pub(super) istio_service_exclude_cidr: Option<String>,
    /// Ports to which leaving traffic is redirected, whatever its address
    #[arg(short = 'q', long, value_name = "PORT,…")]
    pub(super) istio_outbound_ports: Option<String>,
    /// Ports to which leaving traffic is not redirected
    #[arg(short = 'o', long, value_name = "PORT,…")]
    pub(super) istio_local_outbound_ports_exclude: Option<String>,
    /// Interfaces of virtual machines, whose arriving traffic is treated as leaving
    #[arg(short = 'k', long, value_name = "NAME,…")]
    pub(super) kube_virt_interfaces: Option<String>,
    /// Mark on packets for TPROXY [default: 1337]
    #[arg(short = 't', long, value_name = "NUMBER")]
    pub(super) istio_inbound_tproxy_mark: Option<String>,
    /// Routing table for marked packets [default: 133]
    #[arg(short = 'r', long, value_name = "NUMBER")]
    pub(super) istio_inbound_tproxy_route_table: Option<String>,
    /// Say what would be done and change nothing; into the file that DRY_RUN_FILE_PATH names, or to standard output
    #[arg(short = 'n', long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) dry_run: Option<bool>,
    /// Port that --run-validation connects to [default: 15002]
    #[arg(long, value_name = "PORT")]
    pub(super) iptables_probe_port: Option<String>,
    /// Longest time --run-validation may take [default: 5s]
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    pub(super) probe_timeout: Option<Duration>,
    /// Leave the rules as they are
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) skip_rule_apply: Option<bool>,
    /// Try whether a connection is redirected; the status is 126 if not. Must run as the proxy's user
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) run_validation: Option<bool>,
    /// Redirect DNS to the agent on port 15053; the variable ISTIO_META_DNS_CAPTURE says the same
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) redirect_dns: Option<bool>,
    /// Drop packets that belong to no connection; the variable INVALID_DROP says the same
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) drop_invalid: Option<bool>,
    /// Redirect both families where a machine has both; the variable ISTIO_DUAL_STACK says the same
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) dual_stack: Option<bool>,
    /// With --redirect-dns: take all that goes to port 53, not only what goes to the servers in /etc/resolv.conf
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) capture_all_dns: Option<bool>,
    /// Network namespace to work in, as a path; by default the one that this runs in
    #[arg(long, value_name = "FILE")]
    pub(super) network_namespace: Option<String>,
    /// The file system is the node's: use the namespace's file for iptables' lock instead of the node's
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) cni_mode: Option<bool>,
    /// Replace rules of an earlier run that differ; without it they are an error
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) reconcile: Option<bool>,
    /// Take the rules away
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) cleanup_only: Option<bool>,
    /// Apply the rules even where they seem to be in place
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) force_apply: Option<bool>,
    /// Use nftables themselves instead of iptables
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_bool)]
    pub(super) native_nftables: Option<bool>,
    /// Which iptables to use: legacy or nft [default: legacy if it has rules, else nft]
    #[arg(long, value_name = "KIND")]
    pub(super) force_iptables_binary: Option<String>,
}

impl RedirectArgs {
    pub(super) fn cleaning(self) -> Self {
        Self { cleanup_only: Some(true), ..self }
    }
}
