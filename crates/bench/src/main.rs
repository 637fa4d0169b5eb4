//! `pilot-bench`: what ADS servers cost.

mod args;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser as _;
use pilot_bench::{Candidate, Lines, Load, Measure, Mesh, Plan, Programs, Shape};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Cli, Cmd, GrowthArgs, LoadArgs, RunArgs, ServerArgs, SoakArgs, TableArgs};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let result = runtime.block_on(async {
        tokio::select! {
            result = run(cli.command) => result,
            // Leaving in this way ends the servers too.
            told = told_to_end() => Err(told.err().unwrap_or_else(|| anyhow::anyhow!("interrupted"))),
        }
    });
    match result {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

async fn told_to_end() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => Ok(told?),
        _ = terminate.recv() => Ok(()),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("Error: {error:#}");
    ExitCode::from(2)
}

async fn run(command: Cmd) -> anyhow::Result<ExitCode> {
    match command {
        Cmd::Run(args) => compare(&args).await,
        Cmd::Growth(args) => growth(&args).await,
        Cmd::Load(args) => load(args).await,
        Cmd::Soak(args) => soak(&args).await,
        Cmd::Table(args) => table(&args),
        Cmd::Generate(args) => {
            let mesh = Mesh::new(&Shape::read(&args.shape)?);
            std::fs::create_dir_all(&args.to).with_context(|| args.to.display().to_string())?;
            for (name, text) in mesh.files() {
                std::fs::write(args.to.join(&name), text).with_context(|| name.clone())?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Floor(args) => {
            pilot_bench::serve_floor(args.address, &args.recording, &args.follow).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn compare(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (programs, lines) = (programs(&args.servers)?, Lines(args.servers.out.clone()));
    let mut measures = Vec::new();
    for path in &args.shapes {
        let mut shape = Shape::read(path)?;
        if let Some(phases) = &args.phases {
            shape.phases.clone_from(phases);
        }
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        measures.extend(pilot_bench::compare(&name, &shape, &programs, &args.servers.only, &lines).await?);
    }
    println!("{}", pilot_bench::render_table(&measures));
    Ok(verdict(&measures))
}

async fn growth(args: &GrowthArgs) -> anyhow::Result<ExitCode> {
    let (programs, lines) = (programs(&args.servers)?, Lines(args.servers.out.clone()));
    let base = Shape { protocol: args.protocol, repeats: args.repeats, ..Shape::default() };
    let sizes = [args.services.as_slice(), &args.proxies];
    let (measures, curves) =
        pilot_bench::measure_growth(&base, sizes, &programs, &args.servers.only, &lines).await?;
    println!("{}", pilot_bench::render_growth(&curves));
    if let Some(path) = &args.plot {
        std::fs::write(path, pilot_bench::render_plot(&curves))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(verdict(&measures))
}

async fn load(args: LoadArgs) -> anyhow::Result<ExitCode> {
    let shape = args.shape.as_deref().map(Shape::read).transpose()?.unwrap_or_default();
    let shape = Shape { proxies: args.proxies, protocol: args.protocol, phases: args.phases, ..shape };
    let load = Load { address: args.address, shape, record: args.record };
    let measures = pilot_bench::load(&load, &Lines(args.out)).await?;
    println!("{}", pilot_bench::render_table(&measures));
    Ok(verdict(&measures))
}

async fn soak(args: &SoakArgs) -> anyhow::Result<ExitCode> {
    let shape = Shape {
        services: args.services,
        proxies: args.proxies,
        scope: args.scope,
        seed: args.seed,
        ..Shape::default()
    };
    let duration = Duration::try_from_secs_f64(args.minutes * 60.0).context("--minutes")?;
    let plan = Plan { shape, duration, rate: args.rate, turns: args.turns };
    let command = words(args.pilot.as_deref())?;
    let scratch = tempfile::tempdir().context("a folder for scratch; is the disk full?")?;
    let candidate = Candidate::Program { name: "pilot".to_owned(), command };
    let verdict = pilot_bench::soak(&plan, &candidate, scratch.path()).await?;
    let [before, peak, after] = verdict.memory.map(|bytes| bytes / 1_048_576);
    println!("{} changes, {} streams that came back", verdict.changes, verdict.returns);
    println!(
        "memory of the server: {before} MB before, {peak} MB at most, {after} MB after all was put back"
    );
    if let Some([before, after]) = verdict.live.map(|live| live.map(|bytes| bytes / 1_048_576.0)) {
        println!("allocated by the server: {before:.1} MB before, {after:.1} MB after all was put back");
    }
    for difference in &verdict.differences {
        println!("DIFFERS {difference}");
    }
    if verdict.leaks() {
        println!("LEAKS: more is allocated for the same mesh");
    }
    if verdict.differences.is_empty() {
        println!("every proxy has what a fresh server sends");
    }
    let is_well = verdict.differences.is_empty() && !verdict.leaks();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(args: &TableArgs) -> anyhow::Result<ExitCode> {
    let mut measures = Vec::new();
    for path in &args.files {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| file.clone())?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let measure: Measure =
                serde_json::from_str(line).with_context(|| format!("{file}:{}", number + 1))?;
            measures.push(measure);
        }
    }
    println!("{}", pilot_bench::render_table(&measures));
    Ok(ExitCode::SUCCESS)
}

fn verdict(measures: &[Measure]) -> ExitCode {
    if measures.iter().all(|measure| measure.missing == 0) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn programs(args: &ServerArgs) -> anyhow::Result<Programs> {
    let split = |command: &String| command.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let istiod = args.istiod.as_ref().map(split).filter(|words| !words.is_empty());
    Ok(Programs { pilot: words(args.pilot.as_deref())?, istiod, bench: this_program()? })
}

/// The words of our server's command.
fn words(command: Option<&str>) -> anyhow::Result<Vec<String>> {
    if let Some(command) = command {
        let words: Vec<String> = command.split_ascii_whitespace().map(str::to_owned).collect();
        ensure!(!words.is_empty(), "--pilot is empty; leave it out for the server beside this program");
        return Ok(words);
    }
    let path = this_program()?.with_file_name("pilot-discovery");
    ensure!(
        Path::new(&path).exists(),
        "{} is not built: run `make build`, or say --pilot COMMAND",
        path.display()
    );
    Ok(vec![path.display().to_string()])
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this program cannot find itself")
}
