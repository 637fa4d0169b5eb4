//! `pilotctl`: for people.

mod clock;
mod cmd;
mod files;
mod yaml;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Asks a running Pilot, and looks at files before a server reads them.
#[derive(Parser)]
#[command(name = "pilotctl", version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    Validate(cmd::validate::Args),
    Install(cmd::install::Args),
    Confirm(cmd::confirm::Args),
    Issues(cmd::issues::Args),
    Registry(cmd::registry::Args),
    Top(cmd::top::Args),
    Version(cmd::version::Args),
    Wait(cmd::wait::Args),
}

/// A page of a running server.
fn page(address: &str, path: &str) -> anyhow::Result<String> {
    match pilot_cli::request(address, "GET", path, "")? {
        (200, body) => Ok(body),
        (status, _) => anyhow::bail!("{address}{path} answered with status {status}"),
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Cmd::Install(args) => cmd::install::run(&args),
        Cmd::Validate(args) => cmd::validate::run(&args),
        Cmd::Confirm(args) => cmd::confirm::run(&args),
        Cmd::Issues(args) => cmd::issues::run(&args),
        Cmd::Registry(args) => cmd::registry::run(&args),
        Cmd::Top(args) => cmd::top::run(&args),
        Cmd::Version(args) => cmd::version::run(&args),
        Cmd::Wait(args) => cmd::wait::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(2)
        }
    }
}
