//! Traffic of a workload that knows nothing of its proxy is handed to it by the kernel.
//!
//! ```text
//!   flags, environment ─┐
//!   addresses, resolver ┴► config ──► rules ─┬► iptables ──► apply ──► iptables-save, -restore
//!                                            └► nft ──────────────────► nft
//!                                      routes ──► netlink          or what a dry run writes down
//! ```
//!
//! `config` and `rules` are functions from values to values, and so are both forms of the rules.

mod apply;
mod args;
mod config;
mod iptables;
mod machine;
mod netlink;
mod nft;
mod probe;
mod routes;
mod rule;
mod rules;
mod state;
mod tools;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Env;
use apply::Intent;
pub(crate) use args::RedirectArgs;
use config::{Config, Families, Told};
use machine::Machine;
use probe::{Probe, Version};
use rule::Rule;
use tools::{DryRun, Kind, Real};

/// What tooling reads to know that redirection is not in place.
const NOT_REDIRECTED: u8 = 126;
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is to be done, beside the rules themselves.
struct Order {
    intent: Intent,
    dry_run: bool,
    native_nftables: bool,
    binary: Option<Kind>,
    lock_file: Option<String>,
}

/// Must run on one thread: a network namespace is entered by threads, not by processes.
pub(crate) fn run(args: &RedirectArgs, env: &Env) -> anyhow::Result<ExitCode> {
    let told = Told { env };
    let namespace = told.text(&args.network_namespace, "network-namespace", "").text;
    if !namespace.is_empty() {
        enter(&namespace).with_context(|| format!("cannot enter the network namespace {namespace}"))?;
    }
    let machine = Machine::read().context("cannot read the addresses of this machine")?;
    let config = Config::new(args, env, &machine)?;
    let order = order(args, &told, &namespace)?;
    let probe = probe(args, &told, &config, &machine)?;
    tracing::info!(?config, "redirection");
    if !told.flag(args.skip_rule_apply, "skip-rule-apply", None) {
        redirect(&config, &order, env)?;
    }
    if told.flag(args.run_validation, "run-validation", None) {
        if let Err(error) = probe.run() {
            tracing::error!(
                %error,
                "traffic of this workload is not redirected; if Istio CNI does that here, the pod came before it: delete the pod, so that it starts again"
            );
            return Ok(ExitCode::from(NOT_REDIRECTED));
        }
        tracing::info!("connections are redirected");
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes away what an earlier run did.
pub(crate) fn clean(args: &RedirectArgs, env: &Env) -> anyhow::Result<ExitCode> {
    run(&args.clone().cleaning(), env)
}

fn enter(namespace: &str) -> anyhow::Result<()> {
    let file = File::open(namespace)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn order(args: &RedirectArgs, told: &Told<'_>, namespace: &str) -> anyhow::Result<Order> {
    let flag = |value, name| told.flag(value, name, None);
    let binary = told.text(&args.force_iptables_binary, "force-iptables-binary", "");
    let intent = match (
        flag(args.cleanup_only, "cleanup-only"),
        flag(args.reconcile, "reconcile"),
        flag(args.force_apply, "force-apply"),
    ) {
        (true, _, _) => Intent::Cleanup,
        (false, true, _) => Intent::Reconcile,
        (false, false, true) => Intent::Force,
        (false, false, false) => Intent::Apply,
    };
    let pods_lock = flag(args.cni_mode, "cni-mode") && !namespace.is_empty();
    Ok(Order {
        intent,
        dry_run: flag(args.dry_run, "dry-run"),
        native_nftables: flag(args.native_nftables, "native-nftables"),
        binary: match binary.text.as_str() {
            "" => None,
            "legacy" => Some(Kind::Legacy),
            "nft" => Some(Kind::Nft),
            _ => bail!(binary.wrong("legacy or nft")),
        },
        lock_file: pods_lock.then(|| namespace.to_owned()),
    })
}

fn probe(args: &RedirectArgs, told: &Told<'_>, config: &Config, machine: &Machine) -> anyhow::Result<Probe> {
    let v4 = machine.addresses.first().is_some_and(std::net::IpAddr::is_ipv4);
    Ok(Probe {
        ports: [config.outbound_port, config.inbound_port],
        port: told.text(&args.iptables_probe_port, "iptables-probe-port", "15002").port()?,
        timeout: args.probe_timeout.or_else(|| told.env.span("PROBE_TIMEOUT")).unwrap_or(PROBE_TIMEOUT),
        version: if v4 { Version::V4 } else { Version::V6 },
    })
}

fn redirect(config: &Config, order: &Order, env: &Env) -> anyhow::Result<()> {
    let rules = rules::rules(config);
    match (order.dry_run, order.native_nftables) {
        (true, true) => write_plan(&nft_text(&rules, order.intent), env),
        (true, false) => {
            let mut tools = DryRun::default();
            apply::apply(config, &rules, order.intent, &mut tools)?;
            write_plan(&tools.lines.iter().map(|line| format!("{line}\n")).collect::<String>(), env)
        }
        (false, native) => {
            // Without rules nothing uses the routes, so they may be there first and stay last.
            if order.intent != Intent::Cleanup {
                routes::set(config).context("cannot set routes; that needs the capability NET_ADMIN")?;
            }
            let done = if native { with_nft(&rules, order) } else { with_iptables(config, &rules, order) };
            if order.intent == Intent::Cleanup {
                routes::remove(config)
                    .context("cannot remove routes; that needs the capability NET_ADMIN")?;
            }
            done
        }
    }
}

fn with_iptables(config: &Config, rules: &[Rule], order: &Order) -> anyhow::Result<()> {
    let tools = Real::find(order.binary, order.lock_file.clone())?;
    let mut tools = match config.families {
        Families::V4 => tools,
        Families::Both => tools.needing_v6()?,
    };
    Ok(apply::apply(config, rules, order.intent, &mut tools)?)
}

/// A transaction replaces what is in our tables, so it needs no look at it.
fn with_nft(rules: &[Rule], order: &Order) -> anyhow::Result<()> {
    let mut text = nft_text(rules, order.intent);
    if order.intent != Intent::Cleanup {
        text.push_str(&nft::removal_of_unused(rules, &tools::nft_tables()?));
    }
    tracing::info!(transaction = text, "nftables");
    tools::nft(&text).context("nothing was changed")
}

fn nft_text(rules: &[Rule], intent: Intent) -> String {
    if intent == Intent::Cleanup { nft::removal() } else { nft::transaction(rules) }
}

fn write_plan(text: &str, env: &Env) -> anyhow::Result<()> {
    match env.get("DRY_RUN_FILE_PATH") {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {path}, which DRY_RUN_FILE_PATH names")),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}
