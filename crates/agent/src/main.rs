//! The `pilot-agent` program.

use std::process::ExitCode;

use pilot_agent::args::{self, Args};
use pilot_cli::Env;

fn main() -> ExitCode {
    let (arguments, unknown) = match Args::parse_from(args::words()) {
        Ok(parsed) => parsed,
        // Also the way in which help is printed, so it decides the status.
        Err(error) => error.exit(),
    };
    match pilot_agent::main(arguments, &unknown, Env::of_process()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
