//! `simulate --seeds N [--from S]` runs seeds; `simulate --trace S` tells what happens under one.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str| {
        let at = args.iter().position(|a| a == flag)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(seed) = number("--trace") {
        pilot_sim::protocol_trace(seed).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let (seeds, from) = (number("--seeds").unwrap_or(1000), number("--from").unwrap_or(0));
    let protocol = run("the protocol", pilot_sim::protocol_run, from, seeds);
    let plane = run("the plane", pilot_sim::plane_run, from, seeds);
    let large =
        run("the plane with a thousand services", pilot_sim::large_plane_run, from, seeds / 1_000 + 1);
    if protocol + plane + large == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many seeds found something.
fn run(what: &str, one: impl Fn(u64) -> Vec<String>, from: u64, seeds: u64) -> u64 {
    let mut bad = 0;
    for seed in from..from + seeds {
        let findings = one(seed);
        bad += u64::from(!findings.is_empty());
        findings.iter().for_each(|finding| println!("{finding}"));
    }
    println!("{seeds} seeds of {what}, {bad} with findings");
    bad
}
