//! `pilot-discovery`: the server that reads services and rules and tells proxies what to do.

mod args;
mod cmd;
mod features;
mod heap;
mod identity;
mod kube_metrics;
mod no_effect;
mod registries;
mod sources;
mod writers;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use pilot_cli::{Lenience, without_unknown};

use crate::args::{Cli, Cmd};

// Measured beside the system's allocator and mimalloc: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // A chart may be newer or older than this binary.
    let lenience = Lenience { subcommand: "discovery", words: &[] };
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let (words, unknown) = without_unknown(Cli::command(), &lenience, words);
    let result = match Cli::try_parse_from(words) {
        Ok(cli) => run(cli, &unknown),
        // Also the way in which help is printed, so it decides the status.
        Err(error) => error.exit(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, unknown: &[String]) -> anyhow::Result<()> {
    match cli.command {
        Cmd::Discovery(args) => {
            cli.log.init()?;
            for flag in unknown {
                let known = no_effect::FLAGS.iter().find(|(name, _)| flag.strip_prefix("--") == Some(name));
                match known {
                    Some((_, why)) => tracing::info!("{flag} has no effect here: {why}"),
                    None => tracing::warn!("unknown flag {flag} has no effect"),
                }
            }
            cmd::discovery::run(*args)
        }
        Cmd::Request(args) => cmd::request::run(&args),
        Cmd::Version(args) => cmd::version::run(&args),
    }
}
