//! `pilot-discovery`: the server that reads services and rules and tells proxies what to do.

mod args;
mod cmd;
mod features;
mod sources;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Cmd};

// Measured beside the system's allocator and jemalloc: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = Cli::command();
    let known = pilot_cli::keep_known(&command, std::env::args());
    let matches = command.get_matches_from(known.argv);
    let result = match Cli::from_arg_matches(&matches) {
        Ok(cli) => run(cli, &known.unknown),
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
            args.log.log().map_err(anyhow::Error::msg)?.start();
            for flag in unknown {
                tracing::warn!("unknown flag {flag} has no effect");
            }
            cmd::discovery::run(*args)
        }
        Cmd::Request(args) => cmd::request::run(&args),
        Cmd::Version(args) => cmd::version::run(&args),
    }
}
