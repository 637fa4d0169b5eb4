//! `pilotctl`: for people.

mod cmd;
mod http;

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
    Issues(cmd::issues::Args),
    Version(cmd::version::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Cmd::Validate(args) => cmd::validate::run(&args),
        Cmd::Issues(args) => cmd::issues::run(&args),
        Cmd::Version(args) => cmd::version::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(2)
        }
    }
}
